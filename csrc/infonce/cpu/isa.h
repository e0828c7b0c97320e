// The functions for one tile of the cosine matrix, compiled once for each instruction set.
//
// A block of rows is packed in three ways, so that every product below reads its operands
// sequentially. P = Isa::panel is the number of columns of a panel, T the number of rows of a
// block, and a unit is a float, or a pair of bfloat16 along the summed index:
//
//   by_dim     [D / P][T][P]   rows, a panel of dimensions at a time: left operand of the cosines
//   transposed [T / P][D][P]   the same block transposed: right operand of the cosines
//   by_row     [D / P][T][P]   right operand of both weighted sums (for floats this is by_dim)
//
//                       columns J                    S_IJ  = X_I X_J^T       by_dim, transposed
//                  +--------+--------+               W_IJ  = epilogue(S_IJ)
//          rows I  | S_II   | S_IJ   |               sums_I += W_IJ X_J      by_row of J
//                  +--------+--------+               sums_J += W_IJ^T X_I    by_row of I
//                           | S_JJ   |
//                           +--------+               tiles under the diagonal are never computed
#pragma once

#include <cstdint>

namespace mirror_rt::infonce {

/// A packed block; the pointers lead into one allocation of the caller.
struct PackedBlock {
  const void* by_dim;
  const void* transposed;
  const void* by_row;
  std::int64_t rows;   // real rows, at most T
  std::int64_t first;  // index of the first row among all rows
};

/// Sizes common to all blocks of a call.
struct Geometry {
  std::int64_t block;  // T, a multiple of Isa::panel
  std::int64_t dim;    // D rounded up to a multiple of Isa::panel
};

/// The running logsumexp of rows; in base 2 it is maximum + log2(sum).
struct LogSumExp {
  float* maxima;  // base 2
  double* sums;
};

/// The base-2 exponents of the two terms of W, or their factors if one exponential is enough.
struct LogWeights {
  const float* rows;     // [T]
  const float* columns;  // [T]
};

/// How scores become W; see Isa::weights.
struct Weighing {
  float scale;  // base 2
  bool one_exponential;
  LogWeights log_weights;
};

/// One instruction set. All buffers are 64-byte aligned; `scores` holds [T / P][T][P] floats.
struct Isa {
  const char* name;
  int panel;     // P
  int row_step;  // rows of a register tile; divides `panel`
  int pair;      // values in a unit: 1 for floats, 2 for bfloat16 pairs

  /// Returns the dot product of two rows of n floats, summed in float64; they may be unaligned.
  double (*dot)(const float* x, const float* y, std::int64_t n);

  /// Packs float32 unit rows [T, dim] (row-major, zero past the last real row) into three layouts.
  void (*pack)(const Geometry&, const float* unit, void* by_dim, void* transposed, void* by_row);

  /// scores = X_I X_J^T for the real rows and columns, rounded up to register tiles.
  void (*scores)(const Geometry&, const PackedBlock& rows, const PackedBlock& columns,
                 float* scores);

  /// Adds the tile to the logsumexp of the rows and, unless `columns.sums` is null, of the columns.
  /// `scale` is in base 2. With `fixed_maximum` every maximum is `scale`, as no cosine exceeds 1.
  void (*logsumexp)(const Geometry&, std::int64_t n_rows, std::int64_t n_columns, float* scores,
                    float scale, bool fixed_maximum, const LogSumExp& rows,
                    const LogSumExp& columns);

  /// Turns scores into W. With `one_exponential` W = 2^(scale (s - 1)) (a_i + b_j), where the log
  /// weights are factors; otherwise W = 2^(scale s + a_i) + 2^(scale s + b_j).
  void (*weights)(const Geometry&, std::int64_t n_rows, std::int64_t n_columns, float* scores,
                  Weighing how);

  /// Turns scores into the W of the student less that of the teacher, whose scores are
  /// `teacher_scores`, and returns the sum of the teacher's W times how much its exponent, scale s,
  /// exceeds the student's.
  double (*taught_weights)(const Geometry&, std::int64_t n_rows, std::int64_t n_columns,
                           float* scores, const float* teacher_scores, Weighing student,
                           Weighing teacher);

  /// Computes sums_I += W X_J and, unless `column_sums` is null, sums_J += W^T X_I. Both are
  /// row-major with rows of Geometry::dim floats, allocated up to a multiple of row_step rows.
  /// `scratch` is as large as two tiles; `scores` holds W and is overwritten.
  void (*accumulate)(const Geometry&, const PackedBlock& rows, const PackedBlock& columns,
                     float* scores, void* scratch, float* row_sums, float* column_sums);
};

/// Every instruction set that was compiled, the most capable last; the list ends with null.
extern const Isa* const kIsas[];

/// Returns the instruction set of that name if this processor has it, else null.
const Isa* find_isa(const char* name);

/// Returns the most capable one for float32 operands, or with `pairs` for bfloat16 ones, or null.
const Isa* best_isa(bool pairs);

}  // namespace mirror_rt::infonce
