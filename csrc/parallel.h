// Runs independent tasks on a few threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace mirror_rt {

/// Calls body(context, thread) on at most `threads` threads at once, including the calling one,
/// each with another `thread` < threads; returns when all have returned. `body` must not throw, and
/// must work with fewer threads, as the system may not provide more.
void on_threads(int threads, void (*body)(void* context, int thread), void* context);

/// Calls body(task, thread) for every task; tasks start in order.
template <class Body>
void parallel_for(std::int64_t tasks, int threads, const Body& body) {
  struct Context {
    const Body& body;
    std::int64_t tasks;
    std::atomic<std::int64_t> next{0};
  } context{body, tasks};
  const auto work = [](void* argument, int thread) {
    auto& c = *static_cast<Context*>(argument);
    for (std::int64_t task; (task = c.next++) < c.tasks;) c.body(task, thread);
  };
  on_threads(static_cast<int>(threads < tasks ? threads : tasks), work, &context);
}

}  // namespace mirror_rt
