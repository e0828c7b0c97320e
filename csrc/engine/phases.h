// Phases of tasks that several threads share, one phase after the other.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mirror_rt::engine {

/// How far a phase is, which all threads of a run see.
struct alignas(64) PhaseState {
  std::atomic<std::int64_t> next{0};
  std::atomic<std::int64_t> done{0};
};

/// Hands out the tasks of a fixed number of phases. No thread waits for another that has no task,
/// so any number of threads may take part, and may come late.
class Phases {
 public:
  /// `spins` is how often a thread that waits looks again before it gives up its processor.
  Phases(std::int64_t phases, int spins)
      : states_(static_cast<std::size_t>(phases)), spins_(spins) {}

  /// The position of one thread among the phases; all threads run the same ones in order.
  class Member {
   public:
    Member(Phases& phases, int thread) : phases_(phases), thread_(thread) {}

    int thread() const { return thread_; }

    /// Runs body(task) for the tasks that this thread gets; returns once all of them are done.
    template <class Body>
    void run(std::int64_t tasks, const Body& body) {
      PhaseState& state = phases_.states_[phase_++];
      std::int64_t done = 0;
      for (std::int64_t task; (task = state.next.fetch_add(1)) < tasks; ++done) body(task);
      state.done.fetch_add(done, std::memory_order_release);
      phases_.wait(state, tasks);
    }

   private:
    Phases& phases_;
    int thread_;
    std::size_t phase_ = 0;
  };

 private:
  void wait(const PhaseState& state, std::int64_t tasks) const {
    for (int turn = 0; state.done.load(std::memory_order_acquire) < tasks; ++turn) {
      if (turn < spins_) {
#if defined(__x86_64__)
        _mm_pause();
#endif
      } else if (turn < spins_ + 64) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  std::vector<PhaseState> states_;
  int spins_;
};

}  // namespace mirror_rt::engine
