// Runs the CUDA kernels on the host: stands in for csrc/infonce/gpu/ptx.cuh, function by function,
// so that the code under test is the very code that nvcc compiles; sm90_emulation.h stands in for
// ptx_sm90.cuh.
//
// Deliberately unkind: shared memory begins as NaN; an asynchronous copy poisons its target and
// delivers at the wait alone; the tensor cores truncate; a misaligned or outlying access to shared
// memory, a barrier that some threads miss and lanes that disagree are errors. The environment
// variable MIRROR_CUDA_EMULATION_BACKWARDS runs the threads of a block in descending order: equal
// results either way show that no barrier is missing.
//
// The environment variable MIRROR_CUDA_EMULATION_FAULT makes one instruction, or one kernel, do
// something else, as if there were that mistake: tests show that it is found.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

#include "block.h"
#include "half_types.h"
#include "tensor_cores.h"

#ifndef __CUDA_ARCH__
#define __CUDA_ARCH__ 800
#endif
#define MIRROR_ASYNC_COPY (__CUDA_ARCH__ >= 800)
#define __global__
#define __device__
#define __host__
#define __launch_bounds__(...)
#define __grid_constant__

inline void __syncthreads() { emulation::block().barrier(); }

template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  struct Exchange {
    T value;
    T result;
    int mask;
  } own{value, value, mask};
  emulation::block().meet<emulation::kWarp>("shfl", own, [](Exchange** lanes) {
    for (int i = 0; i < emulation::kWarp; ++i) {
      lanes[i]->result = lanes[i ^ lanes[i]->mask]->value;
    }
  });
  return own.result;
}

namespace mirror_train {

template <typename T>
T& shared_memory() {
  char* bytes = emulation::block().checked(emulation::block().shared(), 1);
  static_cast<void>(emulation::block().checked(bytes + sizeof(T) - 1, 1));
  return *reinterpret_cast<T*>(bytes);
}

inline void copy_chunk(void* to, const void* from) {
  emulation::Block::check_alignment(to, 16);
  emulation::Block::check_alignment(from, 16);
  std::memcpy(to, from, 16);
}

class Copy16 {
 public:
  void start(void* shared, const void* global) {
    to_ = emulation::block().checked(shared, 16);
    emulation::Block::check_alignment(global, 16);
    const auto* from = static_cast<const char*>(global);
#if MIRROR_ASYNC_COPY
    std::memset(to_, 0xff, 16);
    emulation::block().copies().back().push_back({to_, from});
#else
    std::memcpy(value_, from, 16);
#endif
  }

  void finish() {
#if !MIRROR_ASYNC_COPY
    std::memcpy(to_, value_, 16);
#endif
  }

 private:
  char* to_;
  [[maybe_unused]] char value_[16];
};

inline void commit_copies() { emulation::block().copies().emplace_back(); }

template <int kPending>
void wait_copies() {
  auto& groups = emulation::block().copies();
  while (static_cast<int>(groups.size()) - 1 > kPending) {
    for (const auto& copy : groups.front()) std::memcpy(copy.to, copy.from, 16);
    groups.erase(groups.begin());
  }
}

inline void load_matrices(std::uint32_t (&r)[4], const void* shared) {
  emulation::MatrixLoad own{r, emulation::block().checked(shared, 16)};
  emulation::block().meet<emulation::kWarp>("ldmatrix", own, emulation::load_matrices<false>);
}

inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* shared) {
  emulation::MatrixLoad own{r, emulation::block().checked(shared, 16)};
  emulation::block().meet<emulation::kWarp>("ldmatrix.trans", own, emulation::load_matrices<true>);
}

inline void multiply_add(float* c, const std::uint32_t (&a)[4], std::uint32_t b0,
                         std::uint32_t b1) {
#if MIRROR_ASYNC_COPY
  emulation::Product own{c, a, {b0, b1}};
  emulation::block().meet<emulation::kWarp>("mma", own, emulation::multiply_add<16>);
#else
  emulation::Product first{c, a, {b0, 0}}, second{c, a + 2, {b1, 0}};
  emulation::block().meet<emulation::kWarp>("mma.k8", first, emulation::multiply_add<8>);
  emulation::block().meet<emulation::kWarp>("mma.k8", second, emulation::multiply_add<8>);
#endif
}

/// As inexact as the instruction may be: cut off after 22 bits.
inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  if (y < 1.1754944e-38f) return 0;
  return emulation::float_of_bits(emulation::bits_of_float(y) & ~1u);
}

inline void choose_device(int) {}

inline int current_device() { return 0; }

inline int compute_capability() { return __CUDA_ARCH__ / 10; }

inline int multiprocessors() { return 3; }  // so few that a block computes many tiles

inline std::uint16_t half_bits(float x) { return emulation::half_of_float(x); }

inline std::uint32_t half_pair(float x, float y) {
  return half_bits(x) | static_cast<std::uint32_t>(half_bits(y)) << 16;
}

inline float half_value(std::uint16_t bits) { return emulation::float_of_half(bits); }

/// Returns whether a kernel of the tma core computes a wave after the first.
template <typename Params>
auto is_later(const Params& params, int) -> decltype(params.p.wave.row_tile > 0) {
  return params.p.wave.row_tile + params.p.wave.column_tile > 0;
}
template <typename Params>
bool is_later(const Params&, long) {
  return false;
}

/// Says which groups of tiles a kernel of the tma core leaves out, or takes from another place. The
/// fault is its name and "nothing", "half", "all but one", "one from elsewhere", or "all but one
/// later": that is left out after the first wave only, so that its place holds an earlier tile.
class TileFault {
 public:
  TileFault(const std::string& kernel, bool later) {
    const char* fault = std::getenv("MIRROR_CUDA_EMULATION_FAULT");
    if (fault != nullptr && std::string(fault).rfind(kernel + " ", 0) == 0) {
      what_ = fault + kernel.size() + 1;
    }
    if (what_ == "all but one later") what_ = later ? "all but one" : "";
  }

  /// Returns a grid of which every block computes one group of a test's few.
  dim3 grid(dim3 whole) const { return what_.empty() ? whole : dim3(64); }

  bool leaves_out(unsigned block) const {
    return what_ == "nothing" || (what_ == "half" && block % 2 == 0) ||
           (what_ == "all but one" && block == 0);
  }

  int lines_astray(unsigned block) const {
    return what_ == "one from elsewhere" && block == 0 ? 128 : 0;
  }

 private:
  std::string what_;
};

template <typename Params>
void launch(const char* name, void (*kernel)(Params), dim3 grid, int threads,
            std::size_t shared_bytes, void*, const Params& params) {
  const bool of_tma = threads == 384;
  const TileFault fault(of_tma ? name : "another", is_later(params, 0));
  gridDim = grid = fault.grid(grid);
  try {
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        if (fault.leaves_out(blockIdx.x)) continue;
        emulation::lines_astray = fault.lines_astray(blockIdx.x);
        emulation::block().run([&] { kernel(params); }, threads, shared_bytes);
      }
    }
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string(name) + ": " + error.what());
  }
}

}  // namespace mirror_train
