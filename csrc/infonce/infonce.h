// InfoNCE on the CPU: the O(rows * columns * D) steps and the O(rows * D) ones around them.
//
// The five steps and their formulas are those of train/mirror_train/loss/kernel.py. Rows are read
// where they are (float32, float16 or bfloat16, row-major, in up to three blocks); results are
// float32. No function keeps anything between calls.
#pragma once

#include <cstdint>
#include <vector>

#include "infonce/cpu/isa.h"

namespace mirror_rt::infonce {

enum class Dtype { float32, float16, bfloat16 };

/// Row-major [rows, dim] embeddings of one tensor.
struct Block {
  const void* data;
  std::int64_t rows;
};

/// Blocks one after another, and 1 / max(norm, 1e-12) of every row.
struct Rows {
  std::vector<Block> blocks;
  std::int64_t dim;
  Dtype dtype;
  const float* inverse_norms;

  std::int64_t count() const;
};

/// The first n_rows rows and n_columns columns belong to strings; see kernel.py.
struct Negatives {
  std::int64_t n_rows, n_columns, period;
  const std::int64_t* row_ids;     // or null: row i is of string i % period
  const std::int64_t* column_ids;  // null exactly when row_ids is
};

/// The positive of row i < count is row (i + shift) % count of the partners.
struct Pairs {
  std::int64_t count, shift;
  bool mutual;
};

/// How to run: instruction set and number of threads.
struct Execution {
  const Isa* isa;
  int threads;
};

/// 1 / max(norm, 1e-12) of each row; `rows.inverse_norms` is not read.
void inverse_norms(const Rows& rows, const Execution& execution, float* out);

/// n_i of the first n_rows rows. `columns` null: the columns are the rows.
void logsumexp(const Rows& rows, const Rows* columns, const Negatives& negatives, float scale,
               const Execution& execution, float* n);

/// weights and log_weights [pairs.count]; returns `factor` times the sum of the losses.
double objective(const Rows& rows, const Rows& partners, const Pairs& pairs, const float* n,
                 float scale, bool decoupled, double factor, const Execution& execution,
                 float* weights, float* log_weights);

/// Row length of the sums of `contract`: dim rounded up, and rows to allocate for `rows` rows.
std::int64_t padded_dim(const Isa& isa, std::int64_t dim);
std::int64_t padded_rows(const Isa& isa, std::int64_t rows);

/// sums_i = sum over j of W_ij y^_j, row-major [padded_rows, padded_dim]; with column_sums also
/// the sums of the columns. a [n_rows] and b [n_columns] may be null for -inf; with `columns`
/// null the problem is symmetric, and b must be a.
void contract(const Rows& rows, const Rows* columns, const Negatives& negatives, const float* a,
              const float* b, float scale, const Execution& execution, float* sums,
              float* column_sums);

/// Gradients of the blocks of `rows`, in their dtype: see Kernel.finish.
void finish(const float* sums, std::int64_t sums_stride, const Rows& rows, const Rows& partners,
            const Pairs& pairs, const float* weights, float factor, const Execution& execution,
            const std::vector<void*>& gradients);

}  // namespace mirror_rt::infonce
