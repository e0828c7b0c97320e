// What ldmatrix, mma and wgmma compute, from the registers or descriptors of all threads that take
// part.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "block.h"

namespace emulation {

/// fp32 of a sum, rounded toward zero.
inline float truncate(double sum) {
  const float rounded = static_cast<float>(sum);
  return std::fabs(static_cast<double>(rounded)) > std::fabs(sum) ? std::nextafter(rounded, 0.0f)
                                                                  : rounded;
}

struct MatrixLoad {
  std::uint32_t* result;
  const char* address;
};

template <bool kTransposed>
void load_matrices(MatrixLoad** lanes) {
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      std::uint16_t pair[2];
      for (int e = 0; e < 2; ++e) {
        const int i = lane / 4, j = lane % 4 * 2 + e;
        const int row = kTransposed ? j : i, column = kTransposed ? i : j;
        std::memcpy(&pair[e], lanes[matrix * 8 + row]->address + column * 2, 2);
      }
      lanes[lane]->result[matrix] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
    }
  }
}

struct Product {
  float* c;
  const std::uint32_t* a;
  std::uint32_t b[2];
};

inline float half_at(std::uint32_t pair, int e) {
  return float_of_half(static_cast<std::uint16_t>(pair >> 16 * e));
}

/// c [16, 8] += a [16, kDepth] b [kDepth, 8], one truncation an element.
template <int kDepth>
void multiply_add(Product** lanes) {
  float a[16][kDepth], b[8][kDepth];
  for (int lane = 0; lane < kWarp; ++lane) {
    const int line = lane / 4, k = lane % 4 * 2;
    for (int e = 0; e < 2; ++e) {
      for (int half = 0; half < kDepth / 8; ++half) {
        a[line][half * 8 + k + e] = half_at(lanes[lane]->a[half * 2], e);
        a[line + 8][half * 8 + k + e] = half_at(lanes[lane]->a[half * 2 + 1], e);
        b[line][half * 8 + k + e] = half_at(lanes[lane]->b[half], e);
      }
    }
  }
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int e = 0; e < 4; ++e) {
      const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
      double sum = lanes[lane]->c[e];
      for (int k = 0; k < kDepth; ++k) sum += static_cast<double>(a[row][k] * b[column][k]);
      lanes[lane]->c[e] = truncate(sum);
    }
  }
}

/// Byte of element (i, k) of a wgmma operand, i along the tile and k along the depth: see the
/// matrix descriptor and the canonical layouts with 128-byte swizzle in the PTX manual.
inline std::size_t operand_offset(std::uint64_t descriptor, bool transposed, int i, int k) {
  if (descriptor >> 62 != 1) throw std::runtime_error("wgmma: not the 128-byte swizzle");
  const auto field = [&](int bit) {
    return static_cast<std::size_t>(descriptor >> bit & 0x3fff) << 4;
  };
  const std::size_t start = field(0), beside = field(16), after = field(32);
  const std::size_t offset = transposed ? i / 64 * beside + k / 8 * after + k % 8 * 128 + i % 64 * 2
                                        : i / 8 * after + i % 8 * 128 + k * 2;
  const std::size_t address = start + offset;
  return address ^ (address >> 7 & 7) << 4;
}

/// Returns the 64 lines of the left operand, and after them those of the right one.
inline std::vector<float> read_operands(const PendingProduct& product) {
  std::vector<float> lines((64 + product.columns) * 16);
  for (int i = 0; i < 64 + product.columns; ++i) {
    const bool of_left = i < 64;
    const std::uint64_t descriptor = of_left ? product.left : product.right;
    const bool transposed = of_left ? product.left_transposed : product.right_transposed;
    for (int k = 0; k < 16; ++k) {
      const std::size_t at = operand_offset(descriptor, transposed, of_left ? i : i - 64, k);
      lines[i * 16 + k] = block().seen_half(at);
    }
  }
  return lines;
}

inline void start_product(PendingProduct product) {
  if (threadIdx.x % kWarpgroup == 0) product.operands = read_operands(product);
  block().products().back().push_back(std::move(product));
}

/// Adds the product of 64 x 16 and 16 x 128 (192, 256) elements to the registers of a warpgroup.
/// The hardware may read them at any time, so they must be what they were at the start.
inline void run_product(Products** threads, std::size_t n) {
  const PendingProduct& first = threads[0]->front().at(n);
  const std::vector<float> operands = read_operands(first);
  if (std::memcmp(operands.data(), first.operands.data(), operands.size() * sizeof(float)) != 0) {
    throw std::runtime_error("wgmma: an operand changed while it was multiplied");
  }
  const float *left = operands.data(), *right = left + 64 * 16;
  for (int thread = 0; thread < kWarpgroup; ++thread) {
    const PendingProduct& own = threads[thread]->front().at(n);
    if (own.left != first.left || own.right != first.right || own.adds != first.adds) {
      throw std::runtime_error("wgmma: the descriptors of a warpgroup differ");
    }
    for (int e = 0; e < first.columns / 2; ++e) {
      const int row = thread / kWarp * 16 + e / 2 % 2 * 8 + thread % kWarp / 4;
      const int column = e / 4 * 8 + thread % 4 * 2 + e % 2;
      float& d = e < 64 || own.d_high == nullptr ? own.d[e] : own.d_high[e - 64];
      double sum = own.adds ? d : 0;
      for (int k = 0; k < 16; ++k) {
        sum += static_cast<double>(left[row * 16 + k] * right[column * 16 + k]);
      }
      d = truncate(sum);
    }
  }
}

/// Runs the groups of products that a warpgroup has under way, in order, except the last kPending.
template <int kPending>
void run_products(Products** threads) {
  while (static_cast<int>(threads[0]->size()) - 1 > kPending) {
    for (std::size_t n = 0; n < threads[0]->front().size(); ++n) run_product(threads, n);
    for (int i = 0; i < kWarpgroup; ++i) threads[i]->erase(threads[i]->begin());
  }
}

}  // namespace emulation
