#include "tokens/lookup.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace mirror_rt {

std::int64_t mean_rows(const Table& table, const Ragged& tokens, std::int64_t n, bool normalize,
                       float* out) {
  const std::int64_t dim = table.dim;
  for (std::int64_t i = 0; i < n; ++i, out += dim) {
    const std::int64_t begin = tokens.offsets[i], end = tokens.offsets[i + 1];
    std::fill_n(out, dim, 0.0f);
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t id = tokens.ids[k];
      if (id < 0 || id >= table.n_ids) return k;
      const std::int64_t row = table.row_of == nullptr ? id : table.row_of[id];
      if (row < 0 || row >= table.n_rows) return k;
      const float* vector = table.rows + row * dim;
      const float weight = table.weights == nullptr ? 1.0f : table.weights[id];
      for (std::int64_t d = 0; d < dim; ++d) out[d] += weight * vector[d];
    }
    double square = 0.0;
    const auto count = static_cast<float>(end - begin);
    for (std::int64_t d = 0; d < dim; ++d) {
      out[d] /= count;  // without tokens 0 / 0, which is NaN
      square += static_cast<double>(out[d]) * out[d];
    }
    if (square == 0.0) std::fill_n(out, dim, std::numeric_limits<float>::quiet_NaN());
    if (!normalize || square == 0.0) continue;
    const double length = std::sqrt(square);
    for (std::int64_t d = 0; d < dim; ++d) out[d] = static_cast<float>(out[d] / length);
  }
  return -1;
}

}  // namespace mirror_rt
