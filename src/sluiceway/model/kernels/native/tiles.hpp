// Products in AMX tiles: 32 rows by 32 outputs in four tiles of sums, 64 bytes of inputs at a time.
//
// Few rows are computed as a whole tile all the same: the weights come from memory, and that takes longer. So a row's
// sums are taken in one order whatever its company is.
#pragma once

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

namespace {

struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Each thread that computes in tiles enters and leaves this once a step.
class TileScope {
public:
    TileScope() {
        const TileShapes shapes;
        _tile_loadconfig(&shapes);
    }
    ~TileScope() { _tile_release(); }
    TileScope(const TileScope&) = delete;
    TileScope& operator=(const TileScope&) = delete;
};

// Weights come once from memory, and tiles are loaded too late to hide that: so they are called for ahead.
inline void prefetch_weights(const uint8_t* at) {
    constexpr int kAhead = 4096, kBytesOfStep = 2048;
    for (int i = 0; i < kBytesOfStep; i += 64) _mm_prefetch(reinterpret_cast<const char*>(at + kAhead + i), _MM_HINT_T0);
}

template <bool is_int8>
inline void multiply_whole_tile(const uint8_t* a, int64_t a_stride, const uint8_t* weights, int n_steps, void* sums) {
    uint8_t* c = static_cast<uint8_t*>(sums);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const uint8_t* below = a + 16 * a_stride;
    for (int step = 0; step < n_steps; step += 16) {
        const uint8_t* b = weights + step * 128;
        prefetch_weights(b);
        _tile_loadd(4, a + 4 * step, a_stride);
        _tile_loadd(6, b, 128);
        _tile_loadd(5, below + 4 * step, a_stride);
        _tile_loadd(7, b + 64, 128);
        if constexpr (is_int8) {
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
            _tile_dpbusd(2, 5, 6);
            _tile_dpbusd(3, 5, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, c, 128);
    _tile_stored(1, c + 64, 128);
    _tile_stored(2, c + 16 * 128, 128);
    _tile_stored(3, c + 16 * 128 + 64, 128);
}

template <bool is_int8>
inline void multiply_half_tile(const uint8_t* a, int64_t a_stride, const uint8_t* weights, int n_steps, void* sums) {
    uint8_t* c = static_cast<uint8_t*>(sums);
    _tile_zero(0);
    _tile_zero(1);
    for (int step = 0; step < n_steps; step += 16) {
        const uint8_t* b = weights + step * 128;
        prefetch_weights(b);
        _tile_loadd(4, a + 4 * step, a_stride);
        _tile_loadd(6, b, 128);
        _tile_loadd(7, b + 64, 128);
        if constexpr (is_int8) {
            _tile_dpbusd(0, 4, 6);
            _tile_dpbusd(1, 4, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
    }
    _tile_stored(0, c, 128);
    _tile_stored(1, c + 64, 128);
}

template <bool is_int8, class Number>
inline void multiply_in_tiles(const uint8_t* a, int64_t a_stride, const uint8_t* weights, int n_steps, int n_rows,
                              Number (*c)[32]) {
    if (n_rows > 16)
        multiply_whole_tile<is_int8>(a, a_stride, weights, n_steps, c[0]);
    else
        multiply_half_tile<is_int8>(a, a_stride, weights, n_steps, c[0]);
}

// Attention has tiles of other shapes: sums, queries, keys as above, but weights of 16 keys, and 8 pairs of values.
// Rows of a tile that no query has are computed from what lies there, and never looked at.
class AttentionTiles {
public:
    AttentionTiles() {
        TileShapes shapes;
        shapes.row_bytes[3] = 32;
        shapes.rows[4] = 8;
        _tile_loadconfig(&shapes);
    }
    ~AttentionTiles() {
        const TileShapes shapes;
        _tile_loadconfig(&shapes);
    }
    AttentionTiles(const AttentionTiles&) = delete;
    AttentionTiles& operator=(const AttentionTiles&) = delete;
};

// 16 queries with the 16 keys of a block.
inline void score_in_tiles(const uint16_t* queries, const uint16_t* keys, int width, float* scores, int64_t stride) {
    _tile_zero(0);
    for (int i = 0; i < width; i += 32) {
        _tile_loadd(1, queries + i, width * 2);
        _tile_loadd(2, keys + i * 16, 64);
        _tile_dpbf16ps(0, 1, 2);
    }
    _tile_stored(0, scores, stride);
}

// Adds 16 columns of the values of some blocks, weighted, to the sums of 16 queries.
inline void add_in_tiles(const uint16_t* weights, int64_t weights_stride, const uint16_t* const* values, int at,
                         int n_blocks, float* sums, int64_t sums_stride) {
    _tile_loadd(0, sums, sums_stride);
    for (int i = 0; i < n_blocks; i++) {
        _tile_loadd(3, weights + i * 16, weights_stride);
        _tile_loadd(4, values[i] + at, 64);
        _tile_dpbf16ps(0, 3, 4);
    }
    _tile_stored(0, sums, sums_stride);
}

}  // namespace
