// The inner products of all matrix products: rows of activations with columns of words of four bytes.
//
// c[m][16 p + lane] (+)= sum over steps of a[m][step] . b[p][step][lane], where a word is two bf16 or four int8 numbers
// (those of a are unsigned). Each sum is added step by step, whatever M is. So a row has the same bits in any batch.
#pragma once

#include "vector.hpp"

namespace {

constexpr int kAheadBytes = 4096;

struct Bf16 {
    typedef Floats Sums;
    typedef float Number;
};
struct Int8 {
    typedef Ints Sums;
    typedef int32_t Number;
};

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__)

// Rows at a time with two and with four columns of 16: 24 sums and their operands fill the 32 registers.
constexpr int kRowsOfTwo = 12;
constexpr int kRowsOfFour = 6;
constexpr int kChunkSteps = 1 << 30;

inline uint32_t word_at(const uint8_t* from) {
    uint32_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

inline Floats accumulate(Bf16, Floats sums, uint32_t a, Words b) {
    return (Floats)_mm512_dpbf16_ps((__m512)sums, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
}

inline Ints accumulate(Int8, Ints sums, uint32_t a, Words b) {
    return (Ints)_mm512_dpbusd_epi32((__m512i)sums, _mm512_set1_epi32(int(a)), (__m512i)b);
}

template <class Type, int M>
struct LeftSide {
    static constexpr int kRegisters = 4;
    const uint8_t* rows;
    int64_t stride;

    LeftSide(const uint8_t* a, int64_t a_stride, int) : rows(a), stride(a_stride) {}

    template <int R>
    void add(int step, const Words* b, typename Type::Sums (*sums)[R]) const {
        for (int m = 0; m < M; m++) {
            const uint32_t word = word_at(rows + m * stride + 4 * step);
            for (int r = 0; r < R; r++) sums[m][r] = accumulate(Type{}, sums[m][r], word, b[r]);
        }
    }
};

#else

// Rows at a time with two registers of columns: 10 sums and their operands fit into the 16 registers.
constexpr int kRowsOfTwo = 5;
constexpr int kRowsOfFour = 5;
constexpr int kChunkSteps = 64;  // this part of a panel stays in the L1 cache while all rows use it

// Each word is split into two halves, whose products follow one another: its two bf16, or its bytes 0 and 2, 1 and 3.
inline Words half_of(Bf16, Words words, int half) { return half ? words & 0xffff0000u : words << 16; }
inline Words half_of(Int8, Words words, int half) { return (Words)((Shorts)(half ? words : words << 8) >> 8); }
inline Words left_half_of(Bf16, Words words, int half) { return half_of(Bf16{}, words, half); }
inline Words left_half_of(Int8, Words words, int half) { return (half ? words >> 8 : words) & 0x00ff00ffu; }

inline Floats accumulate(Bf16, Floats sums, uint32_t a, Words b) {
    float number;
    memcpy(&number, &a, sizeof number);
    return sums + number * (Floats)b;
}

inline Ints accumulate(Int8, Ints sums, uint32_t a, Words b) {
    const Words numbers = a - Words{};
#if defined(__AVX2__)
    return sums + (Ints)_mm256_madd_epi16((__m256i)numbers, (__m256i)b);
#elif defined(__SSE2__)
    return sums + (Ints)_mm_madd_epi16((__m128i)numbers, (__m128i)b);
#else
    return sums + (Ints)(numbers & 0xffff) * ((Ints)(b << 16) >> 16) + (Ints)(numbers >> 16) * ((Ints)b >> 16);
#endif
}

// A row is split once for all columns, so that each half is loaded into all lanes with one instruction.
template <class Type, int M>
struct LeftSide {
    static constexpr int kRegisters = M > 2 ? 2 : 4;
    uint32_t halves[2][M][kChunkSteps];

    LeftSide(const uint8_t* a, int64_t a_stride, int n_steps) {
        for (int m = 0; m < M; m++)
            for (int step = 0; step < n_steps; step += kWidth)
                for (int half = 0; half < 2; half++)
                    store(&halves[half][m][step], left_half_of(Type{}, load<Words>(a + m * a_stride + 4 * step), half));
    }

    template <int R>
    void add(int step, const Words* b, typename Type::Sums (*sums)[R]) const {
        for (int half = 0; half < 2; half++) {
            Words columns[R];
            for (int r = 0; r < R; r++) columns[r] = half_of(Type{}, b[r], half);
            for (int m = 0; m < M; m++)
                for (int r = 0; r < R; r++)
                    sums[m][r] = accumulate(Type{}, sums[m][r], halves[half][m][step], columns[r]);
        }
    }
};

#endif

// R registers of columns in b, whose steps are b_step bytes apart.
template <class Type, int M, int R>
inline void dot_block(const LeftSide<Type, M>& a, const uint8_t* const* b, int64_t b_step, int n_steps,
                      typename Type::Number* c, int64_t c_stride, bool continues, bool is_streamed) {
    typename Type::Sums sums[M][R];
    for (int m = 0; m < M; m++)
        for (int r = 0; r < R; r++)
            sums[m][r] = continues ? load<typename Type::Sums>(c + m * c_stride + r * kWidth) : typename Type::Sums{};
    for (int step = 0; step < n_steps; step++) {
        Words columns[R];
        for (int r = 0; r < R; r++) columns[r] = load<Words>(b[r] + step * b_step);
        if (is_streamed)
            for (int r = 0; r < R; r += kParts) __builtin_prefetch(b[r] + step * b_step + kAheadBytes);
        a.add(step, columns, sums);
    }
    for (int m = 0; m < M; m++)
        for (int r = 0; r < R; r++) store(c + m * c_stride + r * kWidth, sums[m][r]);
}

// Computes all rows, at most M at a time. Two columns are a panel of weights. Panels are read from memory one after the
// other, and are prefetched here, since the hardware prefetches too late.
template <class Type, int M, int P>
inline void dot_chunk(int n_rows, const uint8_t* a, int64_t a_stride, const uint8_t* const* b, int64_t b_step,
                      int n_steps, typename Type::Number* c, int64_t c_stride, bool continues) {
    constexpr int kMost = LeftSide<Type, M>::kRegisters, R = P * kParts < kMost ? P * kParts : kMost;
    for (; n_rows >= M; n_rows -= M, a += M * a_stride, c += M * c_stride) {
        const LeftSide<Type, M> left(a, a_stride, n_steps);
        for (int first = 0; first < P * kParts; first += R) {
            const uint8_t* columns[R];
            for (int r = 0; r < R; r++) columns[r] = b[(first + r) / kParts] + (first + r) % kParts * 4 * kWidth;
            dot_block<Type, M, R>(left, columns, b_step, n_steps, c + first * kWidth, c_stride, continues, P == 2);
        }
    }
    if constexpr (M > 1)
        if (n_rows) dot_chunk<Type, M - 1, P>(n_rows, a, a_stride, b, b_step, n_steps, c, c_stride, continues);
}

// P columns of 16 in b. The number of steps is a multiple of 8.
template <class Type, int M, int P>
inline void dot_rows(int n_rows, const uint8_t* a, int64_t a_stride, const uint8_t* const* b, int64_t b_step,
                     int n_steps, typename Type::Number* c, int64_t c_stride, bool continues = false) {
    for (int begin = 0; begin < n_steps; begin += kChunkSteps) {
        const uint8_t* rest[P];
        for (int p = 0; p < P; p++) rest[p] = b[p] + begin * b_step;
        const int n = n_steps - begin < kChunkSteps ? n_steps - begin : kChunkSteps;
        dot_chunk<Type, M, P>(n_rows, a + 4 * begin, a_stride, rest, b_step, n, c, c_stride, continues || begin);
    }
}

}  // namespace
