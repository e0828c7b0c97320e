#include "infonce/gpu/batch.h"

namespace mirror_train {

namespace {

std::int64_t padded(std::int64_t count) { return (count + kTile - 1) / kTile * kTile; }

std::int64_t tiles(const WaveSize& wave) {
  return std::int64_t{wave.row_tiles} * wave.column_tiles;
}

}  // namespace

/// Hands out the parts of a workspace one after another; from null on, to know how many bytes they
/// take.
class Batch::Workspace {
 public:
  explicit Workspace(void* start) : next_(reinterpret_cast<std::uintptr_t>(start)) {}

  template <typename T>
  T* take(std::int64_t count) {
    constexpr std::uintptr_t kAlignment = 256;
    T* part = reinterpret_cast<T*>(next_);
    const std::uintptr_t bytes = static_cast<std::uintptr_t>(count) * sizeof(T);
    next_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return part;
  }

  std::int64_t end() const { return static_cast<std::int64_t>(next_); }

 private:
  std::uintptr_t next_;
};

/// In a symmetric problem both are the same.
struct Batch::Sides {
  Rows rows, columns;
};

struct Batch::Forward {
  Sides sides;
  MaxAndSum *row_partials, *column_partials, *state;
  float* n;
  double* work;
};

struct Batch::Backward {
  Sides sides;
  std::uint16_t* panel;
  float *row_sums, *column_sums;
};

Rows Batch::take_rows(Workspace& workspace, std::int64_t count) const {
  const bool split = dtype_ == Dtype::kFloat32;
  const std::int64_t stride = padded(dim_);
  auto* unit = workspace.take<std::uint16_t>(padded(count) * stride * (split ? 2 : 1));
  return {unit, workspace.take<float>(count), count, dim_, stride, split};
}

Batch::Sides Batch::take_sides(Workspace& workspace) const {
  if (one_way_) return {take_rows(workspace, n_), take_rows(workspace, n_ + n_hard_)};
  const Rows rows = take_rows(workspace, 2 * n_ + n_hard_);
  return {rows, rows};
}

Batch::Forward Batch::take_forward(Workspace& workspace) const {
  const std::int64_t partials = tiles(logsumexp_wave_) * kTile;
  return {take_sides(workspace),
          workspace.take<MaxAndSum>(partials),
          workspace.take<MaxAndSum>(one_way_ ? 0 : kColumnParts * partials),
          workspace.take<MaxAndSum>(losses()),
          workspace.take<float>(losses()),
          workspace.take<double>((losses() + kRowsPerBlock - 1) / kRowsPerBlock)};
}

Batch::Backward Batch::take_backward(Workspace& workspace) const {
  const Sides sides = take_sides(workspace);
  const std::int64_t parts = sides.rows.split ? 2 : 1, stride = sides.rows.stride;
  return {sides, workspace.take<std::uint16_t>(parts * tiles(panel_wave_) * kTile * kTile),
          workspace.take<float>(padded(sides.rows.count) * stride),
          one_way_ ? workspace.take<float>(padded(sides.columns.count) * stride) : nullptr};
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

Negatives Batch::negatives(const std::int32_t* ranks) const {
  return {losses(), losses(), n_, ranks, ranks};
}

Blocks Batch::blocks_of_rows(const BatchBlocks& z) const {
  if (one_way_) return {{z.z1}, {n_}, dtype_};
  return {{z.z1, z.z2, z.hard}, {n_, n_, n_hard_}, dtype_};
}

Blocks Batch::blocks_of_columns(const BatchBlocks& z) const {
  return {{z.z2, z.hard}, {n_, n_hard_}, dtype_};
}

void Batch::normalize_sides(const Sides& sides, const BatchBlocks& z, void* stream) const {
  normalize(blocks_of_rows(z), sides.rows, stream);
  if (one_way_) normalize(blocks_of_columns(z), sides.columns, stream);
}

void Batch::forward(int device, const BatchBlocks& z, const std::int32_t* ranks, double scale,
                    bool decoupled, void* workspace, float* loss, float* weights,
                    float* log_weights, void* stream) const {
  set_device(device);
  Workspace parts(workspace);
  const Forward f = take_forward(parts);
  normalize_sides(f.sides, z, stream);
  logsumexp(f.sides.rows, f.sides.columns, negatives(ranks), scale, logsumexp_wave_, f.row_partials,
            f.column_partials, f.state, f.n, stream);
  objective(f.sides.rows, f.sides.columns, pairs(), f.n, scale, decoupled, 1.0 / losses(), loss,
            weights, log_weights, f.work, stream);
}

void Batch::backward(int device, const BatchBlocks& z, const std::int32_t* ranks, double scale,
                     const float* weights, const float* log_weights, const float* grad_output,
                     void* workspace, const BatchBlocks& gradients, void* stream) const {
  set_device(device);
  Workspace parts(workspace);
  const Backward b = take_backward(parts);
  const Rows &rows = b.sides.rows, &columns = b.sides.columns;
  normalize_sides(b.sides, z, stream);
  contract(rows, columns, negatives(ranks), log_weights, one_way_ ? nullptr : log_weights, scale,
           panel_wave_, b.panel, b.row_sums, b.column_sums, stream);
  const double factor = scale / losses();
  finish(b.row_sums, rows, columns, pairs(), weights, factor, grad_output,
         blocks_of_rows(gradients), stream);
  if (!one_way_) return;
  finish(b.column_sums, columns, rows, pairs(), weights, factor, grad_output,
         blocks_of_columns(gradients), stream);
}

}  // namespace mirror_train
