// The functions of an Isa, for the instruction set that this translation unit is compiled for.
//
// Each kernels_<isa>.cpp includes this file once, and defines MIRROR_RT_ISA, its name, as in
// isa_list.cpp, and MIRROR_RT_LANES, the floats of a vector.
// Everything has internal linkage and uses nothing of the C++ library: if the linker merged a
// function with that of another file, it could run instructions that the processor lacks.
#pragma once

#include <cstring>

#include "infonce/cpu/vector.h"
#include "vector_ops/vector_ops.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__) && !defined(MIRROR_RT_PLAIN_VECTORS)
#include <arm_neon.h>
#endif
#ifdef MIRROR_RT_PLAIN_VECTORS
#include <cmath>
#endif

namespace mirror_rt::vector_ops {
namespace {

using infonce::all;
using infonce::kLanes;
using infonce::Vec;
using infonce::where;

bool quantize_row(const float* x, std::int64_t dim, const float* starts, const float* steps,
                  std::uint8_t flip, std::uint8_t* out) {
  int nans = 0;
  for (std::int64_t d = 0; d < dim; ++d) {
    float code = (x[d] - starts[d]) / steps[d];
    nans += code != code;
    code = code > 0.0f ? code : 0.0f;
    code = code < 255.0f ? code : 255.0f;
    out[d] = static_cast<std::uint8_t>(static_cast<std::uint8_t>(static_cast<int>(code)) ^ flip);
  }
  return nans == 0;
}

void widen(const std::uint8_t* codes, std::int64_t count, std::uint8_t flip, std::int16_t* out) {
  // (c ^ 0x80) - 0x80 is c interpreted as a signed byte.
  for (std::int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<std::int16_t>((codes[i] ^ flip) - flip);
  }
}

void dots(const std::int16_t* query, const std::int16_t* rows, std::int64_t n, std::int64_t dim,
          std::int32_t* scores) {
  // Four rows are taken at a time, to share the loads of the query.
  for (std::int64_t r = 0; r < n; r += 4) {
    const std::int16_t *a = rows + r * dim, *b = a + dim, *c = b + dim, *d = c + dim;
    std::int32_t sum_a = 0, sum_b = 0, sum_c = 0, sum_d = 0;
    for (std::int64_t i = 0; i < dim; ++i) {
      sum_a += std::int32_t{query[i]} * a[i];
      sum_b += std::int32_t{query[i]} * b[i];
      sum_c += std::int32_t{query[i]} * c[i];
      sum_d += std::int32_t{query[i]} * d[i];
    }
    scores[r] = sum_a;
    scores[r + 1] = sum_b;
    scores[r + 2] = sum_c;
    scores[r + 3] = sum_d;
  }
}

std::int32_t count_ones(std::uint64_t x) {
#ifdef MIRROR_RT_PLAIN_VECTORS  // Microsoft's compiler
  x -= x >> 1 & 0x5555555555555555u;
  x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
  x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fu;
  return static_cast<std::int32_t>(x * 0x0101010101010101u >> 56);
#else
  return __builtin_popcountll(x);
#endif
}

/// Scores R rows, which share the loads of the query.
template <int R>
inline void agreement_of(const std::uint8_t* query, const std::uint8_t* rows, std::int64_t bytes,
                         std::int32_t* scores) {
  std::int32_t different[R] = {};
  std::int64_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    std::uint64_t a, b;
    std::memcpy(&a, query + i, 8);
    for (int r = 0; r < R; ++r) {
      std::memcpy(&b, rows + r * bytes + i, 8);
      different[r] += count_ones(a ^ b);
    }
  }
  for (; i < bytes; ++i) {
    for (int r = 0; r < R; ++r) {
      different[r] += count_ones(static_cast<std::uint64_t>(query[i] ^ rows[r * bytes + i]));
    }
  }
  for (int r = 0; r < R; ++r) scores[r] = -different[r];
}

void agreement(const std::uint8_t* query, const std::uint8_t* rows, std::int64_t n,
               std::int64_t bytes, std::int32_t* scores) {
  std::int64_t r = 0;
  for (; r + 4 <= n; r += 4) agreement_of<4>(query, rows + r * bytes, bytes, scores + r);
  for (; r < n; ++r) agreement_of<1>(query, rows + r * bytes, bytes, scores + r);
}

inline Vec loadu(const float* p) {
  Vec x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

/// Returns a float16 number in float32. The bias of the exponent is 15 in one and 127 in the other,
/// and the largest exponent stands for infinity and NaN in both.
inline float widened(std::uint16_t half) {
  const std::uint32_t bits = (half & 0x7fffu) << 13, one = 1u << 23, sign = half & 0x8000u;
  const bool subnormal = bits < one;
  std::uint32_t moved = bits + (subnormal ? 113 : bits < 31 * one ? 112 : 224) * one;
  float x;
  std::memcpy(&x, &moved, sizeof x);
  x -= subnormal ? 1.0f / 16384 : 0.0f;
  std::memcpy(&moved, &x, sizeof x);
  moved |= sign << 16;
  std::memcpy(&x, &moved, sizeof x);
  return x;
}

inline Vec widened(const std::uint16_t* halves) {
#if MIRROR_RT_LANES == 16 && defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(halves)));
#elif MIRROR_RT_LANES == 8 && defined(__F16C__)
  return (Vec)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(halves)));
#elif defined(__aarch64__) && !defined(MIRROR_RT_PLAIN_VECTORS)
  return (Vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(halves)));
#else
  float x[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = widened(halves[lane]);
  return loadu(x);
#endif
}

void widen_halves(const std::uint16_t* halves, std::int64_t count, float* out) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vec x = widened(halves + i);
    std::memcpy(out + i, &x, sizeof x);
  }
  for (; i < count; ++i) out[i] = widened(halves[i]);
}

inline float sum_of(Vec x) {
  float sums[kLanes];
  std::memcpy(sums, &x, sizeof x);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

/// Scores R rows, as `agreement_of`. Each score is summed in the same order, whatever R.
template <int R>
inline void half_dots_of(const float* query, const std::uint16_t* rows, std::int64_t dim,
                         float* scores) {
  Vec sums[R] = {};
  std::int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    const Vec x = loadu(query + i);
    for (int r = 0; r < R; ++r) sums[r] += widened(rows + r * dim + i) * x;
  }
  for (int r = 0; r < R; ++r) {
    scores[r] = sum_of(sums[r]);
    for (std::int64_t d = i; d < dim; ++d) scores[r] += widened(rows[r * dim + d]) * query[d];
  }
}

void half_dots(const float* query, const std::uint16_t* rows, std::int64_t n, std::int64_t dim,
               float* scores) {
  std::int64_t r = 0;
  for (; r + 4 <= n; r += 4) half_dots_of<4>(query, rows + r * dim, dim, scores + r);
  for (; r < n; ++r) half_dots_of<1>(query, rows + r * dim, dim, scores + r);
}

void widen_codes(const std::uint8_t* codes, std::int64_t count, std::uint8_t flip, float* out) {
  for (std::int64_t i = 0; i < count; ++i) out[i] = static_cast<float>((codes[i] ^ flip) - flip);
}

/// Writes a centroid plus the weights of residuals, of which a byte has N.
template <int N>
inline void add_weights(const float* centroid, const float* weights, const std::uint8_t* residuals,
                        std::int64_t dim, float* out) {
  for (std::int64_t d = 0; d < dim; d += N) {
    const float* of_byte = weights + residuals[d / N] * N;
    float sums[N];  // which are nowhere else, so that N are added at a time
    for (int n = 0; n < N; ++n) sums[n] = centroid[d + n] + of_byte[n];
    std::memcpy(out + d, sums, sizeof sums);
  }
}

inline float root(float x) {
#ifdef MIRROR_RT_PLAIN_VECTORS  // Microsoft's compiler, for which there is one such file
  return std::sqrt(x);
#else
  return __builtin_sqrtf(x);
#endif
}

void widen_residuals(const ResidualCodec& codec, const std::uint8_t* rows, std::int64_t n,
                     std::int64_t dim, float* out) {
  const auto add = codec.per_byte == 8   ? add_weights<8>
                   : codec.per_byte == 4 ? add_weights<4>
                                         : add_weights<2>;
  for (std::int64_t r = 0; r < n; ++r, out += dim, rows += 4 + dim / codec.per_byte) {
    std::int32_t centroid;
    std::memcpy(&centroid, rows, sizeof centroid);
    add(codec.centroids + centroid * dim, codec.weights, rows + sizeof centroid, dim, out);
    Vec squares = {};
    std::int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) squares += loadu(out + d) * loadu(out + d);
    float length = sum_of(squares);
    for (; d < dim; ++d) length += out[d] * out[d];
    length = root(length);
    const float factor = 1.0f / (length < 1e-12f ? 1e-12f : length);
    for (d = 0; d < dim; ++d) out[d] *= factor;
  }
}

// Rows that are multiplied with a panel at a time: the sums fill the registers.
#if MIRROR_RT_LANES == 16 || defined(__aarch64__)
constexpr int kRows = 12;
#else
constexpr int kRows = 6;
#endif

/// Computes the products of R rows with the columns of a panel.
template <int R>
inline void multiply(const float* rows, std::int64_t dim, const float* panel, Vec (&sums)[R][2]) {
  for (std::int64_t d = 0; d < dim; ++d, panel += 2 * kLanes) {
    const Vec left = loadu(panel), right = loadu(panel + kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Vec x = all(rows[r * dim + d]);
      sums[r][0] += x * left;
      sums[r][1] += x * right;
    }
  }
}

/// Raises `best` to the products of R rows with the columns of a panel.
template <int R>
inline void raise(const float* rows, std::int64_t dim, const float* panel, Vec (&best)[2]) {
  Vec sums[R][2] = {};
  multiply<R>(rows, dim, panel, sums);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    for (int v = 0; v < 2; ++v) best[v] = where(sums[r][v] > best[v], sums[r][v], best[v]);
  }
}

void best_products(const float* rows, std::int64_t n, std::int64_t dim, const float* panel,
                   float* best) {
  Vec found[2] = {loadu(best), loadu(best + kLanes)};
  if (n < kRows) {
    for (std::int64_t r = 0; r < n; ++r) raise<1>(rows + r * dim, dim, panel, found);
  }
  // The last rows are taken with some before them, which changes no maximum.
  for (std::int64_t r = 0; n >= kRows && r < n; r += kRows) {
    raise<kRows>(rows + (r + kRows < n ? r : n - kRows) * dim, dim, panel, found);
  }
  std::memcpy(best, found, sizeof found);
}

/// Writes the products of R rows with the columns of a panel: out [R, columns].
template <int R>
inline void products_of(const float* rows, std::int64_t dim, const float* panel, float* out) {
  Vec sums[R][2] = {};
  multiply<R>(rows, dim, panel, sums);
  std::memcpy(out, sums, sizeof sums);
}

void products(const float* rows, std::int64_t n, std::int64_t dim, const float* panel, float* out) {
  std::int64_t r = 0;
  for (; r + kRows <= n; r += kRows) {
    products_of<kRows>(rows + r * dim, dim, panel, out + r * 2 * kLanes);
  }
  for (; r < n; ++r) products_of<1>(rows + r * dim, dim, panel, out + r * 2 * kLanes);
}

template <class Score>
bool any_above(const Score* scores, std::int64_t n, Score threshold) {
  int above = 0;  // a count, because a loop that ends early is not vectorised
  for (std::int64_t i = 0; i < n; ++i) above += scores[i] > threshold;
  return above != 0;
}

}  // namespace

// Two macros are needed, so that the name is expanded before it is pasted.
#define MIRROR_RT_DEFINE(isa)            \
  extern const Isa k_##isa;              \
  const Isa k_##isa = {#isa,             \
                       quantize_row,     \
                       widen,            \
                       dots,             \
                       agreement,        \
                       widen_halves,     \
                       half_dots,        \
                       widen_codes,      \
                       widen_residuals,  \
                       best_products,    \
                       products,         \
                       2 * kLanes,       \
                       any_above<float>, \
                       any_above<std::int32_t>};
#define MIRROR_RT_EXPAND(isa) MIRROR_RT_DEFINE(isa)
MIRROR_RT_EXPAND(MIRROR_RT_ISA)

}  // namespace mirror_rt::vector_ops
