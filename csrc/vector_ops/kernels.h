// The functions of an Isa, for the instruction set that this translation unit is compiled for.
//
// Each kernels_<isa>.cpp includes this file once, and defines MIRROR_RT_ISA, its name, as in
// isa_list.cpp.
// Everything has internal linkage and uses nothing of the C++ library: if the linker merged a
// function with that of another file, it could run instructions that the processor lacks.
#pragma once

#include <cstring>

#include "vector_ops/vector_ops.h"

namespace mirror_rt::vector_ops {
namespace {

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

void agreement(const std::uint8_t* query, const std::uint8_t* rows, std::int64_t n,
               std::int64_t bytes, std::int32_t* scores) {
  for (std::int64_t r = 0; r < n; ++r, rows += bytes) {
    std::int32_t different = 0;
    std::int64_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
      std::uint64_t a, b;
      std::memcpy(&a, query + i, 8);
      std::memcpy(&b, rows + i, 8);
      different += count_ones(a ^ b);
    }
    for (; i < bytes; ++i) {
      different += count_ones(static_cast<std::uint64_t>(query[i] ^ rows[i]));
    }
    scores[r] = -different;
  }
}

template <class Score>
bool any_above(const Score* scores, std::int64_t n, Score threshold) {
  int above = 0;  // a count, because a loop that ends early is not vectorised
  for (std::int64_t i = 0; i < n; ++i) above += scores[i] > threshold;
  return above != 0;
}

}  // namespace

// Two macros are needed, so that the name is expanded before it is pasted.
#define MIRROR_RT_DEFINE(isa) \
  extern const Isa k_##isa;   \
  const Isa k_##isa = {       \
      #isa, quantize_row, widen, dots, agreement, any_above<float>, any_above<std::int32_t>};
#define MIRROR_RT_EXPAND(isa) MIRROR_RT_DEFINE(isa)
MIRROR_RT_EXPAND(MIRROR_RT_ISA)

}  // namespace mirror_rt::vector_ops
