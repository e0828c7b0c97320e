#include "tokens/padding.h"

#include <algorithm>

namespace mirror_rt {

void pad_rows(const Ragged& tokens, const std::int64_t* rows, std::int64_t n_rows,
              std::int64_t length, std::int64_t pad_id, const PaddedBatch& out) {
  for (std::int64_t r = 0; r < n_rows; ++r) {
    const std::int64_t begin = tokens.offsets[rows[r]];
    const std::int64_t count = tokens.offsets[rows[r] + 1] - begin;
    std::int64_t* ids = out.input_ids + r * length;
    std::int64_t* mask = out.attention_mask + r * length;
    std::copy_n(tokens.ids + begin, count, ids);  // widens 32 to 64 bits
    std::fill(ids + count, ids + length, pad_id);
    std::fill_n(mask, count, std::int64_t{1});
    std::fill(mask + count, mask + length, std::int64_t{0});
  }
  std::fill_n(out.token_type_ids, n_rows * length, std::int64_t{0});
}

}  // namespace mirror_rt
