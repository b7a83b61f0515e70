// What Python and the kernels share: plain structs and functions, mirrored by `binding.py`.
//
// bf16 numbers are uint16_t. A *step* is four bytes along the inputs of a product: two bf16 or four int8 numbers.
// A *panel* is 32 outputs of a weight: for each step, 32 words of four bytes, one for each output. Inputs are padded
// with zeros to whole lines of 64 bytes (16 steps), outputs to whole panels.
#pragma once

#include <stdint.h>

constexpr int32_t kNoToken = -1;  // no logit is above minus infinity, which NaN counts as

extern "C" {

struct Product {
    const uint8_t* panels;
    const float* scales;         // int8: one for each output, of its weights; null for bf16
    const int16_t* weight_sums;  // int8: (panels, lines of 64 inputs, 32), for sets that store activations plus 128
    const float* bias;           // one for each output, or null
    int32_t n_outputs;           // whole panels
    int32_t n_inputs;            // as they are, not padded
    int32_t is_int8;
};

struct Layer {
    const float* attention_norm;
    Product qkv;
    const float* q_norm;  // (head_dim), or null
    const float* k_norm;
    Product out;
    const float* mlp_norm;
    Product gate_up;  // each panel: 16 gates, then the 16 ups that belong to them
    Product down;
};

struct Model {
    const Layer* layers;
    const float* norm;
    const uint16_t* embedding;  // bf16 (vocab_size, hidden_size); null: the rows are taken out of the head's panels
    Product head;
    const float* frequencies;  // radians per position, (head_dim / 2)
    float magnitude;           // of the rotary cosines and sines
    float eps;
    int32_t n_layers;
    int32_t hidden_size;
    int32_t intermediate_size;
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t head_dim;
    int32_t vocab_size;
    int32_t window;  // positions that a token sees, its own included; 0: all before it
};

// Keys and values of one layer after the other. For each block and key head 16 * padded_head_dim numbers: keys as
// (head_dim / 2, 16 tokens, 2), values as (head_dim / 16, 8 pairs of tokens, 16, 2). What is padded is zero.
struct Cache {
    uint16_t* keys;
    uint16_t* values;
    int64_t layer_elements;
};

// Rows of a step: row r has the tokens first[r] .. first[r + 1] - 1, at positions from start[r] on, and the blocks
// blocks[first_block[r]] .. blocks[first_block[r + 1] - 1].
struct Rows {
    const int32_t* first;
    const int32_t* start;
    const int32_t* first_block;
    const int32_t* blocks;
    int32_t n_rows;
};

struct Step {
    Rows rows;
    Cache cache;
    const int32_t* token_ids;
    const int32_t* sampled;  // the tokens whose logits are computed
    const int32_t* places;   // (n_sampled): the row of `logits` for each of them; -1: only its largest is wanted
    float* logits;           // (as many as have a place, vocab_size)
    int32_t* largest;        // (n_sampled): the first of the largest logits, or kNoToken
    int32_t n_sampled;
};

struct SamplingRow {
    const float* logits;  // (vocab_size)
    double uniform;
    double top_p;
    float temperature;
    float min_p;
    int32_t top_k;  // 0: off
};

struct LogprobsRow {
    const float* logits;  // (vocab_size)
    float* logprobs;      // (1 + n_top): of the token, then of the likeliest in falling order
    int32_t* top_ids;     // (n_top): of equal ones the lowest first
    int32_t token;
    int32_t n_top;  // at most vocab_size
};

typedef void (*Work)(void*);
// libgomp's GOMP_parallel: runs the work once on each of so many threads.
typedef void (*Parallel)(Work work, void* data, unsigned n_threads, unsigned flags);

struct Pool {
    Parallel parallel;  // null: the calling thread alone
    int32_t n_threads;
};

// What a pass needs between its products, kept from step to step: as large as the largest step so far.
struct Workspace;

// One set of kernels, compiled for one instruction set.
struct Kernels {
    const char* name;
    Workspace* (*open)();  // null where memory ran out
    void (*close)(Workspace*);
    // The next five return 0, or -1 where memory ran out.
    int (*forward)(Workspace*, const Model*, const Step*, Pool);
    int (*multiply)(const Product*, const float* x, int32_t n_rows, float* out, Pool);
    int (*attend)(const Model*, const Cache*, const Rows*, const float* qkv, float* out, Pool);
    int (*sample)(const SamplingRow* rows, int32_t n_rows, int32_t vocab_size, int32_t* tokens, Pool);
    int (*logprobs)(const LogprobsRow* rows, int32_t n_rows, int32_t vocab_size, Pool);
    void (*norm)(const float* x, const float* weight, float eps, int32_t n, float* out);
    void (*swiglu)(const float* gate, const float* up, int32_t n, float* out);
};
}
