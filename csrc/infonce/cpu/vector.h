// Vectors of MIRROR_RT_LANES floats, and vectors of the units over which products are summed.
//
// They use the vector extensions of GCC and Clang: the same source becomes SSE2, AVX2, AVX-512 or
// NEON, or scalar code if the processor has no vectors. Microsoft's compiler has no such
// extensions: for it, plain_vector.h has a class of the same operators, of which only
// tile_portable.cpp is made.
#pragma once

#include <cstdint>
#include <limits>

#include "infonce/cpu/isa.h"
#if defined(MIRROR_RT_PAIRS) && defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace mirror_rt::infonce {
namespace {

constexpr int kLanes = MIRROR_RT_LANES;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

#ifdef MIRROR_RT_PLAIN_VECTORS
}  // namespace
}  // namespace mirror_rt::infonce
#include "infonce/cpu/plain_vector.h"
namespace mirror_rt::infonce {
namespace {
#else
typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef std::int32_t IntVec __attribute__((vector_size(kLanes * 4)));
typedef std::uint32_t UintVec __attribute__((vector_size(kLanes * 4)));

inline Vec load(const float* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(float* p, Vec x) { *reinterpret_cast<Vec*>(p) = x; }

/// Returns the dot product of unaligned rows, in float64, as long rows' norms overflow float32.
inline double dot(const float* x, const float* y, std::int64_t n) {
  constexpr int kHalf = kLanes / 2;
  typedef float Half __attribute__((vector_size(kHalf * 4)));
  typedef double Wide __attribute__((vector_size(kHalf * 8)));
  Wide sums[2] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    Half a[2], b[2];
    __builtin_memcpy(a, x + i, sizeof a);
    __builtin_memcpy(b, y + i, sizeof b);
    for (int h = 0; h < 2; ++h) {
      sums[h] += __builtin_convertvector(a[h], Wide) * __builtin_convertvector(b[h], Wide);
    }
  }
  sums[0] += sums[1];
  double total = 0;
  for (int lane = 0; lane < kHalf; ++lane) total += sums[0][lane];
  for (; i < n; ++i) total += double{x[i]} * y[i];
  return total;
}

/// Returns a where the condition holds, else b.
inline Vec where(IntVec condition, Vec a, Vec b) { return condition ? a : b; }

/// Returns 2^n for each biased = n + 1.5 * 2^23; unsigned, as other numbers may overflow.
inline Vec power_of_two(Vec biased) { return (Vec)(((UintVec)biased << 23) + 0x3f800000); }
#endif

/// Returns x in every lane. Subtracting 0 costs no instruction; adding it would, as it changes -0.
inline Vec all(float x) { return x - Vec{}; }

/// Returns 2^x to 2 units in the last place; 0 below -126, NaN for NaN. x must be under 128.
inline Vec exp2(Vec x) {
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const Vec biased = x + 12582912.0f;
  const Vec f = x - (biased - 12582912.0f);
  // 2^f on [-1/2, 1/2], relative error 2e-9 (least squares on Chebyshev nodes, reweighted).
  Vec p = f * 0.000153533572f + 0.00133988762f;
  p = p * f + 0.00961843739f;
  p = p * f + 0.0555033247f;
  p = p * f + 0.240226479f;
  p = p * f + 0.693147203f;
  p = p * f + 1.0f;
  return where(x < -126.0f, Vec{}, p * power_of_two(biased));
}

inline float exp2_one(float x) { return exp2(all(x))[0]; }

#ifndef MIRROR_RT_PAIRS

typedef float Unit;
typedef Vec UnitVec;
constexpr int kPair = 1;

inline UnitVec broadcast(Unit x) { return all(x); }
inline Vec multiply_add(UnitVec a, UnitVec b, Vec c) { return a * b + c; }

/// Stores the units of adjacent values.
inline void store_units(Unit* p, Vec x) { store(p, x); }

#else

typedef std::int32_t Unit;  // two bfloat16, the first in the low half
typedef IntVec UnitVec;
constexpr int kPair = 2;

inline UnitVec load(const Unit* p) { return *reinterpret_cast<const UnitVec*>(p); }
inline UnitVec broadcast(Unit x) { return UnitVec{} + x; }

#ifdef __AVX512BF16__
inline Vec multiply_add(UnitVec a, UnitVec b, Vec c) {
  return (Vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}
#else  // the same pairs without the instruction, for tests on other processors
inline Vec multiply_add(UnitVec a, UnitVec b, Vec c) {
  const IntVec high = IntVec{} + static_cast<std::int32_t>(0xffff0000u);
  c += (Vec)(a << 16) * (Vec)(b << 16);
  return c + (Vec)(a & high) * (Vec)(b & high);
}
#endif

typedef std::uint16_t ShortVec __attribute__((vector_size(kLanes * 2)));

/// Returns the nearest bfloat16 to each float, ties to even, in the low halves; NaN stays NaN.
inline UintVec to_bfloat16(Vec x) {
  const UintVec bits = (UintVec)x;
  const UintVec rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  return x == x ? rounded : UintVec{} + 0x7fc0;
}

/// Returns units that pair a value of `low` with one of `high`.
inline UnitVec pairs_of(Vec low, Vec high) {
  return (UnitVec)(to_bfloat16(low) | to_bfloat16(high) << 16);
}

/// Stores the units of adjacent values, half as many as values.
inline void store_units(Unit* p, Vec x) {
  const ShortVec halves = __builtin_convertvector(to_bfloat16(x), ShortVec);
  __builtin_memcpy(p, &halves, sizeof halves);
}
inline void store(Unit* p, UnitVec x) { *reinterpret_cast<UnitVec*>(p) = x; }

#endif

}  // namespace
}  // namespace mirror_rt::infonce
