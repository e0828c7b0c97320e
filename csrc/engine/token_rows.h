// Functions of one row of numbers: layer normalisation, and conversion to an operand.
#pragma once

#include "engine/units.h"

namespace mirror_rt::engine {
namespace {

/// Quantises the numbers of a token, block by block: the range of a block, which includes 0, is
/// spread over all levels. If they are not finite the scale is NaN, so that all that is made of
/// them is NaN, as in float32.
inline void quantize(const float* x, std::int64_t n, const Operand& copy, std::int64_t row) {
  std::int64_t place = row * blocks_of(n, Int8::kBlock);
  auto* out = static_cast<std::uint8_t*>(copy.values) + row * copy.stride;
  for (std::int64_t begin = 0; begin < n; begin += Int8::kBlock, ++place) {
    const std::int64_t end = smaller(begin + Int8::kBlock, n);
    Vec most = {}, least = {}, wrong = {};
    for (std::int64_t i = begin; i < end; i += kLanes) {
      most = larger(most, loadu(x + i));
      least = smaller(least, loadu(x + i));
      wrong += loadu(x + i) * 0.0f;  // NaN of NaN and of infinity
    }
    const bool finite = sum_of(wrong) == 0;
    const float high = finite ? largest_of(most) : 0.0f, low = finite ? -largest_of(-least) : 0.0f;
    // Halves, as the range may be beyond float32; the inverse of a lesser scale would be infinite.
    const float step = larger((high * 0.5f - low * 0.5f) / (Int8::kLevels * 0.5f), kLeastScale);
    const float shift = __builtin_rintf(-low / step);
    copy.scales[place] = finite ? step : __builtin_nanf("");
    copy.shifts[place] = (shift + static_cast<float>(Int8::kLeast)) * -step;
    const Vec factor = all(1.0f / step);
    for (std::int64_t i = begin; i < end; i += kLanes) {
      // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
      const Vec shifted = loadu(x + i) * factor + (shift + 12582912.0f);
      const IntVec value = (IntVec)((UintVec)shifted - 0x4b400000);
      const IntVec byte = smaller(larger(value, IntVec{}), IntVec{} + Int8::kLevels) + Int8::kLeast;
      // By way of 16 bits, or GCC converts the numbers one by one for AVX2.
      const auto bytes = __builtin_convertvector(__builtin_convertvector(byte, ShortVec), ByteVec);
      __builtin_memcpy(out + i, &bytes, sizeof bytes);
    }
  }
}

/// Writes `n` numbers, a multiple of kLanes, to a row of an operand.
inline void copy_row(Precision precision, const float* x, std::int64_t n, const Operand& copy,
                     std::int64_t row) {
  if (precision == Precision::int8) return quantize(x, n, copy, row);
  const bool halves = precision == Precision::bfloat16;
  const std::int64_t start = row * copy.stride;
  if (!halves && static_cast<float*>(copy.values) + start == x) return;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    store_as(halves, copy.values, start + i, loadu(x + i), kLanes);
  }
}

void convert(Precision precision, float* x, std::int64_t n, Activation gate, const Operand& copy,
             std::int64_t row) {
  const std::int64_t end = round_up(n, 16);  // for all lanes
  if (gate != Activation::none) {
    for (std::int64_t i = 0; i < n; i += kLanes) {
      storeu(x + i, activate(loadu(x + i), gate) * loadu(x + n + i));
    }
  }
  for (std::int64_t i = n; i < end; ++i) x[i] = 0;
  copy_row(precision, x, end, copy, row);
}

void normalize(Precision precision, const float* x, float* y, std::int64_t n, const Norm& norm,
               float epsilon, const Operand& copy, std::int64_t row) {
  const std::int64_t end = round_up(n, kLanes);
  const auto count = static_cast<std::int32_t>(n);
  Vec total = {}, squares = {};
  for (std::int64_t i = 0; i < end; i += kLanes) total += loadu(x + i);  // padding is 0
  const float mean = norm.centred ? sum_of(total) / static_cast<float>(n) : 0.0f;
  for (std::int64_t i = 0; i < end; i += kLanes) {
    const Vec difference = lane_numbers(i) < count ? loadu(x + i) - mean : Vec{};
    squares += difference * difference;
  }
  const float variance = sum_of(squares) / static_cast<float>(n);
  const float factor = 1.0f / __builtin_sqrtf(variance + epsilon);
  for (std::int64_t i = 0; i < end; i += kLanes) {
    const Vec scaled = (loadu(x + i) - mean) * factor;
    storeu(y + i, scaled * loadu(norm.weight + i) + loadu(norm.bias + i));
  }
  copy_row(precision, y, end, copy, row);
}

}  // namespace
}  // namespace mirror_rt::engine
