// Decides which rows run together in a batch.
#pragma once

#include <cstdint>
#include <vector>

namespace mirror_rt {

/// Splits rows of rising `lengths` [n] into the batches whose sum of rows * longest + `run_cost` is
/// least. No batch of more than one row exceeds `token_budget` padded tokens. Returns the end of
/// each batch, in rising order; the last end is n.
std::vector<std::int64_t> plan_batches(const std::int64_t* lengths, std::int64_t n,
                                       std::int64_t token_budget, std::int64_t run_cost);

}  // namespace mirror_rt
