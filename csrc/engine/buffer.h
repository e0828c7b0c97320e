// Memory that is aligned to cache lines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

namespace mirror_rt::engine {

struct Free {
  void operator()(void* p) const { std::free(p); }
};

/// `size` values, not set, and one cache line more, since vectors may be read past the end.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::int64_t size) : size_(size) {
    const std::size_t bytes = (static_cast<std::size_t>(size) * sizeof(T) + 127) / 64 * 64;
    data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
    if (data_ == nullptr) throw std::bad_alloc();
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
  std::unique_ptr<T, Free> data_;
  std::int64_t size_ = 0;
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
