// Embeddings after the model: scalar quantisation, and the k best of many dot products.
//
// The inner loops are plain loops that the compilers vectorise, compiled once for each instruction
// set (vector_ops/kernels.h) and chosen here at run time.
#pragma once

#include <cstdint>
#include <vector>

namespace mirror_rt::vector_ops {

/// The functions that are compiled once for each instruction set.
struct Isa {
  const char* name;
  bool (*supported)();

  /// out = min(max(floor((x - starts) / steps), 0), 255), each byte xor `flip`; one row.
  /// Returns whether the row is free of NaN.
  bool (*quantize_row)(const float* x, std::int64_t dim, const float* starts, const float* steps,
                       std::uint8_t flip, std::uint8_t* out);

  /// Widens a row of codes to 16 bits: of int8 where `flip` is 0x80, of uint8 where it is 0.
  void (*widen)(const std::uint8_t* codes, std::int64_t count, std::uint8_t flip,
                std::int16_t* out);

  /// scores[r] = dot of `query` and row r of `rows` [n, dim]; n is a multiple of 4.
  void (*dots)(const std::int16_t* query, const std::int16_t* rows, std::int64_t n,
               std::int64_t dim, std::int32_t* scores);

  /// scores[r] = - (number of bits in which `query` and row r of `rows` [n, bytes] differ).
  void (*agreement)(const std::uint8_t* query, const std::uint8_t* rows, std::int64_t n,
                    std::int64_t bytes, std::int32_t* scores);

  /// Whether a score is above `threshold`. A NaN is not.
  bool (*any_above_float)(const float* scores, std::int64_t n, float threshold);
  bool (*any_above_int)(const std::int32_t* scores, std::int64_t n, std::int32_t threshold);
};

/// Every instruction set that was compiled, the most capable last; ends with null.
extern const Isa* const kIsas[];

/// The named one if this processor has it, the most capable for null; null for none.
const Isa* find_isa(const char* name);

/// The k best of a query so far: a heap whose root is the worst of them. Unused places have the
/// least score and index -1. Equal scores: the lower index is better.
template <class Score>
struct Best {
  Score* scores;
  std::int64_t* indices;
  std::int64_t k;
};

/// Takes what of `scores` [n], of rows `first`, `first` + 1 ..., is among the best. Within one
/// heap the rows must come in rising order.
void keep_best(const Isa& isa, const float* scores, std::int64_t n, std::int64_t first,
               const Best<float>& best);
void keep_best(const Isa& isa, const std::int32_t* scores, std::int64_t n, std::int64_t first,
               const Best<std::int32_t>& best);

/// The rows of x [n, dim] that hold NaN or infinity.
std::vector<std::int64_t> non_finite_rows(const float* x, std::int64_t n, std::int64_t dim);

/// A corpus of byte rows, and the part of it that one heap is for.
struct Corpus {
  const std::uint8_t* rows;
  std::int64_t count, bytes;  // of a row
  std::int64_t parts;
};

/// For every part p of the corpus and every query: the k rows of largest dot product, into
/// scores and indices [parts, n_queries, k], which hold empty heaps. `flip`: see Isa::widen.
/// Sums must fit 32 bits.
void search_codes(const Isa& isa, const Corpus& corpus, std::uint8_t flip,
                  const std::int16_t* queries, std::int64_t n_queries, std::int64_t k,
                  std::int32_t* scores, std::int64_t* indices);

/// The same for rows and queries of packed bits; the score is - (number of different bits).
void search_bits(const Isa& isa, const Corpus& corpus, const std::uint8_t* queries,
                 std::int64_t n_queries, std::int64_t k, std::int32_t* scores,
                 std::int64_t* indices);

/// Returns the first row that holds a NaN (its codes and those after it are undefined), or -1.
std::int64_t quantize(const Isa& isa, const float* x, std::int64_t n, std::int64_t dim,
                      const float* starts, const float* steps, std::uint8_t flip,
                      std::uint8_t* out);

}  // namespace mirror_rt::vector_ops
