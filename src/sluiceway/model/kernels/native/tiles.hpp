// Products in AMX tiles: 32 rows by 32 outputs in four tiles of sums, a line of 64 bytes of inputs at a time.
//
// Few rows are computed as a whole tile too: reading the weights from memory takes longer anyway. So the sums of a row
// are added in one order in any batch.
//
// In int8, a row becomes two rows of bytes: its numbers are scaled to 16 bits by the largest of the row, and split into a
// high and a low byte. All sums are integers, and are joined at the end. That is two products in place of one, but it
// costs no precision. And sums stay in the tiles to the end, which a scale for each group of inputs would not allow.
#pragma once

#include <immintrin.h>

#include "panels.hpp"

namespace {

constexpr int kByteRows = 2;
constexpr int kRowsOfTile = 16;
constexpr int kTile = kRowsOfTile * kLine;
constexpr int kSumRows = 16 * kTileRows;
constexpr int kBlockLines = 9;  // of a panel: 18 KB, which stay in the L1 cache while all rows use them

struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Shapes are constants, not locals: compilers do not know that more than the first bytes are read.
constexpr TileShapes kProductShapes;

// Compilers do not know either that a tile is loaded from memory, so earlier writes must be finished.
inline void settle_memory() { __asm__ volatile("" ::: "memory"); }

// Each thread that computes in tiles creates and destroys one of these in each step.
class ThreadScope {
public:
    ThreadScope() { _tile_loadconfig(&kProductShapes); }
    ~ThreadScope() { _tile_release(); }
    ThreadScope(const ThreadScope&) = delete;
    ThreadScope& operator=(const ThreadScope&) = delete;
};

// The left operand of a product: for each line of inputs, 16 rows next to each other.
struct Activations {
    uint8_t* rows;
    float* scales;  // int8 only: one for each row
    int64_t stride;

    uint8_t* at(int64_t row, int64_t byte) const {
        return rows + row / kRowsOfTile * kRowsOfTile * stride + byte / kLine * kTile + row % kRowsOfTile * kLine +
               byte % kLine;
    }
};

inline int64_t activation_bytes(int64_t n_rows, int64_t stride) {
    return round_up(n_rows, kTileRows) * kByteRows * stride;
}
inline int64_t scale_count(int64_t n_rows, int64_t) { return n_rows; }

inline void pack_int8_row(const float* from, int n, const Activations& to, int row) {
    constexpr float kMost = 127 * 256 + 127, kMagic = 12582912.0f;  // adding it rounds to a whole number
    f32x16 top{};
    for (int i = 0; i < n; i += kLanes) top = larger(top, magnitude(load_lanes(from, i, n)));
    const float most = largest(top), inverse = most > 0 ? kMost / most : 0.0f;
    for (int i = 0; i < to.stride; i += kLanes) {
        const i32x16 whole = (i32x16)(load_lanes(from, i, n) * inverse + kMagic) - (i32x16)broadcast(kMagic);
        store(to.at(kByteRows * row, i), __builtin_convertvector(((whole + 128) >> 8) & 0xff, u8x16));
        store(to.at(kByteRows * row + 1, i), __builtin_convertvector(whole & 0xff, u8x16));
    }
    to.scales[row] = most / kMost;
}

// Weights are read from memory once, and loading a tile waits for them. So they are prefetched into the L2 cache: the L1
// cache allows too few outstanding lines.
struct Ahead {
    const uint8_t* at;
    int step_bytes;  // for each line of inputs

    void call() {
        for (int i = 0; i < step_bytes; i += kLine) _mm_prefetch(reinterpret_cast<const char*>(at + i), _MM_HINT_T1);
        at += step_bytes;
    }
};

// Multiplies some lines of one or two tiles of rows with those of a panel.
template <bool is_int8, int n_tiles>
inline void multiply_lines(const uint8_t* a, int64_t tile_stride, const uint8_t* weights, int n_lines, Ahead& ahead) {
    for (int line = 0; line < n_lines; line++, a += kTile, weights += kPanel * kLine) {
        ahead.call();
        _tile_loadd(4, a, kLine);
        _tile_loadd(6, weights, 2 * kLine);
        if constexpr (n_tiles == 2) _tile_loadd(5, a + tile_stride, kLine);
        _tile_loadd(7, weights + kLine, 2 * kLine);
        if constexpr (is_int8) {
            _tile_dpbssd(0, 4, 6);
            _tile_dpbssd(1, 4, 7);
        } else {
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (n_tiles == 2 && is_int8) {
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        } else if constexpr (n_tiles == 2) {
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
}

template <bool is_int8, int n_tiles>
inline void multiply_tiles(const uint8_t* a, int64_t tile_stride, const uint8_t* weights, int n_lines, Ahead ahead,
                           bool continues, uint8_t* c) {
    constexpr int kSumsStride = 2 * kLine, kHalf = kRowsOfTile * kSumsStride;
    settle_memory();
    if (continues) {
        _tile_loadd(0, c, kSumsStride);
        _tile_loadd(1, c + kLine, kSumsStride);
        if constexpr (n_tiles == 2) {
            _tile_loadd(2, c + kHalf, kSumsStride);
            _tile_loadd(3, c + kHalf + kLine, kSumsStride);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    multiply_lines<is_int8, n_tiles>(a, tile_stride, weights, n_lines, ahead);
    _tile_stored(0, c, kSumsStride);
    _tile_stored(1, c + kLine, kSumsStride);
    if constexpr (n_tiles == 2) {
        _tile_stored(2, c + kHalf, kSumsStride);
        _tile_stored(3, c + kHalf + kLine, kSumsStride);
    }
}

// Joins the high and low sums, and multiplies them with their scales.
inline void join_bytes(const Activations& a, const float* weight_scales, const int32_t (*whole)[kPanel], int first,
                       int n, float (*c)[kPanel]) {
    for (int i = 0; i < kPanel; i += kLanes) {
        const f32x16 scales = load<f32x16>(weight_scales + i);
        for (int m = 0; m < n; m++) {
            const f32x16 high = __builtin_convertvector(load<i32x16>(&whole[kByteRows * m][i]), f32x16);
            const f32x16 low = __builtin_convertvector(load<i32x16>(&whole[kByteRows * m + 1][i]), f32x16);
            store(&c[m][i], (high * 256 + low) * (scales * a.scales[first + m]));
        }
    }
}

// Rows that are multiplied with a panel together: as many as fit into the L2 cache, with their sums.
inline int item_rows(const Product& product) {
    constexpr int64_t kCacheBytes = 640 << 10;
    const int n_rows = kSumRows / (product.is_int8 ? kByteRows : 1);
    const int64_t n_cached = kCacheBytes / padded_bytes(product) / kTileRows * kTileRows;
    return n_cached >= n_rows ? n_rows : n_cached > kTileRows ? int(n_cached) : kTileRows;
}

// The sums of rows `begin .. end - 1` with a panel go to `done(first row, rows, sums)`. Meanwhile `after`, the next panel,
// is prefetched: a part of it in each pass over the rows.
template <bool is_int8, class Done>
inline void multiply_panel_as(const Product& product, int panel, const Activations& a, int begin, int end,
                              const uint8_t* after, Done done) {
    constexpr int kEach = is_int8 ? kByteRows : 1, kSumsBytes = kTileRows * kPanel * 4;
    alignas(64) uint8_t sums[kSumRows * kPanel * 4];
    const int n_lines = int(a.stride / kLine), n_passes = ((end - begin) * kEach + kTileRows - 1) / kTileRows;
    const int n_block = n_passes > 1 && n_lines > kBlockLines ? kBlockLines : n_lines;
    const uint8_t* weights = product.panels + panel * panel_bytes(product);
    for (int line = 0; line < n_lines; line += n_block) {
        const int n = n_lines - line < n_block ? n_lines - line : n_block;
        const uint8_t* here = weights + int64_t(line) * kPanel * kLine;
        const uint8_t* next = line + n < n_lines ? here + n * kPanel * kLine : after;
        const int part = kPanel / n_passes * kLine;
        for (int pass = 0; pass < n_passes; pass++) {
            const int row = begin * kEach + pass * kTileRows;
            const uint8_t* rows = a.at(row, int64_t(line) * kLine);
            const Ahead ahead{next + pass * n * part, part};
            uint8_t* c = sums + pass * kSumsBytes;
            if (end * kEach - row > kRowsOfTile)
                multiply_tiles<is_int8, 2>(rows, kRowsOfTile * a.stride, here, n, ahead, line > 0, c);
            else
                multiply_tiles<is_int8, 1>(rows, kRowsOfTile * a.stride, here, n, ahead, line > 0, c);
        }
    }
    for (int first = begin; first < end; first += kTileRows) {
        const int n = end - first < kTileRows ? end - first : kTileRows;
        uint8_t* c = sums + int64_t(first - begin) * kEach * kPanel * 4;
        if constexpr (is_int8) {
            alignas(64) float joined[kTileRows][kPanel];
            join_bytes(a, product.scales + panel * kPanel, reinterpret_cast<int32_t (*)[kPanel]>(c), first, n, joined);
            done(first, n, joined);
        } else {
            done(first, n, reinterpret_cast<float (*)[kPanel]>(c));
        }
    }
}

template <class Done>
inline void multiply_panel(const Product& product, int panel, const Activations& a, int begin, int end,
                           const uint8_t* after, Done done) {
    if (product.is_int8)
        multiply_panel_as<true>(product, panel, a, begin, end, after, done);
    else
        multiply_panel_as<false>(product, panel, a, begin, end, after, done);
}

// Attention has tiles of other shapes: sums, queries, keys as above, but weights of 16 keys, and 8 pairs of values.
// Rows of a tile without a query are computed from whatever is there, and are not used.
constexpr TileShapes attention_shapes() {
    TileShapes shapes;
    shapes.row_bytes[6] = 32;
    shapes.rows[7] = 8;
    return shapes;
}
constexpr TileShapes kAttentionShapes = attention_shapes();

class AttentionTiles {
public:
    AttentionTiles() { _tile_loadconfig(&kAttentionShapes); }
    ~AttentionTiles() { _tile_loadconfig(&kProductShapes); }
    AttentionTiles(const AttentionTiles&) = delete;
    AttentionTiles& operator=(const AttentionTiles&) = delete;
};

// Multiplies 16 queries with the 16 keys of each of four blocks. Four sums alternate, since one would wait for itself.
inline void score_in_tiles(const uint16_t* queries, const uint16_t* const* keys, int width, float* scores,
                           int64_t stride) {
    settle_memory();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int i = 0; i < width; i += 32) {
        _tile_loadd(4, queries + i, width * 2);
        _tile_loadd(5, keys[0] + i * 16, kLine);
        _tile_dpbf16ps(0, 4, 5);
        _tile_loadd(5, keys[1] + i * 16, kLine);
        _tile_dpbf16ps(1, 4, 5);
        _tile_loadd(5, keys[2] + i * 16, kLine);
        _tile_dpbf16ps(2, 4, 5);
        _tile_loadd(5, keys[3] + i * 16, kLine);
        _tile_dpbf16ps(3, 4, 5);
    }
    _tile_stored(0, scores, stride);
    _tile_stored(1, scores + 16, stride);
    _tile_stored(2, scores + 32, stride);
    _tile_stored(3, scores + 48, stride);
}

// Adds two or four times 16 columns of the values of some blocks, weighted, to the sums of 16 queries.
template <int n_columns>
inline void add_in_tiles(const uint16_t* weights, int64_t weights_stride, const uint16_t* const* values, int column,
                         int n_blocks, float* sums, int64_t sums_stride) {
    constexpr int kColumn = 16 * 16;
    settle_memory();
    _tile_loadd(0, sums, sums_stride);
    _tile_loadd(1, sums + 16, sums_stride);
    if constexpr (n_columns == 4) {
        _tile_loadd(2, sums + 32, sums_stride);
        _tile_loadd(3, sums + 48, sums_stride);
    }
    for (int i = 0; i < n_blocks; i++) {
        const uint16_t* at = values[i] + column * 16;
        _tile_loadd(6, weights + i * 16, weights_stride);
        _tile_loadd(7, at, kLine);
        _tile_dpbf16ps(0, 6, 7);
        _tile_loadd(7, at + kColumn, kLine);
        _tile_dpbf16ps(1, 6, 7);
        if constexpr (n_columns == 4) {
            _tile_loadd(7, at + 2 * kColumn, kLine);
            _tile_dpbf16ps(2, 6, 7);
            _tile_loadd(7, at + 3 * kColumn, kLine);
            _tile_dpbf16ps(3, 6, 7);
        }
    }
    _tile_stored(0, sums, sums_stride);
    _tile_stored(1, sums + 16, sums_stride);
    if constexpr (n_columns == 4) {
        _tile_stored(2, sums + 32, sums_stride);
        _tile_stored(3, sums + 48, sums_stride);
    }
}

}  // namespace
