// The memory and the waves of a pass.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>

#include "infonce/gpu/loss.h"

namespace mirror_train {

// The most tiles of a panel of fp16 weights, 254 MB: so large that the sums are rarely read and
// written again.
constexpr int kPanelTiles = 88 * 88;
// The multiprocessors of an H100 or H200, which take the sums of a wave in rounds.
constexpr int kMultiprocessors = 132;
// Tiles in each direction of a wave of logsumexp: enough to keep every GPU busy, while the partial
// results take at most 2 * 128 * 128 * 128 * 8 bytes = 32 MB.
constexpr int kLogsumexpSide = 128;

inline std::int64_t padded(std::int64_t count) { return std::int64_t{tiles_of(count)} * kTile; }

inline std::int64_t area(const WaveSize& wave) {
  return std::int64_t{wave.row_tiles} * wave.column_tiles;
}

/// Splits `count` into the fewest even parts of at most `most`; returns the size of a part.
inline int even_part(int count, int most) {
  const int parts = (count + std::max(1, most) - 1) / std::max(1, most);
  return (count + parts - 1) / parts;
}

/// Returns how many tiles of rows and of columns a wave of at most `most` tiles has.
///
/// Waves are as square as can be, because then the least is read and written between them. Those of
/// a symmetric problem are squares of the full size, as far as it goes: that size fills the GPU.
/// The others are of about equal size.
inline WaveSize wave_of(int rows, int columns, int most, bool symmetric) {
  const int side = std::max(1, static_cast<int>(std::sqrt(static_cast<double>(most))));
  if (symmetric) return {std::min(columns, side), std::min(columns, side)};
  if (rows <= columns) {
    const int height = even_part(rows, side);
    return {height, even_part(columns, most / height)};
  }
  const int width = even_part(columns, side);
  return {even_part(rows, most / width), width};
}

/// Returns how many tiles a panel in `parts` has, if `outputs` blocks sum up a row of tiles.
///
/// A wave on the diagonal has side * outputs sums, and the others twice as many: the side is the
/// largest for which these are whole rounds, or else the largest for which those of the others are.
inline int panel_tiles_for(int outputs, int parts) {
  const int most = static_cast<int>(std::sqrt(kPanelTiles / parts));
  for (const int sums : {kMultiprocessors, kMultiprocessors / 2}) {
    const int step = sums / std::gcd(sums, outputs);
    if (step <= most) return most / step * step * (most / step * step);
  }
  return most * most;
}

/// Returns how many tiles a panel has by default, for unit rows of so many dimensions.
inline int panel_tiles_of(std::int64_t dim, bool split) {
  const std::int64_t stride = padded(dim);
  return panel_tiles_for(static_cast<int>(stride / width_of_sums(stride, split)), split ? 2 : 1);
}

/// Hands out the parts of a workspace one after another; from null on, to know how many bytes they
/// take.
class Workspace {
 public:
  explicit Workspace(void* start) : next_(reinterpret_cast<std::uintptr_t>(start)) {}

  template <typename T>
  T* take(std::int64_t count) {
    constexpr std::uintptr_t kAlignment = 256;
    T* part = reinterpret_cast<T*>(next_);
    const std::uintptr_t bytes = static_cast<std::uintptr_t>(count) * sizeof(T);
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }

  Rows take_rows(std::int64_t count, std::int64_t dim, bool split) {
    const std::int64_t stride = padded(dim);
    auto* unit = take<std::uint16_t>(padded(count) * stride * (split ? 2 : 1));
    return {unit, take<float>(count), count, dim, stride, split};
  }

  std::int64_t end() const { return static_cast<std::int64_t>(next_); }

 private:
  std::uintptr_t next_;
};

}  // namespace mirror_train
