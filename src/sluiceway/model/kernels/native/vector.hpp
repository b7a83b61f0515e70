// Sixteen lanes of everything, in the compilers' own vector types: each target lowers them to what it has.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace {

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef int16_t i16x16 __attribute__((vector_size(32)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));
typedef uint8_t u8x16 __attribute__((vector_size(16)));

constexpr int kLanes = 16;
constexpr float kNegativeInfinity = -__builtin_inff();

// Vectors with as many lanes as a register has. Compilers split wider vectors: well for arithmetic, but lane by lane for
// selections and conversions, and through memory if many are alive. Such code uses these vectors.
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kWidth)));
typedef int32_t Ints __attribute__((vector_size(4 * kWidth)));
typedef uint32_t Words __attribute__((vector_size(4 * kWidth)));
typedef int16_t Shorts __attribute__((vector_size(4 * kWidth)));

constexpr int kParts = kLanes / kWidth;

template <class Vector>
inline Vector load(const void* from) {
    Vector value;
    memcpy(&value, from, sizeof value);
    return value;
}

template <class Vector>
inline void store(void* to, Vector value) {
    memcpy(to, &value, sizeof value);
}

inline f32x16 broadcast(float value) { return value - f32x16{}; }

inline f32x16 widen(u16x16 bf16) { return (f32x16)(__builtin_convertvector(bf16, u32x16) << 16); }

inline float widen(uint16_t bf16) {
    uint32_t bits = uint32_t(bf16) << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// To the nearest bf16, ties to even.
inline u16x16 narrow(f32x16 values) {
    u32x16 bits = (u32x16)values;
    return __builtin_convertvector((bits + 0x7fff + ((bits >> 16) & 1)) >> 16, u16x16);
}

inline uint16_t narrow(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class Function, class... Vectors>
inline f32x16 by_parts(Function function, Vectors... of) {
    f32x16 result;
    for (int part = 0; part < kParts; part++) {
        const int at = part * int(sizeof(Floats));
        const Floats values = function(load<Floats>(reinterpret_cast<const char*>(&of) + at)...);
        memcpy(reinterpret_cast<char*>(&result) + at, &values, sizeof values);
    }
    return result;
}

inline f32x16 larger(f32x16 a, f32x16 b) {
    return by_parts([](Floats x, Floats y) { return x > y ? x : y; }, a, b);
}
inline f32x16 smaller(f32x16 a, f32x16 b) {
    return by_parts([](Floats x, Floats y) { return x < y ? x : y; }, a, b);
}
inline f32x16 magnitude(f32x16 a) { return (f32x16)((u32x16)a & 0x7fffffff); }

// Adds halves, then quarters, and so on: always in the same order.
template <class Vector, class Join>
inline Vector fold(Vector v, Join join) {
    v = join(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
    v = join(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
    v = join(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
    return join(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
}

inline float sum(f32x16 v) {
    return fold(v, [](f32x16 a, f32x16 b) { return a + b; })[0];
}

inline float largest(f32x16 v) {
    return fold(v, [](f32x16 a, f32x16 b) { return larger(a, b); })[0];
}

inline i32x16 lane_numbers() { return i32x16{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}; }

// e^x for x <= 88, with an error of at most 2 units in the last place; below -87 it is zero. The power of two is split
// off. The rest, at most half of log 2, goes into the Taylor polynomial of degree 7.
inline Floats exponential_in_register(Floats x) {
    const Floats least = Floats{} - 87.3f, clamped = x > least ? x : least;
    const Floats magic = Floats{} + 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const Floats whole = (clamped * 1.44269504f + magic) - magic;
    Floats rest = clamped - whole * 0.693359375f;
    rest -= whole * -2.12194440e-4f;
    const float coefficients[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
    Floats result = Floats{} + 1.0f / 5040;
    for (const float coefficient : coefficients) result = result * rest + coefficient;
    const Ints exponent = __builtin_convertvector(whole, Ints);
    result *= (Floats)((exponent + 127) << 23);
    return x < least ? Floats{} : result;
}

inline f32x16 exponential(f32x16 x) { return by_parts(exponential_in_register, x); }

inline f32x16 swiglu(f32x16 gate, f32x16 up) {
    return gate / (1.0f + exponential(smaller(-gate, broadcast(88.0f)))) * up;
}

// The first n lanes, the others zero.
inline f32x16 load_part(const float* from, int n) {
    float lanes[kLanes] = {};
    memcpy(lanes, from, n * sizeof(float));
    return load<f32x16>(lanes);
}

}  // namespace
