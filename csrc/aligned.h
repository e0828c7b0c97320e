// Arrays that begin a line of the cache, or a page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace mirror_rt {

template <std::size_t Alignment>
struct AlignedDelete {
  void operator()(void* p) const { ::operator delete[](p, std::align_val_t{Alignment}); }
};
template <class T, std::size_t Alignment = 64>
using Aligned = std::unique_ptr<T[], AlignedDelete<Alignment>>;

/// Allocates n uninitialised elements on such a boundary.
template <class T, std::size_t Alignment = 64>
Aligned<T, Alignment> aligned(std::int64_t n) {
  const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
  return Aligned<T, Alignment>(
      static_cast<T*>(::operator new[](bytes, std::align_val_t{Alignment})));
}

}  // namespace mirror_rt
