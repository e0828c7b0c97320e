#include "tokens/batching.h"

#include <algorithm>

namespace mirror_rt {

std::vector<std::int64_t> plan_batches(const std::int64_t* lengths, std::int64_t n,
                                       std::int64_t token_budget, std::int64_t run_cost) {
  // cost[j] is the least cost of the first j rows; begin[j] is where their last batch begins.
  std::vector<std::int64_t> cost(static_cast<std::size_t>(n + 1)), begin(cost.size());
  for (std::int64_t j = 1; j <= n; ++j) {
    const std::int64_t longest = std::max<std::int64_t>(1, lengths[j - 1]);
    const std::int64_t rows = std::clamp<std::int64_t>(token_budget / longest, 1, j);
    cost[j] = cost[j - 1] + longest + run_cost;
    begin[j] = j - 1;
    for (std::int64_t i = j - 2; i >= j - rows; --i) {
      const std::int64_t together = cost[i] + (j - i) * longest + run_cost;
      if (together <= cost[j]) {
        cost[j] = together;
        begin[j] = i;
      }
    }
  }
  std::vector<std::int64_t> ends;
  for (std::int64_t j = n; j > 0; j = begin[j]) ends.push_back(j);
  std::reverse(ends.begin(), ends.end());
  return ends;
}

}  // namespace mirror_rt
