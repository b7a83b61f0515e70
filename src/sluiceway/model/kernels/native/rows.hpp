// Operations on single rows between the products: norms, rotary positions, the embedding.
#pragma once

#include <math.h>

#include "abi.h"
#include "product.hpp"

namespace {

constexpr int kBlockTokens = 16;
constexpr int kMaxHeadDim = 256;

inline int padded_head_dim(const Model& model) { return int(round_up(model.head_dim, 32)); }

// x / rms(x) * weight. `out` may be `x`.
inline void norm_row(const float* x, const float* weight, float eps, int n, float* out) {
    f32x16 squares{};
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) squares += load<f32x16>(x + i) * load<f32x16>(x + i);
    if (i < n) squares += load_part(x + i, n - i) * load_part(x + i, n - i);
    const float scale = 1.0f / sqrtf(sum(squares) / float(n) + eps);
    for (i = 0; i + kLanes <= n; i += kLanes) store(out + i, load<f32x16>(x + i) * scale * load<f32x16>(weight + i));
    for (; i < n; i++) out[i] = x[i] * scale * weight[i];
}

inline void swiglu_row(const float* gate, const float* up, int n, float* out) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) store(out + i, swiglu(load<f32x16>(gate + i), load<f32x16>(up + i)));
    if (i < n) {
        const f32x16 rest = swiglu(load_part(gate + i, n - i), load_part(up + i, n - i));
        memcpy(out + i, &rest, size_t(n - i) * sizeof(float));
    }
}

inline void embed(const Model& model, int32_t token_id, float* x) {
    const int n = model.hidden_size;
    if (model.embedding) {
        const uint16_t* row = model.embedding + int64_t(token_id) * n;
        for (int i = 0; i < n; i++) x[i] = widen(row[i]);
        return;
    }
    const int64_t panel_words = padded_bytes(model.head) / 4 * kPanel;
    const uint8_t* words = model.head.panels + 4 * (token_id / kPanel * panel_words + token_id % kPanel);
    for (int i = 0; i < n; i++) {
        uint16_t number;
        memcpy(&number, words + i / 2 * 4 * kPanel + i % 2 * 2, sizeof number);
        x[i] = widen(number);
    }
}

inline void fill_angles(const Model& model, int32_t position, float* cosines, float* sines) {
    for (int i = 0; i < model.head_dim / 2; i++) {
        const float angle = float(position) * model.frequencies[i];
        cosines[i] = cosf(angle) * model.magnitude;
        sines[i] = sinf(angle) * model.magnitude;
    }
}

// Normalises one head if the model does that, and rotates it by its angles (halves, not pairs).
inline void rotate_head(const Model& model, const float* x, const float* weight, const float* cosines,
                        const float* sines, uint16_t* out) {
    const int n = model.head_dim, half = n / 2;
    float normed[kMaxHeadDim];
    if (weight) {
        norm_row(x, weight, model.eps, n, normed);
        x = normed;
    }
    for (int i = 0; i < half; i++) {
        out[i] = narrow(x[i] * cosines[i] - x[i + half] * sines[i]);
        out[i + half] = narrow(x[i + half] * cosines[i] + x[i] * sines[i]);
    }
}

struct Place {
    int64_t head_block;  // which run of 16 tokens of one head
    int slot;
};

inline void write_key(const Model& model, uint16_t* keys, Place place, const uint16_t* from) {
    uint16_t* block = keys + place.head_block * kBlockTokens * padded_head_dim(model);
    for (int i = 0; i < model.head_dim; i += 2)
        memcpy(block + i * kBlockTokens + 2 * place.slot, from + i, 2 * sizeof *from);
}

// The steps of a key go to different cache lines. They are prefetched before the rotation.
inline void prefetch_block(const Model& model, const uint16_t* keys, const uint16_t* values, int block) {
    const int64_t n = int64_t(model.n_kv_heads) * kBlockTokens * padded_head_dim(model);
    for (int64_t at = block * n; at < (block + 1) * n; at += 2 * kLanes) {
        __builtin_prefetch(keys + at, 0, 2);
        __builtin_prefetch(values + at, 0, 2);
    }
}

inline int64_t value_at(int dimension, int slot) {
    return int64_t(dimension / kLanes) * kBlockTokens * kLanes + slot / 2 * 2 * kLanes + dimension % kLanes * 2 +
           slot % 2;
}

inline void write_value(const Model& model, uint16_t* values, Place place, const float* from) {
    uint16_t* block = values + place.head_block * kBlockTokens * padded_head_dim(model);
    for (int i = 0; i < model.head_dim; i++) block[value_at(i, place.slot)] = narrow(from[i]);
}

// Clears what an earlier owner left after the last token of a block: attention multiplies it by zero, but NaN times zero
// is NaN.
inline void clear_values_after(const Model& model, uint16_t* values, Place place) {
    constexpr int kPair = 2 * kLanes, kPairs = kBlockTokens / 2;
    uint16_t* block = values + place.head_block * kBlockTokens * padded_head_dim(model);
    const int pair = place.slot / 2;
    for (int column = 0; column < padded_head_dim(model) / kLanes; column++, block += kPairs * kPair) {
        if (place.slot % 2 == 0)
            for (int i = 1; i < kPair; i += 2) block[pair * kPair + i] = 0;
        memset(block + (pair + 1) * kPair, 0, size_t(kPairs - pair - 1) * kPair * sizeof *block);
    }
}

}  // namespace
