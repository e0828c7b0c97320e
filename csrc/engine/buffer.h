// Memory that is aligned to cache lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "aligned.h"

namespace mirror_rt::engine {

/// `size` values, not set, and one cache line more, since vectors may be read past the end.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size) : size_(size) {
    constexpr std::int64_t kLine = 64 / sizeof(T);
    data_ = aligned<T>((size + 2 * kLine - 1) / kLine * kLine);
  }
  T* get() const { return data_.get(); }
  std::int64_t size() const { return size_; }

  /// Makes room for at least `size` values; the content is lost.
  T* reserve(std::int64_t size) {
    if (size > size_) {
      data_.reset();
      *this = Buffer(size);
    }
    return get();
  }

 private:
  Aligned<T> data_;
  std::int64_t size_ = 0;
};

/// Memory that is taken piece by piece and given back as a whole. Linux is asked for pages of 2 MB:
/// with those of 4 KB, a text alone waits for their addresses about as long as for the weights.
class Arena {
 public:
  std::int8_t* take(std::int64_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (bytes > left_) {
      left_ = std::max((bytes + kPage - 1) / kPage * kPage, kLeast);
      chunks_.push_back(aligned<std::int8_t, kPage>(left_));
      next_ = chunks_.back().get();
#ifdef MADV_HUGEPAGE
      madvise(next_, static_cast<std::size_t>(left_), MADV_HUGEPAGE);  // only a wish
#endif
    }
    left_ -= bytes;
    return std::exchange(next_, next_ + bytes);
  }

 private:
  static constexpr std::int64_t kPage = 1 << 21,
                                kLeast = 1 << 25;  // what is not used costs nothing

  std::vector<Aligned<std::int8_t, kPage>> chunks_;
  std::int8_t* next_ = nullptr;
  std::int64_t left_ = 0;
};

/// Copies rows of `n` numbers and pads them with zeros; nothing is copied from null.
inline Buffer<float> copy_rows(const float* from, std::int64_t rows, std::int64_t n,
                               std::int64_t stride) {
  if (from == nullptr) return {};
  Buffer<float> padded(rows * stride);
  std::fill_n(padded.get(), rows * stride, 0.0f);
  for (std::int64_t row = 0; row < rows; ++row) {
    std::copy_n(from + row * n, n, padded.get() + row * stride);
  }
  return padded;
}

}  // namespace mirror_rt::engine
