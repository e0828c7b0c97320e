// Which rows run together.
#pragma once

#include <cstdint>
#include <vector>

namespace mirror_rt {

/// Splits rows of rising `lengths` [n] where the sum of rows * longest + `run_cost` is least, no
/// batch of more than one row exceeding `token_budget` padded tokens. Returns the end of each
/// batch, in rising order; the last one is n.
std::vector<std::int64_t> plan_batches(const std::int64_t* lengths, std::int64_t n,
                                       std::int64_t token_budget, std::int64_t run_cost);

}  // namespace mirror_rt
