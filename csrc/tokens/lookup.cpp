#include "tokens/lookup.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace mirror_rt {
namespace {

// So many vectors are added in float32, and these sums in float64: the sum of a long text would
// lose its last digits otherwise.
constexpr std::int64_t kAddedInFloat = 32;

}  // namespace

std::int64_t mean_rows(const Table& table, const Ragged& tokens, std::int64_t n, bool normalize,
                       float* out) {
  const std::int64_t dim = table.dim;
  std::vector<double> sums(static_cast<std::size_t>(dim));
  const auto add_sums = [&] {
    for (std::int64_t d = 0; d < dim; ++d) sums[static_cast<std::size_t>(d)] += out[d];
    std::fill_n(out, dim, 0.0f);
  };
  for (std::int64_t i = 0; i < n; ++i, out += dim) {
    const std::int64_t begin = tokens.offsets[i], end = tokens.offsets[i + 1];
    std::fill_n(out, dim, 0.0f);
    std::fill(sums.begin(), sums.end(), 0.0);
    for (std::int64_t k = begin; k < end; ++k) {
      const std::int64_t id = tokens.ids[k];
      if (id < 0 || id >= table.n_ids) return k;
      const std::int64_t row = table.row_of == nullptr ? id : table.row_of[id];
      if (row < 0 || row >= table.n_rows) return k;
      const float* vector = table.rows + row * dim;
      const float weight = table.weights == nullptr ? 1.0f : table.weights[id];
      for (std::int64_t d = 0; d < dim; ++d) out[d] += weight * vector[d];
      if ((k - begin + 1) % kAddedInFloat == 0) add_sums();
    }
    add_sums();
    double square = 0.0;
    const auto count = static_cast<double>(end - begin);
    for (std::int64_t d = 0; d < dim; ++d) {
      // Without tokens 0 / 0, which is NaN.
      out[d] = static_cast<float>(sums[static_cast<std::size_t>(d)] / count);
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
