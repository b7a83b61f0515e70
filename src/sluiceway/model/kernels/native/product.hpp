// Products of packed activations with a packed weight, split into items for the threads of a team.
#pragma once

#include "team.hpp"

#if defined(__AMX_BF16__) && defined(__AMX_INT8__)
#include "tiles.hpp"
#else
#include "lanes.hpp"
#endif

namespace {

// Fills a row up to a whole line. There are no weights for it, but NaN could be left there.
inline void pack_bf16_row(const float* from, int n, const Activations& to, int row) {
    for (int i = 0; 2 * i < to.stride; i += kLanes) store(to.at(row, 2 * i), narrow(load_lanes(from, i, n)));
}

// Packs row `row` of the left operand of `product` from float32.
inline void pack_row(const Product& product, const float* from, const Activations& to, int row) {
    if (product.is_int8)
        pack_int8_row(from, product.n_inputs, to, row);
    else
        pack_bf16_row(from, product.n_inputs, to, row);
}

// The number of panels in one item.
inline int panels_per_group(const Product& product, int n_threads) {
    const int n_panels = product.n_outputs / kPanel, wanted = 16 * n_threads;
    return n_panels < 2 * wanted ? 1 : n_panels / wanted;
}

inline int group_count(const Product& product, int n_threads) {
    const int n_panels = product.n_outputs / kPanel, size = panels_per_group(product, n_threads);
    return (n_panels + size - 1) / size;
}

inline void add_bias(const float* bias, int n_rows, float (*c)[kPanel]) {
    for (int i = 0; i < kPanel; i += kLanes)
        for (int m = 0; m < n_rows; m++) store(&c[m][i], load<f32x16>(&c[m][i]) + load<f32x16>(bias + i));
}

// Computes the products of `n_rows` rows with a weight, tile by tile. `finish(panel, first row, rows, sums)` gets each
// tile. A group goes through its panels in order, for all rows of an item.
template <class Finish>
void multiply(Member& member, const Product& product, const Activations& a, int n_rows, Finish finish) {
    const int n_panels = product.n_outputs / kPanel, n_of_item = item_rows(product);
    const int n_parts = (n_rows + n_of_item - 1) / n_of_item;
    const int size = panels_per_group(product, member.n_threads());
    member.run(group_count(product, member.n_threads()) * n_parts, [&](int index) {
        const int first = index / n_parts * size, end = first + size < n_panels ? first + size : n_panels;
        const int begin = index % n_parts * n_of_item, left = n_rows - begin;
        for (int panel = first; panel < end; panel++) {
            // If all threads are equally fast, the thread of this item takes that one next.
            const int next = panel + 1 < end ? panel + 1 : first + size * member.n_threads();
            multiply_panel(product, panel, a, begin, begin + (left < n_of_item ? left : n_of_item),
                           product.panels + next * panel_bytes(product), [&](int row, int n, float (*sums)[kPanel]) {
                               if (product.bias) add_bias(product.bias + panel * kPanel, n, sums);
                               finish(panel, row, n, sums);
                           });
        }
    });
}

}  // namespace
