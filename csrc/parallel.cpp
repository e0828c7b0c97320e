// Threads come from the OpenMP runtime the process has loaded, which is torch's where torch is
// imported: its threads are there already, and after torch's own work they spin for a while,
// which would take the processor from a second pool. Where there is none: new threads.
#include "parallel.h"

#include <dlfcn.h>

#include <system_error>
#include <thread>
#include <vector>

namespace mirror_rt {
namespace {

/// The entry points of GCC's OpenMP runtime, which Clang's has too.
struct OpenMp {
  void (*parallel)(void (*)(void*), void*, unsigned threads, unsigned flags);
  int (*thread_number)();

  bool loaded() const { return parallel != nullptr && thread_number != nullptr; }
};

template <class Function>
Function* symbol(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_DEFAULT, name));
}

/// Once found it stays loaded; until then torch may still be imported.
const OpenMp& find_openmp() {
  static std::atomic<const OpenMp*> found{nullptr};
  static const OpenMp none{nullptr, nullptr};
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
    // As many as there are will do.
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
