// Rows packed in blocks for the tile functions of an instruction set.
#pragma once

#include <cstdint>

#include "aligned.h"
#include "infonce/infonce.h"

namespace mirror_rt::infonce {

inline std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}

/// Writes row `i` in float32, times its inverse norm, as `rows.dim` floats to `out`.
void unit_row(const Rows& rows, std::int64_t i, float* out);

/// All rows in the three layouts of infonce/cpu/isa.h.
class PackedRows {
 public:
  PackedRows(const Rows& rows, const Geometry& geometry, const Execution& execution);

  std::int64_t blocks() const { return (rows_ + geometry_.block - 1) / geometry_.block; }
  PackedBlock block(std::int64_t index) const;

 private:
  using Unit = std::uint32_t;  // a float or a pair of bfloat16

  std::int64_t rows_;
  Geometry geometry_;
  std::int64_t by_dim_, transposed_, by_row_;  // number of units of a block in each layout
  Aligned<Unit> units_;
};

}  // namespace mirror_rt::infonce
