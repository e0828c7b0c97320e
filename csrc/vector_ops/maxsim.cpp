// Scores documents of token vectors by late interaction: the sum over the tokens of a query of the
// largest dot product with a token of the document.
//
// The tokens of queries lie in panels of as many columns as two vectors of the processor, [dim]
// [columns], so that a number of a document meets a whole panel, and no sum crosses lanes. Every
// product is summed over the dimensions in their order, whatever is beside it.
#include <algorithm>
#include <limits>

#include "parallel.h"
#include "vector_ops/panels.h"

namespace mirror_rt::vector_ops {
namespace {

constexpr std::int64_t kTokens = 48;  // of a document that are widened at a time

/// Returns rows in float32: in their own place, or widened to another.
const float* widened(const Isa&, const float* rows, std::int64_t, float*) { return rows; }
const float* widened(const Isa& isa, const std::uint16_t* rows, std::int64_t count, float* wide) {
  isa.widen_halves(rows, count, wide);
  return wide;
}
const float* widened(const Isa& isa, const std::uint8_t* rows, std::int64_t count, float* wide) {
  isa.widen_codes(rows, count, 0, wide);
  return wide;
}
const float* widened(const Isa& isa, const std::int8_t* rows, std::int64_t count, float* wide) {
  isa.widen_codes(reinterpret_cast<const std::uint8_t*>(rows), count, 0x80, wide);
  return wide;
}

/// Scores documents, of which tokens_of(document, first, count, scratch) gives rows in float32.
template <class Documents, class TokensOf>
void score(const Isa& isa, const TokenVectors<float>& queries, const Documents& documents,
           std::int64_t threads, float* scores, const TokensOf& tokens_of) {
  const Panels panels(isa, queries);
  const std::int64_t dim = queries.dim, columns = isa.columns, all = panels.starts[queries.count];
  const std::int64_t of_thread = kTokens * dim + all * columns;
  const auto scratch = floats(threads * of_thread);
  parallel_for(documents.count, static_cast<int>(threads), [&](std::int64_t document, int thread) {
    float *wide = scratch.get() + thread * of_thread, *best = wide + kTokens * dim;
    std::fill_n(best, all * columns, -std::numeric_limits<float>::infinity());
    const std::int64_t length = documents.lengths[document];
    for (std::int64_t first = 0; first < length; first += kTokens) {
      const std::int64_t count = std::min(kTokens, length - first);
      const float* tokens = tokens_of(document, first, count, wide);
      for (std::int64_t panel = 0; panel < all; ++panel) {
        const float* values = panels.values.get() + panel * dim * columns;
        isa.best_products(tokens, count, dim, values, best + panel * columns);
      }
    }
    for (std::int64_t q = 0; q < queries.count; ++q) {
      double sum = 0;
      const float* found = best + panels.starts[q] * columns;
      for (std::int64_t token = 0; token < queries.lengths[q]; ++token) sum += double{found[token]};
      scores[q * documents.count + document] = static_cast<float>(sum);
    }
  });
}

}  // namespace

template <class Number>
void max_similarities(const Isa& isa, const TokenVectors<float>& queries,
                      const TokenVectors<Number>& documents, std::int64_t threads, float* scores) {
  const std::int64_t dim = queries.dim;
  score(isa, queries, documents, threads, scores,
        [&](std::int64_t document, std::int64_t first, std::int64_t count, float* wide) {
          return widened(isa, documents.rows[document] + first * dim, count * dim, wide);
        });
}

void max_similarities(const Isa& isa, const TokenVectors<float>& queries,
                      const TokenVectors<std::uint8_t>& documents, const ResidualCodec& codec,
                      std::int64_t threads, float* scores) {
  score(isa, queries, documents, threads, scores,
        [&](std::int64_t document, std::int64_t first, std::int64_t count, float* wide) {
          const std::uint8_t* rows = documents.rows[document] + first * documents.dim;
          isa.widen_residuals(codec, rows, count, queries.dim, wide);
          return wide;
        });
}

template void max_similarities(const Isa&, const TokenVectors<float>&, const TokenVectors<float>&,
                               std::int64_t, float*);
template void max_similarities(const Isa&, const TokenVectors<float>&,
                               const TokenVectors<std::uint16_t>&, std::int64_t, float*);
template void max_similarities(const Isa&, const TokenVectors<float>&,
                               const TokenVectors<std::uint8_t>&, std::int64_t, float*);
template void max_similarities(const Isa&, const TokenVectors<float>&,
                               const TokenVectors<std::int8_t>&, std::int64_t, float*);

}  // namespace mirror_rt::vector_ops
