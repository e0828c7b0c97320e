// Computes the logsumexp of the scores of every tile of a wave, by row and by column.
#pragma once

#include "infonce/gpu/tiles.cuh"

namespace mirror_train {

/// The workspaces hold BoundedSum::Partial or OnlineSum::Partial.
struct LogsumexpParams {
  Scores scores;
  Wave wave;
  void *row_partials, *column_partials, *state;
  int all_column_tiles;
  float* n;
  int column_parts;  // partials of a tile's columns, one for each team that works on it
};

/// Returns the number to subtract in exponents: the maximum, or, without any scores, 0, as any
/// finite number will do.
__device__ inline float finite_reference(float max) { return max == -INFINITY ? 0.0f : max; }

/// What the warps of a block exchange: the partials of the tile's rows from the warps across, and
/// those of its columns from the warps down.
template <typename Accumulator, typename Partial>
struct LogsumexpShared {
  Partial rows[Accumulator::kWarpsAcross][kTile];
  Partial columns[Accumulator::kWarpsDown][kTile];
};

template <typename Core, typename Sum>
union LogsumexpStorage {
  Ring ring;
  LogsumexpShared<typename Core::Accumulator, typename Sum::Partial> partials;
};

/// Adds up every one of `sums` over the lanes that differ in the bits kLane, kLane / 2 .. kLast. A
/// lane keeps a half at each bit, and so in the end kCount divided by the number of these lanes, at
/// least one: they are in front, and the number of the first is returned. This takes an exchange
/// for each kept sum, instead of one for each sum and bit.
template <int kLane, int kLast, int kCount, int kSize>
__device__ int scatter_sums(float (&sums)[kSize]) {
  if constexpr (kLane < kLast) {
    return 0;
  } else if constexpr (kCount == 1) {
    sums[0] += __shfl_xor_sync(kAllLanes, sums[0], kLane);
    return scatter_sums<kLane / 2, kLast, 1>(sums);
  } else {
    constexpr int kHalf = kCount / 2;
    const bool upper = (lane_of_thread() & kLane) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float kept = upper ? sums[i + kHalf] : sums[i];
      const float sent = upper ? sums[i] : sums[i + kHalf];
      sums[i] = kept + __shfl_xor_sync(kAllLanes, sent, kLane);
    }
    return (upper ? kHalf : 0) + scatter_sums<kLane / 2, kLast, kHalf>(sums);
  }
}

/// Sums the exponentials of bounded scores as they are: one exponential an element serves its row
/// and its column.
struct BoundedSum {
  using Partial = float;

  static __device__ Partial none() { return 0.0f; }
  static __device__ Partial merge(Partial a, Partial b) { return a + b; }

  /// Returns the logsumexp; -inf without any scores.
  static __device__ float log(Partial sum) { return logf(sum); }

  template <bool kSplit, typename Accumulator>
  static __device__ void reduce(const Accumulator& elements, const Scores& s, bool by_column,
                                LogsumexpShared<Accumulator, Partial>& out) {
    constexpr int kRows = Accumulator::kRows, kColumns = Accumulator::kColumns;
    float rows[kRows] = {}, columns[kColumns] = {};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float exponential = bounded_exponential<kSplit>(elements.at(r, c), s);
        rows[r] += exponential;
        columns[c] += exponential;
      }
    }
    // Four lanes share a row, and eight a column.
    const int row = scatter_sums<2, 1, kRows>(rows);
#pragma unroll
    for (int i = 0; i < (kRows + 3) / 4; ++i) {
      out.rows[Accumulator::warp_across()][Accumulator::row(row + i)] = rows[i];
    }
    if (!by_column) return;
    const int column = scatter_sums<16, 4, kColumns>(columns);
#pragma unroll
    for (int i = 0; i < kColumns / 8; ++i) {
      out.columns[Accumulator::warp_down()][Accumulator::column(column + i)] = columns[i];
    }
  }
};

/// Sums the exponentials of any scores, relative to the maximum so far.
struct OnlineSum {
  using Partial = MaxAndSum;

  static __device__ Partial none() { return {-INFINITY, 0.0f}; }

  static __device__ Partial merge(Partial a, Partial b) {
    const float max = fmaxf(a.max, b.max);
    const float reference = finite_reference(max);
    return {max, a.sum * expf(a.max - reference) + b.sum * expf(b.max - reference)};
  }

  static __device__ float log(Partial total) {
    // The sum tells whether there were scores; the maximum of a row of NaN may be -inf.
    return total.sum == 0 ? -INFINITY : finite_reference(total.max) + logf(total.sum);
  }

  /// Reduces a thread's scores and those of the lanes that differ in the bits kFirstLane ..
  /// kLastLane. fmaxf ignores a NaN, but the sum becomes NaN.
  template <int kFirstLane, int kLastLane, int kCount>
  static __device__ Partial reduce_lanes(const float (&scores)[kCount]) {
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
    for (int i = 0; i < kCount; ++i) sum += exp_approx(scores[i] - reference);
#pragma unroll
    for (int lane = kFirstLane; lane <= kLastLane; lane *= 2) {
      sum += __shfl_xor_sync(kAllLanes, sum, lane);
    }
    return {max, sum};
  }

  template <bool, typename Accumulator>
  static __device__ void reduce(Accumulator& scores, const Scores& s, bool by_column,
                                LogsumexpShared<Accumulator, Partial>& out) {
#pragma unroll
    for (int r = 0; r < Accumulator::kRows; ++r) {
      float row[Accumulator::kColumns];
#pragma unroll
      for (int c = 0; c < Accumulator::kColumns; ++c) row[c] = scores.at(r, c) *= s.scale;
      const Partial partial = reduce_lanes<1, 2>(row);  // four lanes share a row
      if (lane_of_thread() % 4 == 0) {
        out.rows[Accumulator::warp_across()][Accumulator::row(r)] = partial;
      }
    }
    if (!by_column) return;
#pragma unroll
    for (int c = 0; c < Accumulator::kColumns; ++c) {
      float column[Accumulator::kRows];
#pragma unroll
      for (int r = 0; r < Accumulator::kRows; ++r) column[r] = scores.at(r, c);
      const Partial partial = reduce_lanes<4, 16>(column);  // eight lanes share a column
      if (lane_of_thread() / 4 == 0) {
        out.columns[Accumulator::warp_down()][Accumulator::column(c)] = partial;
      }
    }
  }
};

template <typename Sum, int kWarps>
__device__ typename Sum::Partial merge_warps(const typename Sum::Partial (*partials)[kTile],
                                             int i) {
  typename Sum::Partial total = partials[0][i];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) total = Sum::merge(total, partials[w][i]);
  return total;
}

/// Writes the partials of a team's rows and columns, merged over its warps. The team has
/// Team::kRows rows and all columns of the tile.
template <typename Sum, typename Team, typename Accumulator, typename Shared>
__device__ void write_partials(const Shared& shared, const LogsumexpParams& p, const Tile& tile) {
  using Partial = typename Sum::Partial;
  constexpr int kParts = kTile / Team::kRows, kWarps = Accumulator::kWarpsDown / kParts;
  const std::int64_t row_slot = tile.row_slot, column_slot = tile.column_slot;
  const std::int64_t row_line = column_slot * p.wave.row_tiles + row_slot;
  const std::int64_t column_line =
      (row_slot * kParts + Team::number()) * p.wave.column_tiles + column_slot;
  for (int n = Team::rank(); n < Team::kRows + kTile; n += Team::kSize) {
    if (n < Team::kRows) {
      const int i = Team::first_row() + n;
      static_cast<Partial*>(p.row_partials)[row_line * kTile + i] =
          merge_warps<Sum, Accumulator::kWarpsAcross>(shared.rows, i);
    } else if (p.wave.symmetric) {
      const int i = n - Team::kRows;
      static_cast<Partial*>(p.column_partials)[column_line * kTile + i] =
          merge_warps<Sum, kWarps>(shared.columns + Team::number() * kWarps, i);
    }
  }
}

template <typename Core, bool kSplit, typename Sum>
__global__ __launch_bounds__(Core::kThreads,
                             min_blocks(kSplit)) void logsumexp_tiles(LogsumexpParams p) {
  if constexpr (!Core::template kUsed<kSplit>) return;
  auto& shared = shared_memory<LogsumexpStorage<Core, Sum>>();
  const Tile tile = tile_of(p.wave, static_cast<int>(blockIdx.x));
  if (tile.skipped) return;
  typename Core::Accumulator scores = {};
  compute_scores<Core, kSplit>(scores, p.scores, tile, shared.ring);
  Sum::template reduce<kSplit>(scores, p.scores, p.wave.symmetric, shared.partials);
  __syncthreads();
  write_partials<Sum, BlockTeam<Core::kThreads>, typename Core::Accumulator>(shared.partials, p,
                                                                             tile);
}

}  // namespace mirror_train
