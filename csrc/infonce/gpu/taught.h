// A batch whose cosines follow those of a teacher, beside InfoNCE or alone; see
// mirror_train.loss.soft_targets.
#pragma once

#include <cstdint>

#include "infonce/gpu/loss.h"

namespace mirror_train {

class Workspace;

/// What the passes are given; the pointers are as in infonce/gpu/loss.h.
struct TaughtInputs {
  void *z1, *z2;              ///< the student's vectors; z2 is null for one view
  void* teacher;              ///< float32 [n, teacher_dim]
  const std::int32_t* ranks;  ///< [views * n], or null
  double scale, teacher_scale;
};

/// The shape of a batch of n strings in one view or two. `begin` and `contract` share a workspace;
/// what stands between them, and is linear in n, is the caller's.
class TaughtBatch {
 public:
  TaughtBatch(std::int64_t n, bool two_views, std::int64_t dim, std::int64_t teacher_dim,
              Dtype dtype, int panel_tiles, int logsumexp_tiles);

  std::int64_t rows() const { return two_views_ ? 2 * n_ : n_; }
  /// Return how many bytes `begin` and `contract` need, aligned to 16, and how many `finish` does.
  std::int64_t bytes() const;
  std::int64_t finish_bytes() const;
  /// Return how many numbers `contract` writes.
  std::int64_t sums() const;
  std::int64_t totals() const;

  /// Writes the student's n [rows()] and the teacher's [n], of one view. With two views, also the
  /// mean loss of InfoNCE, its weights and its log weights [rows()].
  void begin(int device, const TaughtInputs& in, void* workspace, float* n, float* teacher_n,
             float* loss, float* weights, float* log_weights, void* stream) const;

  /// Writes the weighted sums, and the totals that Teacher names, which must be 0 before.
  void contract(int device, const TaughtInputs& in, const float* log_weights,
                const float* teacher_log_weights, void* workspace, float* sums, double* totals,
                void* stream) const;

  /// Writes the gradients of the views, times `factor` and grad_output.
  void finish(int device, const TaughtInputs& in, const float* sums, const float* weights,
              double factor, const float* grad_output, void* workspace, void* grad1, void* grad2,
              void* stream) const;

 private:
  struct Parts;
  Parts take(Workspace& workspace) const;
  Blocks blocks(void* z1, void* z2) const;
  Negatives negatives(const TaughtInputs& in) const;
  Pairs pairs() const { return {two_views_ ? rows() : 0, two_views_ ? n_ : 0, true}; }
  bool split() const { return dtype_ == Dtype::kFloat32; }
  WaveSize wave(std::int64_t rows, int most) const;

  std::int64_t n_, dim_, teacher_dim_;
  bool two_views_;
  Dtype dtype_;
  int panel_tiles_, logsumexp_side_;
};

}  // namespace mirror_train
