// Logprobs from unchanged logits: of one token, and of the likeliest tokens in its place.
//
// Only the likeliest are sorted. None of them is smaller than the n-th largest of the maxima of blocks. So of most blocks
// only the maximum is read.
#pragma once

#include <float.h>
#include <math.h>

#include "abi.h"
#include "sampling.hpp"
#include "vector.hpp"

namespace {

constexpr int kBoundTokens = 256;

inline int bound_count(int vocab_size) { return (vocab_size + kBoundTokens - 1) / kBoundTokens; }

// As `possible` of `sampling.hpp`, for one number.
inline float possible(float logit) {
    if (logit != logit) return kNegativeInfinity;
    return logit < FLT_MAX ? logit : FLT_MAX;
}

// Calls `each` with the number of each block, its first token, and the token after its last.
template <class Each>
inline void each_block(int vocab_size, Each each) {
    for (int block = 0; block < bound_count(vocab_size); block++) {
        const int first = block * kBoundTokens;
        const int end = first + kBoundTokens < vocab_size ? first + kBoundTokens : vocab_size;
        each(block, first, end);
    }
}

// Writes the maximum of each block. Returns the maximum of all.
inline float find_bounds(const float* logits, int vocab_size, float* bounds) {
    float most = kNegativeInfinity;
    each_block(vocab_size, [&](int block, int first, int end) {
        Floats top = Floats{} + kNegativeInfinity;
        for (int i = first; i < end; i += kWidth) {
            const Floats values = possible(logits + i, end - i);
            top = values > top ? values : top;
        }
        float bound = kNegativeInfinity;
        for (int lane = 0; lane < kWidth; lane++) bound = top[lane] > bound ? top[lane] : bound;
        bounds[block] = bound;
        most = bound > most ? bound : most;
    });
    return most;
}

// The logarithm of the sum of all weights; the largest weight is 1.
inline double log_sum(const float* logits, int vocab_size, float most) {
    if (most == kNegativeInfinity) return log(double(vocab_size));  // no token is possible, so all are equally likely
    Doubles lanes = {};
    each_block(vocab_size, [&](int, int first, int end) {
        Floats sums = {};
        for (int i = first; i < end; i += kWidth) sums += exponential_in_register(possible(logits + i, end - i) - most);
        for (int half = 0; half < 2; half++)
            lanes += widen(load<HalfFloats>(reinterpret_cast<const char*>(&sums) + half * sizeof(HalfFloats)));
    });
    double total = 0;
    for (int i = 0; i < kWidth / 2; i++) total += lanes[i];
    return log(total);
}

// Keeps the n largest values so far, the largest first; of equal ones the earliest.
struct Likeliest {
    float* values;
    int32_t* ids;
    int n;
    int count = 0;

    bool takes(float value) const { return count < n || value > values[n - 1]; }

    void take(float value, int32_t id) {
        int at = count < n ? count++ : n - 1;
        for (; at && values[at - 1] < value; at--) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = value;
        ids[at] = id;
    }
};

inline void find_likeliest(const LogprobsRow& row, int vocab_size, const float* bounds) {
    Likeliest found{row.logprobs + 1, row.top_ids, row.n_top};
    float least = kNegativeInfinity;
    const int n_blocks = bound_count(vocab_size);
    if (n_blocks >= found.n) {
        for (int block = 0; block < n_blocks; block++)
            if (found.takes(bounds[block])) found.take(bounds[block], block);
        least = found.values[found.n - 1];
        found.count = 0;
    }
    each_block(vocab_size, [&](int block, int first, int end) {
        if (bounds[block] < least) return;
        for (int i = first; i < end; i++) {
            const float value = possible(row.logits[i]);
            if (value >= least && found.takes(value)) found.take(value, i);
        }
    });
}

// `bounds` has room for `bound_count` numbers.
inline void token_logprobs(const LogprobsRow& row, int vocab_size, float* bounds) {
    const float most = find_bounds(row.logits, vocab_size, bounds);
    if (row.n_top) find_likeliest(row, vocab_size, bounds);
    row.logprobs[0] = possible(row.logits[row.token]);
    const double sum = log_sum(row.logits, vocab_size, most);
    for (int i = 0; i <= row.n_top; i++) {
        const float value = row.logprobs[i];
        row.logprobs[i] = float((value == most ? 0 : double(value) - most) - sum);
    }
}

}  // namespace
