// The core for sm_90a whose operands are loaded by the tensor memory accelerator: a producer thread
// fills the ring of stages, and two warpgroups consume it by wgmma, 64 rows of the tile each.
//
// A block goes through many tiles. The producer runs ahead into the next tile as far as the ring
// has room, and the warpgroups wait for the ring alone, never for each other. So while one works on
// what follows the products of a tile, the other has the tensor cores to itself. A barrier sets
// them apart at the start, lest they always multiply at the same time, and then never.
#pragma once

#include "infonce/gpu/ptx_sm90.cuh"
#include "infonce/gpu/tiles.cuh"

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
  // Barrier 0 is that of __syncthreads.
  static __device__ void sync() { sync_barrier(1 + number(), kWarpgroup); }
};

/// A thread's part of a product, of which the two warpgroups hold 64 rows each; the first product
/// writes it.
template <int kWidth = kTile>
using WgmmaAccumulator = Fragments<kConsumers * kWarpgroup / kWarp, 1, kWidth>;

/// The layouts with 128-byte swizzle: atoms of 8 lines of 128 bytes, with chunk c of line l at
/// c ^ l. A box is 8 atoms.
/// Major::kDepth: a line is 64 elements deep, and the lines of all boxes follow one another.
/// Major::kTile:  a line is 64 of the tile's elements at one depth, and a box is 64 deep.
template <Major kMajor>
struct WgmmaLayout {
  static constexpr int kAtomBytes = 1024;

  /// Describes the operand from element `first` of the tile on, a multiple of 64, at depth 0.
  static __device__ std::uint64_t descriptor(const std::uint16_t* tile, int first) {
    // The distance of atoms side by side, which Major::kDepth does not have, and the distance of
    // consecutive atoms.
    return wgmma_descriptor(tile + first / kBoxSide * kBoxElements,
                            kBoxElements * sizeof(std::uint16_t), kAtomBytes);
  }

  /// Returns what to add to a descriptor for the operand from `depth` on, a multiple of 16: its
  /// start is in units of 16 bytes.
  static constexpr __device__ std::uint64_t deeper(int depth) {
    const int start = kMajor == Major::kDepth ? depth : depth * kBoxSide;
    return start * sizeof(std::uint16_t) / 16;
  }
};

/// The ring of stages for a tile of 128 rows and kWidth columns. An operand is a series of boxes in
/// a WgmmaLayout.
template <int kWidth>
struct TmaRing {
  static constexpr int kDepth = kBoxSide;
  static constexpr int kStages = kWidth == 256 ? 4 : kWidth == 192 ? 5 : 6;  // 192 or 200 KB

  struct Stage {
    std::uint16_t left[kTile / kBoxSide * kBoxElements];
    std::uint16_t right[kWidth / kBoxSide * kBoxElements];
  };
  Stage stages[kStages];
  Barrier full[kStages];   // counts the producer, and the bytes of a stage
  Barrier empty[kStages];  // counts the warps of the consumers
};

/// Prepares a ring; all threads of the block call it.
template <int kWidth>
__device__ void init_ring(TmaRing<kWidth>& ring) {
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
  bool apart = false;  // of a consumer: whether the other one is already some stages away

  template <int kWidth>
  __device__ void advance(const TmaRing<kWidth>& ring) {
    if (++slot < ring.kStages) return;
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
template <Major kLeft, Major kRight, bool kSplit, int kWidth>
__device__ void produce(const TmaOperand& left, const TmaOperand& right, int stages,
                        TmaRing<kWidth>& ring, Place& place) {
  for (int pass = 0; pass < (kSplit ? 3 : 1); ++pass) {
    for (int i = 0; i < stages; ++i) {
      auto& stage = ring.stages[place.slot];
      Barrier& full = ring.full[place.slot];
      wait_barrier(ring.empty[place.slot], place.parity ^ 1);
      expect_bytes(full, sizeof stage);
      copy_operand<kLeft, kTile / kBoxSide>(stage.left, left, kSplit && pass == 0, i * ring.kDepth,
                                            full);
      copy_operand<kRight, kWidth / kBoxSide>(stage.right, right, kSplit && pass == 1,
                                              i * ring.kDepth, full);
      place.advance(ring);
    }
  }
}

/// A thread's part of a tile: a WgmmaAccumulator for each 128 columns, or one for 192.
template <int kWidth>
struct TmaAccumulator {
  static constexpr int kPartWidth = kWidth == 192 ? 192 : kTile;
  static constexpr int kParts = kWidth / kPartWidth;
  WgmmaAccumulator<kPartWidth> parts[kParts];
  bool written = false;  // whether there is something to add to

  __device__ void pin() {
#pragma unroll
    for (int h = 0; h < kParts; ++h) pin_registers(parts[h].values);
  }
};

/// Starts to add the product of a stage to `sum`.
template <Major kLeft, Major kRight, int kWidth>
__device__ void start_products(TmaAccumulator<kWidth>& sum,
                               const typename TmaRing<kWidth>::Stage& stage) {
  const std::uint64_t left = WgmmaLayout<kLeft>::descriptor(stage.left, WarpgroupTeam::first_row());
  const std::uint64_t right = WgmmaLayout<kRight>::descriptor(stage.right, 0);
  constexpr bool kLeftTransposed = kLeft == Major::kTile, kRightTransposed = kRight == Major::kTile;
  wgmma_fence();
#pragma unroll
  for (int depth = 0; depth < TmaRing<kWidth>::kDepth; depth += 16) {
    const std::uint64_t a = left + WgmmaLayout<kLeft>::deeper(depth);
    const std::uint64_t b = right + WgmmaLayout<kRight>::deeper(depth);
    const int add = depth > 0 || sum.written;
    if constexpr (kWidth == 256) {
      wgmma<kLeftTransposed, kRightTransposed>(sum.parts[0].values, sum.parts[1].values, a, b, add);
    } else {
      wgmma<kLeftTransposed, kRightTransposed>(sum.parts[0].values, a, b, add);
    }
  }
  sum.written = true;
  wgmma_commit();
}

// The number of the barrier that sets the consumers apart, and how many stages they are apart: the
// ring has room for that and for copies under way.
constexpr int kApart = 1 + kConsumers, kStagesApart = 2;

/// Calls stage(i) for each stage of a product. In the first product of a block this sets the
/// consumers apart: the second begins when the first has started kStagesApart stages, or all. What
/// follows the products is as long in both, so that the distance lasts.
template <typename Stage>
__device__ void for_each_stage(Place& place, int stages, const Stage& stage) {
  constexpr int kThreads = kConsumers * kWarpgroup;
  if (!place.apart && WarpgroupTeam::number() == 1) {
    sync_barrier(kApart, kThreads);
    place.apart = true;
  }
  int end = place.apart || stages < kStagesApart ? stages : kStagesApart;
  for (int i = 0;;) {
    for (; i < end; ++i) stage(i);
    if (!place.apart) arrive_at_barrier(kApart, kThreads);
    place.apart = true;
    if (end == stages) return;
    end = stages;
  }
}

/// Lets the producer fill a stage again, as far as this warp is concerned.
template <int kWidth>
__device__ void release(TmaRing<kWidth>& ring, int slot) {
  if (lane_of_thread() == 0) arrive(ring.empty[slot]);
}

/// Adds a product `stages` stages deep to `sum`, while the products of the next stage go on.
template <Major kLeft, Major kRight, int kWidth>
__device__ void consume_whole(TmaAccumulator<kWidth>& sum, int stages, TmaRing<kWidth>& ring,
                              Place& place) {
  sum.pin();
  int previous = 0;
  for_each_stage(place, stages, [&](int i) {
    wait_barrier(ring.full[place.slot], place.parity);
    start_products<kLeft, kRight>(sum, ring.stages[place.slot]);
    wgmma_wait<1>();  // the products of the stage before are done
    if (i > 0) release(ring, previous);
    previous = place.slot;
    place.advance(ring);
  });
  wgmma_wait<0>();
  sum.pin();
  release(ring, previous);
}

/// Does the same with split operands. As in add_stage, only the sums of a stage are left to the
/// tensor cores, and each stage is waited for.
template <Major kLeft, Major kRight, int kWidth>
__device__ void consume_split(TmaAccumulator<kWidth>& sum, int stages, float low_scale,
                              TmaRing<kWidth>& ring, Place& place) {
  constexpr int kSums = kWidth / 2;
#pragma unroll
  for (int j = 0; j < kSums; ++j) {
    if (!sum.written) sum.parts[0].values[j] = 0;
  }
  sum.written = true;
  for_each_stage(place, 3 * stages, [&](int i) {
    TmaAccumulator<kWidth> part;
    wait_barrier(ring.full[place.slot], place.parity);
    part.pin();
    start_products<kLeft, kRight>(part, ring.stages[place.slot]);
    wgmma_wait<0>();
    part.pin();
    release(ring, place.slot);
    place.advance(ring);
    const float scale = i < stages ? low_scale : 1.0f;
#pragma unroll
    for (int j = 0; j < kSums; ++j) {
      float& value = sum.parts[0].values[j];
      value = fmaf(part.parts[0].values[j], scale, value);
    }
  });
}

/// Adds a product `stages` stages deep to `sum`; the consumers call it, and `produce` feeds it. The
/// low parts of the left operand have the scale `low_scale`, and those of the right that of the
/// high ones.
template <Major kLeft, Major kRight, bool kSplit, int kWidth>
__device__ void consume(TmaAccumulator<kWidth>& sum, int stages, float low_scale,
                        TmaRing<kWidth>& ring, Place& place) {
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
  consume();
}

}  // namespace mirror_train
