// Packs the weights of an encoder, once, in the precision of its products.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/engine.h"

namespace mirror_rt::engine {
namespace {

std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

std::uint16_t to_bfloat16(float x) {
  const std::uint32_t bits = bits_of(x);
  return static_cast<std::uint16_t>(x != x ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Rounds a number of at most 127: adding 1.5 * 2^23 leaves the integer in the low bits.
std::int8_t to_int8(float x) {
  return static_cast<std::int8_t>(bits_of(x + 12582912.0f) - 0x4b400000);
}

/// Packs a weight by strips, in units of `size` numbers; convert(x, depth, column) returns the
/// number that stands for x, which is in the unit that begins at `depth`.
template <class T, class Convert>
void pack(const Weight& w, std::int64_t strip, std::int64_t strips, std::int64_t size, T* out,
          const Convert& convert) {
  const std::int64_t units = blocks_of(w.depth, size);
  float rows[8][kPanel];
  for (std::int64_t task = 0; task < strips * units; ++task) {
    const std::int64_t column = task / units * strip, depth = task % units * size;
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t real = depth + i < w.depth ? w.columns - column : 0;
      const std::int64_t count = std::clamp<std::int64_t>(real, 0, strip);
      std::fill_n(rows[i], strip, 0.0f);
      if (count > 0) std::copy_n(w.values + (depth + i) * w.columns + column, count, rows[i]);
    }
    for (std::int64_t c = 0; c < strip; ++c) {
      for (std::int64_t i = 0; i < size; ++i) *out++ = convert(rows[i][c], depth, column + c);
    }
  }
}

/// Returns the scales of each block of the depth, a row of columns: the largest weight becomes 127,
/// or less where the sum of eight products would not fit into 16 bits. The scale of weights that
/// are not finite is NaN, and so are the products with them.
Buffer<float> scales_of(const Weight& w, std::int64_t columns, const Isa& isa) {
  // Rounding adds at most a half to each of eight.
  constexpr float kLargest = 127, kMeanOfEight = (32767 / kPairLevels - 4) / 8.0f;
  const bool eights = isa.levels == kPairLevels;
  const std::int64_t count = blocks_of(w.depth, isa.block) * columns;
  Buffer<float> scales(count), means(columns * 4);
  std::fill_n(scales.get(), count, kLeastScale);
  for (std::int64_t k = 0; k < w.depth; ++k) {
    // Of four units, which are 16 weights, one sum adds the first halves, eight weights, and
    // another the second ones. It is largest where activations are 0 for all weights of one sign.
    if (k % 16 == 0) std::fill_n(means.get(), columns * 4, 0.0f);
    float* mean = means.get() + k / 2 % 2 * 2 * columns;
    for (std::int64_t c = 0; c < w.columns; ++c) {
      const float weight = w.values[k * w.columns + c], size = std::fabs(weight);
      float& scale = scales.get()[k / isa.block * columns + c];
      float& of_sign = mean[weight < 0 ? columns + c : c];
      of_sign += size / 8;
      const float needed =
          eights ? std::max(size / kLargest, of_sign / kMeanOfEight) : size / kLargest;
      scale = std::isfinite(size) ? std::max(scale, needed) : std::nanf("");
    }
  }
  return scales;
}

/// Returns the sums of what packed weights stand for, as `scales` has their scales.
Buffer<float> sums_of(const std::int8_t* packed, const float* scales, std::int64_t columns,
                      std::int64_t strip, std::int64_t size, std::int64_t units,
                      std::int64_t block) {
  const std::int64_t count = columns * blocks_of(units, block / size);
  Buffer<float> sums(count);
  std::fill_n(sums.get(), count, 0.0f);
  for (std::int64_t task = 0; task < columns / strip * units; ++task) {
    const std::int64_t number = task % units / (block / size);
    float* sum = sums.get() + number * columns + task / units * strip;
    for (std::int64_t i = 0; i < size * strip; ++i) sum[i / size] += static_cast<float>(*packed++);
  }
  for (std::int64_t i = 0; i < count; ++i) sums.get()[i] *= scales[i];
  return sums;
}

}  // namespace

PackedMatrix::PackedMatrix(const Isa& isa, Precision precision, const Weight& w, Arena& arena) {
  const std::int64_t unit = precision == Precision::float32 ? 4 : isa.unit;
  const std::int64_t size = unit / bytes_of(precision);
  const std::int64_t columns = round_up(w.columns, kPanel);
  const std::int64_t strip = isa.strip, strips = columns / strip;
  const std::int64_t units = blocks_of(w.depth, size);
  bias_ = copy_rows(w.bias, 1, w.columns, columns);
  std::int8_t* packed = arena.take(columns * units * unit);
  void* out = packed;
  if (precision == Precision::float32) {
    pack(w, strip, strips, size, static_cast<float*>(out), [](float x, auto, auto) { return x; });
  } else if (precision == Precision::bfloat16) {
    const auto convert = [](float x, auto, auto) { return to_bfloat16(x); };
    pack(w, strip, strips, size, static_cast<std::uint16_t*>(out), convert);
  } else {
    scales_ = scales_of(w, columns, isa);
    const float* scales = scales_.get();
    const auto convert = [=, block = isa.block](float x, auto depth, auto column) {
      return to_int8(x / scales[depth / block * columns + column]);
    };
    pack(w, strip, strips, size, packed, convert);
    sums_ = sums_of(packed, scales, columns, strip, size, units, isa.block);
  }
  matrix_ = {columns / kPanel, units, packed, bias_.get(), scales_.get(), sums_.get()};
}

}  // namespace mirror_rt::engine
