// The weighted sums: a kernel that multiplies a wave of weights W, which weights.cuh writes, by the
// unit rows.
#pragma once

#include "infonce/gpu/weights.cuh"

namespace mirror_train {

/// Returns the panel of weights from element [row, column] as an operand.
__device__ inline Operand panel_operand(const ContractParams& p, std::int64_t row,
                                        std::int64_t column) {
  return {p.panel + row * p.panel_pitch + column, p.panel_pitch, p.panel_low, 1 / kLowWeightScale};
}

struct alignas(8) SumPair {
  float x, y;
};

/// Writes a tile of sums (`first`), or adds to the tile in memory.
template <typename Accumulator>
__device__ void store_sums(const Accumulator& values, float* out, std::int64_t pitch, bool first) {
  constexpr float kScale = 1 / (kWeightScale * kUnitScale);
#pragma unroll
  for (int r = 0; r < Accumulator::kRows; ++r) {
    float* line = out + Accumulator::row(r) * pitch;
#pragma unroll
    for (int c = 0; c < Accumulator::kColumns; c += 2) {
      auto* pair = reinterpret_cast<SumPair*>(line + Accumulator::column(c));
      SumPair old = {0.0f, 0.0f};
      if (!first) old = *pair;
      *pair = {fmaf(values.at(r, c), kScale, old.x), fmaf(values.at(r, c + 1), kScale, old.y)};
    }
  }
}

/// Adds the product of tiles `range` of the wave, from their first tile's row or column on, to the
/// sums: of `weights`, whose depth kLeft says, and of the unit rows from tile `tile` on.
template <typename Core, Major kLeft, bool kSplit>
__device__ void add_range(typename Core::Accumulator& sums, const Operand& weights,
                          const Rows& rows, std::int64_t tile, const Range& range,
                          std::int64_t dimension, Ring& ring) {
  if (range.begin >= range.end) return;
  const std::int64_t depth = std::int64_t{range.end - range.begin} * kTile;
  multiply<Core, kLeft, Major::kTile, kSplit>(
      sums, weights, unit_operand(rows, (tile + range.begin) * kTile, dimension), depth, ring);
}

/// Adds a wave's share to the sums of output tile blockIdx.y, in the dimensions of tile blockIdx.x.
/// Blocks that run at the same time mostly differ in the dimensions only, and so share their part
/// of W in the L2 cache.
template <typename Core, bool kSplit>
__global__ __launch_bounds__(Core::kThreads,
                             min_blocks(kSplit)) void accumulate_tiles(ContractParams p) {
  if constexpr (!Core::template kUsed<kSplit>) return;
  auto& ring = shared_memory<Ring>();
  const Share share = share_of(p.wave, static_cast<int>(blockIdx.y));
  const std::int64_t dimension = static_cast<std::int64_t>(blockIdx.x) * kTile;
  typename Core::Accumulator sums = {};
  const std::int64_t slot = std::int64_t{share.slot} * kTile;
  // W across: tile row `slot` of the wave, times the wave's columns.
  add_range<Core, Major::kDepth, kSplit>(
      sums, panel_operand(p, slot, std::int64_t{share.across.begin} * kTile), p.scores.columns,
      p.wave.column_tile, share.across, dimension, ring);
  // W down: tile column `slot` of the wave, transposed, times its rows.
  add_range<Core, Major::kTile, kSplit>(
      sums, panel_operand(p, std::int64_t{share.down.begin} * kTile, slot), p.scores.rows,
      p.wave.row_tile, share.down, dimension, ring);
  const std::int64_t stride = p.scores.rows.stride;
  float* out = share.of_columns ? p.column_sums : p.row_sums;
  store_sums(sums, out + share.tile * kTile * stride + dimension, stride, share.first);
}

}  // namespace mirror_train
