// The O(rows * dim) steps normalize, objective and finish: one warp per row, kRowsPerBlock rows per
// block.
#pragma once

#include "infonce/gpu/common.cuh"

namespace mirror_train {

constexpr int kRowThreads = kRowsPerBlock * kWarp;
constexpr float kShortest = 1e-12f;  // rows shorter than this are divided by it

__device__ inline std::int64_t row_of_warp() {
  return static_cast<std::int64_t>(blockIdx.x) * kRowsPerBlock + threadIdx.x / kWarp;
}

/// A row of one of the blocks; `data` is null past the last row.
struct BlockRow {
  void* data;
  std::int64_t row;
};

__device__ inline BlockRow find_row(const Blocks& blocks, std::int64_t row) {
  for (int b = 0; b < Blocks::kMax; ++b) {
    if (row < blocks.rows[b]) return {blocks.data[b], row};
    row -= blocks.rows[b];
  }
  return {nullptr, 0};
}

__device__ inline float read(const void* data, std::int64_t i, Dtype dtype) {
  if (dtype == Dtype::kFloat32) return static_cast<const float*>(data)[i];
  if (dtype == Dtype::kFloat16) return __half2float(static_cast<const __half*>(data)[i]);
  return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[i]);
}

__device__ inline void write(void* data, std::int64_t i, Dtype dtype, float value) {
  if (dtype == Dtype::kFloat32) {
    static_cast<float*>(data)[i] = value;
  } else if (dtype == Dtype::kFloat16) {
    static_cast<__half*>(data)[i] = __float2half_rn(value);
  } else {
    static_cast<__nv_bfloat16*>(data)[i] = __float2bfloat16_rn(value);
  }
}

/// Returns element k of the unit row that starts at `unit`.
__device__ inline float unit_value(const Rows& rows, const std::uint16_t* unit, std::int64_t k) {
  float value = half_value(unit[k]);
  if (rows.split) value += half_value(unit[rows.stride + k]);
  return value * (1 / kUnitScale);
}

struct NormalizeParams {
  Blocks blocks;
  Rows rows;
};

__global__ __launch_bounds__(kRowThreads) void normalize_rows(NormalizeParams p) {
  const std::int64_t row = row_of_warp();
  const int lane = lane_of_thread();
  const BlockRow source = find_row(p.blocks, row);
  const std::int64_t dim = source.data == nullptr ? 0 : p.rows.dim;
  const std::int64_t start = source.row * p.rows.dim;
  double squares = 0;  // in double, because the squares of a long row overflow float
  for (std::int64_t k = lane; k < dim; k += kWarp) {
    const double x = read(source.data, start + k, p.blocks.dtype);
    squares += x * x;
  }
  const double length = sqrt(sum_of_warp(squares));
  // fmax would hide a NaN.
  const float norm = length < 1e-12 ? kShortest : static_cast<float>(length);
  if (lane == 0 && row < p.rows.count) p.rows.norms[row] = norm;
  std::uint16_t* unit = unit_row(p.rows, row);
  for (std::int64_t k = lane; k < p.rows.stride; k += kWarp) {
    float x = 0;
    if (k < dim) x = read(source.data, start + k, p.blocks.dtype) / norm * kUnitScale;
    const std::uint16_t high = half_bits(x);
    unit[k] = high;
    if (p.rows.split) unit[p.rows.stride + k] = half_bits(x - half_value(high));
  }
}

__device__ inline std::int64_t partner_of(const Pairs& pairs, std::int64_t row) {
  const std::int64_t partner = row + pairs.shift;
  return partner < pairs.count ? partner : partner - pairs.count;
}

struct ObjectiveParams {
  Rows rows, partners;
  Pairs pairs;
  const float* n;
  float scale;
  bool decoupled;
  double factor;
  float *loss, *weights, *log_weights;
  double* work;
};

__device__ inline float positive_score(const ObjectiveParams& p, std::int64_t row) {
  const std::uint16_t* x = unit_row(p.rows, row);
  const std::uint16_t* y = unit_row(p.partners, partner_of(p.pairs, row));
  float cosine = 0;
  for (std::int64_t k = lane_of_thread(); k < p.rows.dim; k += kWarp) {
    cosine = fmaf(unit_value(p.rows, x, k), unit_value(p.partners, y, k), cosine);
  }
  return p.scale * sum_of_warp(cosine);
}

/// Returns the loss of one row at u = n - s+, and writes the weights that the gradient needs of its
/// derivative by u.
__device__ inline float write_row_objective(const ObjectiveParams& p, std::int64_t row, float u) {
  const float n = p.n[row];
  const bool alone = n == -INFINITY;
  const float tail = log1pf(expf(-fabsf(u)));  // softplus(u) = max(u, 0) + tail
  const float log_weight = p.decoupled ? 0.0f : fminf(u, 0.0f) - tail;
  p.weights[row] = alone ? 0.0f : expf(log_weight);
  p.log_weights[row] = alone ? -INFINITY : log_weight - n;
  return p.decoupled ? u : fmaxf(u, 0.0f) + tail;
}

/// Writes the partial sum of the losses of a block's rows; sum_losses adds these up in a fixed
/// order.
__global__ __launch_bounds__(kRowThreads) void objective_rows(ObjectiveParams p) {
  double* losses = shared_memory<double[kRowsPerBlock]>();
  const std::int64_t row = row_of_warp();
  double loss = 0;
  if (row < p.pairs.count) {
    const float u = p.n[row] - positive_score(p, row);
    if (lane_of_thread() == 0) loss = write_row_objective(p, row, u);
  }
  if (lane_of_thread() == 0) losses[threadIdx.x / kWarp] = loss;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kRowsPerBlock; ++w) loss += losses[w];
  p.work[blockIdx.x] = loss;
}

__global__ __launch_bounds__(kRowThreads) void sum_losses(ObjectiveParams p) {
  double* sums = shared_memory<double[kRowsPerBlock]>();
  const std::int64_t blocks = (p.pairs.count + kRowsPerBlock - 1) / kRowsPerBlock;
  double sum = 0;
  for (std::int64_t b = threadIdx.x; b < blocks; b += kRowThreads) sum += p.work[b];
  sum = sum_of_warp(sum);
  if (lane_of_thread() == 0) sums[threadIdx.x / kWarp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kRowsPerBlock; ++w) sum += sums[w];
  *p.loss = static_cast<float>(p.factor * sum);
}

struct FinishParams {
  const float* sums;
  Rows rows, partners;
  Pairs pairs;
  const float* weights;
  float factor;
  const float* grad_output;
  Blocks gradients;
};

/// Computes the gradient with respect to a unit row, element by element.
struct UnitGradient {
  const FinishParams& p;
  const float* sums;
  const std::uint16_t* partner;
  float weight;

  __device__ UnitGradient(const FinishParams& params, std::int64_t row)
      : p(params), sums(params.sums + row * params.rows.stride), partner(nullptr), weight(0) {
    if (row >= p.pairs.count) return;
    const std::int64_t other = partner_of(p.pairs, row);
    partner = unit_row(p.partners, other);
    weight = p.weights[row] + (p.pairs.mutual ? p.weights[other] : 0.0f);
  }

  __device__ float operator[](std::int64_t k) const {
    return partner == nullptr ? sums[k] : sums[k] - weight * unit_value(p.partners, partner, k);
  }
};

__global__ __launch_bounds__(kRowThreads) void finish_rows(FinishParams p) {
  const std::int64_t row = row_of_warp();
  const BlockRow target = find_row(p.gradients, row);
  if (target.data == nullptr) return;
  const UnitGradient gradient(p, row);
  const std::uint16_t* unit = unit_row(p.rows, row);
  float along = 0;
  for (std::int64_t k = lane_of_thread(); k < p.rows.dim; k += kWarp) {
    along = fmaf(unit_value(p.rows, unit, k), gradient[k], along);
  }
  along = sum_of_warp(along);
  const float norm = p.rows.norms[row];
  if (norm <= kShortest) along = 0;  // the clamped norm is constant
  const float factor = p.factor * *p.grad_output / norm;
  for (std::int64_t k = lane_of_thread(); k < p.rows.dim; k += kWarp) {
    const float projected = gradient[k] - unit_value(p.rows, unit, k) * along;
    write(target.data, target.row * p.rows.dim + k, p.gradients.dtype, factor * projected);
  }
}

}  // namespace mirror_train
