// The only main loop: it computes a 128 x 128 tile of a matrix product, whose operands come from
// global memory through a ring of stages in shared memory. A core multiplies each stage: MmaCore
// (infonce/gpu/mma.cuh) or WgmmaCore (infonce/gpu/wgmma.cuh).
#pragma once

#include "infonce/gpu/common.cuh"

namespace mirror_train {

constexpr int kThreads = 256;
constexpr int kChunk = 8;  // 16-bit elements of a 16-byte copy

// How many blocks a multiprocessor shall hold: two hide each other's loads. Split operands need
// more registers than two blocks leave, and before sm_80 shared memory holds only one block.
constexpr int min_blocks(bool split) { return split || !MIRROR_ASYNC_COPY ? 1 : 2; }

/// Which index of an operand is contiguous in memory: the depth, over which the product sums, or
/// the index of the tile's rows (left operand) or columns (right operand).
enum class Major { kDepth, kTile };

/// An operand of a tile: fp16 lines, of which the tile takes kTile (Major::kDepth) or as many as
/// the product is deep (Major::kTile).
struct Operand {
  const std::uint16_t* data;  // the tile's first element
  std::int64_t pitch;         // elements from one line to the next
  std::int64_t low;           // elements from a high part to its low part
  float low_scale;            // factor from the scale of low parts to that of high parts
};

/// The ring of stages. `Layout<major>` places the 16-byte chunks of an operand's lines in a stage:
/// kLines lines of kLineChunks chunks, where chunk (line, chunk) is at element offset(line, chunk).
template <int kDepthOfStage, int kStageCount, template <Major> typename Layout>
struct RingOf {
  static constexpr int kDepth = kDepthOfStage;
  static constexpr int kStages = kStageCount;
  template <Major kMajor>
  using LayoutOf = Layout<kMajor>;

  struct Stage {
    std::uint16_t left[kTile * kDepth];
    std::uint16_t right[kTile * kDepth];
  };
  Stage stages[kStages];
};

/// The copy of one stage of one operand.
template <typename Layout>
class TileCopy {
 public:
  __device__ void start(std::uint16_t* shared, const Operand& operand, std::int64_t offset) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int index = static_cast<int>(threadIdx.x) + i * kThreads;
      const int line = index / Layout::kLineChunks, chunk = index % Layout::kLineChunks;
      copies_[i].start(shared + Layout::offset(line, chunk),
                       operand.data + offset + line * operand.pitch + chunk * kChunk);
    }
  }

  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) copies_[i].finish();
  }

 private:
  static constexpr int kCopies = Layout::kLines * Layout::kLineChunks / kThreads;
  Copy16 copies_[kCopies];
};

/// The steps of a product `depth` stages deep. Split operands take the three products that count,
/// low * high, high * low and high * high, with the small ones first, so that the sum rounds them
/// less.
template <typename Ring, Major kLeft, Major kRight, bool kSplit>
class Steps {
 public:
  __device__ Steps(const Operand& left, const Operand& right, int depth)
      : left_(left), right_(right), depth_(depth) {}

  __device__ int count() const { return kSplit ? 3 * depth_ : depth_; }

  /// Starts to load the operands of `step` into the ring.
  __device__ void start(int step, Ring& ring) {
    active_ = step < count();
    if (!active_) return;
    auto& stage = ring.stages[step % Ring::kStages];
    std::int64_t left_offset = 0, right_offset = 0;
    if constexpr (kSplit) {
      const int term = (step >= depth_) + (step >= 2 * depth_);
      step -= term * depth_;
      if (term == 0) left_offset = left_.low;
      if (term == 1) right_offset = right_.low;
    }
    left_copy_.start(stage.left, left_, left_offset + position(left_, kLeft, step));
    right_copy_.start(stage.right, right_, right_offset + position(right_, kRight, step));
  }

  /// Returns the factor from the scale of the product of `step` to that of the high parts.
  __device__ float scale(int step) const {
    if (step < depth_) return left_.low_scale;
    return step < 2 * depth_ ? right_.low_scale : 1.0f;
  }

  /// Completes this thread's part of the copies that `start` began.
  __device__ void finish() {
    if (active_) {
      left_copy_.finish();
      right_copy_.finish();
    }
    commit_copies();
  }

 private:
  static __device__ std::int64_t position(const Operand& operand, Major major, int step) {
    const std::int64_t depth = static_cast<std::int64_t>(step) * Ring::kDepth;
    return major == Major::kDepth ? depth : depth * operand.pitch;
  }

  const Operand& left_;
  const Operand& right_;
  int depth_;
  bool active_ = false;
  TileCopy<typename Ring::template LayoutOf<kLeft>> left_copy_;
  TileCopy<typename Ring::template LayoutOf<kRight>> right_copy_;
};

/// Adds the product of one stage to `sum`; the product of split operands is multiplied by `scale`.
template <typename Core, Major kLeft, Major kRight, bool kSplit>
__device__ void add_stage(typename Core::Accumulator& sum, const typename Core::Ring::Stage& stage,
                          float scale) {
  using Accumulator = typename Core::Accumulator;
  if constexpr (!kSplit) {
    Core::template multiply_stage<kLeft, kRight>(sum, stage);
  } else {
    // The tensor cores truncate their sums, so only short sums are left to them; adding these up
    // outside keeps the precision of fp32.
    Accumulator part;
    Core::template multiply_stage<kLeft, kRight>(part, stage);
#pragma unroll
    for (int r = 0; r < Accumulator::kRows; ++r) {
#pragma unroll
      for (int c = 0; c < Accumulator::kColumns; ++c) {
        sum.at(r, c) = fmaf(part.at(r, c), scale, sum.at(r, c));
      }
    }
  }
}

/// Adds left * right to `sum`, over `depth` elements, rounded up to whole stages (of zeros). All
/// threads of the block call it; the ring is free before and after.
template <typename Core, Major kLeft, Major kRight, bool kSplit>
__device__ void multiply(typename Core::Accumulator& sum, const Operand& left, const Operand& right,
                         std::int64_t depth, typename Core::Ring& ring) {
  using Ring = typename Core::Ring;
  const int stages = static_cast<int>((depth + Ring::kDepth - 1) / Ring::kDepth);
  Steps<Ring, kLeft, kRight, kSplit> steps(left, right, stages);
  for (int step = 0; step < Ring::kStages - 1; ++step) {
    steps.start(step, ring);
    steps.finish();
  }
  for (int step = 0; step < steps.count(); ++step) {
    wait_copies<Ring::kStages - 2>();
    Core::publish_copies();
    __syncthreads();  // this step has arrived, and no thread still reads the stage loaded next
    steps.start(step + Ring::kStages - 1, ring);
    add_stage<Core, kLeft, kRight, kSplit>(sum, ring.stages[step % Ring::kStages],
                                           steps.scale(step));
    steps.finish();
  }
  wait_copies<0>();
  __syncthreads();
}

}  // namespace mirror_train
