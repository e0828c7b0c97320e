// One fiber per CUDA thread, all of a block on one thread of the host. A warp runs until it must
// wait for another, as far ahead of the others as the program allows: so one that lacks a barrier
// goes wrong, and in every run the same way.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace emulation {

#ifdef __x86_64__

// swapcontext without its two system calls: these switches are most of the run time.
extern "C" void emulation_switch(void** save, void* restore);
asm(R"(
.text
.weak emulation_switch
.type emulation_switch, @function
emulation_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size emulation_switch, .-emulation_switch
)");

class Context {
 public:
  void prepare(char* stack, std::size_t size, void (*entry)()) {
    auto top = reinterpret_cast<std::uintptr_t>(stack + size) & ~std::uintptr_t{15};
    auto* frame = reinterpret_cast<void**>(top) - 8;  // six registers, entry, a null return address
    for (int i = 0; i < 8; ++i) frame[i] = nullptr;
    frame[6] = reinterpret_cast<void*>(entry);
    sp_ = frame;
  }
  static void swap(Context& from, Context& to) { emulation_switch(&from.sp_, to.sp_); }

 private:
  void* sp_ = nullptr;
};

#else

class Context {
 public:
  void prepare(char* stack, std::size_t size, void (*entry)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = size;
    context_.uc_link = nullptr;
    makecontext(&context_, entry, 0);
  }
  static void swap(Context& from, Context& to) { swapcontext(&from.context_, &to.context_); }

 private:
  ucontext_t context_;
};

#endif

/// Runs functions that wait for each other, each on a stack of its own.
class Fibers {
 public:
  /// Runs `body(i)` for i < count until all have returned, each group of fibers as far as it gets
  /// before the next. `resumed(i)` is called whenever fiber i goes on. When all that are left wait,
  /// `idle` must wake one and return true; else that is an error. Throws what a fiber threw.
  void run(int count, int group, bool backwards, std::function<void(int)> body,
           std::function<void(int)> resumed, const std::function<bool()>& idle) {
    body_ = std::move(body);
    resumed_ = std::move(resumed);
    error_ = nullptr;
    state_.assign(count, State::kReady);
    contexts_.resize(count);
    while (static_cast<int>(stacks_.size()) < count) stacks_.push_back(new_stack());
    active_ = this;
    for (int i = 0; i < count; ++i) contexts_[i].prepare(stacks_[i], kStackBytes, &entry);
    int done = 0;
    while (done < count) {
      const std::uint64_t before = switches_;
      for (int first = 0; first < count; first += group) {
        done += run_group(backwards ? count - first - group : first, group, backwards);
      }
      if (switches_ == before && !idle()) {
        throw std::runtime_error("deadlock: not all threads reach a barrier");
      }
    }
  }

  int current() const { return current_; }
  void wake(int i) { state_[i] = State::kReady; }

  /// Stops the current fiber until another wakes it.
  void wait() {
    state_[current_] = State::kWaiting;
    Context::swap(contexts_[current_], main_);
  }

 private:
  enum class State { kReady, kWaiting, kDone };
  static constexpr std::size_t kStackBytes = 64 * 1024;

  /// Runs the fibers of a group until all wait or have returned; how many have returned.
  int run_group(int first, int size, bool backwards) {
    int done = 0;
    for (bool progress = true; progress;) {
      progress = false;
      for (int k = 0; k < size; ++k) {
        current_ = first + (backwards ? size - 1 - k : k);
        if (state_[current_] != State::kReady) continue;
        progress = true;
        ++switches_;
        resumed_(current_);
        Context::swap(main_, contexts_[current_]);
        if (error_) std::rethrow_exception(error_);
        done += state_[current_] == State::kDone;
      }
    }
    return done;
  }

  static char* new_stack() {
    void* stack =
        mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(stack);
  }

  static void entry() {
    Fibers& self = *active_;
    try {
      self.body_(self.current_);
    } catch (...) {
      self.error_ = std::current_exception();
    }
    self.state_[self.current_] = State::kDone;
    Context::swap(self.contexts_[self.current_], self.main_);
    std::abort();
  }

  static inline Fibers* active_ = nullptr;
  Context main_;
  std::vector<Context> contexts_;
  std::vector<State> state_;
  std::vector<char*> stacks_;  // kept for the next run
  std::function<void(int)> body_;
  std::function<void(int)> resumed_;
  std::exception_ptr error_;
  int current_ = 0;
  std::uint64_t switches_ = 0;
};

}  // namespace emulation
