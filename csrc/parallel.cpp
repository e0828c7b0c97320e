// Threads come from the OpenMP runtime that the process has loaded; if torch is imported, that is
// torch's. Its threads exist already, and after torch's own work they spin for a while, which would
// take the processors from a second pool. Without such a runtime, new threads are started.
#include "parallel.h"

#include <dlfcn.h>
#include <pthread.h>

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
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// Looks for the runtime at every call until it is found, since torch may be imported later.
const OpenMp& find_openmp() {
  static std::atomic<const OpenMp*> found{nullptr};
  static const OpenMp none{nullptr, nullptr};
  // A forked process has none of the runtime's threads, for which it would wait forever.
  static std::atomic<bool> forked{false};
  static const int watching = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  static_cast<void>(watching);
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

void on_new_threads(int threads, void (*body)(void*, int), void* context) {
  std::vector<std::thread> helpers;
  try {
    for (int thread = 1; thread < threads; ++thread) helpers.emplace_back(body, context, thread);
  } catch (const std::system_error&) {
    // The threads that could be started are enough.
  }
  body(context, 0);
  for (std::thread& helper : helpers) helper.join();
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
    on_new_threads(threads, body, context);
  }
}

}  // namespace mirror_rt
