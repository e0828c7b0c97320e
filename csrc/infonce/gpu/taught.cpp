#include "infonce/gpu/taught.h"

#include "infonce/gpu/workspace.h"

namespace mirror_train {

struct TaughtBatch::Parts {
  Rows rows, teacher;
  MaxAndSum *row_partials, *column_partials, *state;
  double* work;
  std::uint16_t* panel;
};

TaughtBatch::TaughtBatch(std::int64_t n, bool two_views, std::int64_t dim, std::int64_t teacher_dim,
                         Dtype dtype, int panel_tiles, int logsumexp_tiles)
    : n_(n),
      dim_(dim),
      teacher_dim_(teacher_dim),
      two_views_(two_views),
      dtype_(dtype),
      panel_tiles_(panel_tiles > 0 ? panel_tiles : panel_tiles_of(dim, split())),
      logsumexp_side_(logsumexp_tiles > 0 ? logsumexp_tiles : kLogsumexpSide) {}

WaveSize TaughtBatch::wave(std::int64_t rows, int most) const {
  return wave_of(tiles_of(rows), tiles_of(rows), most, true);
}

TaughtBatch::Parts TaughtBatch::take(Workspace& workspace) const {
  const std::int64_t partials = area(wave(rows(), logsumexp_side_ * logsumexp_side_)) * kTile;
  const std::int64_t panel = area(wave(rows(), panel_tiles_)) * kTile * kTile;
  return {workspace.take_rows(rows(), dim_, split()),
          workspace.take_rows(rows(), teacher_dim_, split()),
          workspace.take<MaxAndSum>(partials),
          workspace.take<MaxAndSum>(kColumnParts * partials),
          workspace.take<MaxAndSum>(rows()),
          workspace.take<double>((rows() + kRowsPerBlock - 1) / kRowsPerBlock),
          workspace.take<std::uint16_t>((split() ? 2 : 1) * panel)};
}

std::int64_t TaughtBatch::bytes() const {
  Workspace workspace(nullptr);
  take(workspace);
  return workspace.end();
}

std::int64_t TaughtBatch::finish_bytes() const {
  Workspace workspace(nullptr);
  workspace.take_rows(rows(), dim_, split());
  return workspace.end();
}

std::int64_t TaughtBatch::sums() const { return padded(rows()) * padded(dim_); }

std::int64_t TaughtBatch::totals() const {
  return std::int64_t{tiles_of(rows())} * tiles_of(rows()) * kTotals;
}

Blocks TaughtBatch::blocks(void* z1, void* z2) const {
  return {{z1, z2}, {n_, two_views_ ? n_ : 0}, dtype_};
}

Negatives TaughtBatch::negatives(const TaughtInputs& in) const {
  return {rows(), rows(), n_, in.ranks, in.ranks};
}

void TaughtBatch::begin(int device, const TaughtInputs& in, void* workspace, float* n,
                        float* teacher_n, float* loss, float* weights, float* log_weights,
                        void* stream) const {
  set_device(device);
  Workspace memory(workspace);
  const Parts parts = take(memory);
  normalize(blocks(in.z1, in.z2), parts.rows, stream);
  Blocks teacher = blocks(in.teacher, in.teacher);
  teacher.dtype = Dtype::kFloat32;
  normalize(teacher, parts.teacher, stream);
  const auto reduce = [&](const Rows& rows, double scale, float* out) {
    const Negatives negatives = {rows.count, rows.count, n_, in.ranks, in.ranks};
    mirror_train::logsumexp(rows, rows, negatives, scale,
                            wave(rows.count, logsumexp_side_ * logsumexp_side_), parts.row_partials,
                            parts.column_partials, parts.state, out, stream);
  };
  reduce(parts.rows, in.scale, n);
  Rows once = parts.teacher;  // both views are alike
  once.count = n_;
  reduce(once, in.teacher_scale, teacher_n);
  if (!two_views_) return;
  objective(parts.rows, parts.rows, pairs(), n, in.scale, false, 1.0 / static_cast<double>(rows()),
            loss, weights, log_weights, parts.work, stream);
}

void TaughtBatch::contract(int device, const TaughtInputs& in, const float* log_weights,
                           const float* teacher_log_weights, void* workspace, float* sums,
                           double* totals, void* stream) const {
  set_device(device);
  Workspace memory(workspace);
  const Parts parts = take(memory);
  const Teacher teacher = {parts.teacher, teacher_log_weights, in.teacher_scale, totals};
  mirror_train::contract(parts.rows, parts.rows, negatives(in), log_weights, log_weights, in.scale,
                         wave(rows(), panel_tiles_), parts.panel, sums, nullptr, &teacher, stream);
}

void TaughtBatch::finish(int device, const TaughtInputs& in, const float* sums,
                         const float* weights, double factor, const float* grad_output,
                         void* workspace, void* grad1, void* grad2, void* stream) const {
  set_device(device);
  Workspace memory(workspace);
  const Rows rows = memory.take_rows(this->rows(), dim_, split());
  normalize(blocks(in.z1, in.z2), rows, stream);
  mirror_train::finish(sums, rows, rows, pairs(), weights, factor, grad_output,
                       blocks(grad1, grad2), stream);
}

}  // namespace mirror_train
