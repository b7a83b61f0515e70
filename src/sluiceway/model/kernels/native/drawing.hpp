// Draws one token: temperature, min_p, top_k, top_p, then the place where the running sum passes a uniform number.
//
// As in `sampler.py`, filters cut by value, so that equal logits stay or go together. No whole sort: weights are
// counted in buckets by the leading bits of the float, and only the bucket in which the cut lies is sorted.
#pragma once

#include <float.h>

#include "abi.h"
#include "memory.hpp"
#include "vector.hpp"

namespace {

typedef double f64x16 __attribute__((vector_size(128)));

constexpr int kBucketShift = 19;  // leaves exponent and four bits of the fraction
constexpr int kBuckets = (0x3f800000 >> kBucketShift) + 1;  // weights are at most 1
constexpr int kSumTokens = 256;

struct Buckets {
    int32_t counts[kBuckets];
    double sums[kBuckets];
};

inline int bucket_of(float weight) {
    uint32_t bits;
    memcpy(&bits, &weight, sizeof bits);
    return int(bits >> kBucketShift);
}

// NaN counts as impossible, infinity as the largest number.
inline f32x16 possible(f32x16 logits) {
    return smaller(logits == logits ? logits : broadcast(kNegativeInfinity), broadcast(FLT_MAX));
}

// Logits become unnormalised probabilities, 1 for the likeliest. `n` is whole vectors.
inline void weigh(float* logits, int n, float temperature) {
    f32x16 top = broadcast(kNegativeInfinity);
    for (int i = 0; i < n; i += kLanes) top = larger(top, possible(load<f32x16>(logits + i)));
    const float most = largest(top);
    if (most == kNegativeInfinity) {  // nothing is possible, yet some token must come
        memset(logits, 0, size_t(n) * sizeof(float));
        logits[0] = 1.0f;
        return;
    }
    for (int i = 0; i < n; i += kLanes)
        store(logits + i, exponential((possible(load<f32x16>(logits + i)) - most) / temperature));
}

inline void sort_descending(float* values, int n) {
    for (int gap = n / 2; gap; gap = gap == 2 ? 1 : gap * 5 / 11)
        for (int i = gap; i < n; i++) {
            const float value = values[i];
            int at = i;
            for (; at >= gap && values[at - gap] < value; at -= gap) values[at] = values[at - gap];
            values[at] = value;
        }
}

inline int sorted_bucket(const float* weights, int n, int bucket, float* members) {
    int count = 0;
    for (int i = 0; i < n; i++)
        if (bucket_of(weights[i]) == bucket) members[count++] = weights[i];
    sort_descending(members, count);
    return count;
}

// The k-th largest weight. Lowers the buckets to what is at least that.
inline float cut_by_count(Buckets& buckets, const float* weights, int n, int k, float* members) {
    int bucket = kBuckets - 1, above = 0;
    while (above + buckets.counts[bucket] < k) above += buckets.counts[bucket--];
    const int count = sorted_bucket(weights, n, bucket, members);
    const float threshold = members[k - above - 1];
    double sum = 0;
    int n_kept = 0;
    for (; n_kept < count && members[n_kept] >= threshold; n_kept++) sum += members[n_kept];
    buckets.sums[bucket] = sum;
    buckets.counts[bucket] = n_kept;
    for (int below = 0; below < bucket; below++) buckets.counts[below] = 0, buckets.sums[below] = 0;
    return threshold;
}

// The smallest weight of the fewest largest ones that reach `top_p` of what is kept so far.
inline float cut_by_sum(const Buckets& buckets, const float* weights, int n, double top_p, float kept, float* members) {
    double total = 0;
    for (int bucket = kBuckets - 1; bucket >= 0; bucket--) total += buckets.sums[bucket];
    const double target = top_p * total;
    double sum = 0;
    for (int bucket = kBuckets - 1; bucket >= 0; bucket--) {
        if (sum + buckets.sums[bucket] < target) {
            sum += buckets.sums[bucket];
            continue;
        }
        const int count = sorted_bucket(weights, n, bucket, members);
        for (int i = 0; i < count && members[i] >= kept; i++) {
            sum += members[i];
            if (sum >= target || i + 1 == count) return members[i];
        }
        return kept;
    }
    return kept;
}

inline void drop_below(float* weights, int n, float threshold) {
    for (int i = 0; i < n; i++) weights[i] = weights[i] < threshold ? 0.0f : weights[i];
}

inline void filter(float* weights, int n, const Draw& draw, float* members) {
    if (draw.min_p > 0) drop_below(weights, n, draw.min_p);
    const bool has_count = draw.top_k > 0 && draw.top_k < n;
    if (!has_count && draw.top_p >= 1) return;
    Buckets buckets{};
    for (int i = 0; i < n; i++) {
        const int bucket = bucket_of(weights[i]);
        buckets.counts[bucket]++;
        buckets.sums[bucket] += weights[i];
    }
    float threshold = 0;
    if (has_count) threshold = cut_by_count(buckets, weights, n, draw.top_k, members);
    if (draw.top_p < 1) threshold = cut_by_sum(buckets, weights, n, draw.top_p, threshold, members);
    drop_below(weights, n, threshold);
}

inline double sum_of(const float* weights) {
    f64x16 lanes{};
    for (int i = 0; i < kSumTokens; i += kLanes) lanes += __builtin_convertvector(load<f32x16>(weights + i), f64x16);
    double total = 0;
    for (int i = 0; i < kLanes; i++) total += lanes[i];
    return total;
}

// The token at which the running sum passes `uniform` of the total. `n` is whole blocks of kSumTokens.
inline int invert(const float* weights, int n, double uniform) {
    double total = 0;
    for (int first = 0; first < n; first += kSumTokens) total += sum_of(weights + first);
    const double target = uniform * total;
    double before = 0;
    int first = 0;
    for (double sum = sum_of(weights); before + sum <= target && first + kSumTokens < n; sum = sum_of(weights + first)) {
        before += sum;
        first += kSumTokens;
    }
    int token = first;
    for (int i = first; i < first + kSumTokens; i++) {
        if (weights[i] > 0) token = i;  // rounding may leave the sum below: stay on a token that can be
        before += weights[i];
        if (before > target) break;
    }
    return token;
}

// `scratch` holds twice as many floats as the vocabulary, in whole blocks of kSumTokens.
inline int draw_token(const Draw& draw, int vocab_size, float* scratch) {
    const int n = (vocab_size + kSumTokens - 1) / kSumTokens * kSumTokens;
    float* weights = scratch;
    memcpy(weights, draw.logits, size_t(vocab_size) * sizeof(float));
    for (int i = vocab_size; i < n; i++) weights[i] = kNegativeInfinity;
    weigh(weights, n, draw.temperature);
    filter(weights, vocab_size, draw, scratch + n);
    return invert(weights, n, draw.uniform);
}

}  // namespace
