// Tiles of scores: their waves and order, the mask of their negatives, and the scores themselves.
#pragma once

#include "infonce/gpu/pipeline.cuh"

namespace mirror_train {

/// A rectangle of tiles that one launch computes. In a symmetric problem only tiles on and above
/// the diagonal are computed, and each also stands for its transpose.
struct Wave {
  int row_tile, row_tiles;
  int column_tile, column_tiles;
  bool symmetric;

  __host__ __device__ bool diagonal() const { return symmetric && row_tile == column_tile; }

  /// Returns how many output tiles get a share of this wave: those of its rows and, with `columns`,
  /// those of its columns after them. In a diagonal wave both are the same, and are counted once.
  __host__ __device__ int outputs(bool columns) const {
    if (diagonal()) return column_tiles;
    return columns ? row_tiles + column_tiles : row_tiles;
  }
};

struct Range {
  int begin, end;
};

/// The tiles of a wave that contribute to one output tile: the columns `across` of the wave's tile
/// row `slot`, and the rows `down` of its tile column `slot`, read transposed.
struct Share {
  int slot;
  bool of_columns;    // the output is a tile of columns
  std::int64_t tile;  // the output tile
  Range across, down;
  bool first;  // no earlier wave contributed
};

__device__ inline Share share_of(const Wave& wave, int output) {
  if (wave.diagonal()) {
    // Tile (t, t) counts once, as part of its row.
    const bool has_row = output < wave.row_tiles;
    return {output,
            false,
            wave.column_tile + output,
            {output, has_row ? wave.column_tiles : output},
            {0, has_row ? output : wave.row_tiles},
            wave.row_tile == 0};
  }
  if (output < wave.row_tiles) {
    const bool first = !wave.symmetric && wave.column_tile == 0;
    return {output, false, wave.row_tile + output, {0, wave.column_tiles}, {0, 0}, first};
  }
  const int slot = output - wave.row_tiles;
  return {slot, true, wave.column_tile + slot, {0, 0}, {0, wave.row_tiles}, wave.row_tile == 0};
}

/// A tile of scores: its place in the wave, and its first row and column.
struct Tile {
  int row_slot, column_slot;
  std::int64_t row, column;
  bool skipped;  // below the diagonal of a symmetric problem, or past the last column of the wave
};

__device__ inline Tile make_tile(const Wave& wave, int row_slot, int column_slot) {
  const std::int64_t row = wave.row_tile + row_slot, column = wave.column_tile + column_slot;
  const bool skipped = (wave.symmetric && column < row) || column_slot >= wave.column_tiles;
  return {row_slot, column_slot, row * kTile, column * kTile, skipped};
}

// The order of tiles goes through bands of so many tile rows, down and then across, so that the L2
// cache keeps the operands shared by blocks running together.
constexpr int kBand = 8;

/// Returns the number of groups of kWidth tiles in a row of the wave.
template <int kWidth>
__host__ __device__ int groups_across(const Wave& wave) {
  return (wave.column_tiles + kWidth - 1) / kWidth;
}

/// Returns the number of groups of kWidth tiles side by side in a wave. In a diagonal wave a band
/// begins at its first row's diagonal.
template <int kWidth>
int groups_of(const Wave& wave) {
  const int across = groups_across<kWidth>(wave);
  if (!wave.diagonal()) return wave.row_tiles * across;
  int count = 0;
  for (int band = 0; band < wave.row_tiles; band += kBand) {
    count += kBand * (across - band / kWidth);
  }
  return count;
}

/// Returns the first tile of group `index` of a wave. Others of the group may be needed where it is
/// skipped.
template <int kWidth = 1>
__device__ Tile tile_of(const Wave& wave, int index) {
  const int across = groups_across<kWidth>(wave);
  int band = 0, first = 0;  // the first row of the group's band, and the first group of the band
  if (wave.diagonal()) {
    for (int size = kBand * across; index >= size; size = kBand * (across - first)) {
      index -= size;
      band += kBand;
      first = band / kWidth;
    }
  } else {
    band = index / (kBand * across) * kBand;
    index -= band * across;
  }
  const int height = wave.row_tiles - band < kBand ? wave.row_tiles - band : kBand;
  return make_tile(wave, band + index % height, (first + index / height) * kWidth);
}

/// The scores of a problem. `scale` is the factor from an element of the accumulator to a score,
/// or, where scores are bounded, to its logarithm of base 2; `scale_low` is what rounding took from
/// it.
struct Scores {
  Rows rows, columns;
  Negatives negatives;
  float scale, scale_low;
  float masked;  // stands for the element of a column that is no negative
};

/// Returns e^score of an element, for bounded scores. In one part, elements are less exact than the
/// scale.
template <bool kSplit>
__device__ float bounded_exponential(float element, const Scores& s) {
  return exp2_approx(kSplit ? fmaf(element, s.scale, element * s.scale_low) : element * s.scale);
}

/// Returns the unit rows from element [row, dimension] as an operand whose lines are rows.
__device__ inline Operand unit_operand(const Rows& rows, std::int64_t row, std::int64_t dimension) {
  return {unit_row(rows, row) + dimension, rows.stride * (rows.split ? 2 : 1), rows.stride, 1.0f};
}

/// Returns whether the tile has rows or columns past the last.
__device__ inline bool at_edge(const Scores& s, const Tile& tile) {
  return tile.row + kTile > s.rows.count || tile.column + kTile > s.columns.count;
}

/// Returns whether a row and a column of the tile may belong to the same string or group.
__device__ inline bool may_share(const Scores& s, const Tile& tile) {
  if (s.negatives.row_ranks != nullptr) return true;
  // Check whether a multiple of the period is among the differences column - row.
  const int period = static_cast<int>(s.negatives.period);
  const int largest = static_cast<int>(tile.column - tile.row) + (kTile - 1);
  const int remainder = (largest % period + period) % period;
  return remainder <= 2 * (kTile - 1);
}

/// Returns the number of the string or group of row or column i, or `none` if it has none.
__device__ inline int key_of(const std::int32_t* ranks, std::int64_t i, std::int64_t count,
                             std::int64_t period, int none) {
  if (i >= count) return none;
  if (ranks != nullptr) return ranks[i];
  return static_cast<int>(static_cast<unsigned>(i) % static_cast<unsigned>(period));
}

/// Masks the scores of rows and columns of the same string or group.
template <typename Accumulator>
__device__ void mask_shared(Accumulator& scores, const Scores& s, const Tile& tile) {
  const Negatives& negatives = s.negatives;
  int row_keys[Accumulator::kRows];
#pragma unroll
  for (int r = 0; r < Accumulator::kRows; ++r) {
    row_keys[r] = key_of(negatives.row_ranks, tile.row + Accumulator::row(r), negatives.n_rows,
                         negatives.period, -1);
  }
#pragma unroll
  for (int c = 0; c < Accumulator::kColumns; ++c) {
    const int key = key_of(negatives.column_ranks, tile.column + Accumulator::column(c),
                           negatives.n_columns, negatives.period, -2);
#pragma unroll
    for (int r = 0; r < Accumulator::kRows; ++r) {
      if (key == row_keys[r]) scores.at(r, c) = s.masked;
    }
  }
}

/// Masks the scores of rows and columns past the last.
template <typename Accumulator>
__device__ void mask_outside(Accumulator& scores, const Scores& s, const Tile& tile) {
#pragma unroll
  for (int c = 0; c < Accumulator::kColumns; ++c) {
#pragma unroll
    for (int r = 0; r < Accumulator::kRows; ++r) {
      const bool inside = tile.row + Accumulator::row(r) < s.rows.count &&
                          tile.column + Accumulator::column(c) < s.columns.count;
      if (!inside) scores.at(r, c) = s.masked;
    }
  }
}

/// Masks the scores of columns that are no negatives of a row.
template <typename Accumulator>
__device__ void mask(Accumulator& scores, const Scores& s, const Tile& tile) {
  if (may_share(s, tile)) mask_shared(scores, s, tile);
  if (at_edge(s, tile)) mask_outside(scores, s, tile);
}

/// Computes the cosines of a tile, times kUnitScale^2, or s.masked where a column is no negative of
/// a row.
template <typename Core, bool kSplit>
__device__ void compute_scores(typename Core::Accumulator& scores, const Scores& s,
                               const Tile& tile, Ring& ring) {
  const Operand left = unit_operand(s.rows, tile.row, 0);
  const Operand right = unit_operand(s.columns, tile.column, 0);
  multiply<Core, Major::kDepth, Major::kDepth, kSplit>(scores, left, right, s.rows.dim, ring);
  mask(scores, s, tile);
}

}  // namespace mirror_train
