// Merges the logsumexp of tiles into the logsumexp of whole rows.
#pragma once

#include "infonce/gpu/logsumexp.cuh"

namespace mirror_train {

/// Merges a wave's partials for the rows of one output tile, one row per thread, in the order of
/// the tiles. After the last wave of a row it writes n.
__global__ __launch_bounds__(kTile) void merge_partials(LogsumexpParams p) {
  const Share share = share_of(p.wave, static_cast<int>(blockIdx.x));
  const int i = static_cast<int>(threadIdx.x);
  const std::int64_t row = share.tile * kTile + i;
  if (row >= p.scores.negatives.n_rows) return;
  Partial total = share.first ? Partial{-INFINITY, 0.0f} : p.state[row];
  const std::int64_t slot = share.slot;
  for (std::int64_t c = share.across.begin; c < share.across.end; ++c) {
    total = merge(total, p.row_partials[(c * p.wave.row_tiles + slot) * kTile + i]);
  }
  for (std::int64_t r = share.down.begin; r < share.down.end; ++r) {
    total = merge(total, p.column_partials[(r * p.wave.column_tiles + slot) * kTile + i]);
  }
  const bool last =
      !share.of_columns && p.wave.column_tile + p.wave.column_tiles == p.all_column_tiles;
  if (last) {
    // The sum tells whether there were scores; the maximum of a row of NaN may be -inf.
    p.n[row] = total.sum == 0 ? -INFINITY : finite_reference(total.max) + logf(total.sum);
  } else {
    p.state[row] = total;
  }
}

}  // namespace mirror_train
