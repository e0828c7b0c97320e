// The core for sm_90a whose operands are loaded by the tensor memory accelerator: a producer thread
// fills the ring of stages, and two warpgroups consume it by wgmma, 64 rows of the tile each.
//
// A block goes through many tiles. The producer runs ahead into the next tile as far as the ring
// has room, and the warpgroups wait for the ring alone, never for each other. So while one works on
// what follows the products of a tile, the other has the tensor cores to itself.
#pragma once

#include "infonce/gpu/ptx_sm90.cuh"
#include "infonce/gpu/tiles.cuh"
#include "infonce/gpu/wgmma.cuh"

namespace mirror_train {

constexpr int kWarpgroup = 128;
constexpr int kConsumers = 2;  // warpgroups; they come before that of the producer
constexpr int kTmaThreads = (kConsumers + 1) * kWarpgroup;
constexpr int kBoxElements = kBoxSide * kBoxSide;

// A multiprocessor has 65,536 registers, of which the launch gives each thread the same number.
constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
static_assert((kProducerRegisters + kConsumers * kConsumerRegisters) * kWarpgroup <= 65536);
constexpr std::size_t kMostSharedBytes = 227 * 1024;

/// The threads of a warpgroup, which have 64 rows of a tile to themselves.
struct WarpgroupTeam {
  static constexpr int kSize = kWarpgroup;
  static constexpr int kRows = kTile / kConsumers;

  static __device__ int number() { return static_cast<int>(threadIdx.x) / kWarpgroup; }
  static __device__ int rank() { return static_cast<int>(threadIdx.x) % kWarpgroup; }
  static __device__ int first_row() { return number() * kRows; }
  static __device__ void sync() { sync_warpgroup(number()); }
};

/// The ring of stages for a tile of 128 rows and kHalves times 128 columns. An operand is a series
/// of boxes in the layout of WgmmaLayout: of lines one after another (Major::kDepth), or of parts
/// of lines (Major::kTile).
template <int kHalves>
struct TmaRing {
  static constexpr int kDepth = WgmmaLayout<Major::kDepth>::kDepth;
  static constexpr int kStages = kHalves == 2 ? 4 : 6;  // 192 KB

  struct Stage {
    std::uint16_t left[2 * kBoxElements];
    std::uint16_t right[2 * kHalves * kBoxElements];
  };
  Stage stages[kStages];
  Barrier full[kStages];   // counts the producer, and the bytes of a stage
  Barrier empty[kStages];  // counts the warps of the consumers
};

/// Prepares a ring; all threads of the block call it.
template <int kHalves>
__device__ void init_ring(TmaRing<kHalves>& ring) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < ring.kStages; ++i) {
      init_barrier(ring.full[i], 1);
      init_barrier(ring.empty[i], kConsumers * kWarpgroup / kWarp);
    }
    publish_barriers();
  }
  __syncthreads();
}

/// A place in the ring, and the parity of the phase of its barriers.
struct Place {
  int slot = 0;
  unsigned parity = 0;

  template <typename Ring>
  __device__ void advance(const Ring&) {
    if (++slot < Ring::kStages) return;
    slot = 0;
    parity ^= 1;
  }
};

/// An operand of a tile: a matrix of fp16 lines, and the tile's first element in it.
struct TmaOperand {
  const TensorMap* map;
  int line, column;
  int low_line, low_column;  // from a high part to its low part
};

/// Starts to copy kBoxes boxes of an operand, from `depth` on, to a stage.
template <Major kMajor, int kBoxes>
__device__ void copy_operand(std::uint16_t* to, const TmaOperand& operand, bool low, int depth,
                             Barrier& full) {
  const int line = operand.line + (low ? operand.low_line : 0);
  const int column = operand.column + (low ? operand.low_column : 0);
#pragma unroll
  for (int i = 0; i < kBoxes; ++i) {
    const int beside = i * kBoxSide;
    constexpr bool kDeep = kMajor == Major::kDepth;
    copy_box(to + i * kBoxElements, *operand.map, line + (kDeep ? beside : depth),
             column + (kDeep ? depth : beside), full);
  }
}

/// Loads the operands of a product `stages` stages deep. Split operands take three passes, in the
/// order of Steps.
template <Major kLeft, Major kRight, bool kSplit, int kHalves>
__device__ void produce(const TmaOperand& left, const TmaOperand& right, int stages,
                        TmaRing<kHalves>& ring, Place& place) {
  for (int pass = 0; pass < (kSplit ? 3 : 1); ++pass) {
    for (int i = 0; i < stages; ++i) {
      auto& stage = ring.stages[place.slot];
      Barrier& full = ring.full[place.slot];
      wait_barrier(ring.empty[place.slot], place.parity ^ 1);
      expect_bytes(full, sizeof stage);
      copy_operand<kLeft, 2>(stage.left, left, kSplit && pass == 0, i * ring.kDepth, full);
      copy_operand<kRight, 2 * kHalves>(stage.right, right, kSplit && pass == 1, i * ring.kDepth,
                                        full);
      place.advance(ring);
    }
  }
}

/// A thread's part of a tile: of each 128 columns that of a WgmmaCore.
template <int kHalves>
struct TmaAccumulator {
  WgmmaAccumulator halves[kHalves];

  __device__ void pin() {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) pin_registers(halves[h].fragments);
  }
};

/// Starts to add the product of a stage to `sum`.
template <Major kLeft, Major kRight, int kHalves>
__device__ void start_products(TmaAccumulator<kHalves>& sum,
                               const typename TmaRing<kHalves>::Stage& stage) {
  const std::uint64_t left = WgmmaLayout<kLeft>::descriptor(stage.left, WarpgroupTeam::first_row());
  const std::uint64_t right = WgmmaLayout<kRight>::descriptor(stage.right, 0);
  constexpr bool kLeftTransposed = kLeft == Major::kTile, kRightTransposed = kRight == Major::kTile;
  wgmma_fence();
#pragma unroll
  for (int depth = 0; depth < TmaRing<kHalves>::kDepth; depth += 16) {
    const std::uint64_t a = left + WgmmaLayout<kLeft>::deeper(depth);
    const std::uint64_t b = right + WgmmaLayout<kRight>::deeper(depth);
    if constexpr (kHalves == 2) {
      wgmma_wide<kLeftTransposed, kRightTransposed>(sum.halves[0].fragments,
                                                    sum.halves[1].fragments, a, b);
    } else {
      wgmma<kLeftTransposed, kRightTransposed>(sum.halves[0].fragments, a, b);
    }
  }
  wgmma_commit();
}

/// Lets the producer fill a stage again, as far as this warp is concerned.
template <typename Ring>
__device__ void release(Ring& ring, int slot) {
  if (lane_of_thread() == 0) arrive(ring.empty[slot]);
}

/// Adds a product `stages` stages deep to `sum`, while the products of the next stage go on.
template <Major kLeft, Major kRight, int kHalves>
__device__ void consume_whole(TmaAccumulator<kHalves>& sum, int stages, TmaRing<kHalves>& ring,
                              Place& place) {
  sum.pin();
  int previous = 0;
  for (int i = 0; i < stages; ++i) {
    wait_barrier(ring.full[place.slot], place.parity);
    start_products<kLeft, kRight>(sum, ring.stages[place.slot]);
    wgmma_wait<1>();  // the products of the stage before are done
    if (i > 0) release(ring, previous);
    previous = place.slot;
    place.advance(ring);
  }
  wgmma_wait<0>();
  sum.pin();
  release(ring, previous);
}

/// Does the same with split operands. As in add_stage, only the sums of a stage are left to the
/// tensor cores.
template <Major kLeft, Major kRight, int kHalves>
__device__ void consume_split(TmaAccumulator<kHalves>& sum, int stages, float low_scale,
                              TmaRing<kHalves>& ring, Place& place) {
  for (int i = 0; i < 3 * stages; ++i) {
    TmaAccumulator<kHalves> part;
    wait_barrier(ring.full[place.slot], place.parity);
    part.pin();
    start_products<kLeft, kRight>(part, ring.stages[place.slot]);
    wgmma_wait<0>();
    part.pin();
    release(ring, place.slot);
    place.advance(ring);
    const float scale = i < stages ? low_scale : 1.0f;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
#pragma unroll
      for (int j = 0; j < 64; ++j) {
        float& value = sum.halves[h].fragments[j];
        value = fmaf(part.halves[h].fragments[j], scale, value);
      }
    }
  }
}

/// Adds a product `stages` stages deep to `sum`; the consumers call it, and `produce` feeds it. The
/// low parts of the left operand have the scale `low_scale`, and those of the right that of the
/// high ones.
template <Major kLeft, Major kRight, bool kSplit, int kHalves>
__device__ void consume(TmaAccumulator<kHalves>& sum, int stages, float low_scale,
                        TmaRing<kHalves>& ring, Place& place) {
  if constexpr (kSplit) {
    consume_split<kLeft, kRight>(sum, stages, low_scale, ring, place);
  } else {
    consume_whole<kLeft, kRight>(sum, stages, ring, place);
  }
}

/// Calls `produce` in one thread of a block, and `consume` in those of its first two warpgroups.
template <typename Produce, typename Consume>
__device__ void split_roles(const Produce& produce, const Consume& consume) {
  constexpr int kFirst = kConsumers * kWarpgroup;
  if (threadIdx.x >= kFirst) {
    give_registers<kProducerRegisters>();
    if (threadIdx.x == kFirst) produce();
    return;
  }
  take_registers<kConsumerRegisters>();
  // One behind the other by about two stages, lest they always multiply at the same time, and then
  // never. What follows the products is as long in both, so that the distance lasts.
  if (WarpgroupTeam::number() == 1) sleep_briefly(600);
  consume();
}

}  // namespace mirror_train
