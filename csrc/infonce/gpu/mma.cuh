// The core for all GPUs from sm_75 on: mma.sync, fed by ldmatrix.
#pragma once

#include "infonce/gpu/pipeline.cuh"

namespace mirror_train {

/// Loads a 16 x 16 fragment of the left operand, from `row` and `depth` of its tile.
template <Major kMajor>
__device__ void load_left(std::uint32_t (&a)[4], const std::uint16_t* tile, int row, int depth) {
  using Layout = StageLayout<kMajor>;
  const int lane = lane_of_thread();
  if constexpr (kMajor == Major::kDepth) {
    load_matrices(a, tile + Layout::offset(row + lane % 16, depth / kChunk + lane / 16));
  } else {
    const int line = depth + lane / 16 * 8 + lane % 8;
    load_matrices_transposed(a, tile + Layout::offset(line, row / kChunk + lane / 8 % 2));
  }
}

/// Loads two 16 x 8 fragments of the right operand, side by side from `column` and `depth`.
template <Major kMajor>
__device__ void load_right(std::uint32_t (&b)[4], const std::uint16_t* tile, int column,
                           int depth) {
  using Layout = StageLayout<kMajor>;
  const int lane = lane_of_thread();
  if constexpr (kMajor == Major::kDepth) {
    const int line = column + lane / 16 * 8 + lane % 8;
    load_matrices(b, tile + Layout::offset(line, depth / kChunk + lane / 8 % 2));
  } else {
    const int line = depth + lane / 8 % 2 * 8 + lane % 8;
    load_matrices_transposed(b, tile + Layout::offset(line, column / kChunk + lane / 16));
  }
}

/// The interface of a core to the kernels and their main loop. With 64 x 64 elements a warp loads a
/// third less for each product; but for the second sums of split operands that leaves no registers,
/// and for sm_75, of which a multiprocessor holds one block, too few warps.
template <int kAcross>
struct MmaCore {
  static constexpr int kThreads = 2 * kAcross * kWarp;
  template <bool kSplit>
  static constexpr bool kUsed = (kSplit || !MIRROR_ASYNC_COPY) == (kAcross == 4);
  using Accumulator = Fragments<2, kAcross>;

  template <Major kLeft, Major kRight>
  static __device__ void multiply_stage(Accumulator& sum, const Ring::Stage& stage) {
    constexpr int kDown = Accumulator::kRows / 2, kSide = Accumulator::kColumns / 2;
    const int row = Accumulator::warp_down() * Accumulator::kWarpRows;
    const int column = Accumulator::warp_across() * Accumulator::kWarpColumns;
#pragma unroll
    for (int depth = 0; depth < Ring::kDepth; depth += 16) {
      std::uint32_t a[kDown][4], b[kSide / 2][4];
#pragma unroll
      for (int i = 0; i < kDown; ++i) load_left<kLeft>(a[i], stage.left, row + 16 * i, depth);
#pragma unroll
      for (int j = 0; j < kSide / 2; ++j) {
        load_right<kRight>(b[j], stage.right, column + 16 * j, depth);
      }
#pragma unroll
      for (int i = 0; i < kDown; ++i) {
#pragma unroll
        for (int j = 0; j < kSide; ++j) {
          multiply_add(sum.fragment(i, j), a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
};

}  // namespace mirror_train
