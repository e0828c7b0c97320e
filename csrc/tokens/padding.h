// Right-pads ragged token ids: the copy between the tokenizer and the session.
#pragma once

#include <cstdint>

namespace mirror_rt {

/// A ragged matrix of token ids: sequence i is ids[offsets[i]] up to, not including,
/// ids[offsets[i + 1]].
struct Ragged {
  const std::int32_t* ids;
  const std::int64_t* offsets;
};

/// The memory that a padded batch is written to: three row-major [n_rows, length] matrices.
struct PaddedBatch {
  std::int64_t* input_ids;
  std::int64_t* attention_mask;
  std::int64_t* token_type_ids;
};

/// Copies the sequences `rows` of `tokens` into `out`, one per row, and fills the end of each row
/// with `pad_id`, mask 0 and type 0. Every chosen sequence must be at most `length` ids long.
void pad_rows(const Ragged& tokens, const std::int64_t* rows, std::int64_t n_rows,
              std::int64_t length, std::int64_t pad_id, const PaddedBatch& out);

}  // namespace mirror_rt
