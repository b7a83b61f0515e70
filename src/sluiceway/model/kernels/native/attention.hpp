// Attention over the paged cache, for rows that decode and for rows that prefill: the same code in the same order.
//
// The queries that share a key head, of consecutive tokens of a row, form tiles of up to 48. A tile goes through the
// keys 64 at a time, from the first on, with the running maximum and sum of an online softmax
// (https://arxiv.org/abs/1805.02867). What a query gets is a function of its own position: keys behind it are masked,
// which leaves its sums as they are, bit by bit. So it depends neither on the tile, nor on the chunk, nor on others.
#pragma once

#include "dot.hpp"
#include "rows.hpp"

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
    const uint16_t* queries;   // bf16 (n_kv_heads, tokens, group, padded head_dim)
    float* out;                // (tokens, n_heads * head_dim)
    int32_t n_tokens;
};

struct alignas(64) TileState {
    float scores[kTileQueries][kTileKeys];
    uint16_t weights[kTileQueries][kTileKeys];
    float top[kTileQueries];
    float total[kTileQueries];
    int width;                 // padded head_dim
    float sums[kTileQueries * kMaxHeadDim];

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

// Scores of one query with the keys from `first_key` on become weights; its sums so far are scaled to the new maximum.
inline void soften(TileState& state, int query, int first_key, int n_blocks, int position, int window, float scale) {
    f32x16 scores[kTileBlocks];
    f32x16 top = broadcast(kNegativeInfinity);
    for (int i = 0; i < n_blocks; i++) {
        const i32x16 keys = lane_numbers() + (first_key + i * kLanes);
        i32x16 is_seen = keys <= position;
        if (window) is_seen &= keys > position - window;
        scores[i] = is_seen ? load<f32x16>(&state.scores[query][i * kLanes]) * scale : broadcast(kNegativeInfinity);
        top = larger(top, scores[i]);
    }
    const float before = state.top[query], now = largest(top) > before ? largest(top) : before;
    if (now == kNegativeInfinity) {
        memset(state.weights[query], 0, sizeof state.weights[query]);
        return;
    }
    f32x16 total{};
    for (int i = 0; i < n_blocks; i++) {
        const u16x16 weights = narrow(exponential(scores[i] - now));
        store(&state.weights[query][i * kLanes], weights);
        total += widen(weights);
    }
    if (now != before) {
        const float factor = exponential(broadcast(before - now))[0];
        state.top[query] = now;
        state.total[query] *= factor;
        float* sums = state.sums_of(query);
        for (int i = 0; i < state.width; i += kLanes) store(sums + i, load<f32x16>(sums + i) * factor);
    }
    state.total[query] += sum(total);
}

#if defined(__AMX_BF16__)

inline void score(TileState& state, int n, const uint16_t* queries, const uint16_t* const* keys, int n_blocks) {
    for (int q = 0; q < n; q += 16)
        for (int i = 0; i < n_blocks; i++)
            score_in_tiles(queries + q * state.width, keys[i], state.width, &state.scores[q][i * kLanes],
                           sizeof state.scores[0]);
}

inline void add_values(TileState& state, int n, const uint16_t* const* values, int n_blocks) {
    for (int q = 0; q < n; q += 16)
        for (int column = 0; column < state.width; column += kLanes)
            add_in_tiles(state.weights[q], sizeof state.weights[0], values, column * kBlockTokens, n_blocks,
                         state.sums_of(q) + column, state.width * int(sizeof(float)));
}

#else

// Scores of n queries with the keys of some blocks.
inline void score(TileState& state, int n, const uint16_t* queries, const uint16_t* const* keys, int n_blocks) {
    const uint8_t* rows = reinterpret_cast<const uint8_t*>(queries);
    const int stride = state.width * 2, n_steps = state.width / 2;
    float* scores = state.scores[0];
    const uint8_t* columns[kTileBlocks];
    for (int i = 0; i < n_blocks; i++) columns[i] = reinterpret_cast<const uint8_t*>(keys[i]);
    if (n_blocks == kTileBlocks)
        return dot_rows<Bf16, kRowsOfFour, kTileBlocks>(n, rows, stride, columns, 4 * kLanes, n_steps, scores, kTileKeys);
    for (int i = 0; i < n_blocks; i++)
        dot_rows<Bf16, kRowsOfFour, 1>(n, rows, stride, columns + i, 4 * kLanes, n_steps, scores + i * kLanes, kTileKeys);
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

// The blocks of keys and values that one stretch of kTileKeys keys lies in.
struct Stretch {
    int n_blocks;
    int64_t places[kTileBlocks];

    Stretch(const AttentionInput& in, const int32_t* blocks, int kv_head, int key, int last_position) {
        const int left = (last_position - key) / kBlockTokens + 1;
        n_blocks = left < kTileBlocks ? left : kTileBlocks;
        for (int i = 0; i < n_blocks; i++)
            places[i] = (int64_t(blocks[key / kBlockTokens + i]) * in.model.n_kv_heads + kv_head) * kBlockTokens *
                        padded_head_dim(in.model);
    }
};

inline void write_outputs(const AttentionInput& in, TileState& state, const QueryTile& tile, int kv_head) {
    const int group = group_size(in.model), n = in.model.head_dim;
    for (int q = 0; q < tile.n; q++) {
        const int64_t token = in.rows.first[tile.row] + (tile.begin + q) / group;
        const int head = kv_head * group + (tile.begin + q) % group;
        float* out = in.out + (token * in.model.n_heads + head) * n;
        const float* sums = state.sums_of(q);
        for (int i = 0; i < n; i++) out[i] = sums[i] / state.total[q];
    }
}

inline void attend_tile(const AttentionInput& in, const QueryTile& tile, int kv_head) {
    const Model& model = in.model;
    const int group = group_size(model), width = padded_head_dim(model);
    const int start = in.rows.start[tile.row];
    const int first_position = start + tile.begin / group, last_position = start + (tile.begin + tile.n - 1) / group;
    const int32_t* blocks = in.rows.blocks + in.rows.first_block[tile.row];
    const int64_t token = in.rows.first[tile.row];
    const uint16_t* queries = in.queries + ((kv_head * int64_t(in.n_tokens) + token) * group + tile.begin) * width;
    const float scale = 1.0f / sqrtf(float(model.head_dim));
    const int seen_from = model.window && first_position >= model.window ? first_position - model.window + 1 : 0;

#if defined(__AMX_BF16__)
    const AttentionTiles tiles;
#endif
    TileState state;
    state.width = width;
    memset(state.sums, 0, size_t(tile.n) * width * sizeof(float));
    for (int q = 0; q < tile.n; q++) {
        state.top[q] = kNegativeInfinity;
        state.total[q] = 0;
    }
    for (int key = seen_from / kTileKeys * kTileKeys; key <= last_position; key += kTileKeys) {
        const Stretch here(in, blocks, kv_head, key, last_position);
        const uint16_t* keys[kTileBlocks];
        const uint16_t* values[kTileBlocks];
        for (int i = 0; i < here.n_blocks; i++) {
            keys[i] = in.keys + here.places[i];
            values[i] = in.values + here.places[i];
        }
        score(state, tile.n, queries, keys, here.n_blocks);
        for (int q = 0; q < tile.n; q++)
            soften(state, q, key, here.n_blocks, start + (tile.begin + q) / group, model.window, scale);
        add_values(state, tile.n, values, here.n_blocks);
    }
    write_outputs(in, state, tile, kv_head);
}

}  // namespace
