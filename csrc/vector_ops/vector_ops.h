// Processes embeddings after the model: scalar quantisation, the k best of many dot products, and
// late interaction of token vectors.
//
// The inner loops are plain loops that the compilers vectorise, compiled once for each instruction
// set (vector_ops/kernels.h) and chosen here at run time.
#pragma once

#include <cstdint>
#include <vector>

namespace mirror_rt::vector_ops {

/// What coded token vectors stand for: rows of the number of a centroid, in 4 bytes, and residuals.
struct ResidualCodec {
  const float* centroids;  // [.., dim]
  const float* weights;    // [256, per_byte]: the residuals of each byte
  std::int64_t per_byte;   // 8, 4 or 2
};

/// The functions that are compiled once for each instruction set.
struct Isa {
  const char* name;

  /// Writes out = min(max(floor((x - starts) / steps), 0), 255) of one row, each byte xor `flip`.
  /// Returns whether the row is free of NaN.
  bool (*quantize_row)(const float* x, std::int64_t dim, const float* starts, const float* steps,
                       std::uint8_t flip, std::uint8_t* out);

  /// Widens a row of codes to 16 bits; they are int8 if `flip` is 0x80, and uint8 if it is 0.
  void (*widen)(const std::uint8_t* codes, std::int64_t count, std::uint8_t flip,
                std::int16_t* out);

  /// Sets scores[r] to the dot product of `query` and row r of `rows` [n, dim]; n is a multiple
  /// of 4.
  void (*dots)(const std::int16_t* query, const std::int16_t* rows, std::int64_t n,
               std::int64_t dim, std::int32_t* scores);

  /// Sets scores[r] to -(number of bits in which `query` and row r of `rows` [n, bytes] differ).
  void (*agreement)(const std::uint8_t* query, const std::uint8_t* rows, std::int64_t n,
                    std::int64_t bytes, std::int32_t* scores);

  /// Widens float16 numbers to float32.
  void (*widen_halves)(const std::uint16_t* halves, std::int64_t count, float* out);

  /// Sets scores[r] to the dot product of `query` and row r of `rows` [n, dim], which are float16.
  void (*half_dots)(const float* query, const std::uint16_t* rows, std::int64_t n, std::int64_t dim,
                    float* scores);

  /// Widens codes to float32; for `flip` see `widen`.
  void (*widen_codes)(const std::uint8_t* codes, std::int64_t count, std::uint8_t flip, float* out);

  /// Writes the vectors of coded rows [n, 4 + dim / per_byte]: out [n, dim], of unit length.
  void (*widen_residuals)(const ResidualCodec& codec, const std::uint8_t* rows, std::int64_t n,
                          std::int64_t dim, float* out);

  /// Raises best[c] to the largest dot product of column c of `panel` [dim, columns] with a row of
  /// `rows` [n, dim].
  void (*best_products)(const float* rows, std::int64_t n, std::int64_t dim, const float* panel,
                        float* best);

  /// Writes the dot products of `rows` [n, dim] with the columns of `panel` [dim, columns]: out
  /// [n, columns].
  void (*products)(const float* rows, std::int64_t n, std::int64_t dim, const float* panel,
                   float* out);
  std::int64_t columns;

  /// Returns whether any score is above `threshold`; a NaN is not.
  bool (*any_above_float)(const float* scores, std::int64_t n, float threshold);
  bool (*any_above_int)(const std::int32_t* scores, std::int64_t n, std::int32_t threshold);
};

/// Every instruction set that was compiled, the most capable last; the list ends with null.
extern const Isa* const kIsas[];

/// Returns the instruction set of that name if this processor has it, else null; for a null name,
/// the most capable one.
const Isa* find_isa(const char* name);

/// The k best scores of a query so far: a heap whose root is the worst of them. Unused places have
/// the least score and index -1. Of equal scores, the one with the lower index is better.
template <class Score>
struct Best {
  Score* scores;
  std::int64_t* indices;
  std::int64_t k;
};

/// Puts those `scores` [n] of rows `first`, `first` + 1, ... that are among the k best into the
/// heap. Over the calls for one heap the rows must come in rising order.
void keep_best(const Isa& isa, const float* scores, std::int64_t n, std::int64_t first,
               const Best<float>& best);

/// Returns the rows of x [n, dim] that hold NaN or infinity.
std::vector<std::int64_t> non_finite_rows(const float* x, std::int64_t n, std::int64_t dim);

/// A corpus of byte rows, and the number of parts into which it is split, each with its own heaps.
/// For `flip` see Isa::widen.
struct Corpus {
  const std::uint8_t* rows;
  std::int64_t count, bytes;  // number of rows, and bytes of a row
  std::int64_t parts;
  std::uint8_t flip = 0;
};

template <class Query>
using Search = void(const Isa& isa, const Corpus& corpus, const Query* queries,
                    std::int64_t n_queries, std::int64_t k, std::int32_t* scores,
                    std::int64_t* indices);

/// For every part of the corpus and every query, puts the k rows with the largest dot products into
/// scores and indices [parts, n_queries, k], which must hold empty heaps. Sums must fit into 32
/// bits.
Search<std::int16_t> search_codes;

/// Does the same for rows and queries of packed bits; the score is -(number of different bits).
Search<std::uint8_t> search_bits;

/// Computes the dot products of `queries` [n_queries, dim] with float16 `rows` [n, dim], a part of
/// the rows on each thread: scores [n_queries, n]. Of many queries, rows are widened once for all.
void half_products(const Isa& isa, const float* queries, std::int64_t n_queries,
                   const std::uint16_t* rows, std::int64_t n, std::int64_t dim, std::int64_t parts,
                   float* scores);

/// The token vectors of some texts: text i is rows[i] [lengths[i], dim]. Halves are 16 bits.
template <class Number>
struct TokenVectors {
  const Number* const* rows;
  const std::int64_t* lengths;
  std::int64_t count, dim;
};

/// Sets scores [queries, documents] to the sum over a query's tokens of the largest product with a
/// token of the document: -inf for a document without tokens, or a query with NaN. A token of NaN
/// in a document counts as none.
template <class Number>
void max_similarities(const Isa& isa, const TokenVectors<float>& queries,
                      const TokenVectors<Number>& documents, std::int64_t threads, float* scores);

/// Does the same for documents of coded rows.
void max_similarities(const Isa& isa, const TokenVectors<float>& queries,
                      const TokenVectors<std::uint8_t>& documents, const ResidualCodec& codec,
                      std::int64_t threads, float* scores);

/// Writes the codes of all rows, see Isa::quantize_row. Returns the first row that holds a NaN (its
/// codes and those of later rows are undefined), or -1.
std::int64_t quantize(const Isa& isa, const float* x, std::int64_t n, std::int64_t dim,
                      const float* starts, const float* steps, std::uint8_t flip,
                      std::uint8_t* out);

}  // namespace mirror_rt::vector_ops
