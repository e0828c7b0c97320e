// A block of CUDA threads in execution: its shared memory, barriers, copies and products under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fibers.h"
#include "half_types.h"

struct dim3 {
  unsigned x, y, z;
  explicit dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Set before a fiber goes on.
inline dim3 threadIdx, blockIdx;

namespace emulation {

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;

struct PendingCopy {
  char* to;
  const char* from;
};

/// A wgmma under way.
struct PendingProduct {
  float* d;
  std::uint64_t left, right;
  bool left_transposed, right_transposed;
};

/// Threads of a warp or warpgroup that wait for each other at one instruction.
struct Meeting {
  const char* instruction = nullptr;
  int arrived = 0;
  void* arguments[kWarpgroup];
};

/// The block in execution.
class Block {
 public:
  template <typename Kernel>
  void run(const Kernel& kernel, int threads, std::size_t shared_bytes) {
    threads_ = threads;
    size_ = shared_bytes;
    shared_ = new_memory(shared_bytes);
    fenced_ = new_memory(shared_bytes);
    at_barrier_ = 0;
    meetings_.assign(threads, Meeting());
    copies_.assign(threads, {{}});
    unfenced_.assign(threads, {});
    products_.assign(threads, {});
    const bool backwards = std::getenv("MIRROR_CUDA_EMULATION_BACKWARDS") != nullptr;
    fibers_.run(
        threads, kWarp, backwards, [&](int) { kernel(); },
        [](int i) { threadIdx.x = static_cast<unsigned>(i); });
  }

  char* shared() { return shared_.get(); }

  char* checked(const void* address, std::size_t bytes) {
    char* p = const_cast<char*>(static_cast<const char*>(address));
    const bool inside = p >= shared() && p + bytes <= shared() + size_;
    if (!inside) throw std::runtime_error("shared memory: access out of bounds");
    check_alignment(p, bytes);
    return p;
  }

  static void check_alignment(const void* address, std::size_t bytes) {
    if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
      throw std::runtime_error("misaligned access of " + std::to_string(bytes) + " bytes");
    }
  }

  void barrier() {
    if (++at_barrier_ < threads_) {
      fibers_.wait();
      return;
    }
    at_barrier_ = 0;
    for (int i = 0; i < threads_; ++i) {
      if (i != fibers_.current()) fibers_.wake(i);
    }
  }

  /// Waits for all threads of the warp or warpgroup; the last to come does `work` on the arguments
  /// of all.
  template <int kSize, typename Arguments, typename Work>
  void meet(const char* instruction, Arguments& own, const Work& work) {
    const int thread = fibers_.current(), first = thread / kSize * kSize;
    Meeting& meeting = meetings_[first];
    if (meeting.arrived == 0) meeting.instruction = instruction;
    if (std::strcmp(meeting.instruction, instruction) != 0) {
      throw std::runtime_error(std::string("threads diverge: ") + instruction + " and " +
                               meeting.instruction);
    }
    meeting.arguments[thread - first] = &own;
    if (++meeting.arrived < kSize) {
      fibers_.wait();
      return;
    }
    Arguments* all[kSize];
    for (int i = 0; i < kSize; ++i) all[i] = static_cast<Arguments*>(meeting.arguments[i]);
    work(all);
    meeting.arrived = 0;
    for (int i = first; i < first + kSize; ++i) {
      if (i != thread) fibers_.wake(i);
    }
  }

  /// Delivers a copy of the current thread.
  void deliver(const PendingCopy& copy) {
    std::memcpy(copy.to, copy.from, 16);
    unfenced_[fibers_.current()].push_back(copy.to - shared());
  }

  /// Shows wgmma what was delivered to the current thread.
  void fence() {
    auto& offsets = unfenced_[fibers_.current()];
    for (const std::ptrdiff_t offset : offsets) {
      std::memcpy(fenced_.get() + offset, shared() + offset, 16);
    }
    offsets.clear();
  }

  /// Shared memory as wgmma sees it.
  float fenced_half(std::size_t offset) const {
    if (offset + 2 > size_) throw std::runtime_error("wgmma: shared memory out of bounds");
    std::uint16_t bits;
    std::memcpy(&bits, fenced_.get() + offset, 2);
    return float_of_half(bits);
  }

  std::vector<PendingProduct>& products() { return products_[fibers_.current()]; }

  /// The current thread's groups of copies; the last is still open.
  std::vector<std::vector<PendingCopy>>& copies() { return copies_[fibers_.current()]; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  using Memory = std::unique_ptr<char, Free>;

  /// NaN in fp16, fp32 and fp64.
  static Memory new_memory(std::size_t bytes) {
    Memory memory(static_cast<char*>(std::aligned_alloc(1024, (bytes + 2047) / 1024 * 1024)));
    std::memset(memory.get(), 0xff, bytes);
    return memory;
  }

  int threads_ = 0;
  std::size_t size_ = 0;
  int at_barrier_ = 0;
  Memory shared_, fenced_;
  std::vector<Meeting> meetings_;  // of a warp or warpgroup at the place of its first thread
  std::vector<std::vector<std::ptrdiff_t>> unfenced_;
  std::vector<std::vector<PendingProduct>> products_;
  std::vector<std::vector<std::vector<PendingCopy>>> copies_;
  Fibers fibers_;
};

inline Block& block() {
  static Block instance;
  return instance;
}

}  // namespace emulation
