// Samples one token: temperature, min_p, top_k, top_p, then the place where the running sum passes a uniform number.
//
// As in `sampler.py`, filters keep or drop equal weights together. Weights are not sorted: the smallest ones are dropped
// first, and the range of the cut is halved until it has a few weights.
#pragma once

#include <float.h>

#include "abi.h"
#include "memory.hpp"
#include "vector.hpp"

namespace {

typedef float HalfFloats __attribute__((vector_size(2 * kWidth)));
typedef double Doubles __attribute__((vector_size(4 * kWidth)));

constexpr int kSumTokens = 256;
constexpr int kFew = 32;

// What a row needs for itself: weights, some of them once more, and the sums of their blocks.
inline int64_t scratch_floats(int vocab_size) {
    const int64_t n_blocks = (vocab_size + kSumTokens - 1) / kSumTokens;
    return n_blocks * (2 * kSumTokens + 2) + 2 * kLanes;
}

inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// NaN counts as impossible, infinity as the largest number. What is beyond the `left` that there are is impossible.
inline Floats possible(const float* from, int left) {
    Floats logits = Floats{} + kNegativeInfinity;
    if (left >= kWidth)
        logits = load<Floats>(from);
    else
        memcpy(&logits, from, size_t(left) * sizeof(float));
    logits = logits == logits ? logits : Floats{} + kNegativeInfinity;
    return logits < FLT_MAX ? logits : Floats{} + FLT_MAX;
}

// Unnormalised probabilities, 1 for the likeliest. False: no token is possible, and nothing is written.
inline bool weigh(const SamplingRow& row, int vocab_size, float* weights) {
    Floats top = Floats{} + kNegativeInfinity;
    for (int i = 0; i < vocab_size; i += kWidth) {
        const Floats logits = possible(row.logits + i, vocab_size - i);
        top = logits > top ? logits : top;
    }
    float most = kNegativeInfinity;
    for (int lane = 0; lane < kWidth; lane++) most = top[lane] > most ? top[lane] : most;
    if (most == kNegativeInfinity) return false;
    const float inverse = 1.0f / row.temperature;
    for (int i = 0; i < vocab_size; i += kWidth)
        store(weights + i, exponential_in_register((possible(row.logits + i, vocab_size - i) - most) * inverse));
    return true;
}

inline Doubles widen(HalfFloats values) {
#if defined(__AVX512F__)
    return (Doubles)_mm512_maskz_cvtps_pd(0xff, (__m256)values);
#else
    return __builtin_convertvector(values, Doubles);
#endif
}

// The sum of the weights of at least `threshold`, or their number. `n` is whole vectors.
template <bool kIsCount = false>
inline double sum_of(const float* weights, int n, float threshold) {
    Doubles lanes[2] = {};
    for (int i = 0; i < n; i += kWidth)
        for (int half = 0; half < 2; half++) {
            const HalfFloats w = load<HalfFloats>(weights + i + half * kWidth / 2);
            const HalfFloats measured = kIsCount ? HalfFloats{} + 1.0f : w;
            lanes[half] += widen(w >= threshold ? measured : HalfFloats{});
        }
    lanes[0] += lanes[1];
    double total = 0;
    for (int i = 0; i < kWidth / 2; i++) total += lanes[0][i];
    return total;
}

// Writes the weights in [low, high) one after the other, which may be over themselves, and behind them what is in no
// such range: one whole vector. Returns their number.
inline int keep(const float* weights, int n, float low, float high, float* kept) {
    int count = 0;
    for (int i = 0; i < n; i += kLanes) {
#if defined(__AVX512F__)
        const __m512 w = _mm512_loadu_ps(weights + i);
        const __mmask16 is_kept = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(w, _mm512_set1_ps(low), _CMP_GE_OQ), w,
                                                          _mm512_set1_ps(high), _CMP_LT_OQ);
        _mm512_storeu_ps(kept + count, _mm512_maskz_compress_ps(is_kept, w));
        count += __builtin_popcount(is_kept);
#else
        for (int lane = 0; lane < kLanes; lane++) {
            const float w = weights[i + lane];
            kept[count] = w;
            count += int(w >= low) & int(w < high);
        }
#endif
    }
    store(kept + count, broadcast(-1.0f));
    return count;
}

inline void sort_descending(float* values, int n) {
    for (int i = 1; i < n; i++) {
        const float value = values[i];
        int at = i;
        for (; at && values[at - 1] < value; at--) values[at] = values[at - 1];
        values[at] = value;
    }
}

// The weight with which the sum, or the number, of those from the largest downward reaches `target`. Overwrites them.
// There are `n` and a vector of what is no weight behind them; weights are ordered as their bits are.
template <bool kIsCount>
inline float reaching(float* weights, int n, float least, double target) {
    uint32_t low = bits_of(least), high = bits_of(1.0f) + 1;
    double above = 0;
    while (n > kFew && high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        const double sum = above + sum_of<kIsCount>(weights, (n + kLanes - 1) & -kLanes, float_of(middle));
        if (sum >= target) {
            low = middle;
        } else {
            high = middle;
            above = sum;
        }
        n = keep(weights, n, float_of(low), float_of(high), weights);
    }
    if (n > kFew) return weights[0];  // they are equal
    sort_descending(weights, n);
    for (int i = 0; i < n; i++) {
        above += kIsCount ? 1 : weights[i];
        if (above >= target) return weights[i];
    }
    return n ? weights[n - 1] : float_of(high);  // rounding kept the sum below: all that there are
}

// The smallest weight that min_p, top_k and top_p keep, in this order.
inline float smallest_kept(const SamplingRow& row, const float* weights, int vocab_size, int n, float* some) {
    float threshold = row.min_p;
    if (row.top_k > 0 && row.top_k < vocab_size) {
        const int count = keep(weights, n, threshold, 2.0f, some);
        if (count > row.top_k) threshold = reaching<true>(some, count, threshold, row.top_k);
    }
    if (row.top_p >= 1) return threshold;
    const double total = sum_of(weights, n, threshold);
    // All that are smaller than this do not make up what may be left out.
    const float least = float(0.999 * (1 - row.top_p) * total / vocab_size);
    if (least > threshold) threshold = least;
    const int count = keep(weights, n, threshold, 2.0f, some);
    const double target = row.top_p * total;
    return reaching<false>(some, count, threshold, target > 0 ? target : DBL_MIN);
}

// The token at which the running sum of the weights of at least `threshold` passes `uniform` of the total.
inline int invert(const float* weights, int n, float threshold, double uniform, double* sums) {
    const int n_blocks = n / kSumTokens;
    double total = 0, before = 0;
    for (int i = 0; i < n_blocks; i++) total += sums[i] = sum_of(weights + i * kSumTokens, kSumTokens, threshold);
    const double target = uniform * total;
    int block = 0;
    for (; before + sums[block] <= target && block + 1 < n_blocks; block++) before += sums[block];
    int token = block * kSumTokens;
    for (int i = token; i < (block + 1) * kSumTokens; i++) {
        if (weights[i] < threshold || weights[i] == 0) continue;
        token = i;  // rounding may leave the sum below: stay on a token that can be
        before += weights[i];
        if (before > target) break;
    }
    return token;
}

// `scratch` is as long as `scratch_floats` says. Returns kNoToken where no token is possible.
inline int sample_token(const SamplingRow& row, int vocab_size, float* scratch) {
    const int n = (vocab_size + kSumTokens - 1) / kSumTokens * kSumTokens;
    double* sums = reinterpret_cast<double*>(scratch);
    float *weights = scratch + 2 * (n / kSumTokens), *some = weights + n;
    if (!weigh(row, vocab_size, weights)) return kNoToken;
    for (int i = vocab_size; i < n; i++) weights[i] = 0;
    return invert(weights, n, smallest_kept(row, weights, vocab_size, n, some), row.uniform, sums);
}

}  // namespace
