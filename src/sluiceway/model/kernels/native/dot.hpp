// The inner products that everything heavy is made of: rows of activations against words of four bytes a column.
//
// c[m][16 p + lane] (+)= sum over steps of a[m][step] . b[p][step][lane], where a word is two bf16 or four int8 numbers
// (a's are unsigned). Each sum is taken step after step whatever M is, so a row has the same bits in any company.
#pragma once

#include "vector.hpp"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace {

struct Bf16 {
    typedef f32x16 Sums;
    typedef float Number;
};
struct Int8 {
    typedef i32x16 Sums;
    typedef int32_t Number;
};

inline uint32_t word_at(const uint8_t* from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)

// With two and with four columns of 16: 24 sums and what they are made of fill the 32 registers.
constexpr int kRowsOfTwo = 12;
constexpr int kRowsOfFour = 6;

inline f32x16 accumulate(Bf16, f32x16 sums, uint32_t a, u32x16 b) {
    return (f32x16)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
}

inline i32x16 accumulate(Int8, i32x16 sums, uint32_t a, u32x16 b) {
    return (i32x16)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(int(a)), (__m512i)b);
}

#else

constexpr int kRowsOfTwo = 2;
constexpr int kRowsOfFour = 1;

inline f32x16 accumulate(Bf16, f32x16 sums, uint32_t a, u32x16 b) {
    sums += widen(uint16_t(a)) * (f32x16)(b << 16);
    sums += widen(uint16_t(a >> 16)) * (f32x16)(b & 0xffff0000u);
    return sums;
}

#if defined(__AVX2__)
// Bytes 0 and 2, then 1 and 3 of each word as pairs of 16 bits: a multiply-add of bytes would saturate.
inline __m256i accumulate_half(__m256i sums, uint32_t a, __m256i b) {
    const __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8), odd = _mm256_srai_epi16(b, 8);
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(even, _mm256_set1_epi32(int(a & 0x00ff00ff))));
    return _mm256_add_epi32(sums, _mm256_madd_epi16(odd, _mm256_set1_epi32(int((a >> 8) & 0x00ff00ff))));
}

inline i32x16 accumulate(Int8, i32x16 sums, uint32_t a, u32x16 b) {
    __m256i halves[2], columns[2];
    memcpy(halves, &sums, sizeof sums);
    memcpy(columns, &b, sizeof b);
    for (int i = 0; i < 2; i++) halves[i] = accumulate_half(halves[i], a, columns[i]);
    memcpy(&sums, halves, sizeof sums);
    return sums;
}
#else
inline i32x16 accumulate(Int8, i32x16 sums, uint32_t a, u32x16 b) {
    for (int byte = 0; byte < 4; byte++)
        sums += ((i32x16)(b << (24 - 8 * byte)) >> 24) * int32_t(uint8_t(a >> (8 * byte)));
    return sums;
}
#endif
#endif

// P columns of 16 in b, whose steps are b_step bytes apart.
template <class Type, int M, int P>
inline void dot_block(const uint8_t* a, int64_t a_stride, const uint8_t* const* b, int64_t b_step, int n_steps,
                      typename Type::Number* c, int64_t c_stride, bool continues) {
    typename Type::Sums sums[M][P];
    for (int m = 0; m < M; m++)
        for (int p = 0; p < P; p++)
            sums[m][p] = continues ? load<typename Type::Sums>(c + m * c_stride + p * kLanes) : typename Type::Sums{};
    for (int step = 0; step < n_steps; step++) {
        u32x16 columns[P];
        for (int p = 0; p < P; p++) columns[p] = load<u32x16>(b[p] + step * b_step);
        for (int m = 0; m < M; m++) {
            const uint32_t word = word_at(a + m * a_stride + 4 * step);
            for (int p = 0; p < P; p++) sums[m][p] = accumulate(Type{}, sums[m][p], word, columns[p]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int p = 0; p < P; p++) store(c + m * c_stride + p * kLanes, sums[m][p]);
}

// As many rows as there are, at most M at a time.
template <class Type, int M, int P>
inline void dot_rows(int n_rows, const uint8_t* a, int64_t a_stride, const uint8_t* const* b, int64_t b_step,
                     int n_steps, typename Type::Number* c, int64_t c_stride, bool continues = false) {
    for (; n_rows >= M; n_rows -= M, a += M * a_stride, c += M * c_stride)
        dot_block<Type, M, P>(a, a_stride, b, b_step, n_steps, c, c_stride, continues);
    if constexpr (M > 1)
        if (n_rows) dot_rows<Type, M - 1, P>(n_rows, a, a_stride, b, b_step, n_steps, c, c_stride, continues);
}

}  // namespace
