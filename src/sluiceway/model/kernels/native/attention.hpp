// Attention over the paged cache. Rows that decode and rows that prefill run the same code in the same order.
//
// Queries of consecutive tokens of a row that share a key head form tiles of up to 48. A tile reads the keys in
// stretches of 64, from the first key on, with the running maximum and sum of an online softmax
// (https://arxiv.org/abs/1805.02867). Keys after the position of a query are masked, and a masked key changes no bit of
// the sums. So the result of a query depends on its own position only: not on its tile, its chunk, or other queries.
#pragma once

#include "dot.hpp"
#include "rows.hpp"
#include "team.hpp"

namespace {

constexpr int kTileQueries = 48;
constexpr int kTileKeys = 64;
constexpr int kTileBlocks = kTileKeys / kBlockTokens;

// Queries `begin .. begin + n - 1` of a row, where query q is head q % group of token q / group.
struct QueryTile {
    int32_t row;
    int32_t begin;
    int32_t n;
};

struct AttentionInput {
    const Model& model;
    const Rows& rows;
    const uint16_t* keys;
    const uint16_t* values;
    const uint16_t* queries;  // bf16 (n_kv_heads, tokens, group, padded head_dim)
    float* out;               // (tokens, n_heads * head_dim)
    const QueryTile* tiles;
    int32_t n_tokens;
    int32_t n_tiles;
};

struct alignas(64) TileState {
    float scores[kTileQueries][kTileKeys];
    uint16_t weights[kTileQueries][kTileKeys];
    f32x16 totals[kTileQueries];
    float top[kTileQueries];  // the largest score so far, as an exponent of two
    int width;                // padded head_dim
    alignas(64) float sums[kTileQueries * kMaxHeadDim];

    float* sums_of(int query) { return sums + query * width; }
};

inline int group_size(const Model& model) { return model.n_heads / model.n_kv_heads; }

inline int64_t tile_count(const Model& model, const Rows& rows) {
    int64_t n = 0;
    for (int r = 0; r < rows.n_rows; r++)
        n += ((rows.first[r + 1] - rows.first[r]) * group_size(model) + kTileQueries - 1) / kTileQueries;
    return n;
}

inline void fill_tiles(const Model& model, const Rows& rows, QueryTile* tiles) {
    for (int r = 0; r < rows.n_rows; r++) {
        const int n = (rows.first[r + 1] - rows.first[r]) * group_size(model);
        for (int begin = 0; begin < n; begin += kTileQueries)
            *tiles++ = {r, begin, n - begin < kTileQueries ? n - begin : kTileQueries};
    }
}

// 2^x for x <= 0, with a relative error of at most 3e-6 (the result is narrowed to bf16). Below -125 it is zero.
inline f32x16 power_of_two(f32x16 x) {
    const f32x16 magic = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number, in the last bits
    const f32x16 clamped = larger(x, broadcast(-125.0f)), shifted = clamped + magic;
    const f32x16 rest = clamped - (shifted - magic);
    f32x16 result = (rest * 0.00957010f + 0.05591786f) * rest + 0.24024745f;
    result = (result * rest + 0.69312181f) * rest + 0.99999926f;
    return x < -125.0f ? f32x16{} : (f32x16)((i32x16)result + ((i32x16)shifted << 23));
}

inline u16x16 narrow_weights(f32x16 weights) {
#if defined(__AVX512BF16__)
    return (u16x16)_mm512_cvtneps_pbh((__m512)weights);
#else
    return narrow(weights);
#endif
}

// Turns the scores of one query with the keys from `first_key` on into weights, and scales its sums to the new maximum.
inline void soften(TileState& state, int query, int first_key, int position, int window, float scale) {
    const bool sees_all = first_key + kTileKeys - 1 <= position && (!window || first_key > position - window);
    f32x16 scores[kTileBlocks];
    f32x16 top = broadcast(kNegativeInfinity);
    for (int i = 0; i < kTileBlocks; i++) {
        scores[i] = load<f32x16>(&state.scores[query][i * kLanes]) * scale;
        if (!sees_all) {
            const i32x16 keys = lane_numbers() + (first_key + i * kLanes);
            i32x16 is_seen = keys <= position;
            if (window) is_seen &= keys > position - window;
            scores[i] = is_seen ? scores[i] : broadcast(kNegativeInfinity);
        }
        top = larger(top, scores[i]);
    }
    const float before = state.top[query], highest = largest(top), now = highest > before ? highest : before;
    if (now == kNegativeInfinity) {
        memset(state.weights[query], 0, sizeof state.weights[query]);
        return;
    }
    f32x16 total{};
    for (int i = 0; i < kTileBlocks; i++) {
        const u16x16 weights = narrow_weights(power_of_two(scores[i] - now));
        store(&state.weights[query][i * kLanes], weights);
        total += widen(weights);
    }
    if (now != before) {
        const f32x16 factor = power_of_two(broadcast(before - now));
        state.top[query] = now;
        state.totals[query] *= factor;
        float* sums = state.sums_of(query);
        for (int i = 0; i < state.width; i += kLanes) store(sums + i, load<f32x16>(sums + i) * factor);
    }
    state.totals[query] += total;
}

#if defined(__AMX_BF16__)

inline void score(TileState& state, int n, const uint16_t* queries, const uint16_t* const* keys, int n_blocks) {
    // Missing blocks are replaced by the first one: these scores are masked.
    const uint16_t* places[kTileBlocks];
    for (int i = 0; i < kTileBlocks; i++) places[i] = keys[i < n_blocks ? i : 0];
    for (int q = 0; q < n; q += 16)
        score_in_tiles(queries + q * state.width, places, state.width, state.scores[q], sizeof state.scores[0]);
}

inline void add_values(TileState& state, int n, const uint16_t* const* values, int n_blocks) {
    const int64_t stride = state.width * int64_t(sizeof(float)), weights_stride = sizeof state.weights[0];
    for (int q = 0; q < n; q += 16) {
        int column = 0;
        for (; column + 4 * kLanes <= state.width; column += 4 * kLanes)
            add_in_tiles<4>(state.weights[q], weights_stride, values, column, n_blocks, state.sums_of(q) + column,
                            stride);
        if (column < state.width)
            add_in_tiles<2>(state.weights[q], weights_stride, values, column, n_blocks, state.sums_of(q) + column,
                            stride);
    }
}

#else

// Computes the scores of n queries with the keys of some blocks.
inline void score(TileState& state, int n, const uint16_t* queries, const uint16_t* const* keys, int n_blocks) {
    const uint8_t* rows = reinterpret_cast<const uint8_t*>(queries);
    const int stride = state.width * 2, n_steps = state.width / 2;
    float* scores = state.scores[0];
    const uint8_t* columns[kTileBlocks];
    for (int i = 0; i < n_blocks; i++) columns[i] = reinterpret_cast<const uint8_t*>(keys[i]);
    if (n_blocks == kTileBlocks)
        return dot_rows<Bf16, kRowsOfFour, kTileBlocks>(n, rows, stride, columns, 4 * kLanes, n_steps, scores,
                                                        kTileKeys);
    for (int i = 0; i < n_blocks; i++)
        dot_rows<Bf16, kRowsOfFour, 1>(n, rows, stride, columns + i, 4 * kLanes, n_steps, scores + i * kLanes,
                                       kTileKeys);
}

// Adds the values of some blocks, weighted, to the sums of n queries.
inline void add_values(TileState& state, int n, const uint16_t* const* values, int n_blocks) {
    const int64_t panel = 2 * kBlockTokens * kLanes;
    for (int i = 0; i < n_blocks; i++) {
        const uint8_t* weights = reinterpret_cast<const uint8_t*>(&state.weights[0][i * kBlockTokens]);
        const uint8_t* at = reinterpret_cast<const uint8_t*>(values[i]);
        int column = 0;
        for (; column + 4 * kLanes <= state.width; column += 4 * kLanes, at += 4 * panel) {
            const uint8_t* panels[4] = {at, at + panel, at + 2 * panel, at + 3 * panel};
            dot_rows<Bf16, kRowsOfFour, 4>(n, weights, sizeof state.weights[0], panels, 4 * kLanes, kBlockTokens / 2,
                                           state.sums + column, state.width, true);
        }
        if (column < state.width) {
            const uint8_t* panels[2] = {at, at + panel};
            dot_rows<Bf16, kRowsOfTwo, 2>(n, weights, sizeof state.weights[0], panels, 4 * kLanes, kBlockTokens / 2,
                                          state.sums + column, state.width, true);
        }
    }
}

#endif

// The blocks that hold the keys and values of one stretch of kTileKeys keys.
struct Stretch {
    int n_blocks;
    const uint16_t* keys[kTileBlocks];
    const uint16_t* values[kTileBlocks];

    Stretch(const AttentionInput& in, int row, int kv_head, int key, int last_position) {
        const int32_t* blocks = in.rows.blocks + in.rows.first_block[row] + key / kBlockTokens;
        const int left = (last_position - key) / kBlockTokens + 1;
        n_blocks = left < kTileBlocks ? left : kTileBlocks;
        for (int i = 0; i < n_blocks; i++) {
            const int64_t place = int64_t(blocks[i]) * in.model.n_kv_heads + kv_head;
            keys[i] = in.keys + place * kBlockTokens * padded_head_dim(in.model);
            values[i] = in.values + place * kBlockTokens * padded_head_dim(in.model);
        }
    }

    void call_for(int width) const {
        for (int i = 0; i < n_blocks; i++)
            for (int at = 0; at < kBlockTokens * width; at += 2 * kLanes) {
                __builtin_prefetch(keys[i] + at, 0, 2);
                __builtin_prefetch(values[i] + at, 0, 2);
            }
    }
};

// Goes through the keys that the queries of a tile see, in stretches from the first one on.
struct Sight {
    int first_position;
    int last_position;
    int first_key;

    Sight(const AttentionInput& in, const QueryTile& tile) {
        const int group = group_size(in.model), start = in.rows.start[tile.row], window = in.model.window;
        first_position = start + tile.begin / group;
        last_position = start + (tile.begin + tile.n - 1) / group;
        first_key = window && first_position >= window ? (first_position - window + 1) / kTileKeys * kTileKeys : 0;
    }
};

inline void write_outputs(const AttentionInput& in, TileState& state, const QueryTile& tile, int kv_head) {
    const int group = group_size(in.model), n = in.model.head_dim;
    for (int q = 0; q < tile.n; q++) {
        const int64_t token = in.rows.first[tile.row] + (tile.begin + q) / group;
        const int head = kv_head * group + (tile.begin + q) % group;
        float* out = in.out + (token * in.model.n_heads + head) * n;
        const float* sums = state.sums_of(q);
        const float inverse = 1.0f / sum(state.totals[q]);
        for (int i = 0; i < n; i++) out[i] = sums[i] * inverse;
    }
}

inline int item_count(const AttentionInput& in) { return in.n_tiles * in.model.n_kv_heads; }

// Item `index` is one tile with one key head. The items that threads take next follow it by `n_threads`.
inline void attend_item(const AttentionInput& in, int index, int n_threads) {
    const Model& model = in.model;
    const QueryTile& tile = in.tiles[index / model.n_kv_heads];
    const int kv_head = index % model.n_kv_heads, group = group_size(model), width = padded_head_dim(model);
    const int64_t token = in.rows.first[tile.row];
    const uint16_t* queries = in.queries + ((kv_head * int64_t(in.n_tokens) + token) * group + tile.begin) * width;
    const float scale = 1.44269504f / sqrtf(float(model.head_dim));
    const Sight sight(in, tile);
    // With few queries, reading keys and values takes most of the time, so they are prefetched one stretch ahead.
    const bool is_short = tile.n <= kLanes;

    TileState state;
    state.width = width;
    memset(state.sums, 0, size_t(tile.n) * width * sizeof(float));
    for (int q = 0; q < tile.n; q++) {
        state.top[q] = kNegativeInfinity;
        state.totals[q] = f32x16{};
    }
    for (int key = sight.first_key; key <= sight.last_position; key += kTileKeys) {
        const Stretch here(in, tile.row, kv_head, key, sight.last_position);
        if (is_short && key + kTileKeys <= sight.last_position) {
            Stretch(in, tile.row, kv_head, key + kTileKeys, sight.last_position).call_for(width);
        } else if (is_short && index + n_threads < item_count(in)) {
            const QueryTile& next = in.tiles[(index + n_threads) / model.n_kv_heads];
            const Sight its(in, next);
            Stretch(in, next.row, (index + n_threads) % model.n_kv_heads, its.first_key, its.last_position)
                .call_for(width);
        }
        score(state, tile.n, queries, here.keys, here.n_blocks);
        for (int q = 0; q < tile.n; q++)
            soften(state, q, key, sight.first_position + (tile.begin % group + q) / group, model.window, scale);
        add_values(state, tile.n, here.values, here.n_blocks);
    }
    write_outputs(in, state, tile, kv_head);
}

inline void attend(Member& member, const AttentionInput& in) {
#if defined(__AMX_BF16__)
    const AttentionTiles tiles;
#endif
    member.run(item_count(in), [&](int index) { attend_item(in, index, member.n_threads()); });
}

}  // namespace
