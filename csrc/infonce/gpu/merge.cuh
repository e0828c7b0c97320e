// Merges the logsumexp of tiles into the logsumexp of whole rows.
#pragma once

#include "infonce/gpu/logsumexp.cuh"

namespace mirror_train {

/// Merges a wave's partials for the rows of one output tile, one row per thread, in the order of
/// the tiles. After the last wave of a row it writes n.
template <typename Sum>
__global__ __launch_bounds__(kTile) void merge_partials(LogsumexpParams p) {
  using Partial = typename Sum::Partial;
  const auto* row_partials = static_cast<const Partial*>(p.row_partials);
  const auto* column_partials = static_cast<const Partial*>(p.column_partials);
  auto* state = static_cast<Partial*>(p.state);
  const Share share = share_of(p.wave, static_cast<int>(blockIdx.x));
  const int i = static_cast<int>(threadIdx.x);
  const std::int64_t row = share.tile * kTile + i;
  if (row >= p.scores.negatives.n_rows) return;
  Partial total = share.first ? Sum::none() : state[row];
  const std::int64_t slot = share.slot;
#pragma unroll 8
  for (std::int64_t c = share.across.begin; c < share.across.end; ++c) {
    total = Sum::merge(total, row_partials[(c * p.wave.row_tiles + slot) * kTile + i]);
  }
#pragma unroll 8
  for (std::int64_t r = share.down.begin * p.column_parts; r < share.down.end * p.column_parts;
       ++r) {
    total = Sum::merge(total, column_partials[(r * p.wave.column_tiles + slot) * kTile + i]);
  }
  const bool last =
      !share.of_columns && p.wave.column_tile + p.wave.column_tiles == p.all_column_tiles;
  if (last) {
    p.n[row] = Sum::log(total);
  } else {
    state[row] = total;
  }
}

}  // namespace mirror_train
