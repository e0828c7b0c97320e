// A block of CUDA threads in execution: its shared memory, barriers, copies and products under way.
// What the hardware does by itself happens as late as it may: when no thread can go on without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
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
inline dim3 threadIdx, blockIdx, gridDim;

namespace emulation {

// By how many lines the accelerator copies boxes from the wrong place.
inline int lines_astray = 0;

constexpr int kWarp = 32;
constexpr int kWarpgroup = 128;

struct PendingCopy {
  char* to;
  const char* from;
};

/// A wgmma under way. Where d_high is not null, d has the columns 0 .. 127 and d_high those after.
struct PendingProduct {
  float *d, *d_high;
  int columns;
  std::uint64_t left, right;
  bool left_transposed, right_transposed;
  bool adds;                         // or overwrites d
  std::vector<float> operands = {};  // as they were at the start, in the group's first thread
};

/// Groups of a thread's products; the last is still open.
using Products = std::vector<std::vector<PendingProduct>>;

/// An mbarrier. Its phase is complete when nobody is missing and no bytes are.
struct BarrierState {
  int count, missing;
  std::int64_t bytes = 0;
  unsigned parity = 0;
  std::vector<int> waiting = {};
};

/// A barrier of the block with a number: how many threads have arrived, and which of them wait.
struct NamedBarrier {
  int arrived = 0;
  std::vector<int> waiting = {};
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
    seen_ = new_memory(shared_bytes);
    at_barrier_ = 0;
    meetings_.assign(threads, Meeting());
    copies_.assign(threads, {{}});
    products_.assign(threads, {{}});
    barriers_.clear();
    later_.clear();
    named_barriers_.clear();
    for (int& count : stages_begun_) count = 0;
    backwards_ = std::getenv("MIRROR_CUDA_EMULATION_BACKWARDS") != nullptr;
    fibers_.run(
        threads, kWarp, backwards_, [&](int) { kernel(); },
        [](int i) { threadIdx.x = static_cast<unsigned>(i); }, [&] { return work_by_itself(); });
    if (!later_.empty()) throw std::runtime_error("nobody waits for a copy or product under way");
    for (const auto& [number, barrier] : named_barriers_) {
      if (barrier.arrived != 0) throw std::runtime_error("a barrier is left incomplete");
    }
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

  /// Arrives at the barrier of this number, of `count` threads, and may wait for all of them.
  void named_barrier(int number, int count, bool waits) {
    NamedBarrier& barrier = named_barriers_[number];
    if (++barrier.arrived < count) {
      if (!waits) return;
      barrier.waiting.push_back(fibers_.current());
      fibers_.wait();
      return;
    }
    barrier.arrived = 0;
    wake_all(barrier.waiting);
  }

  /// Notes that a warpgroup has begun a stage of products. When the second begins, the first must
  /// have begun so many as MIRROR_CUDA_EMULATION_APART says, by default one.
  void begin_stage() {
    const int warpgroup = fibers_.current() / kWarpgroup;
    if (warpgroup == 1 && stages_begun_[1] == 0 && stages_begun_[0] < least_apart()) {
      throw std::runtime_error("the warpgroups are not apart");
    }
    ++stages_begun_[warpgroup];
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

  /// Waits for all threads of the warpgroup, and then for `work` on the arguments of all.
  template <typename Arguments, typename Work>
  void meet_later(const char* instruction, Arguments& own, const Work& work) {
    const int thread = fibers_.current(), first = thread / kWarpgroup * kWarpgroup;
    bool done = false;
    struct Waiting {
      Arguments* arguments;
      bool* done;
    } waiting{&own, &done};
    meet<kWarpgroup>(instruction, waiting, [&](Waiting** all) {
      std::vector<Waiting> kept;
      for (int i = 0; i < kWarpgroup; ++i) kept.push_back(*all[i]);
      later_.push_back([=] {
        Arguments* arguments[kWarpgroup];
        for (int i = 0; i < kWarpgroup; ++i) arguments[i] = kept[i].arguments;
        work(arguments);
        for (const Waiting& each : kept) *each.done = true;
        for (int i = first; i < first + kWarpgroup; ++i) fibers_.wake(i);
      });
    });
    while (!done) fibers_.wait();
  }

  void init_barrier(const void* barrier, int count) {
    barriers_[checked(barrier, 8)] = {count, count};
  }

  /// Arrives at an mbarrier after announcing `bytes`.
  void arrive(const void* barrier, std::int64_t bytes) {
    BarrierState& state = state_of(barrier);
    if (state.missing == 0) throw std::runtime_error("mbarrier: more arrivals than it counts");
    state.bytes += bytes;
    --state.missing;
    settle(state);
  }

  /// Waits until the phase of this parity is complete.
  void wait_barrier(const void* barrier, unsigned parity) {
    BarrierState& state = state_of(barrier);
    while (state.parity == parity) {
      state.waiting.push_back(fibers_.current());
      fibers_.wait();
    }
  }

  /// Starts a copy to shared memory by the accelerator: `copy(to)` is called with both views of the
  /// memory. Its bytes count on an mbarrier.
  template <typename Copy>
  void copy_later(void* to, int bytes, const void* barrier, const Copy& copy) {
    const std::ptrdiff_t offset = checked(to, 1) - shared();
    checked(shared() + offset + bytes - 1, 1);
    if (offset % 1024 != 0) throw std::runtime_error("a box is not aligned to 1024 bytes");
    for (char* memory : {shared(), seen_.get()}) std::memset(memory + offset, 0xff, bytes);
    later_.push_back([=] {
      for (char* memory : {shared(), seen_.get()}) copy(memory + offset);
      BarrierState& state = state_of(barrier);
      state.bytes -= bytes;
      settle(state);
    });
  }

  /// Shared memory as wgmma sees it: with what the tensor memory accelerator copied, but not what a
  /// thread wrote, which would take a fence.
  float seen_half(std::size_t offset) const {
    if (offset + 2 > size_) throw std::runtime_error("wgmma: shared memory out of bounds");
    std::uint16_t bits;
    std::memcpy(&bits, seen_.get() + offset, 2);
    return float_of_half(bits);
  }

  Products& products() { return products_[fibers_.current()]; }

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

  static int least_apart() {
    const char* least = std::getenv("MIRROR_CUDA_EMULATION_APART");
    return least == nullptr ? 1 : std::atoi(least);
  }

  BarrierState& state_of(const void* barrier) {
    const auto found = barriers_.find(checked(barrier, 8));
    if (found == barriers_.end()) throw std::runtime_error("mbarrier: not initialised");
    return found->second;
  }

  void settle(BarrierState& state) {
    if (state.missing != 0 || state.bytes != 0) return;
    state.parity ^= 1;
    state.missing = state.count;
    wake_all(state.waiting);
  }

  void wake_all(std::vector<int>& waiting) {
    for (const int fiber : waiting) fibers_.wake(fiber);
    waiting.clear();
  }

  /// Does one of the things that happen by themselves; returns whether there was one.
  bool work_by_itself() {
    if (later_.empty()) return false;
    const std::function<void()> work = backwards_ ? later_.back() : later_.front();
    if (backwards_) {
      later_.pop_back();
    } else {
      later_.pop_front();
    }
    work();
    return true;
  }

  int threads_ = 0;
  std::size_t size_ = 0;
  int at_barrier_ = 0;
  bool backwards_ = false;
  Memory shared_, seen_;
  std::vector<Meeting> meetings_;  // of a warp or warpgroup at the place of its first thread
  std::vector<Products> products_;
  std::map<const char*, BarrierState> barriers_;  // by address
  std::map<int, NamedBarrier> named_barriers_;    // by number
  int stages_begun_[2] = {};                      // by the warpgroups that multiply
  std::deque<std::function<void()>> later_;
  std::vector<std::vector<std::vector<PendingCopy>>> copies_;
  Fibers fibers_;
};

inline Block& block() {
  static Block instance;
  return instance;
}

}  // namespace emulation
