// The weights: a kernel writes a wave of W, by which contract.cuh multiplies.
#pragma once

#include "infonce/gpu/tiles.cuh"

namespace mirror_train {

// W, at most 2, is stored in fp16 times 2^14: exact to 11 bits down to 2^-28, and 0 below 2^-39.
constexpr float kWeightScale = 16384.0f;
// The low parts are at most 2^-12 of the high ones; they are stored times 2^11 to keep the digits
// of small weights.
constexpr float kLowWeightScale = 2048.0f;

struct ContractParams {
  Scores scores;
  Wave wave;
  std::uint16_t* panel;
  std::int64_t panel_pitch;
  std::int64_t panel_low;  // elements from the high to the low parts
  const float *row_log_weights, *column_log_weights;
  float *row_sums, *column_sums;
  double* totals;  // [row tiles, column_tiles, kTotals], where a teacher is followed; see Teacher
  std::int64_t column_tiles;
};

/// Which weights a kernel writes. Where a teacher is followed the first writes its weights, and the
/// second, of the student, writes what is left when these are taken off.
enum class Role { kAlone, kTeacher, kStudent };

/// A tile of weights on its way to memory, and what they are computed from besides the scores.
struct WeightsTile {
  std::uint16_t weights[kTile * kTile];
  float lines[2 * kTile];  // of the rows, and then of the columns
};

union WeightsStorage {
  Ring ring;
  WeightsTile tile;
};

/// W_ij = exp(s_ij) (exp(a_i) + exp(a_j)), for bounded scores: one exponential an element.
struct BoundedWeight {
  /// Returns the factor of a row or column with this log weight, times kWeightScale.
  static __device__ float of_line(float log_weight) {
    if (log_weight == -INFINITY) return 0.0f;
    // All elements of the line share the error, so the exponent is not rounded once more: its whole
    // part is taken off.
    constexpr auto kHigh = static_cast<float>(kLog2E);
    constexpr auto kLow = static_cast<float>(kLog2E - double{kHigh});
    const float high = log_weight * kHigh;
    const float low = fmaf(log_weight, kHigh, -high) + log_weight * kLow;
    const float whole = rintf(high);
    return exp2_approx(whole) * exp2_approx(high - whole + low) * kWeightScale;
  }

  /// Returns W times kWeightScale. W exceeds 2 only by rounding.
  template <bool kSplit>
  static __device__ float of_element(float element, const Scores& s, float row, float column) {
    return bounded_exponential<kSplit>(element, s) * (row + column);
  }

  static __device__ float score_of(float element, const Scores& s) {
    return element * s.scale * static_cast<float>(1 / kLog2E);
  }
};

/// W_ij = exp(s_ij + a_i) + exp(s_ij + a_j), for any scores.
struct AnyWeight {
  static __device__ float of_line(float log_weight) { return log_weight; }

  template <bool>
  static __device__ float of_element(float element, const Scores& s, float row, float column) {
    return (clamped(fmaf(element, s.scale, row)) + clamped(fmaf(element, s.scale, column))) *
           kWeightScale;
  }

  static __device__ float score_of(float element, const Scores& s) { return element * s.scale; }

  /// Returns e^x. It exceeds 1 only by rounding, so it is clamped to 1, in a way that passes NaN
  /// on.
  static __device__ float clamped(float x) { return exp_approx(x > 0 ? 0.0f : x); }
};

/// Returns log_weights[i], or -inf past the last row or column that has a log weight.
__device__ inline float log_weight_at(const float* log_weights, std::int64_t i,
                                      std::int64_t count) {
  return log_weights != nullptr && i < count ? log_weights[i] : -INFINITY;
}

/// Returns the factor of a row, or of a column; 0 or -inf past the last that has a log weight.
template <typename Weight>
__device__ float row_line(const ContractParams& p, std::int64_t row) {
  return Weight::of_line(log_weight_at(p.row_log_weights, row, p.scores.negatives.n_rows));
}
template <typename Weight>
__device__ float column_line(const ContractParams& p, std::int64_t column) {
  return Weight::of_line(log_weight_at(p.column_log_weights, column, p.scores.negatives.n_columns));
}

/// A tile of fp16 elements in shared memory. Chunks of its lines are permuted so that neither
/// threads with parts of an accumulator nor those that copy whole lines have bank conflicts.
struct SharedTile {
  std::uint16_t* elements;

  static __device__ int offset(int row, int chunk) {
    return row * kTile + (chunk ^ row % 8) * kChunk;
  }

  /// Returns the elements of this row from this even column on, and the next.
  __device__ std::uint32_t& pair(int row, int column) const {
    return *reinterpret_cast<std::uint32_t*>(elements + offset(row, column / kChunk) +
                                             column % kChunk);
  }

  /// Calls body(chunk in shared memory, chunk of the panel) with a team's rows of the tile.
  template <typename Team, typename Body>
  __device__ void for_each_chunk(std::uint16_t* panel, std::int64_t pitch, const Body& body) const {
    constexpr int kLineChunks = kTile / kChunk;
#pragma unroll
    for (int n = 0; n < Team::kRows * kLineChunks / Team::kSize; ++n) {
      const int index = Team::rank() + n * Team::kSize;
      const int row = Team::first_row() + index / kLineChunks, chunk = index % kLineChunks;
      body(elements + offset(row, chunk), panel + row * pitch + chunk * kChunk);
    }
  }

  /// Load a team's rows from the panel, or store them there, in whole lines.
  template <typename Team>
  __device__ void load(std::uint16_t* panel, std::int64_t pitch) const {
    for_each_chunk<Team>(panel, pitch, [](void* own, const void* far) { copy_chunk(own, far); });
    Team::sync();
  }
  template <typename Team>
  __device__ void store(std::uint16_t* panel, std::int64_t pitch) const {
    Team::sync();
    for_each_chunk<Team>(panel, pitch, [](const void* own, void* far) { copy_chunk(far, own); });
    Team::sync();
  }
};

/// Returns number `n` of two in fp16.
__device__ inline float half_of_pair(std::uint32_t pair, int n) {
  return half_value(static_cast<std::uint16_t>(pair >> (16 * n)));
}

/// Returns a weight times a score; masked scores are infinite, and their weights 0.
__device__ inline float weighted_score(float weight, float score) {
  return weight == 0 ? 0.0f : weight * score;
}

/// Turns the cosines of a tile into weights, times kWeightScale, by the lines of its rows and
/// columns, in `shared`; of split ones the low parts are left in `values`. A student takes off what
/// it finds in `shared` and, from `low` on, in the panel. Returns this thread's part of the total
/// of a teacher's weights times its scores, or less those of the student.
template <Role kRole, typename Weight, bool kSplit, typename Accumulator>
__device__ float weigh(Accumulator& values, const Scores& s, const float* row_lines,
                       const float* column_lines, const SharedTile& shared,
                       const std::uint16_t* low, std::int64_t pitch) {
  float total = 0;
#pragma unroll
  for (int r = 0; r < Accumulator::kRows; ++r) {
    const int row = Accumulator::row(r);
    const float row_line = row_lines[row];
#pragma unroll
    for (int c = 0; c < Accumulator::kColumns; c += 2) {
      const int column = Accumulator::column(c);
      std::uint32_t& pair = shared.pair(row, column);
      std::uint32_t followed = 0, followed_low = 0;
      if constexpr (kRole == Role::kStudent) {
        followed = pair;
        if constexpr (kSplit) {
          followed_low = *reinterpret_cast<const std::uint32_t*>(low + row * pitch + column);
        }
      }
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        float& value = values.at(r, c + n);
        const float element = value;
        value = Weight::template of_element<kSplit>(element, s, row_line, column_lines[column + n]);
        if constexpr (kRole == Role::kTeacher) {
          // As the student will read it.
          const float stored = kSplit ? value : half_value(half_bits(value));
          total += weighted_score(stored, Weight::score_of(element, s));
        } else if constexpr (kRole == Role::kStudent) {
          float teachers = half_of_pair(followed, n);
          if constexpr (kSplit) {
            teachers = fmaf(half_of_pair(followed_low, n), 1 / kLowWeightScale, teachers);
          }
          total -= weighted_score(teachers, Weight::score_of(element, s));
          value -= teachers;
        }
      }
      pair = half_pair(values.at(r, c), values.at(r, c + 1));
    }
  }
  return total;
}

/// Adds a warp's part of the total of a tile to memory; the teacher's part is the first. A tile on
/// the diagonal has both terms of every pair twice.
template <Role kRole, typename Team>
__device__ void add_total(float part, const ContractParams& p, const Tile& tile) {
  static_assert(kTile / Team::kRows * Team::kSize / kWarp <= kTotals);
  const double total = sum_of_warp(double{part}) * (tile.row == tile.column ? 0.5 : 1.0);
  if (lane_of_thread() != 0) return;
  const std::int64_t index = tile.row / kTile * p.column_tiles + tile.column / kTile;
  const int warp = (Team::number() * Team::kSize + Team::rank()) / kWarp;
  double& out = p.totals[index * kTotals + warp];
  out = (kRole == Role::kTeacher ? 0.0 : out) + total / kWeightScale;
}

/// Replaces the values of a tile by their rounding errors in fp16, times kLowWeightScale.
template <typename Accumulator>
__device__ void place_low_parts(const Accumulator& values, const SharedTile& shared) {
  const auto low = [](float x) { return (x - half_value(half_bits(x))) * kLowWeightScale; };
#pragma unroll
  for (int r = 0; r < Accumulator::kRows; ++r) {
#pragma unroll
    for (int c = 0; c < Accumulator::kColumns; c += 2) {
      shared.pair(Accumulator::row(r), Accumulator::column(c)) =
          half_pair(low(values.at(r, c)), low(values.at(r, c + 1)));
    }
  }
}

/// Weighs a tile and stores it, in as many parts as the unit rows have; a team calls it.
template <typename Team, Role kRole, typename Weight, bool kSplit, typename Accumulator>
__device__ void store_weights(Accumulator& values, const ContractParams& p, const Tile& tile,
                              const float* row_lines, const float* column_lines,
                              const SharedTile& shared) {
  std::uint16_t* out = p.panel + static_cast<std::int64_t>(tile.row_slot) * kTile * p.panel_pitch +
                       tile.column_slot * kTile;
  if constexpr (kRole == Role::kStudent) shared.load<Team>(out, p.panel_pitch);
  const float total = weigh<kRole, Weight, kSplit>(values, p.scores, row_lines, column_lines,
                                                   shared, out + p.panel_low, p.panel_pitch);
  if constexpr (kRole != Role::kAlone) add_total<kRole, Team>(total, p, tile);
  shared.store<Team>(out, p.panel_pitch);
  if constexpr (kSplit) {
    place_low_parts(values, shared);
    shared.store<Team>(out + p.panel_low, p.panel_pitch);
  }
}

template <typename Core, bool kSplit, Role kRole, typename Weight>
__global__ __launch_bounds__(Core::kThreads,
                             min_blocks(kSplit)) void weights_tiles(ContractParams p) {
  if constexpr (!Core::template kUsed<kSplit>) return;
  auto& shared = shared_memory<WeightsStorage>();
  const Tile tile = tile_of(p.wave, static_cast<int>(blockIdx.x));
  if (tile.skipped) return;
  // A thread loads one or two of the lines of the rows and then the columns, behind the products.
  constexpr int kLines = 2 * kTile / Core::kThreads;
  const int first = static_cast<int>(threadIdx.x);
  float own_lines[kLines];
#pragma unroll
  for (int n = 0; n < kLines; ++n) {
    const int i = first + n * Core::kThreads;
    own_lines[n] = i < kTile ? row_line<Weight>(p, tile.row + i)
                             : column_line<Weight>(p, tile.column + i - kTile);
  }
  typename Core::Accumulator values = {};
  compute_scores<Core, kSplit>(values, p.scores, tile, shared.ring);
#pragma unroll
  for (int n = 0; n < kLines; ++n) shared.tile.lines[first + n * Core::kThreads] = own_lines[n];
  __syncthreads();
  store_weights<BlockTeam<Core::kThreads>, kRole, Weight, kSplit>(
      values, p, tile, shared.tile.lines, shared.tile.lines + kTile, {shared.tile.weights});
}

}  // namespace mirror_train
