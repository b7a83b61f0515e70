// Products with a packed weight: activations in bf16, or in int8 with a scale for each 64 inputs of a row.
//
// In int8 one large activation would cost all others of its row their precision: in groups it costs only its own.
#pragma once

#include "abi.h"
#include "dot.hpp"
#include "team.hpp"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#include "tiles.hpp"
#endif

namespace {

constexpr int kPanel = 32;
constexpr int kTileRows = 32;
constexpr int kGroup = 64;
constexpr int kZeroPoint = 128;  // int8 activations are stored as unsigned bytes around it

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The rows of a product's left side. `stride` is whole lines of 64 bytes; there are bytes for whole tiles of rows.
struct Activations {
    uint8_t* rows;
    float* scales;  // int8 only: (rows, lines of 64 bytes)
    int64_t stride;
};

inline int64_t padded_bytes(const Product& product) {
    return round_up(int64_t(product.n_inputs) * (product.is_int8 ? 1 : 2), 64);
}

// One group, n <= kGroup numbers of it; returns its scale.
inline float quantise_group(const float* from, int n, uint8_t* to) {
    f32x16 values[kGroup / kLanes];
    f32x16 top{};
    for (int i = 0; i < kGroup / kLanes; i++) {
        const int left = n - i * kLanes;
        values[i] = left >= kLanes ? load<f32x16>(from + i * kLanes) : load_part(from + i * kLanes, left > 0 ? left : 0);
        top = larger(top, magnitude(values[i]));
    }
    const float most = largest(top), inverse = most > 0 ? 127.0f / most : 0.0f;
    const f32x16 magic = broadcast(12582912.0f + kZeroPoint);  // its last bits count whole numbers
    for (int i = 0; i < kGroup / kLanes; i++) {
        const u32x16 bits = (u32x16)(values[i] * inverse + magic);
        store(to + i * kLanes, __builtin_convertvector(bits & 0xff, u8x16));
    }
    return most / 127.0f;
}

inline void narrow_row(const float* from, int n, uint16_t* to) {
    int i = 0;
    for (; i + kLanes <= n; i += kLanes) store(to + i, narrow(load<f32x16>(from + i)));
    for (; i < n; i++) to[i] = narrow(from[i]);
    for (; i % kPanel; i++) to[i] = 0;  // up to a whole line: no weight is there, and what is left there may be no number
}

// Row `row` of the left side of `product`, out of numbers in float.
inline void pack_row(const Product& product, const float* from, const Activations& to, int row) {
    uint8_t* at = to.rows + row * to.stride;
    if (!product.is_int8) return narrow_row(from, product.n_inputs, reinterpret_cast<uint16_t*>(at));
    const int n_groups = int(to.stride / kGroup);
    for (int g = 0; g < n_groups; g++)
        to.scales[int64_t(row) * n_groups + g] =
            quantise_group(from + g * kGroup, product.n_inputs - g * kGroup, at + g * kGroup);
}

inline void multiply_bf16(const uint8_t* rows, int64_t stride, const uint8_t* weights, int n_steps, int n_rows,
                          float (*c)[kPanel]) {
#if defined(__AMX_BF16__)
    multiply_in_tiles<false>(rows, stride, weights, n_steps, n_rows, c);
#else
    const uint8_t* columns[2] = {weights, weights + 4 * kLanes};
    dot_rows<Bf16, kRowsOfTwo, 2>(n_rows, rows, stride, columns, 4 * kPanel, n_steps, c[0], kPanel);
#endif
}

inline void multiply_int8(const uint8_t* rows, int64_t stride, const uint8_t* weights, int n_steps, int n_rows,
                          int32_t (*c)[kPanel]) {
#if defined(__AMX_INT8__)
    multiply_in_tiles<true>(rows, stride, weights, n_steps, n_rows, c);
#else
    const uint8_t* columns[2] = {weights, weights + 4 * kLanes};
    dot_rows<Int8, kRowsOfTwo, 2>(n_rows, rows, stride, columns, 4 * kPanel, n_steps, c[0], kPanel);
#endif
}

// Sums of int8 products group by group, each with its own scale. All of a row's numbers are whole until then.
inline void multiply_groups(const Product& product, int panel, const Activations& a, int first, int n_rows,
                            float (*c)[kPanel]) {
    const int n_groups = int(a.stride / kGroup);
    const int32_t group_bytes = kGroup * kPanel;
    alignas(64) int32_t whole[kTileRows][kPanel];
    memset(c, 0, size_t(n_rows) * sizeof c[0]);
    for (int g = 0; g < n_groups; g++) {
        const int64_t place = int64_t(panel) * n_groups + g;
        multiply_int8(a.rows + first * a.stride + g * kGroup, a.stride, product.panels + place * group_bytes, kGroup / 4,
                      n_rows, whole);
        const int16_t* weight_sums = product.weight_sums + place * kPanel;
        for (int i = 0; i < kPanel; i += kLanes) {
            const i32x16 offset = __builtin_convertvector(load<i16x16>(weight_sums + i), i32x16) * kZeroPoint;
            for (int m = 0; m < n_rows; m++) {
                const float scale = a.scales[int64_t(first + m) * n_groups + g];
                const i32x16 sums = load<i32x16>(&whole[m][i]) - offset;
                store(&c[m][i], load<f32x16>(&c[m][i]) + __builtin_convertvector(sums, f32x16) * scale);
            }
        }
    }
    for (int i = 0; i < kPanel; i += kLanes) {
        const f32x16 scales = load<f32x16>(product.scales + panel * kPanel + i);
        for (int m = 0; m < n_rows; m++) store(&c[m][i], load<f32x16>(&c[m][i]) * scales);
    }
}

// The products of up to kTileRows rows with one panel, with bias.
inline void multiply_tile(const Product& product, int panel, const Activations& a, int first, int n_rows,
                          float (*c)[kPanel]) {
    if (product.is_int8)
        multiply_groups(product, panel, a, first, n_rows, c);
    else
        multiply_bf16(a.rows + first * a.stride, a.stride, product.panels + panel * a.stride * kPanel, int(a.stride / 4),
                      n_rows, c);
    if (!product.bias) return;
    for (int i = 0; i < kPanel; i += kLanes) {
        const f32x16 bias = load<f32x16>(product.bias + panel * kPanel + i);
        for (int m = 0; m < n_rows; m++) store(&c[m][i], load<f32x16>(&c[m][i]) + bias);
    }
}

// How many panels one item has.
inline int panels_per_group(const Product& product, int n_threads) {
    const int n_panels = product.n_outputs / kPanel, wanted = 16 * n_threads;
    return n_panels < 2 * wanted ? 1 : n_panels / wanted;
}

inline int group_count(const Product& product, int n_threads) {
    const int n_panels = product.n_outputs / kPanel, size = panels_per_group(product, n_threads);
    return (n_panels + size - 1) / size;
}

// Takes all products of `n_rows` rows with a weight apart into tiles; `finish(panel, first row, rows, sums)` gets each.
// A group of panels goes through its own panels in order, for all rows of an item.
template <class Finish>
void multiply(Member& member, const Product& product, const Activations& a, int n_rows, Finish finish) {
    constexpr int kItemRows = 8 * kTileRows;
    const int n_panels = product.n_outputs / kPanel, n_parts = (n_rows + kItemRows - 1) / kItemRows;
    const int size = panels_per_group(product, member.n_threads());
    member.run(group_count(product, member.n_threads()) * n_parts, [&](int index) {
        const int group = index / n_parts, part = index % n_parts;
        const int end = (part + 1) * kItemRows < n_rows ? (part + 1) * kItemRows : n_rows;
        alignas(64) float sums[kTileRows][kPanel];
        for (int panel = group * size; panel < n_panels && panel < (group + 1) * size; panel++)
            for (int first = part * kItemRows; first < end; first += kTileRows) {
                const int n = end - first < kTileRows ? end - first : kTileRows;
                multiply_tile(product, panel, a, first, n, sums);
                finish(panel, first, n, sums);
            }
    });
}

}  // namespace
