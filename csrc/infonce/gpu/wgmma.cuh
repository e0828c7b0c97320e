// The core for sm_90a: wgmma, which takes both operands from shared memory by descriptor.
#pragma once

#include "infonce/gpu/pipeline.cuh"
#include "infonce/gpu/ptx_sm90.cuh"

namespace mirror_train {

/// A thread's part of a tile of a product. A block's two warpgroups hold 64 x 128 elements each, a
/// warp 16 x 128, as 16 fragments of 16 x 8. Of each fragment a thread holds two neighbours in one
/// row, and two neighbours eight rows below.
struct WgmmaAccumulator {
  static constexpr int kRows = 2;      // number of rows of which a thread has elements
  static constexpr int kColumns = 32;  // number of columns of which it has elements
  static constexpr int kWarpsDown = 8;
  static constexpr int kWarpsAcross = 1;

  float fragments[64] = {};

  __device__ float& at(int r, int c) { return fragments[c / 2 * 4 + r * 2 + c % 2]; }
  __device__ float at(int r, int c) const { return fragments[c / 2 * 4 + r * 2 + c % 2]; }

  static __device__ int warp_down() { return warp_of_thread(); }
  static __device__ int warp_across() { return 0; }

  /// Return the row in the tile of at(r, *), and the column of at(*, c).
  static __device__ int row(int r) { return warp_down() * 16 + r * 8 + lane_of_thread() / 4; }
  static __device__ int column(int c) { return c / 2 * 8 + lane_of_thread() % 4 * 2 + c % 2; }
};

/// The layouts with 128-byte swizzle: atoms of 8 lines of 128 bytes, with chunk c of line l at
/// c ^ l.
/// Major::kDepth: a line is 64 elements deep, and the tile is 16 consecutive atoms.
/// Major::kTile:  a line is 64 of the tile's elements at one depth; the two halves of the tile
///                follow one another, and each is 8 atoms deep.
template <Major kMajor>
struct WgmmaLayout {
  static constexpr int kDepth = 64;
  static constexpr int kLines = kMajor == Major::kDepth ? kTile : kDepth;
  static constexpr int kLineChunks = kTile * kDepth / kLines / kChunk;
  static constexpr int kHalf = kDepth * 64;  // elements of half a tile, Major::kTile
  static constexpr int kAtomBytes = 1024;

  static __device__ int offset(int line, int chunk) {
    return chunk / 8 * kHalf + line * 64 + (chunk % 8 ^ line % 8) * kChunk;
  }

  /// Describes the operand from element `first` of the tile on, a multiple of 64, at depth 0.
  static __device__ std::uint64_t descriptor(const std::uint16_t* tile, int first) {
    const int start = kMajor == Major::kDepth ? first * 64 : first / 64 * kHalf;
    // The distance of atoms side by side, which Major::kDepth does not have, and the distance of
    // consecutive atoms.
    return wgmma_descriptor(tile + start, kHalf * sizeof(std::uint16_t), kAtomBytes);
  }

  /// Returns what to add to a descriptor for the operand from `depth` on, a multiple of 16: its
  /// start is in units of 16 bytes.
  static constexpr __device__ std::uint64_t deeper(int depth) {
    const int start = kMajor == Major::kDepth ? depth : depth * 64;
    return start * sizeof(std::uint16_t) / 16;
  }
};

/// The interface of a core to the kernels and their main loop.
struct WgmmaCore {
  static constexpr int kThreads = 256;
  template <bool>
  static constexpr bool kUsed = true;
  using Accumulator = WgmmaAccumulator;
  using Ring = RingOf<kThreads, WgmmaLayout<Major::kDepth>::kDepth, 3, WgmmaLayout>;

  /// Makes copies visible to wgmma, which reads through the asynchronous proxy and so needs a
  /// fence.
  static __device__ void publish_copies() { fence_async_proxy(); }

  /// `meanwhile` starts copies while the tensor cores work on the products.
  template <Major kLeft, Major kRight, typename Meanwhile>
  static __device__ void multiply_stage(Accumulator& sum, const Ring::Stage& stage,
                                        const Meanwhile& meanwhile) {
    const int row = warp_of_thread() / 4 * 64;
    const std::uint64_t left = WgmmaLayout<kLeft>::descriptor(stage.left, row);
    const std::uint64_t right = WgmmaLayout<kRight>::descriptor(stage.right, 0);
    pin_registers(sum.fragments);
    wgmma_fence();
#pragma unroll
    for (int depth = 0; depth < Ring::kDepth; depth += 16) {
      wgmma<kLeft == Major::kTile, kRight == Major::kTile>(
          sum.fragments, left + WgmmaLayout<kLeft>::deeper(depth),
          right + WgmmaLayout<kRight>::deeper(depth));
    }
    wgmma_commit();
    meanwhile();
    wgmma_wait<0>();
    pin_registers(sum.fragments);
  }
};

}  // namespace mirror_train
