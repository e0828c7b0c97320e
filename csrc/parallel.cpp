// Threads come from the OpenMP runtime that the process has loaded; if torch is imported, that is
// torch's. Its threads exist already, and after torch's own work they spin for a while, which would
// take the processors from a second pool. Without such a runtime there is a pool of our own, whose
// threads sleep between two calls.
#include "parallel.h"

#ifndef _WIN32
#include <dlfcn.h>
#include <pthread.h>
#endif

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace mirror_rt {
namespace {

/// The entry points of GCC's OpenMP runtime; Clang's runtime has them, too.
struct OpenMp {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags);
  int (*thread_number)();

  bool loaded() const { return parallel != nullptr && thread_number != nullptr; }
};

template <class Function>
Function* symbol(const char* name) {
#ifdef _WIN32  // has no search through all libraries of a process
  static_cast<void>(name);
  return nullptr;
#else
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
#endif
}

/// Looks for the runtime at every call until it is found, since torch may be imported later.
const OpenMp& find_openmp() {
  static std::atomic<const OpenMp*> found{nullptr};
  static const OpenMp none{nullptr, nullptr};
  // A forked process has none of the runtime's threads, for which it would wait forever.
  static std::atomic<bool> forked{false};
#ifndef _WIN32
  static const int watching = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  static_cast<void>(watching);
#endif
  if (forked) return none;
  if (const OpenMp* openmp = found.load()) return *openmp;
  const OpenMp openmp{symbol<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel"),
                      symbol<int()>("omp_get_thread_num")};
  if (!openmp.loaded()) return none;
  static const OpenMp kept = openmp;
  found = &kept;
  return kept;
}

struct Region {
  void (*body)(void*, int);
  void* context;
  const OpenMp* openmp;
};

void run_region(void* argument) {
  const auto& region = *static_cast<Region*>(argument);
  region.body(region.context, region.openmp->thread_number());
}

/// A thread that sleeps between the calls it makes for others; it is never ended.
class Helper {
 public:
  Helper() {
    std::thread([this] { serve(); }).detach();
  }

  /// Has the thread call body(context, number).
  void give(void (*body)(void*, int), void* context, int number) {
    body_ = body, context_ = context, number_ = number;
    set(kGiven);
  }

  /// Takes the call back if the thread has not woken up yet; else waits for its end.
  void end() {
    int state = kGiven;
    if (!state_.compare_exchange_strong(state, kIdle)) wait_for(kIdle);
  }

 private:
  static constexpr int kIdle = 0, kGiven = 1, kRunning = 2;
  static constexpr int kTurns = 2000;  // of looking before sleeping

  [[noreturn]] void serve() {
    for (;;) {
      wait_for(kGiven);
      int state = kGiven;
      if (!state_.compare_exchange_strong(state, kRunning)) continue;
      body_(context_, number_);
      set(kIdle);
    }
  }

  void set(int state) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      state_.store(state, std::memory_order_release);
    }
    changed_.notify_one();
  }

  void wait_for(int state) {
    for (int turn = 0; turn < kTurns; ++turn) {
      if (state_.load(std::memory_order_acquire) == state) return;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return state_.load(std::memory_order_acquire) == state; });
  }

  std::atomic<int> state_{kIdle};
  std::mutex mutex_;
  std::condition_variable changed_;
  void (*body_)(void*, int) = nullptr;
  void* context_ = nullptr;
  int number_ = 0;
};

/// The helpers of a process. Concurrent calls share them, so that there are no more threads than
/// processors unless one call asks for more.
class Helpers {
 public:
  /// Returns the process's own; a forked process has none of its parent's threads.
  static Helpers& here() {
    static std::atomic<Helpers*> found{new Helpers};
#ifndef _WIN32
    static const int watching = pthread_atfork(nullptr, nullptr, [] { found.store(new Helpers); });
    static_cast<void>(watching);
#endif
    return *found;
  }

  /// Returns a helper that is not in use; null if there are `most` already.
  Helper* take(std::size_t most) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) {
      if (made_ >= most) return nullptr;
      idle_.push_back(new Helper);  // never deleted, as its thread never ends
      ++made_;
    }
    Helper* helper = idle_.back();
    idle_.pop_back();
    return helper;
  }

  void give_back(Helper* helper) {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(helper);
  }

 private:
  std::mutex mutex_;
  std::vector<Helper*> idle_;
  std::size_t made_ = 0;
};

void on_helpers(int threads, void (*body)(void*, int), void* context) {
  Helpers& helpers = Helpers::here();
  const auto wanted = static_cast<std::size_t>(threads - 1);
  const std::size_t most = std::max<std::size_t>(wanted, std::thread::hardware_concurrency());
  std::vector<Helper*> taken;
  try {
    for (Helper* helper; taken.size() < wanted && (helper = helpers.take(most)) != nullptr;) {
      taken.push_back(helper);
      helper->give(body, context, static_cast<int>(taken.size()));
    }
  } catch (const std::system_error&) {
    // The threads that could be started are enough.
  }
  body(context, 0);
  for (Helper* helper : taken) {
    helper->end();
    helpers.give_back(helper);
  }
}

}  // namespace

void on_threads(int threads, void (*body)(void*, int), void* context) {
  if (threads <= 1) {
    body(context, 0);
    return;
  }
  const OpenMp& openmp = find_openmp();
  if (openmp.loaded()) {
    Region region{body, context, &openmp};
    openmp.parallel(run_region, &region, static_cast<unsigned>(threads), 0);
  } else {
    on_helpers(threads, body, context);
  }
}

}  // namespace mirror_rt
