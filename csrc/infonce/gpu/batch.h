// The InfoNCE of one batch in one process: each pass is one call, in one workspace.
#pragma once

#include <cstdint>

#include "infonce/gpu/loss.h"

namespace mirror_train {

/// The embeddings of a batch, or their gradients: two views of n strings, and hard negatives.
struct BatchBlocks {
  void *z1, *z2;
  void* hard;  ///< null without hard negatives
};

/// The shape of a batch. Its passes run the five steps of infonce/gpu/loss.h; `stream` and all
/// pointers are as there.
class Batch {
 public:
  /// `logsumexp_wave` and `panel_wave` are the waves of logsumexp and contract.
  Batch(std::int64_t n, std::int64_t n_hard, std::int64_t dim, Dtype dtype, bool one_way,
        WaveSize logsumexp_wave, WaveSize panel_wave)
      : n_(n),
        n_hard_(n_hard),
        dim_(dim),
        dtype_(dtype),
        one_way_(one_way),
        logsumexp_wave_(logsumexp_wave),
        panel_wave_(panel_wave) {}

  /// Return how many bytes of workspace a pass needs, aligned to 16.
  std::int64_t forward_bytes() const;
  std::int64_t backward_bytes() const;

  /// Writes the scalar loss, and weights and log_weights [number of losses]. `ranks` [n, or 2 n in
  /// a symmetric problem] may be null.
  void forward(int device, const BatchBlocks& z, const std::int32_t* ranks, double scale,
               bool decoupled, void* workspace, float* loss, float* weights, float* log_weights,
               void* stream) const;

  /// Writes the gradients of the embeddings.
  void backward(int device, const BatchBlocks& z, const std::int32_t* ranks, double scale,
                const float* weights, const float* log_weights, const float* grad_output,
                void* workspace, const BatchBlocks& gradients, void* stream) const;

 private:
  class Workspace;
  struct Sides;
  struct Forward;
  struct Backward;

  /// The number of rows with a loss.
  std::int64_t losses() const { return one_way_ ? n_ : 2 * n_; }
  Negatives negatives(const std::int32_t* ranks) const;
  Pairs pairs() const { return {losses(), one_way_ ? 0 : n_, !one_way_}; }
  Blocks blocks_of_rows(const BatchBlocks& z) const;
  Blocks blocks_of_columns(const BatchBlocks& z) const;
  Rows take_rows(Workspace& workspace, std::int64_t count) const;
  Sides take_sides(Workspace& workspace) const;
  Forward take_forward(Workspace& workspace) const;
  Backward take_backward(Workspace& workspace) const;
  void normalize_sides(const Sides& sides, const BatchBlocks& z, void* stream) const;

  std::int64_t n_, n_hard_, dim_;
  Dtype dtype_;
  bool one_way_;
  WaveSize logsumexp_wave_, panel_wave_;
};

}  // namespace mirror_train
