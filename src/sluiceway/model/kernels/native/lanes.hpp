// Products in vectors of 16 lanes, for processors without tiles: activations in bf16, or in int8 with a scale for each
// 64 inputs of a row.
//
// With one scale for a whole row, one large activation would cost all others their precision. With groups it costs only
// its own group.
#pragma once

#include "dot.hpp"
#include "panels.hpp"

namespace {

constexpr int kGroup = kLine;
constexpr int kZeroPoint = 128;  // int8 activations are stored as unsigned bytes around it

struct ThreadScope {
    ThreadScope() {}
};

// The left operand of a product: packed rows, one after the other.
struct Activations {
    uint8_t* rows;
    float* scales;  // int8 only: (rows, groups)
    int64_t stride;

    uint8_t* at(int64_t row, int64_t byte) const { return rows + row * stride + byte; }
};

inline int64_t activation_bytes(int64_t n_rows, int64_t stride) { return n_rows * stride; }
inline int64_t scale_count(int64_t n_rows, int64_t stride) { return n_rows * stride / kGroup; }

// Packs one group of n <= kGroup numbers. Returns its scale.
inline float quantise_group(const float* from, int n, uint8_t* to) {
    f32x16 values[kGroup / kLanes];
    f32x16 top{};
    for (int i = 0; i < kGroup / kLanes; i++) {
        values[i] = load_lanes(from, i * kLanes, n);
        top = larger(top, magnitude(values[i]));
    }
    const float most = largest(top), inverse = most > 0 ? 127.0f / most : 0.0f;
    const f32x16 magic = broadcast(12582912.0f + kZeroPoint);  // adding it rounds to a whole number, in the last bits
    for (int i = 0; i < kGroup / kLanes; i++) {
        const u32x16 bits = (u32x16)(values[i] * inverse + magic);
        store(to + i * kLanes, __builtin_convertvector(bits & 0xff, u8x16));
    }
    return most / 127.0f;
}

inline void pack_int8_row(const float* from, int n, const Activations& to, int row) {
    const int n_groups = int(to.stride / kGroup);
    for (int g = 0; g < n_groups; g++)
        to.scales[int64_t(row) * n_groups + g] =
            quantise_group(from + g * kGroup, n - g * kGroup, to.at(row, g * kGroup));
}

inline void multiply_bf16(const Product& product, int panel, const Activations& a, int first, int n_rows,
                          float (*c)[kPanel]) {
    const uint8_t* weights = product.panels + panel * panel_bytes(product);
    const uint8_t* columns[2] = {weights, weights + 4 * kLanes};
    dot_rows<Bf16, kRowsOfTwo, 2>(n_rows, a.at(first, 0), a.stride, columns, 4 * kPanel, int(a.stride / 4), c[0],
                                  kPanel);
}

// Sums of int8 products, group by group, each with its own scale. Within a group all numbers are integers.
inline void multiply_groups(const Product& product, int panel, const Activations& a, int first, int n_rows,
                            float (*c)[kPanel]) {
    const int n_groups = int(a.stride / kGroup);
    const int32_t group_bytes = kGroup * kPanel;
    alignas(64) int32_t whole[kTileRows][kPanel];
    memset(c, 0, size_t(n_rows) * sizeof c[0]);
    for (int g = 0; g < n_groups; g++) {
        const int64_t place = int64_t(panel) * n_groups + g;
        const uint8_t* weights = product.panels + place * group_bytes;
        const uint8_t* columns[2] = {weights, weights + 4 * kLanes};
        dot_rows<Int8, kRowsOfTwo, 2>(n_rows, a.at(first, g * kGroup), a.stride, columns, 4 * kPanel, kGroup / 4,
                                      whole[0], kPanel);
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

inline int item_rows(const Product&) { return 8 * kTileRows; }

// The sums of rows `begin .. end - 1` with a panel go to `done(first row, rows, sums)`.
template <class Done>
inline void multiply_panel(const Product& product, int panel, const Activations& a, int begin, int end, const uint8_t*,
                           Done done) {
    alignas(64) float sums[kTileRows][kPanel];
    for (int first = begin; first < end; first += kTileRows) {
        const int n = end - first < kTileRows ? end - first : kTileRows;
        if (product.is_int8)
            multiply_groups(product, panel, a, first, n, sums);
        else
            multiply_bf16(product, panel, a, first, n, sums);
        done(first, n, sums);
    }
}

}  // namespace
