// The sizes of panels, and the left operand of a product: shared by `lanes.hpp` and `tiles.hpp`.
#pragma once

#include "abi.h"
#include "vector.hpp"

namespace {

constexpr int kPanel = 32;
constexpr int kTileRows = 32;
constexpr int kLine = 64;  // bytes

inline int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// The bytes of one row of activations, and of one output in a panel.
inline int64_t padded_bytes(const Product& product) {
    return round_up(int64_t(product.n_inputs) * (product.is_int8 ? 1 : 2), kLine);
}

inline int64_t panel_bytes(const Product& product) { return padded_bytes(product) * kPanel; }

// Loads 16 lanes from `i` on. Only n of them exist; the others are zero.
inline f32x16 load_lanes(const float* from, int i, int n) {
    return n - i >= kLanes ? load<f32x16>(from + i) : load_part(from + i, n > i ? n - i : 0);
}

}  // namespace
