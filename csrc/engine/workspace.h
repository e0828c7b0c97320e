// The intermediate results of a group of texts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/buffer.h"
#include "engine/isa.h"

namespace mirror_rt::engine {

// What is kept from run to run: memory that is given back and taken again costs a page fault for
// every 4 KB. A group of more tokens is a long text.
constexpr std::int64_t kKeptTokens = 1024;
constexpr std::size_t kKeptWorkspaces = 64;

/// Rows of float32.
struct Rows {
  float* values = nullptr;
  std::int64_t stride = 0;

  float* at(std::int64_t row) const { return values + row * stride; }
};

/// Rows in the precision of the products.
struct OperandBuffer {
  Buffer<std::int8_t> values;
  Buffer<float> scales, shifts;

  Operand reserve(Precision precision, std::int64_t rows, std::int64_t stride) {
    values.reserve(rows * stride * bytes_of(precision));
    if (precision != Precision::int8) return {values.get(), stride};
    const std::int64_t blocks = rows * blocks_of(stride, kPairBlock);  // other blocks are longer
    return {values.get(), stride, scales.reserve(blocks), shifts.reserve(blocks)};
  }
};

struct Workspace {
  Buffer<float> hidden;         // [tokens, H], added to by each half of a layer
  Buffer<float> wide;           // [tokens, queries | keys | values]; or [tokens, I] or [.., 2 I]
  Buffer<float> context;        // [tokens, queries], or [tokens, H] that is normalised
  OperandBuffer input, middle;  // left operands, of depth H, and of depth I or `queries`
  Buffer<float> scratch;        // of attention, for each thread
};

}  // namespace mirror_rt::engine
