// The InfoNCE of one batch: each pass is one call, in one workspace.
#pragma once

#include <cstdint>

#include "infonce/gpu/loss.h"

namespace mirror_train {

class Workspace;

/// The embeddings of a batch, or their gradients: two views of strings, and hard negatives.
struct BatchBlocks {
  void *z1, *z2;
  void* hard;  ///< null without hard negatives
};

/// How many strings and hard negatives there are.
struct BatchSize {
  std::int64_t n, n_hard;
};

/// What both passes are given; the pointers are as in infonce/gpu/loss.h.
struct BatchInputs {
  BatchBlocks own;                               ///< of this process
  BatchBlocks all;                               ///< of all processes; null for one process
  const std::int32_t *row_ranks, *column_ranks;  ///< of all rows and columns of strings, or null
  double scale;
};

/// The shape of a batch, of which `all` is the size in all processes, or 0 and 0 for one process.
/// Its passes run the five steps of infonce/gpu/loss.h.
class Batch {
 public:
  /// The largest waves, in tiles: of weights, and of each side of logsumexp; 0 for what suits a
  /// GPU.
  Batch(BatchSize own, BatchSize all, std::int64_t dim, Dtype dtype, bool one_way, int panel_tiles,
        int logsumexp_tiles);

  /// Return how many bytes of workspace a pass needs, aligned to 16.
  std::int64_t forward_bytes() const;
  std::int64_t backward_bytes() const;

  /// The number of rows with a loss.
  std::int64_t losses() const { return one_way_ ? own_.n : 2 * own_.n; }

  /// Writes the scalar loss, and weights and log_weights [losses()]. With several processes the
  /// loss is this one's share.
  void forward(int device, const BatchInputs& in, bool decoupled, void* workspace, float* loss,
               float* weights, float* log_weights, void* stream) const;

  /// Writes the gradients of this process's embeddings. `all_log_weights` are those of the rows of
  /// all processes.
  void backward(int device, const BatchInputs& in, const float* weights, const float* log_weights,
                const float* all_log_weights, const float* grad_output, void* workspace,
                const BatchBlocks& gradients, void* stream) const;

 private:
  struct Sides;
  struct Forward;
  struct Backward;

  bool alone() const { return all_.n == 0; }
  bool symmetric() const { return alone() && !one_way_; }
  /// The number of columns that belong to strings.
  std::int64_t string_columns() const;
  Negatives negatives(const BatchInputs& in) const;
  Pairs pairs() const { return {losses(), one_way_ ? 0 : own_.n, !one_way_}; }
  WaveSize panel_wave(const Rows& rows, const Rows& columns) const;
  Rows take_rows(Workspace& workspace, std::int64_t count) const;
  Sides take_sides(Workspace& workspace) const;
  Forward take_forward(Workspace& workspace) const;
  Backward take_backward(Workspace& workspace) const;
  void normalize_sides(const Sides& sides, const BatchInputs& in, void* stream) const;

  BatchSize own_, all_;
  std::int64_t dim_;
  Dtype dtype_;
  bool one_way_;
  int panel_tiles_, logsumexp_tiles_;
};

}  // namespace mirror_train
