// The units over which products are summed, in each precision, and functions of vectors.
#pragma once

#include "engine/isa.h"
#include "infonce/cpu/vector.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

// Products of two bfloat16 or four bytes, added to a sum; or sums of two products of neighbours, of
// bytes and of 16 bits. A compiler told to build for one processor knows its instructions for every
// width, so that AVX512-VNNI with 8 lanes stands in for AVX-VNNI in tests.
#if MIRROR_RT_LANES == 16 && defined(__AVX512BF16__)
#define MIRROR_RT_DOT2(sum, a, b) _mm512_dpbf16_ps((__m512)(sum), (__m512bh)(a), (__m512bh)(b))
#elif MIRROR_RT_LANES == 4 && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define MIRROR_RT_DOT2(sum, a, b) \
  vbfdotq_f32((float32x4_t)(sum), (bfloat16x8_t)(a), (bfloat16x8_t)(b))
#endif
#if MIRROR_RT_LANES == 16 && defined(__AVX512VNNI__)
#define MIRROR_RT_DOT4(sum, a, b) _mm512_dpbusd_epi32((__m512i)(sum), (__m512i)(a), (__m512i)(b))
#elif MIRROR_RT_LANES == 8 && defined(__AVXVNNI__)
#define MIRROR_RT_DOT4(sum, a, b) \
  _mm256_dpbusd_avx_epi32((__m256i)(sum), (__m256i)(a), (__m256i)(b))
#elif MIRROR_RT_LANES == 8 && defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define MIRROR_RT_DOT4(sum, a, b) _mm256_dpbusd_epi32((__m256i)(sum), (__m256i)(a), (__m256i)(b))
#elif MIRROR_RT_LANES == 4 && defined(__ARM_FEATURE_DOTPROD)
#define MIRROR_RT_DOT4(sum, a, b) vdotq_s32((int32x4_t)(sum), (int8x16_t)(a), (int8x16_t)(b))
#elif MIRROR_RT_LANES == 16 && defined(__AVX512BW__)
#define MIRROR_RT_MADD_BYTES(a, b) (SignedVec) _mm512_maddubs_epi16((__m512i)(a), (__m512i)(b))
#define MIRROR_RT_MADD(a, b) (IntVec) _mm512_madd_epi16((__m512i)(a), (__m512i)(b))
#elif MIRROR_RT_LANES == 8 && defined(__AVX2__)
#define MIRROR_RT_MADD_BYTES(a, b) (SignedVec) _mm256_maddubs_epi16((__m256i)(a), (__m256i)(b))
#define MIRROR_RT_MADD(a, b) (IntVec) _mm256_madd_epi16((__m256i)(a), (__m256i)(b))
#endif

namespace mirror_rt::engine {
namespace {

using infonce::all;
using infonce::exp2;
using infonce::IntVec;
using infonce::kInfinity;
using infonce::kLanes;
using infonce::UintVec;
using infonce::Vec;

typedef std::uint16_t ShortVec __attribute__((vector_size(kLanes * 2)));
typedef std::int16_t SignedVec __attribute__((vector_size(kLanes * 4)));  // as wide as Vec
typedef std::uint8_t ByteVec __attribute__((vector_size(kLanes)));

template <class V, class T>
inline V load_as(const T* p) {  // unaligned
  V x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
/// Returns the nearest bfloat16 to each float, ties to even; NaN stays NaN.
inline ShortVec to_bfloat16(Vec x) {
#if MIRROR_RT_LANES == 16 && defined(__AVX512BF16__)
  return (ShortVec)_mm512_cvtneps_pbh((__m512)x);
#else
  const UintVec bits = (UintVec)x;
  const UintVec rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return __builtin_convertvector(x == x ? rounded : UintVec{} + 0x7fc0, ShortVec);
#endif
}

inline Vec loadu(const float* p) { return load_as<Vec>(p); }
inline void storeu(float* p, Vec x) { __builtin_memcpy(p, &x, sizeof x); }

/// The same for bfloat16.
inline Vec loadu(const std::uint16_t* p) {
  return (Vec)(__builtin_convertvector(load_as<ShortVec>(p), UintVec) << 16);
}
inline void storeu(std::uint16_t* p, Vec x) {
  const ShortVec halves = to_bfloat16(x);
  __builtin_memcpy(p, &halves, sizeof halves);
}

/// The same for the first `count` lanes; the others are 0.
template <class T>
inline Vec loadu(const T* p, std::int64_t count) {
  if (count >= kLanes) return loadu(p);
  T some[kLanes] = {};
  __builtin_memcpy(some, p, static_cast<std::size_t>(count) * sizeof(T));
  return loadu(some);
}
template <class T>
inline void storeu(T* p, Vec x, std::int64_t count) {
  if (count >= kLanes) return storeu(p, x);
  T some[kLanes];
  storeu(some, x);
  __builtin_memcpy(p, some, static_cast<std::size_t>(count) * sizeof(T));
}
inline void store_as(bool halves, void* values, std::int64_t place, Vec x, std::int64_t count) {
  halves ? storeu(static_cast<std::uint16_t*>(values) + place, x, count)
         : storeu(static_cast<float*>(values) + place, x, count);
}

struct Float32 {
  typedef float Number;
  typedef float Unit;
  typedef Vec Units;
  typedef Vec Sum;
  static constexpr bool kScaled = false;
  static constexpr int kSize = 1;
  static constexpr int kSteps = 1;  // units that are added at a time
  static Units broadcast(Unit x) { return all(x); }
  static Sum add(Sum sum, const Units (&weights)[1], const Units (&x)[1]) {
    return weights[0] * x[0] + sum;
  }
};

struct Bfloat16 {
  typedef std::uint16_t Number;
  typedef std::int32_t Unit;  // two bfloat16, the first in the low half
  typedef IntVec Units;
  typedef Vec Sum;
  static constexpr bool kScaled = false;
  static constexpr int kSize = 2;
  static constexpr int kSteps = 1;
  static Units broadcast(Unit x) { return Units{} + x; }
#ifdef MIRROR_RT_DOT2
#ifdef MIRROR_RT_TILES  // processors that have them multiply pairs by themselves at half the rate
  static constexpr bool kFast = false;
#else
  static constexpr bool kFast = true;  // than float32
#endif
  static Sum add(Sum sum, const Units (&weights)[1], const Units (&x)[1]) {
    return (Sum)MIRROR_RT_DOT2(sum, weights[0], x[0]);
  }
#else
  static constexpr bool kFast = false;
  static Sum add(Sum sum, const Units (&weights)[1], const Units (&x)[1]) {
    const IntVec high = IntVec{} + static_cast<std::int32_t>(0xffff0000u);
    sum += (Vec)(weights[0] << 16) * (Vec)(x[0] << 16);
    return sum + (Vec)(weights[0] & high) * (Vec)(x[0] & high);
  }
#endif
};

struct Int8 {
  typedef std::int32_t Unit;  // four numbers of an activation, or four signed weights
  typedef IntVec Units;
  typedef IntVec Sum;
  static constexpr bool kScaled = true;  // each row by blocks of the depth, and each column
  static constexpr int kSize = 4;
  static Units broadcast(Unit x) { return Units{} + x; }
  static constexpr int kLeast = kLanes == 4 ? -128 : 0;  // both factors of NEON's have a sign
#ifdef MIRROR_RT_MADD_BYTES
  // Four units are added in 16 bits: `scales_of` makes the weights so small that all sums fit.
  static constexpr int kSteps = 4;
  static constexpr int kLevels = kPairLevels;
  static constexpr std::int64_t kBlock = kPairBlock;
  template <int S>
  static Sum add(Sum sum, const Units (&weights)[S], const Units (&x)[S]) {
    SignedVec products = MIRROR_RT_MADD_BYTES(x[0], weights[0]);
#pragma GCC unroll 4
    for (int s = 1; s < S; ++s) products += MIRROR_RT_MADD_BYTES(x[s], weights[s]);
    return sum + MIRROR_RT_MADD(products, SignedVec{} + 1);
  }
#else
  static constexpr int kSteps = 1;
  static constexpr int kLevels = 255;
  static constexpr std::int64_t kBlock = kScaleBlock;
  static Sum add(Sum sum, const Units (&weights)[1], const Units (&x)[1]) {
#ifdef MIRROR_RT_DOT4
    return (Sum)MIRROR_RT_DOT4(sum, x[0], weights[0]);
#else
    for (int byte = 0; byte < 4; ++byte) {
      const IntVec number = x[0] << (24 - 8 * byte) >> 24;
      sum += (weights[0] << (24 - 8 * byte) >> 24) * (kLeast == 0 ? number & 255 : number);
    }
    return sum;
#endif
  }
#endif
};

#if MIRROR_RT_LANES == 4 && defined(__ARM_FEATURE_MATMUL_INT8)
/// Two units of twice as many numbers, of two rows or of two columns; a sum is [row][column].
template <class V>
struct Squares {
  typedef std::int64_t Unit;
  typedef int64x2_t Units;
  typedef V Sum;
  /// The sums of a row with four columns, from those with the first two and the other two.
  static Sum first_row(Sum a, Sum b) { return (Sum)vzip1q_s64((Units)a, (Units)b); }
  static Sum second_row(Sum a, Sum b) { return (Sum)vzip2q_s64((Units)a, (Units)b); }
};
struct Bfloat16Squares : Squares<Vec> {
  static constexpr bool kScaled = false;
  static constexpr int kSize = 4;
  static Sum add(Sum sum, Units weights, Units x) {
    return (Sum)vbfmmlaq_f32((float32x4_t)sum, (bfloat16x8_t)x, (bfloat16x8_t)weights);
  }
};
struct Int8Squares : Squares<IntVec> {
  static constexpr bool kScaled = true;
  static constexpr int kSize = 8;
  static constexpr std::int64_t kBlock = kScaleBlock;
  static Sum add(Sum sum, Units weights, Units x) {
    return (Sum)vmmlaq_s32((int32x4_t)sum, (int8x16_t)x, (int8x16_t)weights);
  }
};
typedef Bfloat16Squares Bfloat16Product;
typedef Int8Squares Int8Product;
#else
typedef Bfloat16 Bfloat16Product;
typedef Int8 Int8Product;
#endif
constexpr std::int64_t kUnit = sizeof(Int8Product::Unit);

template <class T>
inline T larger(T a, T b) {
  return a > b ? a : b;
}
template <class T>
inline T smaller(T a, T b) {
  return a < b ? a : b;
}

/// Returns first, first + 1, first + 2, ...
inline IntVec lane_numbers(std::int64_t first) {
  IntVec numbers;
  for (int lane = 0; lane < kLanes; ++lane) numbers[lane] = lane;
  return numbers + static_cast<std::int32_t>(first);
}

inline float sum_of(Vec x) {
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += x[lane];
  return total;
}
inline float largest_of(Vec x) {
  float most = x[0];
  for (int lane = 1; lane < kLanes; ++lane) most = x[lane] > most ? x[lane] : most;
  return most;
}

/// Returns x Phi(x), with the error function to 4 units in the last place: the rational
/// approximation on [-4, 4] of Eigen and XLA.
inline Vec gelu(Vec x) {
  const Vec z = smaller(larger(x * 0.70710678f, all(-4.0f)), all(4.0f)), t = z * z;
  Vec p = t * -2.72614225801306e-10f + 2.77068142495902e-08f;
  p = p * t - 2.10102402082508e-06f;
  p = p * t - 5.69250639462346e-05f;
  p = p * t - 7.34990630326855e-04f;
  p = p * t - 2.95459980854025e-03f;
  p = p * t - 1.60960333262415e-02f;
  Vec q = t * -1.45660718464996e-05f - 2.13374055278905e-04f;
  q = q * t - 1.68282697438203e-03f;
  q = q * t - 7.37332916720468e-03f;
  q = q * t - 1.42647390514189e-02f;
  const Vec half = x * 0.5f;
  return half + half * (z * p / q);
}

/// Returns x / (1 + e^(-2 y)), y = sqrt(2 / pi) (x + 0.044715 x^3), which is GELU with tanh.
inline Vec gelu_tanh(Vec x) {
  const Vec power = x * (x * x * 0.044715f + 1.0f) * -2.302208198f;  // to base 2
  return x / (exp2(smaller(power, all(126.0f))) + 1.0f);
}

/// Returns x / (1 + e^-x).
inline Vec silu(Vec x) { return x / (exp2(smaller(x * -1.44269504f, all(126.0f))) + 1.0f); }

inline Vec activate(Vec x, Activation activation) {
  if (activation == Activation::none) return x;
  if (activation == Activation::gelu) return gelu(x);
  if (activation == Activation::gelu_tanh) return gelu_tanh(x);
  if (activation == Activation::silu) return silu(x);
  return x < 0.0f ? Vec{} : x;  // NaN stays
}

}  // namespace
}  // namespace mirror_rt::engine
