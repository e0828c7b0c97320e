// The core for sm_90a: wgmma, which takes both operands from shared memory by descriptor.
#pragma once

#include "infonce/gpu/pipeline.cuh"

namespace mirror_train {

/// What a block's two warpgroups hold of a tile of a product: each 64 x 128, a warp 16 x 128, as 16
/// fragments of 16 x 8. Of each a thread has two neighbours in one row and two eight rows below.
struct WgmmaAccumulator {
  static constexpr int kRows = 2;      // of which a thread has elements
  static constexpr int kColumns = 32;  // likewise
  static constexpr int kWarpsDown = 8;
  static constexpr int kWarpsAcross = 1;

  float fragments[64] = {};

  __device__ float& at(int r, int c) { return fragments[c / 2 * 4 + r * 2 + c % 2]; }
  __device__ float at(int r, int c) const { return fragments[c / 2 * 4 + r * 2 + c % 2]; }

  static __device__ int warp_down() { return warp_of_thread(); }
  static __device__ int warp_across() { return 0; }

  /// Row in the tile of at(r, *), and column of at(*, c).
  static __device__ int row(int r) { return warp_down() * 16 + r * 8 + lane_of_thread() / 4; }
  static __device__ int column(int c) { return c / 2 * 8 + lane_of_thread() % 4 * 2 + c % 2; }
};

/// The layouts with 128-byte swizzle: atoms of 8 lines of 128 bytes, chunk c of line l at c ^ l.
/// Major::kDepth: a line is 64 deep, the tile 16 atoms one after another.
/// Major::kTile:  a line is 64 of the tile's elements, one for each depth; the two halves of the
///                tile follow one another, each 8 atoms deep.
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

  /// The operand from `first` of the tile's elements, a multiple of 64, and `depth`, of 16.
  static __device__ std::uint64_t descriptor(const std::uint16_t* tile, int first, int depth) {
    const int start =
        kMajor == Major::kDepth ? first * 64 + depth : first / 64 * kHalf + depth * 64;
    // The distance of atoms side by side, which a line of Major::kDepth has none of, and of those
    // one after another.
    return wgmma_descriptor(tile + start, kHalf * sizeof(std::uint16_t), kAtomBytes);
  }
};

/// What the kernels and their main loop ask of a core.
struct WgmmaCore {
  using Accumulator = WgmmaAccumulator;
  using Ring = RingOf<WgmmaLayout<Major::kDepth>::kDepth, 3, WgmmaLayout>;

  /// wgmma reads by the asynchronous proxy, which sees only what has been fenced.
  static __device__ void publish_copies() { fence_async_proxy(); }

  template <Major kLeft, Major kRight>
  static __device__ void multiply_stage(Accumulator& sum, const Ring::Stage& stage) {
    const int row = warp_of_thread() / 4 * 64;
    wgmma_begin(sum.fragments);
#pragma unroll
    for (int depth = 0; depth < Ring::kDepth; depth += 16) {
      const std::uint64_t left = WgmmaLayout<kLeft>::descriptor(stage.left, row, depth);
      const std::uint64_t right = WgmmaLayout<kRight>::descriptor(stage.right, 0, depth);
      wgmma<kLeft == Major::kTile, kRight == Major::kTile>(sum.fragments, left, right);
    }
    wgmma_end(sum.fragments);
  }
};

}  // namespace mirror_train
