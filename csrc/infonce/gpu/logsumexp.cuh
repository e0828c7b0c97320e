// Computes the logsumexp of the scores of every tile of a wave, by row and by column.
#pragma once

#include "infonce/gpu/tiles.cuh"

namespace mirror_train {

struct LogsumexpParams {
  Scores scores;
  Wave wave;
  Partial *row_partials, *column_partials, *state;
  int all_column_tiles;
  float* n;
};

/// Returns the number to subtract in exponents: the maximum, or, without any scores, 0, as any
/// finite number will do.
__device__ inline float finite_reference(float max) { return max == -INFINITY ? 0.0f : max; }

__device__ inline Partial merge(Partial a, Partial b) {
  const float max = fmaxf(a.max, b.max);
  const float reference = finite_reference(max);
  return {max, a.sum * expf(a.max - reference) + b.sum * expf(b.max - reference)};
}

/// What the warps of a block exchange: the partials of the tile's rows from the warps across, and
/// those of its columns from the warps down.
template <typename Accumulator>
struct LogsumexpShared {
  Partial rows[Accumulator::kWarpsAcross][kTile];
  Partial columns[Accumulator::kWarpsDown][kTile];
};

template <typename Core>
union LogsumexpStorage {
  typename Core::Ring ring;
  LogsumexpShared<typename Core::Accumulator> partials;
};

/// Reduces a thread's scores and those of the lanes that differ in the bits kFirstLane ..
/// kLastLane. fmaxf ignores a NaN, but the sum becomes NaN.
template <int kFirstLane, int kLastLane, int kCount>
__device__ Partial reduce(const float (&scores)[kCount]) {
  float max = scores[0];
#pragma unroll
  for (int i = 1; i < kCount; ++i) max = fmaxf(max, scores[i]);
#pragma unroll
  for (int lane = kFirstLane; lane <= kLastLane; lane *= 2) {
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, lane));
  }
  const float reference = finite_reference(max);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum += __expf(scores[i] - reference);
#pragma unroll
  for (int lane = kFirstLane; lane <= kLastLane; lane *= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, lane);
  }
  return {max, sum};
}

/// Reduces the rows of a warp over its columns; four lanes share a row.
template <typename Accumulator>
__device__ void reduce_rows(const Accumulator& scores, LogsumexpShared<Accumulator>& out) {
#pragma unroll
  for (int r = 0; r < Accumulator::kRows; ++r) {
    float row[Accumulator::kColumns];
#pragma unroll
    for (int c = 0; c < Accumulator::kColumns; ++c) row[c] = scores.at(r, c);
    const Partial partial = reduce<1, 2>(row);
    if (lane_of_thread() % 4 == 0) {
      out.rows[Accumulator::warp_across()][Accumulator::row(r)] = partial;
    }
  }
}

/// Reduces the columns of a warp over its rows; eight lanes share a column.
template <typename Accumulator>
__device__ void reduce_columns(const Accumulator& scores, LogsumexpShared<Accumulator>& out) {
#pragma unroll
  for (int c = 0; c < Accumulator::kColumns; ++c) {
    float column[Accumulator::kRows];
#pragma unroll
    for (int r = 0; r < Accumulator::kRows; ++r) column[r] = scores.at(r, c);
    const Partial partial = reduce<4, 16>(column);
    if (lane_of_thread() / 4 == 0) {
      out.columns[Accumulator::warp_down()][Accumulator::column(c)] = partial;
    }
  }
}

template <int kWarps>
__device__ Partial merge_warps(const Partial (&partials)[kWarps][kTile], int i) {
  Partial total = partials[0][i];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) total = merge(total, partials[w][i]);
  return total;
}

/// Merges the partials of the warps: threads 0 .. 127 merge a row each, the others a column each.
template <typename Accumulator>
__device__ void write_partials(const LogsumexpShared<Accumulator>& shared, const LogsumexpParams& p,
                               const Tile& tile) {
  const int i = static_cast<int>(threadIdx.x) % kTile;
  const std::int64_t row_slot = tile.row_slot, column_slot = tile.column_slot;
  if (threadIdx.x < kTile) {
    const std::int64_t line = column_slot * p.wave.row_tiles + row_slot;
    p.row_partials[line * kTile + i] = merge_warps(shared.rows, i);
  } else if (p.wave.symmetric) {
    const std::int64_t line = row_slot * p.wave.column_tiles + column_slot;
    p.column_partials[line * kTile + i] = merge_warps(shared.columns, i);
  }
}

template <typename Core, bool kSplit>
__global__ __launch_bounds__(kThreads, min_blocks(kSplit)) void logsumexp_tiles(LogsumexpParams p) {
  using Accumulator = typename Core::Accumulator;
  auto& shared = shared_memory<LogsumexpStorage<Core>>();
  const Tile tile = tile_of(p.wave, static_cast<int>(blockIdx.x));
  if (tile.skipped) return;
  Accumulator scores;
  compute_scores<Core, kSplit>(scores, p.scores, tile, shared.ring);
#pragma unroll
  for (int r = 0; r < Accumulator::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Accumulator::kColumns; ++c) scores.at(r, c) *= p.scores.scale;
  }
  reduce_rows(scores, shared.partials);
  if (p.wave.symmetric) reduce_columns(scores, shared.partials);
  __syncthreads();
  write_partials(shared.partials, p, tile);
}

}  // namespace mirror_train
