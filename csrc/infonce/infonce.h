// InfoNCE on the CPU: the O(rows * columns * D) steps, and the O(rows * D) steps around them.
//
// The five steps and their formulas are those of train/mirror_train/loss/kernel.py. Rows are read
// in place (float32, float16 or bfloat16, row-major, in up to three blocks); results are float32.
// No function keeps state between calls.
#pragma once

#include <cstdint>
#include <vector>

#include "infonce/cpu/isa.h"

namespace mirror_rt::infonce {

enum class Dtype { float32, float16, bfloat16 };

/// The row-major [rows, dim] embeddings of one tensor.
struct Block {
  const void* data;
  std::int64_t rows;
};

/// Consecutive blocks of rows, and 1 / max(norm, 1e-12) of every row.
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
  const std::int64_t* row_ids;     // or null: row i belongs to string i % period
  const std::int64_t* column_ids;  // null exactly when row_ids is
};

/// The positive of row i < count is row (i + shift) % count of the partners.
struct Pairs {
  std::int64_t count, shift;
  bool mutual;
};

/// How to run: the instruction set and the number of threads.
struct Execution {
  const Isa* isa;
  int threads;
};

/// Writes 1 / max(norm, 1e-12) of each row; `rows.inverse_norms` is not read.
void inverse_norms(const Rows& rows, const Execution& execution, float* out);

/// Writes n_i of the first n_rows rows. If `columns` is null, the columns are the rows.
void logsumexp(const Rows& rows, const Rows* columns, const Negatives& negatives, float scale,
               const Execution& execution, float* n);

/// Writes weights and log_weights [pairs.count]; returns `factor` times the sum of the losses.
double objective(const Rows& rows, const Rows& partners, const Pairs& pairs, const float* n,
                 float scale, bool decoupled, double factor, const Execution& execution,
                 float* weights, float* log_weights);

/// The sums of `contract` have rows of padded_dim floats, and need room for padded_rows rows,
/// from a boundary of 64 bytes on.
std::int64_t padded_dim(const Isa& isa, std::int64_t dim);
std::int64_t padded_rows(const Isa& isa, std::int64_t rows);

/// The fixed vectors of a teacher, one for each row, and its log weights a [rows].
struct Teacher {
  const Rows* rows;
  const float* a;
  float scale;
};

/// Writes sums_i = sum over j of W_ij y^_j, row-major [padded_rows, padded_dim], and the sums of
/// the columns unless `column_sums` is null. a [n_rows] and b [n_columns] may be null for -inf. If
/// `columns` is null the problem is symmetric, and b must be a. Of a symmetric problem that has a
/// `teacher`, W is less by the teacher's W^T, and the sum over i, j of exp(t_ij + a^T_i)
/// (t_ij - s_ij) is returned, where t_ij are the teacher's scaled cosines; otherwise 0.
double contract(const Rows& rows, const Rows* columns, const Negatives& negatives, const float* a,
                const float* b, float scale, const Teacher* teacher, const Execution& execution,
                float* sums, float* column_sums);

/// Writes the gradients of the blocks of `rows`, in their dtype; see Kernel.finish.
void finish(const float* sums, std::int64_t sums_stride, const Rows& rows, const Rows& partners,
            const Pairs& pairs, const float* weights, float factor, const Execution& execution,
            const std::vector<void*>& gradients);

}  // namespace mirror_rt::infonce
