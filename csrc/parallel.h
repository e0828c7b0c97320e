// Runs independent tasks on a few threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace mirror_rt {

/// Calls body(context, thread) on at most `threads` threads at once, including the calling one,
/// each with another `thread` < threads; returns when all have returned. `body` must not throw, and
/// must work with fewer threads, as the system may not provide more.
void on_threads(int threads, void (*body)(void* context, int thread), void* context);

/// The same for body(thread).
template <class Body>
void on_threads(int threads, Body body) {
  const auto call = [](void* context, int thread) { (*static_cast<Body*>(context))(thread); };
  on_threads(threads, call, &body);
}

/// Calls body(task, thread) for every task; tasks start in order.
template <class Body>
void parallel_for(std::int64_t tasks, int threads, const Body& body) {
  std::atomic<std::int64_t> next{0};
  on_threads(static_cast<int>(threads < tasks ? threads : tasks), [&](int thread) {
    for (std::int64_t task; (task = next++) < tasks;) body(task, thread);
  });
}

}  // namespace mirror_rt
