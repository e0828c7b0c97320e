// The kernels on tiles with the operands of infonce/gpu/tma.cuh. They do what the kernels of the
// other cores do, with the same functions on each 128 x 128 tile; but a block stays, and goes
// through many groups of one or two tiles side by side.
#pragma once

#include <type_traits>

#include "infonce/gpu/kernels.cuh"
#include "infonce/gpu/tma.cuh"

namespace mirror_train {

/// The tile's 256 columns leave no registers for the second sums that split operands need.
__host__ __device__ constexpr int width_of_scores(bool split) { return split ? kTile : 2 * kTile; }

template <typename Params>
struct TmaParams {
  TensorMap rows, columns;  // the unit rows
  TensorMap panel;          // the weights, only in accumulate
  Params p;
  int count;  // groups of tiles in all
};

/// Calls body(accumulator, tile, number) with each tile of a group, except skipped ones.
template <int kWidth, typename Body>
__device__ void for_each_tile(TmaAccumulator<kWidth>& values, const Wave& wave, const Tile& group,
                              const Body& body) {
#pragma unroll
  for (int h = 0; h < kWidth / kTile; ++h) {
    const Tile tile = make_tile(wave, group.row_slot, group.column_slot + h);
    if (!tile.skipped) body(values.parts[h], tile, h);
  }
}

/// Returns the unit rows from element [line, column] as an operand.
__device__ inline TmaOperand unit_operand(const TensorMap& map, const Rows& rows, std::int64_t line,
                                          std::int64_t column) {
  return {&map, static_cast<int>(line), static_cast<int>(column), 0, static_cast<int>(rows.stride)};
}

__device__ inline int stages_of(std::int64_t depth) {
  return static_cast<int>((depth + kBoxSide - 1) / kBoxSide);
}

/// Goes through the groups of tiles that this block computes: one thread loads them, and the
/// consumers call body(first tile, cosines), where cosines(accumulator) computes the group's, times
/// kUnitScale^2.
template <bool kSplit, typename Params, int kWidth, typename Body>
__device__ void for_each_group(const TmaParams<Params>& t, TmaRing<kWidth>& ring,
                               const Body& body) {
  constexpr int kTiles = kWidth / kTile;
  const Scores& s = t.p.scores;
  const Wave& wave = t.p.wave;
  const int stages = stages_of(s.rows.dim);
  init_ring(ring);
  Place place;
  const auto visit = [&](const auto& each) {
    for (int index = static_cast<int>(blockIdx.x); index < t.count;
         index += static_cast<int>(gridDim.x)) {
      const Tile tile = tile_of<kTiles>(wave, index);
      const Tile last = make_tile(wave, tile.row_slot, tile.column_slot + kTiles - 1);
      if (!tile.skipped || !last.skipped) each(tile);
    }
  };
  const auto load = [&](const Tile& tile) {
    produce<Major::kDepth, Major::kDepth, kSplit>(
        unit_operand(t.rows, s.rows, tile.row, 0),
        unit_operand(t.columns, s.columns, tile.column, 0), stages, ring, place);
  };
  const auto cosines = [&](auto& values) {
    consume<Major::kDepth, Major::kDepth, kSplit>(values, stages, 1.0f, ring, place);
  };
  split_roles([&] { visit(load); }, [&] { visit([&](const Tile& tile) { body(tile, cosines); }); });
}

template <int kWidth, typename Sum>
struct TmaLogsumexpStorage {
  TmaRing<kWidth> ring;
  LogsumexpShared<WgmmaAccumulator<>, typename Sum::Partial> partials;
};

template <bool kSplit, typename Sum>
__global__ __launch_bounds__(kTmaThreads, 1) void tma_logsumexp_tiles(
    const __grid_constant__ TmaParams<LogsumexpParams> t) {
  constexpr int kWidth = width_of_scores(kSplit);
  auto& shared = shared_memory<TmaLogsumexpStorage<kWidth, Sum>>();
  const LogsumexpParams& p = t.p;
  for_each_group<kSplit>(t, shared.ring, [&](const Tile& group, const auto& cosines) {
    TmaAccumulator<kWidth> scores;
    cosines(scores);
    for_each_tile(scores, p.wave, group, [&](WgmmaAccumulator<>& half, const Tile& tile, int) {
      mask(half, p.scores, tile);
      Sum::template reduce<kSplit>(half, p.scores, p.wave.symmetric, shared.partials);
      WarpgroupTeam::sync();
      write_partials<Sum, WarpgroupTeam, WgmmaAccumulator<>>(shared.partials, p, tile);
      WarpgroupTeam::sync();
    });
  });
}

template <int kWidth>
struct TmaWeightsStorage {
  TmaRing<kWidth> ring;
  alignas(16) std::uint16_t weights[kTile * kTile];
  float row_lines[kTile];
  float column_lines[kConsumers][kWidth];
};

template <bool kSplit, Role kRole, typename Weight>
__global__ __launch_bounds__(kTmaThreads, 1) void tma_weights_tiles(
    const __grid_constant__ TmaParams<ContractParams> t) {
  constexpr int kWidth = width_of_scores(kSplit);
  auto& shared = shared_memory<TmaWeightsStorage<kWidth>>();
  const ContractParams& p = t.p;
  for_each_group<kSplit>(t, shared.ring, [&](const Tile& group, const auto& cosines) {
    auto& column_lines = shared.column_lines[WarpgroupTeam::number()];
    const int i = WarpgroupTeam::rank();
    const int row = WarpgroupTeam::first_row() + i % WarpgroupTeam::kRows;
    // Loaded behind the products.
    const float own_row = row_line<Weight>(p, group.row + row);
    float own_columns[kWidth / kTile];
#pragma unroll
    for (int h = 0; h < kWidth / kTile; ++h) {
      own_columns[h] = column_line<Weight>(p, group.column + h * kTile + i);
    }
    TmaAccumulator<kWidth> values;
    cosines(values);
    shared.row_lines[row] = own_row;  // two threads write the same
#pragma unroll
    for (int h = 0; h < kWidth / kTile; ++h) column_lines[h * kTile + i] = own_columns[h];
    WarpgroupTeam::sync();
    for_each_tile(values, p.wave, group, [&](WgmmaAccumulator<>& half, const Tile& tile, int h) {
      mask(half, p.scores, tile);
      store_weights<WarpgroupTeam, kRole, Weight, kSplit>(
          half, p, tile, shared.row_lines, column_lines + h * kTile, {shared.weights});
    });
  });
}

/// Calls body(Major of the weights, weights, unit rows, stages) with the products that make up
/// an output: the dimensions from `dimension` on of one tile of rows.
template <typename Body>
__device__ void for_each_product(const TmaParams<ContractParams>& t, const Share& share,
                                 int dimension, const Body& body) {
  const ContractParams& p = t.p;
  const int slot = share.slot * kTile, low_line = static_cast<int>(p.panel_low / p.panel_pitch);
  const auto part = [&](auto major, const Range& range, int line, int column, const TensorMap& map,
                        const Rows& rows, std::int64_t tile) {
    if (range.begin >= range.end) return;
    body(major, TmaOperand{&t.panel, line, column, low_line, 0},
         unit_operand(map, rows, (tile + range.begin) * kTile, dimension),
         stages_of(std::int64_t{range.end - range.begin} * kTile));
  };
  // As in accumulate_tiles.
  part(std::integral_constant<Major, Major::kDepth>{}, share.across, slot,
       share.across.begin * kTile, t.columns, p.scores.columns, p.wave.column_tile);
  part(std::integral_constant<Major, Major::kTile>{}, share.down, share.down.begin * kTile, slot,
       t.rows, p.scores.rows, p.wave.row_tile);
}

/// Calls body(share, dimension) with every output, kWidth dimensions wide, that this block
/// computes.
template <int kWidth, typename Body>
__device__ void for_each_output(const TmaParams<ContractParams>& t, const Body& body) {
  const int across = static_cast<int>(t.p.scores.rows.stride) / kWidth;
  for (int index = static_cast<int>(blockIdx.x); index < t.count;
       index += static_cast<int>(gridDim.x)) {
    body(share_of(t.p.wave, index / across), index % across * kWidth);
  }
}

template <int kWidth, bool kSplit>
__global__ __launch_bounds__(kTmaThreads, 1) void tma_accumulate_tiles(
    const __grid_constant__ TmaParams<ContractParams> t) {
  auto& ring = shared_memory<TmaRing<kWidth>>();
  const ContractParams& p = t.p;
  init_ring(ring);
  Place place;
  const auto load = [&](const Share& share, int dimension) {
    for_each_product(
        t, share, dimension,
        [&](auto major, const TmaOperand& weights, const TmaOperand& rows, int stages) {
          produce<decltype(major)::value, Major::kTile, kSplit>(weights, rows, stages, ring, place);
        });
  };
  const auto compute = [&](const Share& share, int dimension) {
    TmaAccumulator<kWidth> sums;
    for_each_product(t, share, dimension,
                     [&](auto major, const TmaOperand&, const TmaOperand&, int stages) {
                       consume<decltype(major)::value, Major::kTile, kSplit>(
                           sums, stages, 1 / kLowWeightScale, ring, place);
                     });
    const std::int64_t stride = p.scores.rows.stride;
    float* out = (share.of_columns ? p.column_sums : p.row_sums) + share.tile * kTile * stride;
#pragma unroll
    for (int h = 0; h < sums.kParts; ++h) {
      store_sums(sums.parts[h], out + dimension + h * sums.kPartWidth, stride, share.first);
    }
  };
  split_roles([&] { for_each_output<kWidth>(t, load); },
              [&] { for_each_output<kWidth>(t, compute); });
}

inline TensorMap map_of_rows(const Rows& rows) {
  return make_tensor_map(rows.unit, std::int64_t{rows.tiles()} * kTile,
                         rows.stride * (rows.split ? 2 : 1));
}

/// Launches a kernel with as many blocks as the device holds at once.
template <typename Params>
void launch_tma(const char* name, void (*kernel)(TmaParams<Params>), std::size_t shared_bytes,
                const TmaParams<Params>& t, void* stream) {
  const int blocks = multiprocessors() < t.count ? multiprocessors() : t.count;
  launch(name, kernel, dim3(static_cast<unsigned>(blocks)), kTmaThreads, shared_bytes, stream, t);
}

template <typename Params>
TmaParams<Params> tma_params(const Params& p, int count) {
  const TensorMap rows = map_of_rows(p.scores.rows);
  const bool symmetric = p.scores.rows.unit == p.scores.columns.unit;
  return {rows, symmetric ? rows : map_of_rows(p.scores.columns), {}, p, count};
}

template <bool kSplit, typename Sum>
void launch_tma_logsumexp(const LogsumexpParams& p, void* stream) {
  constexpr int kWidth = width_of_scores(kSplit);
  using Storage = TmaLogsumexpStorage<kWidth, Sum>;
  static_assert(sizeof(Storage) <= kMostSharedBytes);
  launch_tma("logsumexp_tiles", tma_logsumexp_tiles<kSplit, Sum>, sizeof(Storage),
             tma_params(p, groups_of<kWidth / kTile>(p.wave)), stream);
}

template <bool kSplit, Role kRole, typename Weight>
void launch_tma_weights(const ContractParams& p, void* stream) {
  constexpr int kWidth = width_of_scores(kSplit);
  using Storage = TmaWeightsStorage<kWidth>;
  static_assert(sizeof(Storage) <= kMostSharedBytes);
  launch_tma("weights_tiles", tma_weights_tiles<kSplit, kRole, Weight>, sizeof(Storage),
             tma_params(p, groups_of<kWidth / kTile>(p.wave)), stream);
}

template <int kWidth, bool kSplit>
void launch_tma_sums(const ContractParams& p, void* stream) {
  auto t = tma_params(p, static_cast<int>(p.scores.rows.stride / kWidth) * outputs_of(p));
  const std::int64_t lines = p.panel_low / p.panel_pitch * (kSplit ? 2 : 1);
  t.panel = make_tensor_map(p.panel, lines, p.panel_pitch);
  static_assert(sizeof(TmaRing<kWidth>) <= kMostSharedBytes);
  launch_tma("accumulate_tiles", tma_accumulate_tiles<kWidth, kSplit>, sizeof(TmaRing<kWidth>), t,
             stream);
}

template <bool kSplit>
void launch_tma_accumulate(const ContractParams& p, void* stream) {
  const int width = width_of_sums(p.scores.rows.stride, kSplit);
  if (kSplit || width == 128) {
    launch_tma_sums<128, kSplit>(p, stream);
  } else if (width == 256) {
    launch_tma_sums<256, false>(p, stream);
  } else {
    launch_tma_sums<192, false>(p, stream);
  }
}

template <bool kSplit, typename Sum, typename Weight>
TileKernels tma_kernels_of() {
  return {launch_tma_logsumexp<kSplit, Sum>,
          launch_tma_weights<kSplit, Role::kAlone, Weight>,
          launch_tma_weights<kSplit, Role::kTeacher, Weight>,
          launch_tma_weights<kSplit, Role::kStudent, Weight>,
          launch_tma_accumulate<kSplit>,
          kConsumers};
}

}  // namespace mirror_train
