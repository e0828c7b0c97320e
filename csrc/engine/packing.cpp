// Packs the weights of an encoder, once, in the precision of its products.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/engine.h"

namespace mirror_rt::engine {
namespace {

std::uint16_t to_bfloat16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  if (x != x) return 0x7fc0;
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// Calls put(place, value, column) for every number in the order of its place.
template <class Put>
void for_each(const Weight& w, std::int64_t panels, std::int64_t units, std::int64_t size,
              const Put& put) {
  std::int64_t place = 0;
  for (std::int64_t panel = 0; panel < panels; ++panel) {
    for (std::int64_t unit = 0; unit < units; ++unit) {
      for (std::int64_t c = panel * kPanel; c < (panel + 1) * kPanel; ++c) {
        for (std::int64_t k = unit * size; k < (unit + 1) * size; ++k) {
          const bool real = k < w.depth && c < w.columns;
          put(place++, real ? w.values[k * w.columns + c] : 0.0f, c);
        }
      }
    }
  }
}

/// Returns the scale of each column: its largest weight becomes 127.
Buffer<float> scales_of(const Weight& w, std::int64_t columns) {
  Buffer<float> scales(columns);
  std::fill_n(scales.get(), columns, 0.0f);
  for (std::int64_t k = 0; k < w.depth; ++k) {
    for (std::int64_t c = 0; c < w.columns; ++c) {
      scales.get()[c] = std::max(scales.get()[c], std::fabs(w.values[k * w.columns + c]));
    }
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    scales.get()[c] = scales.get()[c] > 0 ? scales.get()[c] / 127.0f : 1.0f;
  }
  return scales;
}

}  // namespace

PackedMatrix::PackedMatrix(Precision precision, const Weight& w) {
  const std::int64_t size = 4 / bytes_of(precision);
  const std::int64_t columns = round_up(w.columns, kPanel), panels = columns / kPanel;
  const std::int64_t units = round_up(w.depth, size) / size;
  bias_ = Buffer<float>(columns);
  std::fill_n(bias_.get(), columns, 0.0f);
  if (w.bias != nullptr) std::copy_n(w.bias, w.columns, bias_.get());
  packed_ = Buffer<std::int8_t>(columns * units * 4);
  if (precision == Precision::float32) {
    auto* out = reinterpret_cast<float*>(packed_.get());
    for_each(w, panels, units, size, [&](auto at, float x, auto) { out[at] = x; });
  } else if (precision == Precision::bfloat16) {
    auto* out = reinterpret_cast<std::uint16_t*>(packed_.get());
    for_each(w, panels, units, size, [&](auto at, float x, auto) { out[at] = to_bfloat16(x); });
  } else {
    scales_ = scales_of(w, columns);
    sums_ = Buffer<std::int32_t>(columns);
    std::fill_n(sums_.get(), columns, 0);
    for_each(w, panels, units, size, [&](auto at, float x, auto c) {
      const auto value = static_cast<std::int8_t>(std::lrintf(x / scales_.get()[c]));
      packed_.get()[at] = value;
      sums_.get()[c] += value;
    });
  }
  matrix_ = {panels, units, packed_.get(), bias_.get(), scales_.get(), sums_.get()};
}

}  // namespace mirror_rt::engine
