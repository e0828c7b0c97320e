#include "infonce/gpu/batch.h"

#include <algorithm>

#include "infonce/gpu/workspace.h"

namespace mirror_train {

namespace {

Blocks all_blocks(const BatchBlocks& z, const BatchSize& size, Dtype dtype) {
  return {{z.z1, z.z2, z.hard}, {size.n, size.n, size.n_hard}, dtype};
}

/// Returns the blocks of view 1, and those that its rows are contrasted with in one_way.
Blocks first_blocks(const BatchBlocks& z, const BatchSize& size, Dtype dtype) {
  return {{z.z1}, {size.n}, dtype};
}
Blocks other_blocks(const BatchBlocks& z, const BatchSize& size, Dtype dtype) {
  return {{z.z2, z.hard}, {size.n, size.n_hard}, dtype};
}

}  // namespace

/// This process's rows, those with their positives, and the columns: in one process and both ways
/// all are the same. `anchors` are the rows of view 1 of all processes, for the gradient of
/// one_way.
struct Batch::Sides {
  Rows rows, partners, columns, anchors;
};

struct Batch::Forward {
  Sides sides;
  WaveSize wave;
  MaxAndSum *row_partials, *column_partials, *state;
  float* n;
  double* work;
};

struct Batch::Backward {
  Sides sides;
  std::uint16_t* panel;
  float *row_sums, *partner_sums;  // the second only for one_way
};

Batch::Batch(BatchSize own, BatchSize all, std::int64_t dim, Dtype dtype, bool one_way,
             int panel_tiles, int logsumexp_tiles)
    : own_(own), all_(all), dim_(dim), dtype_(dtype), one_way_(one_way) {
  panel_tiles_ = panel_tiles > 0 ? panel_tiles : panel_tiles_of(dim, dtype == Dtype::kFloat32);
  logsumexp_tiles_ = logsumexp_tiles > 0 ? logsumexp_tiles : kLogsumexpSide;
}

std::int64_t Batch::string_columns() const {
  const std::int64_t n = alone() ? own_.n : all_.n;
  return one_way_ ? n : 2 * n;
}

Negatives Batch::negatives(const BatchInputs& in) const {
  return {losses(), string_columns(), own_.n, in.row_ranks, in.column_ranks};
}

WaveSize Batch::panel_wave(const Rows& rows, const Rows& columns) const {
  const int row_tiles = symmetric() ? tiles_of(losses()) : rows.tiles();
  return wave_of(row_tiles, columns.tiles(), panel_tiles_, symmetric());
}

Rows Batch::take_rows(Workspace& workspace, std::int64_t count) const {
  return workspace.take_rows(count, dim_, dtype_ == Dtype::kFloat32);
}

Batch::Sides Batch::take_sides(Workspace& workspace) const {
  const Rows rows = take_rows(workspace, losses() + (one_way_ ? 0 : own_.n_hard));
  const Rows partners = one_way_ ? take_rows(workspace, own_.n + own_.n_hard) : rows;
  if (alone()) return {rows, partners, partners, rows};
  const Rows columns = take_rows(workspace, string_columns() + all_.n_hard);
  return {rows, partners, columns, one_way_ ? take_rows(workspace, all_.n) : columns};
}

Batch::Forward Batch::take_forward(Workspace& workspace) const {
  const Sides sides = take_sides(workspace);
  const int most = logsumexp_tiles_ * logsumexp_tiles_;
  const WaveSize wave = wave_of(tiles_of(losses()), sides.columns.tiles(), most, symmetric());
  const std::int64_t partials = area(wave) * kTile;
  return {sides,
          wave,
          workspace.take<MaxAndSum>(partials),
          workspace.take<MaxAndSum>(symmetric() ? kColumnParts * partials : 0),
          workspace.take<MaxAndSum>(losses()),
          workspace.take<float>(losses()),
          workspace.take<double>((losses() + kRowsPerBlock - 1) / kRowsPerBlock)};
}

Batch::Backward Batch::take_backward(Workspace& workspace) const {
  const Sides sides = take_sides(workspace);
  const std::int64_t parts = sides.rows.split ? 2 : 1, stride = sides.rows.stride;
  const std::int64_t panel = std::max(area(panel_wave(sides.rows, sides.columns)),
                                      area(panel_wave(sides.partners, sides.anchors)));
  return {sides, workspace.take<std::uint16_t>(parts * panel * kTile * kTile),
          workspace.take<float>(padded(sides.rows.count) * stride),
          one_way_ ? workspace.take<float>(padded(sides.partners.count) * stride) : nullptr};
}

std::int64_t Batch::forward_bytes() const {
  Workspace workspace(nullptr);
  take_forward(workspace);
  return workspace.end();
}

std::int64_t Batch::backward_bytes() const {
  Workspace workspace(nullptr);
  take_backward(workspace);
  return workspace.end();
}

void Batch::normalize_sides(const Sides& sides, const BatchInputs& in, void* stream) const {
  const auto write = [&](const Rows& rows, const Blocks& blocks) {
    normalize(blocks, rows, stream);
  };
  if (one_way_) {
    write(sides.rows, first_blocks(in.own, own_, dtype_));
    write(sides.partners, other_blocks(in.own, own_, dtype_));
    if (alone()) return;
    write(sides.columns, other_blocks(in.all, all_, dtype_));
    write(sides.anchors, first_blocks(in.all, all_, dtype_));
  } else {
    write(sides.rows, all_blocks(in.own, own_, dtype_));
    if (!alone()) write(sides.columns, all_blocks(in.all, all_, dtype_));
  }
}

void Batch::forward(int device, const BatchInputs& in, bool decoupled, void* workspace, float* loss,
                    float* weights, float* log_weights, void* stream) const {
  set_device(device);
  Workspace parts(workspace);
  const Forward f = take_forward(parts);
  normalize_sides(f.sides, in, stream);
  logsumexp(f.sides.rows, f.sides.columns, negatives(in), in.scale, f.wave, f.row_partials,
            f.column_partials, f.state, f.n, stream);
  const double count = static_cast<double>(string_columns());  // of the rows of all processes
  objective(f.sides.rows, f.sides.partners, pairs(), f.n, in.scale, decoupled, 1.0 / count, loss,
            weights, log_weights, f.work, stream);
}

void Batch::backward(int device, const BatchInputs& in, const float* weights,
                     const float* log_weights, const float* all_log_weights,
                     const float* grad_output, void* workspace, const BatchBlocks& gradients,
                     void* stream) const {
  set_device(device);
  Workspace parts(workspace);
  const Backward b = take_backward(parts);
  const auto& [rows, partners, columns, anchors] = b.sides;
  normalize_sides(b.sides, in, stream);
  const auto add = [&](const Rows& left, const Rows& right, const float* of_left,
                       const float* of_right, float* left_sums, float* right_sums) {
    contract(left, right, negatives(in), of_left, of_right, in.scale, panel_wave(left, right),
             b.panel, left_sums, right_sums, nullptr, stream);
  };
  if (!one_way_) {
    add(rows, columns, log_weights, alone() ? log_weights : all_log_weights, b.row_sums, nullptr);
  } else if (alone()) {
    add(rows, columns, log_weights, nullptr, b.row_sums, b.partner_sums);
  } else {
    add(rows, columns, log_weights, nullptr, b.row_sums, nullptr);
    add(partners, anchors, nullptr, all_log_weights, b.partner_sums, nullptr);
  }
  // Where several processes average their gradients, each returns so many times its share: that is
  // the factor of one process.
  const double factor = in.scale / static_cast<double>(losses());
  const auto write = [&](const float* sums, const Rows& own, const Rows& others,
                         const Blocks& out) {
    finish(sums, own, others, pairs(), weights, factor, grad_output, out, stream);
  };
  if (one_way_) {
    write(b.row_sums, rows, partners, first_blocks(gradients, own_, dtype_));
    write(b.partner_sums, partners, rows, other_blocks(gradients, own_, dtype_));
  } else {
    write(b.row_sums, rows, rows, all_blocks(gradients, own_, dtype_));
  }
}

}  // namespace mirror_train
