// Stands in for csrc/infonce/gpu/ptx_sm90.cuh: wgmma, mbarriers and the tensor memory accelerator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cuda_emulation.h"

namespace emulation {

inline bool has_fault(const char* name) {
  const char* fault = std::getenv("MIRROR_CUDA_EMULATION_FAULT");
  return fault != nullptr && std::string(fault) == name;
}

}  // namespace emulation

namespace mirror_train {

inline std::uint64_t wgmma_descriptor(const void* start, unsigned beside, unsigned after) {
  const char* checked = emulation::block().checked(start, 16);
  const auto address = static_cast<std::uint64_t>(checked - emulation::block().shared());
  return address >> 4 | std::uint64_t{beside >> 4} << 16 | std::uint64_t{after >> 4} << 32 |
         std::uint64_t{1} << 62;
}

template <int kCount>
void pin_registers(float (&)[kCount]) {}

inline void wgmma_fence() {}

inline void wgmma_commit() {
  if (threadIdx.x % emulation::kWarpgroup == 0) emulation::block().begin_stage();
  emulation::block().products().emplace_back();
}

template <bool kLeftTransposed, bool kRightTransposed, int kCount>
void wgmma(float (&d)[kCount], std::uint64_t left, std::uint64_t right, int add) {
  emulation::start_product(
      {d, nullptr, 2 * kCount, left, right, kLeftTransposed, kRightTransposed, add != 0});
}

template <bool kLeftTransposed, bool kRightTransposed>
void wgmma(float (&low)[64], float (&high)[64], std::uint64_t left, std::uint64_t right, int add) {
  emulation::start_product(
      {low, high, 256, left, right, kLeftTransposed, kRightTransposed, add != 0});
}

template <int kPending>
void wgmma_wait() {
  if (kPending > 0 && emulation::has_fault("no wait for products")) return;
  auto& own = emulation::block().products();
  emulation::block().meet_later("wgmma", own, emulation::run_products<kPending>);
}

using Barrier = std::uint64_t;

inline void init_barrier(Barrier& barrier, int arrivals) {
  emulation::block().init_barrier(&barrier, arrivals);
}

inline void publish_barriers() {}

inline void arrive(Barrier& barrier) {
  if (emulation::has_fault("no arrival")) return;
  emulation::block().arrive(&barrier, 0);
  if (emulation::has_fault("two arrivals")) emulation::block().arrive(&barrier, 0);
}

inline void expect_bytes(Barrier& barrier, int bytes) {
  if (emulation::has_fault("too few bytes")) bytes -= 8192;
  if (emulation::has_fault("too many bytes")) bytes += 8192;
  emulation::block().arrive(&barrier, bytes);
}

inline void wait_barrier(Barrier& barrier, unsigned parity) {
  const bool producer = threadIdx.x >= 256;
  if (emulation::has_fault(producer ? "producer's phase" : "consumers' phase")) parity ^= 1;
  emulation::block().wait_barrier(&barrier, parity);
}

constexpr int kBoxSide = 64;

struct TensorMap {
  const std::uint16_t* data;
  std::int64_t lines, columns;
};

inline TensorMap make_tensor_map(const std::uint16_t* data, std::int64_t lines,
                                 std::int64_t columns) {
  emulation::Block::check_alignment(data, 16);
  emulation::Block::check_alignment(data + columns, 16);
  return {data, lines, columns};
}

inline void copy_box(void* shared, const TensorMap& map, int line, int column, Barrier& barrier) {
  if (line < 0 || column < 0 || column % 8 != 0) throw std::runtime_error("no such box");
  constexpr int kLineBytes = 2 * kBoxSide;
  line += emulation::lines_astray;
  const auto copy = [=](char* to) {
    for (int i = 0; i < kBoxSide * kBoxSide; ++i) {
      const std::int64_t l = line + i / kBoxSide, c = column + i % kBoxSide;
      const std::uint16_t value =
          l < map.lines && c < map.columns ? map.data[l * map.columns + c] : 0;
      const int place = i / kBoxSide * kLineBytes + i % kBoxSide * 2;
      std::memcpy(to + (place ^ (place >> 7 & 7) << 4), &value, 2);
    }
  };
  emulation::block().copy_later(shared, kBoxSide * kLineBytes, &barrier, copy);
}

template <int kCount>
void give_registers() {}
template <int kCount>
void take_registers() {}

// The barrier that sets the consumers apart; those before it belong to one warpgroup each.
constexpr int kApartBarrier = 3;

inline void sync_barrier(int number, int threads) {
  if (number == kApartBarrier && emulation::has_fault("not apart")) return;
  emulation::block().named_barrier(number, threads, /*waits=*/true);
}

inline void arrive_at_barrier(int number, int threads) {
  if (emulation::has_fault("no word from the first")) return;
  emulation::block().named_barrier(number, threads, /*waits=*/false);
  if (emulation::has_fault("two words from the first")) {
    emulation::block().named_barrier(number, threads, /*waits=*/false);
  }
}

}  // namespace mirror_train
