// Averages rows of a table, chosen by token ids: the whole of a static encoder.
#pragma once

#include <cstdint>

#include "tokens/padding.h"

namespace mirror_rt {

/// The vectors of a static encoder: token id t has row `row_of[t]` of `rows` [n_rows, dim], times
/// `weights[t]`. Without `row_of` it has row t, without `weights` the weight is 1; both, where
/// given, have `n_ids` entries.
struct Table {
  const float* rows;
  std::int64_t n_rows;
  std::int64_t dim;
  const std::int32_t* row_of;
  const float* weights;
  std::int64_t n_ids;
};

/// Writes the mean of the vectors of each of `n` sequences to `out` [n, dim], of unit length if
/// asked for; NaN for a sequence without tokens, or whose mean is zero, which has no direction.
/// Returns the place in `tokens.ids` of the first id that the table does not have, or -1.
std::int64_t mean_rows(const Table& table, const Ragged& tokens, std::int64_t n, bool normalize,
                       float* out);

}  // namespace mirror_rt
