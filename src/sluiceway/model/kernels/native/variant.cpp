// All kernels of one set. This file is compiled once for each instruction set, with its flags and its name.
//
// Everything but the table below is in unnamed namespaces, so that the linker never mixes the functions of two sets.
#include <new>

#include "forward.hpp"
#include "logprobs.hpp"
#include "sampling.hpp"

#ifndef SLUICEWAY_VARIANT
#error "SLUICEWAY_VARIANT names the table"
#endif

#define QUOTED(name) QUOTED_TWICE(name)
#define QUOTED_TWICE(name) #name

namespace {

Workspace* open() { return reinterpret_cast<Workspace*>(new (std::nothrow) Buffers); }

void close(Workspace* workspace) { delete reinterpret_cast<Buffers*>(workspace); }

int forward(Workspace* workspace, const Model* model, const Step* step, Pool pool) {
    Buffers& work = *reinterpret_cast<Buffers*>(workspace);
    const int n_threads = pool.parallel ? pool.n_threads : 1;
    Forward pass(work, *model, *step, n_threads);
    if (!pass.reserve()) return -1;
    run_team(pool, work.stages.as<Stage>(), [&](Member& member) {
        ThreadScope scope;
        pass.run(member);
    });
    return 0;
}

int multiply_rows(const Product* product, const float* x, int32_t n_rows, float* out, Pool pool) {
    const int64_t stride = padded_bytes(*product);
    Buffer packed, scales, stages;
    if (!(packed.reserve(activation_bytes(n_rows, stride)) && scales.reserve(4 * scale_count(n_rows, stride)) &&
          stages.reserve(2 * sizeof(Stage))))
        return -1;
    const Activations a{packed.as<uint8_t>(), scales.as<float>(), stride};
    run_team(pool, stages.as<Stage>(), [&](Member& member) {
        ThreadScope scope;
        member.run_ranges(n_rows, [&](int begin, int end) {
            for (int r = begin; r < end; r++) pack_row(*product, x + int64_t(r) * product->n_inputs, a, r);
        });
        multiply(member, *product, a, n_rows, [&](int panel, int first, int n, float (*sums)[kPanel]) {
            for (int m = 0; m < n; m++)
                memcpy(out + int64_t(first + m) * product->n_outputs + panel * kPanel, sums[m], sizeof sums[m]);
        });
    });
    return 0;
}

int attend_rows(const Model* model, const Cache* cache, const Rows* rows, const float* queries, float* out, Pool pool) {
    const int32_t n_tokens = rows->first[rows->n_rows];
    const int group = group_size(*model), width = padded_head_dim(*model), n = model->head_dim;
    const int64_t n_tiles = tile_count(*model, *rows);
    Buffer narrowed, tiles, stages;
    if (!(narrowed.reserve(2 * (int64_t(n_tokens) * model->n_heads + kLanes) * width) &&
          tiles.reserve(n_tiles * int64_t(sizeof(QueryTile))) && stages.reserve(sizeof(Stage))))
        return -1;
    for (int64_t t = 0; t < n_tokens; t++)
        for (int head = 0; head < model->n_heads; head++)
            for (int i = 0; i < n; i++)
                narrowed.as<uint16_t>()[((head / group * int64_t(n_tokens) + t) * group + head % group) * width + i] =
                    narrow(queries[(t * model->n_heads + head) * n + i]);
    fill_tiles(*model, *rows, tiles.as<QueryTile>());
    const AttentionInput in{
        *model,   *rows,       cache->keys, cache->values, narrowed.as<uint16_t>(), out, tiles.as<QueryTile>(),
        n_tokens, int(n_tiles)};
    run_team(pool, stages.as<Stage>(), [&](Member& member) {
        ThreadScope scope;
        attend(member, in);
    });
    return 0;
}

int sample_tokens(const SamplingRow* rows, int32_t n_rows, int32_t vocab_size, int32_t* tokens, Pool pool) {
    // Each thread gets whole lines of 64 bytes, so that no two threads share one.
    const int64_t n = round_up(scratch_floats(vocab_size), kLanes), n_threads = pool.parallel ? pool.n_threads : 1;
    Buffer scratch, stages;
    if (!(scratch.reserve(n_threads * n * int64_t(sizeof(float))) && stages.reserve(sizeof(Stage)))) return -1;
    int32_t n_entered = 0;
    run_team(pool, stages.as<Stage>(), [&](Member& member) {
        float* own = scratch.as<float>() + __atomic_fetch_add(&n_entered, 1, __ATOMIC_RELAXED) * n;
        member.run(n_rows, [&](int index) { tokens[index] = sample_token(rows[index], vocab_size, own); });
    });
    return 0;
}

int compute_logprobs(const LogprobsRow* rows, int32_t n_rows, int32_t vocab_size, Pool pool) {
    const int64_t n = round_up(bound_count(vocab_size), kLanes), n_threads = pool.parallel ? pool.n_threads : 1;
    Buffer bounds, stages;
    if (!(bounds.reserve(n_threads * n * int64_t(sizeof(float))) && stages.reserve(sizeof(Stage)))) return -1;
    int32_t n_entered = 0;
    run_team(pool, stages.as<Stage>(), [&](Member& member) {
        float* own = bounds.as<float>() + __atomic_fetch_add(&n_entered, 1, __ATOMIC_RELAXED) * n;
        member.run(n_rows, [&](int index) { token_logprobs(rows[index], vocab_size, own); });
    });
    return 0;
}

void norm(const float* x, const float* weight, float eps, int32_t n, float* out) { norm_row(x, weight, eps, n, out); }

void gate(const float* gates, const float* ups, int32_t n, float* out) { swiglu_row(gates, ups, n, out); }

}  // namespace

extern const Kernels SLUICEWAY_VARIANT;
const Kernels SLUICEWAY_VARIANT = {
    QUOTED(SLUICEWAY_VARIANT), open, close, forward, multiply_rows, attend_rows, sample_tokens,
    compute_logprobs,          norm, gate};
