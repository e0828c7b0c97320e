// The kernels on tiles with the operands of infonce/gpu/tma.cuh. They do what the kernels of the
// other cores do, with the same functions on each 128 x 128 tile; but a block stays, and goes
// through many groups of kHalves tiles side by side.
#pragma once

#include <type_traits>

#include "infonce/gpu/kernels.cuh"
#include "infonce/gpu/tma.cuh"

namespace mirror_train {

/// The tile's 256 columns leave no registers for the second sums that split operands need.
__host__ __device__ constexpr int halves_of_scores(bool split) { return split ? 1 : 2; }

template <typename Params>
struct TmaParams {
  TensorMap rows, columns;  // the unit rows
  TensorMap panel;          // the weights, only in accumulate
  Params p;
  int count;  // groups of tiles in all
};

/// Calls body(first tile) with every group of kHalves tiles that this block computes.
template <int kHalves, typename Body>
__device__ void for_each_group(const Wave& wave, int count, const Body& body) {
  for (int index = static_cast<int>(blockIdx.x); index < count;
       index += static_cast<int>(gridDim.x)) {
    const Tile tile = tile_of<kHalves>(wave, index);
    const Tile last = make_tile(wave, tile.row_slot, tile.column_slot + kHalves - 1);
    if (!tile.skipped || !last.skipped) body(tile);
  }
}

/// Calls body(accumulator, tile, half) with each tile of a group, except skipped ones.
template <int kHalves, typename Body>
__device__ void for_each_half(TmaAccumulator<kHalves>& values, const Wave& wave, const Tile& group,
                              const Body& body) {
#pragma unroll
  for (int h = 0; h < kHalves; ++h) {
    const Tile tile = make_tile(wave, group.row_slot, group.column_slot + h);
    if (!tile.skipped) body(values.halves[h], tile, h);
  }
}

/// Returns the unit rows from element [line, column] as an operand.
__device__ inline TmaOperand unit_operand(const TensorMap& map, const Rows& rows, std::int64_t line,
                                          std::int64_t column) {
  return {&map, static_cast<int>(line), static_cast<int>(column), 0, static_cast<int>(rows.stride)};
}

__device__ inline int stages_of(std::int64_t depth) {
  constexpr int kDepth = TmaRing<1>::kDepth;
  return static_cast<int>((depth + kDepth - 1) / kDepth);
}

/// Loads what compute_group multiplies.
template <bool kSplit, int kHalves, typename Params>
__device__ void load_group(const TmaParams<Params>& t, const Tile& tile, TmaRing<kHalves>& ring,
                           Place& place) {
  const Scores& s = t.p.scores;
  produce<Major::kDepth, Major::kDepth, kSplit>(unit_operand(t.rows, s.rows, tile.row, 0),
                                                unit_operand(t.columns, s.columns, tile.column, 0),
                                                stages_of(s.rows.dim), ring, place);
}

/// Computes the cosines of a group of tiles, times kUnitScale^2.
template <bool kSplit, int kHalves>
__device__ void compute_group(TmaAccumulator<kHalves>& values, const Scores& s,
                              TmaRing<kHalves>& ring, Place& place) {
  consume<Major::kDepth, Major::kDepth, kSplit>(values, stages_of(s.rows.dim), 1.0f, ring, place);
}

template <int kHalves, typename Sum>
struct TmaLogsumexpStorage {
  TmaRing<kHalves> ring;
  LogsumexpShared<WgmmaAccumulator, typename Sum::Partial> partials;
};

template <bool kSplit, typename Sum>
__global__ __launch_bounds__(kTmaThreads, 1) void tma_logsumexp_tiles(
    const __grid_constant__ TmaParams<LogsumexpParams> t) {
  constexpr int kHalves = halves_of_scores(kSplit);
  auto& shared = shared_memory<TmaLogsumexpStorage<kHalves, Sum>>();
  const LogsumexpParams& p = t.p;
  init_ring(shared.ring);
  Place place;
  const auto load = [&](const Tile& group) { load_group<kSplit>(t, group, shared.ring, place); };
  const auto compute = [&](const Tile& group) {
    TmaAccumulator<kHalves> scores;
    compute_group<kSplit>(scores, p.scores, shared.ring, place);
    for_each_half(scores, p.wave, group, [&](WgmmaAccumulator& half, const Tile& tile, int) {
      mask(half, p.scores, tile);
      Sum::template reduce<kSplit>(half, p.scores, p.wave.symmetric, shared.partials);
      WarpgroupTeam::sync();
      write_partials<Sum, WarpgroupTeam, WgmmaAccumulator>(shared.partials, p, tile);
      WarpgroupTeam::sync();
    });
  };
  split_roles([&] { for_each_group<kHalves>(p.wave, t.count, load); },
              [&] { for_each_group<kHalves>(p.wave, t.count, compute); });
}

template <int kHalves>
struct TmaWeightsStorage {
  TmaRing<kHalves> ring;
  alignas(16) std::uint16_t weights[kTile * kTile];
  float row_lines[kTile];
  float column_lines[kConsumers][kHalves][kTile];
};

template <bool kSplit, typename Weight>
__global__ __launch_bounds__(kTmaThreads, 1) void tma_weights_tiles(
    const __grid_constant__ TmaParams<ContractParams> t) {
  constexpr int kHalves = halves_of_scores(kSplit);
  auto& shared = shared_memory<TmaWeightsStorage<kHalves>>();
  const ContractParams& p = t.p;
  init_ring(shared.ring);
  Place place;
  const auto load = [&](const Tile& group) { load_group<kSplit>(t, group, shared.ring, place); };
  const auto compute = [&](const Tile& group) {
    auto& column_lines = shared.column_lines[WarpgroupTeam::number()];
    const int i = WarpgroupTeam::rank();
    const int row = WarpgroupTeam::first_row() + i % WarpgroupTeam::kRows;
    // Loaded behind the products.
    const float own_row = row_line<Weight>(p, group.row + row);
    float own_columns[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      own_columns[h] = column_line<Weight>(p, group.column + h * kTile + i);
    }
    TmaAccumulator<kHalves> values;
    compute_group<kSplit>(values, p.scores, shared.ring, place);
    shared.row_lines[row] = own_row;  // two threads write the same
#pragma unroll
    for (int h = 0; h < kHalves; ++h) column_lines[h][i] = own_columns[h];
    WarpgroupTeam::sync();
    for_each_half(values, p.wave, group, [&](WgmmaAccumulator& half, const Tile& tile, int h) {
      mask(half, p.scores, tile);
      store_weights<WarpgroupTeam, Weight, kSplit>(half, p, tile, shared.row_lines, column_lines[h],
                                                   shared.weights);
    });
  };
  split_roles([&] { for_each_group<kHalves>(p.wave, t.count, load); },
              [&] { for_each_group<kHalves>(p.wave, t.count, compute); });
}

/// Calls body(Major of the weights, weights, unit rows, stages) with the products that make up
/// group `index` of output tiles: kHalves tiles of dimensions of one tile of rows.
template <int kHalves, typename Body>
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

/// Calls body(share, dimension) with every group of output tiles that this block computes.
template <int kHalves, typename Body>
__device__ void for_each_output(const TmaParams<ContractParams>& t, const Body& body) {
  const int across = (static_cast<int>(t.p.scores.rows.stride) / kTile + kHalves - 1) / kHalves;
  for (int index = static_cast<int>(blockIdx.x); index < t.count;
       index += static_cast<int>(gridDim.x)) {
    body(share_of(t.p.wave, index / across), index % across * kHalves * kTile);
  }
}

template <int kHalves, bool kSplit>
__global__ __launch_bounds__(kTmaThreads, 1) void tma_accumulate_tiles(
    const __grid_constant__ TmaParams<ContractParams> t) {
  auto& ring = shared_memory<TmaRing<kHalves>>();
  const ContractParams& p = t.p;
  init_ring(ring);
  Place place;
  const auto load = [&](const Share& share, int dimension) {
    for_each_product<kHalves>(
        t, share, dimension,
        [&](auto major, const TmaOperand& weights, const TmaOperand& rows, int stages) {
          produce<decltype(major)::value, Major::kTile, kSplit>(weights, rows, stages, ring, place);
        });
  };
  const auto compute = [&](const Share& share, int dimension) {
    TmaAccumulator<kHalves> sums;
    for_each_product<kHalves>(t, share, dimension,
                              [&](auto major, const TmaOperand&, const TmaOperand&, int stages) {
                                consume<decltype(major)::value, Major::kTile, kSplit>(
                                    sums, stages, 1 / kLowWeightScale, ring, place);
                              });
    const std::int64_t stride = p.scores.rows.stride;
    float* out = (share.of_columns ? p.column_sums : p.row_sums) + share.tile * kTile * stride;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      store_sums(sums.halves[h], out + dimension + h * kTile, stride, share.first);
    }
  };
  split_roles([&] { for_each_output<kHalves>(t, load); },
              [&] { for_each_output<kHalves>(t, compute); });
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
  constexpr int kHalves = halves_of_scores(kSplit);
  using Storage = TmaLogsumexpStorage<kHalves, Sum>;
  static_assert(sizeof(Storage) <= kMostSharedBytes);
  launch_tma("logsumexp_tiles", tma_logsumexp_tiles<kSplit, Sum>, sizeof(Storage),
             tma_params(p, groups_of<kHalves>(p.wave)), stream);
}

template <bool kSplit, typename Weight>
void launch_tma_weights(const ContractParams& p, void* stream) {
  constexpr int kHalves = halves_of_scores(kSplit);
  using Storage = TmaWeightsStorage<kHalves>;
  static_assert(sizeof(Storage) <= kMostSharedBytes);
  launch_tma("weights_tiles", tma_weights_tiles<kSplit, Weight>, sizeof(Storage),
             tma_params(p, groups_of<kHalves>(p.wave)), stream);
}

template <int kHalves, bool kSplit>
void launch_tma_sums(const ContractParams& p, int tiles, void* stream) {
  auto t = tma_params(p, tiles / kHalves * outputs_of(p));
  const std::int64_t lines = p.panel_low / p.panel_pitch * (kSplit ? 2 : 1);
  t.panel = make_tensor_map(p.panel, lines, p.panel_pitch);
  launch_tma("accumulate_tiles", tma_accumulate_tiles<kHalves, kSplit>, sizeof(TmaRing<kHalves>), t,
             stream);
}

/// Groups of two tiles are computed where the dimensions are a multiple of both.
template <bool kSplit>
void launch_tma_accumulate(const ContractParams& p, void* stream) {
  const int tiles = static_cast<int>(p.scores.rows.stride / kTile);
  if (kSplit || tiles % 2 != 0) {
    launch_tma_sums<1, kSplit>(p, tiles, stream);
  } else {
    launch_tma_sums<2, false>(p, tiles, stream);
  }
}

template <bool kSplit, typename Sum, typename Weight>
TileKernels tma_kernels_of() {
  return {launch_tma_logsumexp<kSplit, Sum>, launch_tma_weights<kSplit, Weight>,
          launch_tma_accumulate<kSplit>, kConsumers};
}

}  // namespace mirror_train
