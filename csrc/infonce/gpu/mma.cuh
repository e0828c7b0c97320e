// The core for all GPUs from sm_75 on: mma.sync, fed by ldmatrix.
#pragma once

#include "infonce/gpu/pipeline.cuh"

namespace mirror_train {

/// A thread's part of a tile of a product. A block's warps, 2 down and kAcross across, hold 64 x 64
/// or 64 x 32 elements each, as fragments of 16 x 8. Of each fragment a thread holds two neighbours
/// in one row, and two neighbours eight rows below.
template <int kAcross>
struct MmaAccumulator {
  static constexpr int kWarpsDown = 2;
  static constexpr int kWarpsAcross = kAcross;
  static constexpr int kWarpRows = kTile / kWarpsDown;
  static constexpr int kWarpColumns = kTile / kWarpsAcross;
  static constexpr int kRows = kWarpRows / 8;  // number of rows of which a thread has elements
  static constexpr int kColumns = kWarpColumns / 4;  // number of columns of which it has elements

  float fragments[kRows / 2][kColumns / 2][4] = {};

  __device__ float& at(int r, int c) { return fragments[r / 2][c / 2][r % 2 * 2 + c % 2]; }
  __device__ float at(int r, int c) const { return fragments[r / 2][c / 2][r % 2 * 2 + c % 2]; }

  static __device__ int warp_down() { return warp_of_thread() % kWarpsDown; }
  static __device__ int warp_across() { return warp_of_thread() / kWarpsDown; }

  /// Return the row in the tile of at(r, *), and the column of at(*, c).
  static __device__ int row(int r) {
    return warp_down() * kWarpRows + r / 2 * 16 + r % 2 * 8 + lane_of_thread() / 4;
  }
  static __device__ int column(int c) {
    return warp_across() * kWarpColumns + c / 2 * 8 + lane_of_thread() % 4 * 2 + c % 2;
  }
};

/// Lines of 64 (Major::kDepth) or 256 bytes, with their chunks permuted so that the eight chunks of
/// one matrix load lie in different banks.
template <Major kMajor>
struct MmaLayout {
  static constexpr int kDepth = 32;
  static constexpr int kLines = kMajor == Major::kDepth ? kTile : kDepth;
  static constexpr int kLineChunks = kTile * kDepth / kLines / kChunk;

  static __device__ int offset(int line, int chunk) {
    const int key = kMajor == Major::kDepth ? line / 2 % 4 : line % 8;
    return (line * kLineChunks + (chunk ^ key)) * kChunk;
  }
};

/// Loads a 16 x 16 fragment of the left operand, from `row` and `depth` of its tile.
template <Major kMajor>
__device__ void load_left(std::uint32_t (&a)[4], const std::uint16_t* tile, int row, int depth) {
  using Layout = MmaLayout<kMajor>;
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
  using Layout = MmaLayout<kMajor>;
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
  using Accumulator = MmaAccumulator<kAcross>;
  using Ring = RingOf<kThreads, MmaLayout<Major::kDepth>::kDepth, 3, MmaLayout>;

  template <Major kLeft, Major kRight>
  static __device__ void multiply_stage(Accumulator& sum, const typename Ring::Stage& stage) {
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
          multiply_add(sum.fragments[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
      }
    }
  }
};

}  // namespace mirror_train
