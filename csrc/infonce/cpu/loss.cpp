// The steps that cost O(rows * columns * D): tiles of the cosine matrix, on several threads.
//
// A task is one tile: its masked cosines are added to the running logsumexp of their rows and
// columns, or become weights W by which both blocks are multiplied. Two tasks never write to the
// same block at the same time, and every block meets the others in a fixed order, so results depend
// neither on timing nor on which thread runs a task. Besides the packed rows and the sums, memory
// is a few tiles per thread.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "infonce/cpu/packing.h"
#include "infonce/infonce.h"
#include "parallel.h"

namespace mirror_rt::infonce {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504f;
// Up to this scale, exp(scale (s - 1)) of any cosine s is a normal float, and so is its inverse.
constexpr float kLargestFixedScale = 40;
constexpr std::int64_t kSmallestBlock = 72, kLargestBlock = 240;  // a tile fits in the L2 cache

/// Chooses the rows of a block: many, to amortise loading the sums, but enough blocks for every
/// thread.
Geometry geometry_of(const Rows& rows, const Rows& columns, const Execution& run) {
  const std::int64_t panel = run.isa->panel;
  const std::int64_t fair = std::max(rows.count(), columns.count()) / (4 * run.threads);
  const std::int64_t block = std::clamp(fair, kSmallestBlock, kLargestBlock) / panel * panel;
  return {block, padded_dim(*run.isa, rows.dim)};
}

/// Schedules the tiles of a problem on the threads.
///
/// In round r of n, row block i meets column block (r + i) mod n or, in a symmetric problem,
/// (r - i) mod n, so that each unordered pair meets once, and each block once meets itself. Every
/// block takes part in every round exactly once, so a task may start when both of its blocks have
/// finished the previous round.
class Schedule {
 public:
  Schedule(std::int64_t rows, std::int64_t columns, bool symmetric)
      : rows_(rows),
        columns_(columns),
        n_(std::max(rows, columns)),
        symmetric_(symmetric),
        done_rows_(n_),
        done_columns_(symmetric ? 0 : n_) {}

  /// Calls tile(i, j, thread) for every tile.
  template <class Tile>
  void run(int threads, const Tile& tile) {
    const int useful = static_cast<int>(std::min<std::int64_t>(threads, n_));
    parallel_for(n_ * n_, useful, [&](std::int64_t task, int thread) {
      const std::int64_t round = task / n_, i = task % n_;
      const std::int64_t j = (symmetric_ ? round - i + n_ : round + i) % n_;
      if (symmetric_ && i > j) return;
      std::atomic<std::int64_t>&row = done_rows_[i], &column = columns_done()[j];
      while (row.load(std::memory_order_acquire) != round ||
             column.load(std::memory_order_acquire) != round) {
        std::this_thread::yield();
      }
      if (i < rows_ && j < columns_) tile(i, j, thread);
      row.store(round + 1, std::memory_order_release);
      column.store(round + 1, std::memory_order_release);
    });
  }

 private:
  std::vector<std::atomic<std::int64_t>>& columns_done() {
    return symmetric_ ? done_rows_ : done_columns_;
  }

  std::int64_t rows_, columns_, n_;
  bool symmetric_;
  std::vector<std::atomic<std::int64_t>> done_rows_, done_columns_;  // rounds finished
};

/// What both steps need: packed operands, geometry, and a tile of scores for each thread.
struct Problem {
  Problem(const Rows& rows, const Rows* other, const Negatives& negatives, const Execution& run)
      : negatives(negatives),
        run(run),
        geometry(geometry_of(rows, other ? *other : rows, run)),
        packed_rows(rows, geometry, run),
        symmetric(other == nullptr) {
    if (!symmetric) packed_columns = std::make_unique<PackedRows>(*other, geometry, run);
    scores = aligned<float>(run.threads * tile_size());
  }

  const PackedRows& columns() const { return symmetric ? packed_rows : *packed_columns; }
  std::int64_t tile_size() const { return geometry.block * geometry.block; }
  std::int64_t padded_rows() const { return packed_rows.blocks() * geometry.block; }
  std::int64_t padded_columns() const { return columns().blocks() * geometry.block; }

  const Negatives& negatives;
  const Execution& run;
  Geometry geometry;
  PackedRows packed_rows;
  bool symmetric;
  std::unique_ptr<PackedRows> packed_columns;
  Aligned<float> scores;
};

/// Sets to -inf the scores of a row and a column of the same string, and the padding of a panel.
void mask(const Problem& problem, const PackedBlock& rows, const PackedBlock& columns,
          float* scores) {
  const std::int64_t panel = problem.run.isa->panel, block = problem.geometry.block;
  const Negatives& negatives = problem.negatives;
  const auto score = [&](std::int64_t i, std::int64_t j) -> float& {
    return scores[(j / panel * block + i) * panel + j % panel];
  };
  const std::int64_t n_columns =
      std::min(columns.rows, std::max<std::int64_t>(0, negatives.n_columns - columns.first));
  for (std::int64_t i = 0; i < rows.rows; ++i) {
    for (std::int64_t j = columns.rows; j % panel != 0; ++j) score(i, j) = -kInfinity;
    const std::int64_t row = rows.first + i;
    if (row >= negatives.n_rows) continue;
    if (negatives.row_ids != nullptr) {
      const std::int64_t* ids = negatives.column_ids + columns.first;
      for (std::int64_t j = 0; j < n_columns; ++j) {
        if (ids[j] == negatives.row_ids[row]) score(i, j) = -kInfinity;
      }
    } else {
      // Start at the first column of this string in the block, and take every period-th.
      const std::int64_t offset = (row - columns.first) % negatives.period;
      for (std::int64_t j = offset < 0 ? offset + negatives.period : offset; j < n_columns;
           j += negatives.period) {
        score(i, j) = -kInfinity;
      }
    }
  }
}

/// Computes and masks one tile; returns the thread's scores.
float* masked_scores(Problem& problem, const PackedBlock& rows, const PackedBlock& columns,
                     int thread) {
  float* scores = problem.scores.get() + thread * problem.tile_size();
  problem.run.isa->scores(problem.geometry, rows, columns, scores);
  mask(problem, rows, columns, scores);
  return scores;
}

/// The base-2 exponents of rows and columns, or their factors relative to `scale`, padded; null
/// values mean none.
class LogWeightsOf {
 public:
  LogWeightsOf(const float* a, std::int64_t n_rows, const float* b, std::int64_t n_columns,
               float scale, const Problem& problem)
      : scale_(scale),
        one_exponential_(scale <= kLargestFixedScale),
        rows_(padded(a, n_rows, problem.padded_rows())),
        columns_(padded(b, n_columns, problem.padded_columns())) {}

  Weighing of(const PackedBlock& rows, const PackedBlock& columns) const {
    return {scale_ * kLog2E, one_exponential_, {&rows_[rows.first], &columns_[columns.first]}};
  }

 private:
  Aligned<float> padded(const float* values, std::int64_t n, std::int64_t size) const {
    Aligned<float> out = aligned<float>(size);
    std::fill_n(out.get(), size, one_exponential_ ? 0.0f : -kInfinity);
    for (std::int64_t i = 0; values != nullptr && i < n; ++i) {
      out[i] = one_exponential_ ? std::exp(values[i] + scale_) : values[i] * kLog2E;
    }
    return out;
  }

  float scale_;
  bool one_exponential_;
  Aligned<float> rows_, columns_;
};

}  // namespace

std::int64_t padded_dim(const Isa& isa, std::int64_t dim) { return round_up(dim, isa.panel); }
std::int64_t padded_rows(const Isa& isa, std::int64_t rows) { return round_up(rows, isa.row_step); }

void logsumexp(const Rows& rows, const Rows* columns, const Negatives& negatives, float scale,
               const Execution& run, float* n) {
  Problem problem(rows, columns, negatives, run);
  const bool fixed = scale <= kLargestFixedScale;
  const std::int64_t padded = problem.padded_rows();
  std::vector<float> maxima(padded, fixed ? scale * kLog2E : -kInfinity);
  std::vector<double> sums(padded);
  Schedule schedule(problem.packed_rows.blocks(), problem.columns().blocks(), problem.symmetric);
  schedule.run(run.threads, [&](std::int64_t i, std::int64_t j, int thread) {
    const PackedBlock row_block = problem.packed_rows.block(i);
    const PackedBlock column_block = problem.columns().block(j);
    if (row_block.first >= negatives.n_rows &&
        (!problem.symmetric || column_block.first >= negatives.n_rows)) {
      return;  // both blocks are hard negatives, which have no loss
    }
    float* scores = masked_scores(problem, row_block, column_block, thread);
    const LogSumExp of_rows{&maxima[row_block.first], &sums[row_block.first]};
    const LogSumExp of_columns{&maxima[column_block.first], &sums[column_block.first]};
    run.isa->logsumexp(problem.geometry, row_block.rows, column_block.rows, scores, scale * kLog2E,
                       fixed, of_rows, problem.symmetric && i != j ? of_columns : LogSumExp{});
  });
  for (std::int64_t i = 0; i < negatives.n_rows; ++i) {
    n[i] = static_cast<float>((fixed ? double{scale} : double{maxima[i]} / kLog2E) +
                              std::log(sums[i]));
  }
}

double contract(const Rows& rows, const Rows* columns, const Negatives& negatives, const float* a,
                const float* b, float scale, const Teacher* teacher, const Execution& run,
                float* sums, float* column_sums) {
  Problem problem(rows, columns, negatives, run);
  const Isa& isa = *run.isa;
  const Geometry& geometry = problem.geometry;
  const LogWeightsOf student(a, negatives.n_rows, b, negatives.n_columns, scale, problem);
  std::unique_ptr<Problem> taught;
  std::unique_ptr<LogWeightsOf> targets;
  if (teacher != nullptr) {
    taught = std::make_unique<Problem>(*teacher->rows, nullptr, negatives, run);
    targets = std::make_unique<LogWeightsOf>(teacher->a, negatives.n_rows, teacher->a,
                                             negatives.n_columns, teacher->scale, *taught);
  }
  const std::int64_t scratch_size = isa.pair == 1 ? 0 : 2 * problem.tile_size();
  const Aligned<float> scratch = aligned<float>(run.threads * scratch_size);

  std::fill_n(sums, padded_rows(isa, rows.count()) * geometry.dim, 0.0f);
  if (column_sums != nullptr) {
    std::fill_n(column_sums, padded_rows(isa, columns->count()) * geometry.dim, 0.0f);
  }
  float* const others = problem.symmetric ? sums : column_sums;
  std::vector<double> totals(problem.packed_rows.blocks());
  Schedule schedule(problem.packed_rows.blocks(), problem.columns().blocks(), problem.symmetric);
  schedule.run(run.threads, [&](std::int64_t i, std::int64_t j, int thread) {
    const PackedBlock row_block = problem.packed_rows.block(i);
    const PackedBlock column_block = problem.columns().block(j);
    if ((a == nullptr || row_block.first >= negatives.n_rows) &&
        (b == nullptr || column_block.first >= negatives.n_columns)) {
      return;  // all weights are 0
    }
    const Weighing how = student.of(row_block, column_block);
    float* scores = masked_scores(problem, row_block, column_block, thread);
    if (taught == nullptr) {
      isa.weights(geometry, row_block.rows, column_block.rows, scores, how);
    } else {
      const float* targeted = masked_scores(*taught, taught->packed_rows.block(i),
                                            taught->packed_rows.block(j), thread);
      const double total = isa.taught_weights(geometry, row_block.rows, column_block.rows, scores,
                                              targeted, how, targets->of(row_block, column_block));
      totals[i] +=
          i == j ? total / 2 : total;  // W has both terms of a pair, which i == j has twice
    }
    const bool both = others != nullptr && !(problem.symmetric && i == j);
    isa.accumulate(geometry, row_block, column_block, scores, scratch.get() + thread * scratch_size,
                   sums + row_block.first * geometry.dim,
                   both ? others + column_block.first * geometry.dim : nullptr);
  });
  return std::accumulate(totals.begin(), totals.end(), 0.0) / kLog2E;
}

}  // namespace mirror_rt::infonce
