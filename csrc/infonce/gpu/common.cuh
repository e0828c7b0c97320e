// Helpers shared by several of the InfoNCE kernels.
#pragma once

#include "infonce/gpu/loss.h"
#include "infonce/gpu/ptx.cuh"

namespace mirror_train {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Unit rows are stored times 2^15: the largest possible element, 1, stays finite in fp16, and
// small elements and all low parts are kept from becoming subnormal.
constexpr float kUnitScale = 32768.0f;

constexpr double kLog2E = 1.4426950408889634;

/// Returns e^x, with the error of exp2_approx and that of x log2(e) in fp32.
__device__ inline float exp_approx(float x) { return exp2_approx(x * static_cast<float>(kLog2E)); }

__device__ inline int lane_of_thread() { return static_cast<int>(threadIdx.x) % kWarp; }

template <typename T>
__device__ T sum_of_warp(T value) {
  for (int lane = kWarp / 2; lane > 0; lane /= 2) value += __shfl_xor_sync(kAllLanes, value, lane);
  return value;
}

__device__ inline int warp_of_thread() { return static_cast<int>(threadIdx.x) / kWarp; }

__device__ inline std::uint16_t* unit_row(const Rows& rows, std::int64_t row) {
  return rows.unit + row * rows.stride * (rows.split ? 2 : 1);
}

}  // namespace mirror_train
