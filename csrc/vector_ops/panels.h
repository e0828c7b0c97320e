// Queries as panels [dim, columns], of as many columns as two vectors of the processor, so that a
// number of a row meets a whole panel, and no sum crosses lanes.
#pragma once

#include <memory>

#include "vector_ops/vector_ops.h"

namespace mirror_rt::vector_ops {

inline std::unique_ptr<float[]> floats(std::int64_t count) {
  return std::make_unique<float[]>(static_cast<std::size_t>(count));
}

/// The tokens of all queries in panels; columns that are left over are 0.
struct Panels {
  Panels(const Isa& isa, const TokenVectors<float>& queries)
      : starts(std::make_unique<std::int64_t[]>(static_cast<std::size_t>(queries.count) + 1)) {
    const std::int64_t columns = isa.columns, dim = queries.dim;
    for (std::int64_t q = 0; q < queries.count; ++q) {
      starts[q + 1] = starts[q] + (queries.lengths[q] + columns - 1) / columns;
    }
    values = floats(starts[queries.count] * dim * columns);
    for (std::int64_t q = 0; q < queries.count; ++q) {
      for (std::int64_t token = 0; token < queries.lengths[q]; ++token) {
        const float* row = queries.rows[q] + token * dim;
        float* panel = values.get() + (starts[q] + token / columns) * dim * columns;
        for (std::int64_t d = 0; d < dim; ++d) panel[d * columns + token % columns] = row[d];
      }
    }
  }
  std::unique_ptr<std::int64_t[]> starts;  // the first panel of each query, and the end
  std::unique_ptr<float[]> values;
};

}  // namespace mirror_rt::vector_ops
