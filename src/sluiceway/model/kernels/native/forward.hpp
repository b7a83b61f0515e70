// One forward pass, as stages that all threads of a team go through together.
#pragma once

#include "attention.hpp"
#include "memory.hpp"
#include "product.hpp"
#include "rows.hpp"
#include "team.hpp"

namespace {

struct Best {
    f32x16 values;
    i32x16 tokens;
};

// Buffers of intermediate results, which are kept from step to step. They are as large as the largest step needed.
struct Buffers {
    Buffer stages;
    Buffer x;        // (tokens, hidden): the residual stream
    Buffer row;      // (tokens, widest row): rows before they are packed
    Buffer packed;   // see Activations
    Buffer gated;    // see Activations: the left side of the last product of a layer
    Buffer scales;   // of int8 activations
    Buffer qkv;      // (tokens, queries + keys + values)
    Buffer queries;  // bf16, see attention
    Buffer angles;   // (tokens, head_dim): cosines, then sines
    Buffer tiles;
    Buffer best;  // (groups of the head's panels, sampled)
};

constexpr int kStagesOfLayer = 10;
constexpr int kStagesAround = 4;

class Forward {
public:
    Forward(Buffers& work, const Model& model, const Step& step, int n_threads)
        : work_(work),
          model_(model),
          step_(step),
          n_tokens_(step.rows.first[step.rows.n_rows]),
          n_threads_(n_threads) {}

    bool reserve() {
        const Model& m = model_;
        const int64_t n = n_tokens_;
        const int64_t widest = widest_row();
        n_tiles_ = tile_count(m, step_.rows);
        const int64_t n_stages = kStagesOfLayer * m.n_layers + kStagesAround;
        // Whole tiles of queries are read, also if the last one is not full.
        const int64_t query_numbers = (n * m.n_heads + kLanes) * padded_head_dim(m);
        if (!(work_.stages.reserve(n_stages * int64_t(sizeof(Stage))) && work_.x.reserve(4 * n * m.hidden_size) &&
              work_.row.reserve(4 * n * widest) &&
              work_.packed.reserve(activation_bytes(n, round_up(2 * widest, kLine))) &&
              work_.gated.reserve(activation_bytes(n, gated_stride())) &&
              work_.scales.reserve(4 * scale_count(n, round_up(widest, kLine))) &&
              work_.qkv.reserve(4 * n * qkv_width()) && work_.queries.reserve(2 * query_numbers) &&
              work_.angles.reserve(4 * n * m.head_dim) && work_.tiles.reserve(n_tiles_ * int64_t(sizeof(QueryTile))) &&
              work_.best.reserve(int64_t(group_count(m.head, n_threads_)) * step_.n_sampled * int64_t(sizeof(Best)))))
            return false;
        memset(work_.stages.as<Stage>(), 0, size_t(n_stages) * sizeof(Stage));
        fill_tiles(m, step_.rows, work_.tiles.as<QueryTile>());
        return true;
    }

    void run(Member& member) const {
        member.run_ranges(n_tokens_, [&](int begin, int end) { begin_tokens(begin, end); });
        for (int index = 0; index < model_.n_layers; index++) {
            const Layer& layer = model_.layers[index];
            attention(member, layer, index);
            mlp(member, layer);
        }
        head(member);
    }

private:
    Buffers& work_;
    const Model& model_;
    const Step& step_;
    const int n_tokens_;
    const int n_threads_;
    int64_t n_tiles_ = 0;

    int qkv_width() const { return int(round_up((model_.n_heads + 2 * model_.n_kv_heads) * model_.head_dim, kPanel)); }

    int64_t widest_row() const {
        const int64_t heads = int64_t(model_.n_heads) * model_.head_dim;
        const int64_t widest = heads > model_.hidden_size ? heads : model_.hidden_size;
        return widest > model_.intermediate_size ? widest : model_.intermediate_size;
    }

    int64_t gated_stride() const { return padded_bytes(model_.layers[0].down); }

    Activations packed_for(const Product& product) const {
        return {work_.packed.as<uint8_t>(), work_.scales.as<float>(), padded_bytes(product)};
    }

    int position_of(int token, int& row) const {
        while (step_.rows.first[row + 1] <= token) row++;
        return step_.rows.start[row] + token - step_.rows.first[row];
    }

    int block_of(int position, int row) const {
        return step_.rows.blocks[step_.rows.first_block[row] + position / kBlockTokens];
    }

    int first_row_of(int token) const {
        int low = 0, high = step_.rows.n_rows - 1;
        while (low < high) {
            const int middle = (low + high + 1) / 2;
            step_.rows.first[middle] <= token ? low = middle : high = middle - 1;
        }
        return low;
    }

    void begin_tokens(int begin, int end) const {
        int row = first_row_of(begin);
        for (int t = begin; t < end; t++) {
            embed(model_, step_.token_ids[t], work_.x.as<float>() + int64_t(t) * model_.hidden_size);
            float* angles = work_.angles.as<float>() + int64_t(t) * model_.head_dim;
            fill_angles(model_, position_of(t, row), angles, angles + model_.head_dim / 2);
        }
    }

    void normed(Member& member, const float* weight, const Product& product) const {
        const int n = model_.hidden_size;
        member.run_ranges(n_tokens_, [&](int begin, int end) {
            for (int t = begin; t < end; t++) {
                float* row = work_.row.as<float>() + int64_t(t) * n;
                norm_row(work_.x.as<float>() + int64_t(t) * n, weight, model_.eps, n, row);
                pack_row(product, row, packed_for(product), t);
            }
        });
    }

    void packed(Member& member, const Product& product, int width, const Activations& to) const {
        member.run_ranges(n_tokens_, [&](int begin, int end) {
            for (int t = begin; t < end; t++) pack_row(product, work_.row.as<float>() + int64_t(t) * width, to, t);
        });
    }

    void add_product(Member& member, const Product& product, const Activations& a) const {
        const int n = model_.hidden_size;
        multiply(member, product, a, n_tokens_, [&](int panel, int first, int n_rows, float (*sums)[kPanel]) {
            const int begin = panel * kPanel, width = n - begin < kPanel ? n - begin : kPanel;
            for (int m = 0; m < n_rows; m++) {
                float* x = work_.x.as<float>() + int64_t(first + m) * n + begin;
                for (int i = 0; i < width; i++) x[i] += sums[m][i];
            }
        });
    }

    void attention(Member& member, const Layer& layer, int index) const {
        const int width = qkv_width();
        normed(member, layer.attention_norm, layer.qkv);
        multiply(member, layer.qkv, packed_for(layer.qkv), n_tokens_,
                 [&](int panel, int first, int n_rows, float (*sums)[kPanel]) {
                     for (int m = 0; m < n_rows; m++)
                         memcpy(work_.qkv.as<float>() + int64_t(first + m) * width + panel * kPanel, sums[m],
                                sizeof sums[m]);
                 });
        uint16_t* keys = step_.cache.keys + index * step_.cache.layer_elements;
        uint16_t* values = step_.cache.values + index * step_.cache.layer_elements;
        member.run_ranges(n_tokens_, [&](int begin, int end) { place_tokens(layer, begin, end, keys, values); });
        const AttentionInput in{model_,
                                step_.rows,
                                keys,
                                values,
                                work_.queries.as<uint16_t>(),
                                work_.row.as<float>(),
                                work_.tiles.as<QueryTile>(),
                                n_tokens_,
                                int(n_tiles_)};
        attend(member, in);
        packed(member, layer.out, model_.n_heads * model_.head_dim, packed_for(layer.out));
        add_product(member, layer.out, packed_for(layer.out));
    }

    // Rotates queries into their buffer, and writes rotated keys and values into the cache.
    void place_tokens(const Layer& layer, int begin, int end, uint16_t* keys, uint16_t* values) const {
        const Model& m = model_;
        const int group = group_size(m), width = padded_head_dim(m);
        int row = first_row_of(begin);
        for (int t = begin, at = row; t < end; t++) {
            const int block = block_of(position_of(t, at), at);
            if (t + 1 == step_.rows.first[at + 1]) prefetch_block(m, keys, values, block);
        }
        for (int t = begin; t < end; t++) {
            const int position = position_of(t, row), slot = position % kBlockTokens, block = block_of(position, row);
            const bool is_last = t + 1 == step_.rows.first[row + 1];
            const bool is_new_block = slot <= t - step_.rows.first[row];
            const float* qkv = work_.qkv.as<float>() + int64_t(t) * qkv_width();
            const float* cosines = work_.angles.as<float>() + int64_t(t) * m.head_dim;
            const float* sines = cosines + m.head_dim / 2;
            for (int head = 0; head < m.n_heads; head++) {
                uint16_t* to = work_.queries.as<uint16_t>() +
                               ((head / group * int64_t(n_tokens_) + t) * group + head % group) * width;
                memset(to + m.head_dim, 0, size_t(width - m.head_dim) * sizeof *to);
                rotate_head(m, qkv + head * m.head_dim, layer.q_norm, cosines, sines, to);
            }
            for (int head = 0; head < m.n_kv_heads; head++) {
                const Place place{int64_t(block) * m.n_kv_heads + head, slot};
                uint16_t key[kMaxHeadDim];
                rotate_head(m, qkv + (m.n_heads + head) * m.head_dim, layer.k_norm, cosines, sines, key);
                write_key(m, keys, place, key);
                write_value(m, values, place, qkv + (m.n_heads + m.n_kv_heads + head) * m.head_dim);
                if (is_last && is_new_block) clear_values_after(m, values, place);
            }
        }
    }

    void mlp(Member& member, const Layer& layer) const {
        normed(member, layer.mlp_norm, layer.gate_up);
        const int n = model_.intermediate_size;
        const bool is_int8 = layer.down.is_int8;
        const Activations gated{work_.gated.as<uint8_t>(), work_.scales.as<float>(), gated_stride()};
        multiply(member, layer.gate_up, packed_for(layer.gate_up), n_tokens_,
                 [&](int panel, int first, int n_rows, float (*sums)[kPanel]) {
                     const int begin = panel * kLanes, width = n - begin < kLanes ? n - begin : kLanes;
                     for (int m = 0; m < n_rows; m++) {
                         const f32x16 values = swiglu(load<f32x16>(sums[m]), load<f32x16>(sums[m] + kLanes));
                         if (is_int8) {
                             float* to = work_.row.as<float>() + int64_t(first + m) * n + begin;
                             memcpy(to, &values, size_t(width) * sizeof(float));
                         } else {
                             store(gated.at(first + m, 2 * begin), narrow(values));
                         }
                     }
                 });
        if (is_int8) packed(member, layer.down, n, gated);
        add_product(member, layer.down, gated);
    }

    void head(Member& member) const {
        const int n = model_.hidden_size;
        const Activations a = packed_for(model_.head);
        member.run_ranges(step_.n_sampled, [&](int begin, int end) {
            for (int s = begin; s < end; s++) {
                float* row = work_.row.as<float>() + int64_t(s) * n;
                norm_row(work_.x.as<float>() + int64_t(step_.sampled[s]) * n, model_.norm, model_.eps, n, row);
                pack_row(model_.head, row, a, s);
            }
        });
        multiply(member, model_.head, a, step_.n_sampled, [&](int panel, int first, int n_rows, float (*sums)[kPanel]) {
            for (int m = 0; m < n_rows; m++) {
                if (step_.places[first + m] >= 0) write_logits(panel, step_.places[first + m], sums[m]);
                remember_best(panel, first + m, sums[m]);
            }
        });
        member.run_ranges(step_.n_sampled, [&](int begin, int end) {
            for (int s = begin; s < end; s++) step_.largest[s] = best_of(s);
        });
    }

    void write_logits(int panel, int place, const float* sums) const {
        const int begin = panel * kPanel, left = model_.vocab_size - begin;
        memcpy(step_.logits + int64_t(place) * model_.vocab_size + begin, sums,
               size_t(left < kPanel ? left : kPanel) * sizeof(float));
    }

    // Keeps in each lane the first of the largest values so far. A group goes through its panels in order.
    void remember_best(int panel, int sampled, const float* sums) const {
        const int size = panels_per_group(model_.head, n_threads_);
        Best& best = work_.best.as<Best>()[int64_t(panel / size) * step_.n_sampled + sampled];
        if (panel % size == 0) best = {broadcast(kNegativeInfinity), i32x16{}};
        for (int i = 0; i < kPanel; i += kLanes) {
            const i32x16 tokens = lane_numbers() + (panel * kPanel + i);
            const f32x16 values = load<f32x16>(sums + i);
            const i32x16 is_better = (values > best.values) & (tokens < model_.vocab_size);
            best.values = is_better ? values : best.values;
            best.tokens = is_better ? tokens : best.tokens;
        }
    }

    int32_t best_of(int sampled) const {
        const int n_groups = group_count(model_.head, n_threads_);
        float value = kNegativeInfinity;
        int32_t token = kNoToken;
        for (int group = 0; group < n_groups; group++) {
            const Best& best = work_.best.as<Best>()[int64_t(group) * step_.n_sampled + sampled];
            for (int lane = 0; lane < kLanes; lane++)
                // A lane without a value above minus infinity (NaN is never above it) has no token.
                if (best.values[lane] > value ||
                    (best.values[lane] == value && token != kNoToken && best.tokens[lane] < token)) {
                    value = best.values[lane];
                    token = best.tokens[lane];
                }
        }
        return token;
    }
};

}  // namespace
