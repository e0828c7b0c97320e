// InfoNCE on an NVIDIA GPU, in memory linear in the number of rows.
//
// The problem. Given are M unit rows x_i of D dimensions, scores s_ij = x_i . x_j / tau, and a set
// of negatives Neg(i) for every row. The forward pass computes n_i = log sum of exp(s_ij) over
// Neg(i). The loss of row i is a function of n_i - s+_i, where s+_i is the score of its positive.
// With the derivative g_i of this function and a_i = ln g_i - n_i, the gradient needs
//
//     sums_i = sum over j in Neg(i) of W_ij x_j,    W_ij = exp(s_ij + a_i) + exp(s_ij + a_j).
//
// exp(s_ij + a_i) is g_i times the softmax over Neg(i), at most 1, so nothing overflows. Neither S
// nor W is ever held in full: both passes compute S, tile by tile, from the rows.
//
// Symmetry. If rows and columns are the same, S and W are symmetric, so only tiles (r, c) with
// r <= c are computed. The forward pass takes M^2 D instead of 2 M^2 D operations. The backward
// pass takes half of them for S, and all for W times X, for which each stored tile of W is used
// twice:
//
//     tile (r, c), r < c:   sums of rows r += W X_c,   sums of rows c += W^T X_r.
//
//            columns              output tile t gets its share from these tiles:
//          0  1  2  3  4            across:  row t, from the diagonal on, as they are
//       0  .  .  d  .  .            down:    column t, above the diagonal, transposed
//  rows 1     .  d  .  .          (drawn for t = 2). Logsumexp merges the row partials across and
//       2        a  a  a          the column partials down; the backward pass sums the products.
//       3           .  .
//       4              .
//
// The rectangular problem (rows against the rows of all processes, or one view against the other)
// computes all tiles, and has only the share across and, for `column_sums`, the share down.
//
// Waves. A launch computes a rectangle of tiles, a wave, so that the workspace is bounded: it holds
// a wave's partials (8 bytes per row and tile column) or its panel of W. Waves follow one another
// in a fixed order, and within a wave every output is owned by one thread that adds in a fixed
// order. So there are no atomics, and results are bit-identical. The first wave of an output
// writes it instead of adding, so nothing has to be cleared.
//
// Precision. Rows and W are stored in fp16 (for unit vectors eight times as precise as bf16), and
// products are summed in fp32. For fp32 input both are split, x = high + low in fp16, and a product
// is low * high + high * low + high * high, three passes of the same loop. The dropped term is
// 2^-24 of the product, as much as the rounding of fp32 itself.
//
// Exponentials. |s_ij| is at most 1 / tau, as cosines are at most 1. While |s_ij| log2(e) <= 73
// (tau from .0198 on), exp(s_ij) and the sum of 2^31 of them are within the range of fp32, so
// nothing is subtracted: one exponential an element serves the sums of its row and of its column,
// and is more exact than that of a difference. In the backward pass W_ij = exp(s_ij) (exp(a_i) +
// exp(a_j)) takes one, too; exp(a_i) is at most 2^73, and where it falls below 2^-126 and becomes
// 0, W_ij is below 2^-53. For a lower tau the sums are relative to a maximum found on the way, and
// W_ij takes two.
//
// Files in infonce/gpu: pipeline.cuh and mma.cuh hold the main loop for all cards, tma.cuh that of
// compute capability 9.0; tiles.cuh the waves, masks and scores; logsumexp.cuh, merge.cuh,
// weights.cuh and contract.cuh what is done with a tile; kernels.cuh and tma_kernels.cuh the
// launches; rows.cuh the steps linear in M; batch.cpp the passes.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "infonce/gpu/kernels.cuh"
#include "infonce/gpu/loss.h"
#include "infonce/gpu/merge.cuh"
#include "infonce/gpu/mma.cuh"
#include "infonce/gpu/rows.cuh"

namespace mirror_train {

#ifndef MIRROR_TRAIN_TMA
TileKernels tma_kernels(bool, bool) { return {}; }
#endif

namespace {

dim3 row_blocks(std::int64_t rows) {
  return dim3(static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock));
}

/// Calls `body` with the waves that cover row_tiles x column_tiles, in the order of the rows. In a
/// symmetric problem waves are square, except at the edge, and those below the diagonal are left
/// out.
template <typename Body>
void for_each_wave(int row_tiles, int column_tiles, WaveSize size, bool symmetric,
                   const Body& body) {
  for (int row = 0; row < row_tiles; row += size.row_tiles) {
    for (int column = symmetric ? row : 0; column < column_tiles; column += size.column_tiles) {
      body(Wave{row, std::min(size.row_tiles, row_tiles - row), column,
                std::min(size.column_tiles, column_tiles - column), symmetric});
    }
  }
}

/// The devices on which the tma core is trusted, one bit for each.
std::atomic<std::uint64_t> trusted;

std::uint64_t device_bit(int device) { return device < 64 ? std::uint64_t{1} << device : 0; }

/// Returns whether the tma core shall be taken on the current device. mma runs everywhere.
bool takes_tma() {
  constexpr const char* kVariable = "MIRROR_RT_CUDA_CORE";
  const char* named = std::getenv(kVariable);
  const std::string core = named == nullptr ? "" : named;
  if (core.empty()) return trusted != 0 && (trusted & device_bit(current_device())) != 0;
  if (core == "mma") return false;
  if (core != "tma")
    throw std::runtime_error(std::string(kVariable) + " must be mma or tma, got " + core);
  const std::string obstacle = tma_obstacle(current_device());
  if (!obstacle.empty()) throw std::runtime_error(std::string(kVariable) + "=tma: " + obstacle);
  return true;
}

/// Chooses the kernels for the current device. On sm_90 the tma core reaches the full rate of the
/// tensor cores, which mma.sync does not.
TileKernels choose_kernels(bool split, bool bounded) {
  if (takes_tma()) return tma_kernels(split, bounded);
  if (split) return tile_kernels<MmaCore<4>, true>(bounded);
  return compute_capability() < 80 ? tile_kernels<MmaCore<4>, false>(bounded)
                                   : tile_kernels<MmaCore<2>, false>(bounded);
}

/// Returns whether exp(score) needs no maximum subtracted: see "Exponentials" above.
bool are_bounded(double scale) { return scale * kLog2E <= 73; }

/// Returns the scores of a problem in the unit of its kernels, with the scaling of the unit rows
/// undone.
Scores make_scores(const Rows& rows, const Rows& columns, const Negatives& negatives,
                   double scale) {
  const bool bounded = are_bounded(scale);
  const double exact = scale * (bounded ? kLog2E : 1) / (double{kUnitScale} * kUnitScale);
  const float high = static_cast<float>(exact), low = static_cast<float>(exact - double{high});
  // The masked element gives an exponential of 0 with the least scale, and is finite where it is
  // multiplied by a low part, which may be 0.
  constexpr float kLeast = 1e-35f;
  return {
      rows, columns, negatives, high > kLeast ? high : kLeast, low, bounded ? -3e38f : -INFINITY};
}

}  // namespace

void set_device(int device) { choose_device(device); }

std::string tma_obstacle(int device) {
  set_device(device);
#ifdef MIRROR_TRAIN_TMA
  return compute_capability() == 90 ? "" : "needs a GPU of compute capability 9.0";
#else
  return "built without code for sm_90";
#endif
}

void trust_tma(int device) { trusted |= device_bit(device); }

void normalize(const Blocks& blocks, const Rows& rows, void* stream) {
  launch("normalize_rows", normalize_rows, row_blocks(std::int64_t{rows.tiles()} * kTile),
         kRowThreads, 0, stream, NormalizeParams{blocks, rows});
}

void logsumexp(const Rows& rows, const Rows& columns, const Negatives& negatives, double scale,
               WaveSize wave_size, MaxAndSum* row_partials, MaxAndSum* column_partials,
               MaxAndSum* state, float* n, void* stream) {
  const bool symmetric = rows.unit == columns.unit;
  const bool bounded = are_bounded(scale);
  const TileKernels kernels = choose_kernels(rows.split, bounded);
  LogsumexpParams p{make_scores(rows, columns, negatives, scale),
                    {},
                    row_partials,
                    column_partials,
                    state,
                    columns.tiles(),
                    n,
                    kernels.column_parts};
  void (*const merge)(LogsumexpParams) =
      bounded ? &merge_partials<BoundedSum> : &merge_partials<OnlineSum>;
  const auto run = [&](const Wave& wave) {
    p.wave = wave;
    kernels.logsumexp(p, stream);
    const int outputs = wave.outputs(/*columns=*/symmetric);
    launch("merge_partials", merge, dim3(static_cast<unsigned>(outputs)), kTile, 0, stream, p);
  };
  for_each_wave(tiles_of(negatives.n_rows), columns.tiles(), wave_size, symmetric, run);
}

void objective(const Rows& rows, const Rows& partners, const Pairs& pairs, const float* n,
               double scale, bool decoupled, double factor, float* loss, float* weights,
               float* log_weights, double* work, void* stream) {
  const ObjectiveParams p{rows,      partners, pairs, n,       static_cast<float>(scale),
                          decoupled, factor,   loss,  weights, log_weights,
                          work};
  constexpr std::size_t kShared = kRowsPerBlock * sizeof(double);
  launch("objective_rows", objective_rows, row_blocks(pairs.count), kRowThreads, kShared, stream,
         p);
  launch("sum_losses", sum_losses, dim3(1), kRowThreads, kShared, stream, p);
}

void contract(const Rows& rows, const Rows& columns, const Negatives& negatives,
              const float* row_log_weights, const float* column_log_weights, double scale,
              WaveSize wave_size, std::uint16_t* panel, float* row_sums, float* column_sums,
              const Teacher* teacher, void* stream) {
  const bool symmetric = rows.unit == columns.unit;
  const std::int64_t pitch = std::int64_t{wave_size.column_tiles} * kTile;
  ContractParams p{make_scores(rows, columns, negatives, scale),
                   {},
                   panel,
                   pitch,
                   std::int64_t{wave_size.row_tiles} * kTile * pitch,
                   row_log_weights,
                   column_log_weights,
                   row_sums,
                   symmetric ? row_sums : column_sums,
                   teacher == nullptr ? nullptr : teacher->totals,
                   columns.tiles()};
  const TileKernels kernels = choose_kernels(rows.split, are_bounded(scale));
  const auto run = [&](const Wave& wave) {
    p.wave = wave;
    if (teacher == nullptr) {
      kernels.weights(p, stream);
    } else {
      ContractParams followed = p;
      followed.scores = make_scores(teacher->rows, teacher->rows, negatives, teacher->scale);
      followed.row_log_weights = followed.column_log_weights = teacher->log_weights;
      choose_kernels(rows.split, are_bounded(teacher->scale)).teacher_weights(followed, stream);
      kernels.student_weights(p, stream);
    }
    kernels.accumulate(p, stream);
  };
  // Rows without a loss have no weights of their own; in a symmetric problem their sums come from
  // their tiles as columns.
  const int row_tiles = symmetric ? tiles_of(negatives.n_rows) : rows.tiles();
  for_each_wave(row_tiles, columns.tiles(), wave_size, symmetric, run);
}

void finish(const float* sums, const Rows& rows, const Rows& partners, const Pairs& pairs,
            const float* weights, double factor, const float* grad_output, const Blocks& gradients,
            void* stream) {
  const FinishParams p{sums,        rows,     partners, pairs, weights, static_cast<float>(factor),
                       grad_output, gradients};
  launch("finish_rows", finish_rows, row_blocks(rows.count), kRowThreads, 0, stream, p);
}

}  // namespace mirror_train
