// The main loop of MmaCore (infonce/gpu/mma.cuh): it computes a 128 x 128 tile of a matrix product,
// whose operands come from global memory through a ring of stages in shared memory.
#pragma once

#include "infonce/gpu/common.cuh"

namespace mirror_train {

constexpr int kChunk = 8;  // 16-bit elements of a 16-byte copy

/// The threads of a block, all of which work on one tile.
template <int kThreads>
struct BlockTeam {
  static constexpr int kSize = kThreads;
  static constexpr int kRows = kTile;  // rows of the tile that are theirs

  static __device__ int number() { return 0; }
  static __device__ int rank() { return static_cast<int>(threadIdx.x); }
  static __device__ int first_row() { return 0; }
  static __device__ void sync() { __syncthreads(); }
};

// How many blocks a multiprocessor shall hold: two hide each other's loads. Split operands need
// more registers than two blocks leave, and before sm_80 shared memory holds only one block.
constexpr int min_blocks(bool split) { return split || !MIRROR_ASYNC_COPY ? 1 : 2; }

/// Which index of an operand is contiguous in memory: the depth, over which the product sums, or
/// the index of the tile's rows (left operand) or columns (right operand).
enum class Major { kDepth, kTile };

/// A thread's part of a tile of a product, kWidth columns wide. The tile's warps, kDown down and
/// kAcross across, hold equal parts of it as fragments of 16 x 8. Of each fragment a thread holds
/// two neighbours in one row, and two neighbours eight rows below.
template <int kDown, int kAcross, int kWidth = kTile>
struct Fragments {
  static constexpr int kWarpsDown = kDown, kWarpsAcross = kAcross;
  static constexpr int kWarpRows = kTile / kDown, kWarpColumns = kWidth / kAcross;
  static constexpr int kRows = kWarpRows / 8;  // number of rows of which a thread has elements
  static constexpr int kColumns = kWarpColumns / 4;  // number of columns of which it has elements

  float values[kRows * kColumns];

  /// Returns the four elements of the fragment i down and j across.
  __device__ float* fragment(int i, int j) { return values + place(2 * i, 2 * j); }

  __device__ float& at(int r, int c) { return values[place(r, c)]; }
  __device__ float at(int r, int c) const { return values[place(r, c)]; }

  static __device__ int place(int r, int c) {
    return (r / 2 * (kColumns / 2) + c / 2) * 4 + r % 2 * 2 + c % 2;
  }

  // Of one warp across the quotient is known to be 0, which the compiler does not see.
  static __device__ int warp_down() { return warp_of_thread() - warp_across() * kDown; }
  static __device__ int warp_across() { return kAcross == 1 ? 0 : warp_of_thread() / kDown; }

  /// Return the row in the tile of at(r, *), and the column of at(*, c).
  static __device__ int row(int r) {
    return warp_down() * kWarpRows + r / 2 * 16 + r % 2 * 8 + lane_of_thread() / 4;
  }
  static __device__ int column(int c) {
    return warp_across() * kWarpColumns + c / 2 * 8 + lane_of_thread() % 4 * 2 + c % 2;
  }
};

/// An operand of a tile: fp16 lines, of which the tile takes kTile (Major::kDepth) or as many as
/// the product is deep (Major::kTile).
struct Operand {
  const std::uint16_t* data;  // the tile's first element
  std::int64_t pitch;         // elements from one line to the next
  std::int64_t low;           // elements from a high part to its low part
  float low_scale;            // factor from the scale of low parts to that of high parts
};

/// The ring of stages, in shared memory.
struct Ring {
  static constexpr int kDepth = 32, kStages = 3;

  struct Stage {
    std::uint16_t left[kTile * kDepth];
    std::uint16_t right[kTile * kDepth];
  };
  Stage stages[kStages];
};

/// Places an operand in a stage: chunk (line, chunk) is at element offset(line, chunk). Lines have
/// 64 (Major::kDepth) or 256 bytes, with their chunks permuted so that the eight chunks of one
/// matrix load lie in different banks.
template <Major kMajor>
struct StageLayout {
  static constexpr int kLines = kMajor == Major::kDepth ? kTile : Ring::kDepth;
  static constexpr int kLineChunks = kTile * Ring::kDepth / kLines / kChunk;

  static __device__ int offset(int line, int chunk) {
    const int key = kMajor == Major::kDepth ? line / 2 % 4 : line % 8;
    return (line * kLineChunks + (chunk ^ key)) * kChunk;
  }
};

/// The copies of an operand, one stage after another. A thread copies the same places of every
/// stage, so it keeps the address of the first and adds to it.
template <Major kMajor, int kThreads>
class TileCopy {
  using Layout = StageLayout<kMajor>;

 public:
  __device__ explicit TileCopy(const Operand& operand)
      : shared_(Layout::offset(line(), chunk())),
        first_(operand.data + line() * operand.pitch + chunk() * kChunk),
        next_(first_),
        lines_(kLinesOfCopy * operand.pitch),
        advance_(kMajor == Major::kDepth ? Ring::kDepth : Ring::kDepth * operand.pitch) {}

  /// Starts to copy the next stage to `shared`.
  __device__ void start(std::uint16_t* shared) {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      // Layouts repeat after 8 lines.
      copies_[i].start(shared + shared_ + Layout::offset(i * kLinesOfCopy, 0), next_ + i * lines_);
    }
    next_ += advance_;
  }

  /// Makes the first stage the next, `offset` elements further on.
  __device__ void rewind(std::int64_t offset) { next_ = first_ + offset; }

  __device__ void finish() {
#pragma unroll
    for (int i = 0; i < kCopies; ++i) copies_[i].finish();
  }

 private:
  static constexpr int kCopies = Layout::kLines * Layout::kLineChunks / kThreads;
  static constexpr int kLinesOfCopy = kThreads / Layout::kLineChunks;
  static_assert(kLinesOfCopy % 8 == 0);

  static __device__ int line() { return static_cast<int>(threadIdx.x) / Layout::kLineChunks; }
  static __device__ int chunk() { return static_cast<int>(threadIdx.x) % Layout::kLineChunks; }

  int shared_;
  const std::uint16_t *first_, *next_;
  std::int64_t lines_, advance_;
  Copy16 copies_[kCopies];
};

/// The steps of a product `depth` stages deep. Split operands take the three products that count,
/// low * high, high * low and high * high, with the small ones first, so that the sum rounds them
/// less.
template <int kThreads, Major kLeft, Major kRight, bool kSplit>
class Steps {
 public:
  __device__ Steps(const Operand& left, const Operand& right, int depth)
      : left_(left), right_(right), depth_(depth), left_copy_(left), right_copy_(right) {
    if constexpr (kSplit) left_copy_.rewind(left.low);
  }

  __device__ int count() const { return kSplit ? 3 * depth_ : depth_; }

  /// Starts to load the operands of the next step into the ring.
  __device__ void start(Ring& ring) {
    active_ = started_ < count();
    if (!active_) return;
    if constexpr (kSplit) {
      if (started_ == depth_ || started_ == 2 * depth_) {
        left_copy_.rewind(0);
        right_copy_.rewind(started_ == depth_ ? right_.low : 0);
      }
    }
    auto& stage = ring.stages[slot_];
    left_copy_.start(stage.left);
    right_copy_.start(stage.right);
    ++started_;
    slot_ = slot_ + 1 < Ring::kStages ? slot_ + 1 : 0;
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
  const Operand& left_;
  const Operand& right_;
  int depth_;
  int started_ = 0;
  int slot_ = 0;  // where the next step goes in the ring
  bool active_ = false;
  TileCopy<kLeft, kThreads> left_copy_;
  TileCopy<kRight, kThreads> right_copy_;
};

/// Adds the product of one stage to `sum`; the product of split operands is multiplied by `scale`.
template <typename Core, Major kLeft, Major kRight, bool kSplit>
__device__ void add_stage(typename Core::Accumulator& sum, const Ring::Stage& stage, float scale) {
  if constexpr (!kSplit) {
    Core::template multiply_stage<kLeft, kRight>(sum, stage);
  } else {
    // The tensor cores truncate their sums, so only short sums are left to them; adding these up
    // outside keeps the precision of fp32.
    using Accumulator = typename Core::Accumulator;
    Accumulator part = {};
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
                         std::int64_t depth, Ring& ring) {
  const int stages = static_cast<int>((depth + Ring::kDepth - 1) / Ring::kDepth);
  Steps<Core::kThreads, kLeft, kRight, kSplit> steps(left, right, stages);
  for (int step = 0; step < Ring::kStages - 1; ++step) {
    steps.start(ring);
    steps.finish();
  }
  int slot = 0;
  for (int step = 0; step < steps.count(); ++step) {
    wait_copies<Ring::kStages - 2>();
    __syncthreads();    // this step has arrived, and no thread still reads the stage loaded next
    steps.start(ring);  // goes on behind the products
    add_stage<Core, kLeft, kRight, kSplit>(sum, ring.stages[slot], steps.scale(step));
    steps.finish();
    slot = slot + 1 < Ring::kStages ? slot + 1 : 0;
  }
  wait_copies<0>();
  __syncthreads();
}

}  // namespace mirror_train
