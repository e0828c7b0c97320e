#include "vector_ops/vector_ops.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "isa_list.h"
#include "parallel.h"
#include "vector_ops/panels.h"

namespace mirror_rt::vector_ops {

extern const Isa k_portable;
#ifdef MIRROR_RT_X86
extern const Isa k_avx2, k_avx512;
const Isa* const kIsas[] = {&k_portable, &k_avx2, &k_avx512, nullptr};
#else
const Isa* const kIsas[] = {&k_portable, nullptr};
#endif

namespace {

constexpr std::int64_t kTile = 32;     // rows that are scored before the best of them are kept
constexpr std::int64_t kWidened = 48;  // rows of halves that are widened at a time
// Queries from which on it is quicker to widen a row of halves once than for each of them.
constexpr std::int64_t kManyQueries = 8;

/// Replaces the root by a score, and restores the order of the heap.
template <class Score>
void replace_worst(const Best<Score>& best, Score score, std::int64_t index) {
  const auto worse = [&](std::int64_t i, Score other, std::int64_t other_index) {
    return best.scores[i] < other || (best.scores[i] == other && best.indices[i] > other_index);
  };
  std::int64_t place = 0;
  for (std::int64_t child; (child = 2 * place + 1) < best.k; place = child) {
    if (child + 1 < best.k && worse(child + 1, best.scores[child], best.indices[child])) ++child;
    if (!worse(child, score, index)) break;
    best.scores[place] = best.scores[child];
    best.indices[place] = best.indices[child];
  }
  best.scores[place] = score;
  best.indices[place] = index;
}

template <class Score, class AnyAbove>
void keep_best_of(AnyAbove any_above, const Score* scores, std::int64_t n, std::int64_t first,
                  const Best<Score>& best) {
  for (std::int64_t start = 0; start < n; start += kTile) {
    const std::int64_t count = std::min(kTile, n - start);
    if (!any_above(scores + start, count, best.scores[0])) continue;
    for (std::int64_t i = start; i < start + count; ++i) {
      if (scores[i] > best.scores[0]) replace_worst(best, scores[i], first + i);
    }
  }
}

/// Searches one part: prepare(first, count) prepares a tile of rows, and
/// score_query(query, first, count, scores) scores them.
template <class Prepare, class ScoreQuery>
void search_part(const Isa& isa, const Corpus& corpus, std::int64_t part, std::int64_t n_queries,
                 std::int64_t k, std::int32_t* scores, std::int64_t* indices,
                 const Prepare& prepare, const ScoreQuery& score_query) {
  const std::int64_t begin = corpus.count * part / corpus.parts;
  const std::int64_t end = corpus.count * (part + 1) / corpus.parts;
  std::int32_t tile[kTile];
  for (std::int64_t first = begin; first < end; first += kTile) {
    const std::int64_t count = std::min(kTile, end - first);
    prepare(first, count);
    for (std::int64_t q = 0; q < n_queries; ++q) {
      score_query(q, first, count, tile);
      const std::int64_t heap = (part * n_queries + q) * k;
      const Best<std::int32_t> best{scores + heap, indices + heap, k};
      keep_best_of(isa.any_above_int, tile, count, first, best);
    }
  }
}

}  // namespace

const Isa* find_isa(const char* name) {
  return last_supported(
      kIsas, [&](const Isa& isa) { return name == nullptr || std::strcmp(isa.name, name) == 0; });
}

void keep_best(const Isa& isa, const float* scores, std::int64_t n, std::int64_t first,
               const Best<float>& best) {
  keep_best_of(isa.any_above_float, scores, n, first, best);
}

std::vector<std::int64_t> non_finite_rows(const float* x, std::int64_t n, std::int64_t dim) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < n; ++row) {
    // x - x is 0 for a finite x, and NaN for NaN and infinity.
    bool finite = true;
    for (std::int64_t i = row * dim; i < (row + 1) * dim; ++i) finite &= x[i] - x[i] == 0;
    if (!finite) rows.push_back(row);
  }
  return rows;
}

void search_codes(const Isa& isa, const Corpus& corpus, const std::int16_t* queries,
                  std::int64_t n_queries, std::int64_t k, std::int32_t* scores,
                  std::int64_t* indices) {
  const std::int64_t dim = corpus.bytes;
  // Zeroed, because the last tile is scored up to a multiple of four rows.
  const auto wide =
      std::make_unique<std::int16_t[]>(static_cast<std::size_t>(corpus.parts * kTile * dim));
  const auto body = [&](std::int64_t part, int) {
    std::int16_t* rows = wide.get() + part * kTile * dim;
    search_part(
        isa, corpus, part, n_queries, k, scores, indices,
        [&](std::int64_t first, std::int64_t count) {
          isa.widen(corpus.rows + first * dim, count * dim, corpus.flip, rows);
        },
        [&](std::int64_t q, std::int64_t, std::int64_t count, std::int32_t* tile) {
          isa.dots(queries + q * dim, rows, (count + 3) / 4 * 4, dim, tile);
        });
  };
  parallel_for(corpus.parts, static_cast<int>(corpus.parts), body);
}

void search_bits(const Isa& isa, const Corpus& corpus, const std::uint8_t* queries,
                 std::int64_t n_queries, std::int64_t k, std::int32_t* scores,
                 std::int64_t* indices) {
  const auto body = [&](std::int64_t part, int) {
    search_part(
        isa, corpus, part, n_queries, k, scores, indices, [](std::int64_t, std::int64_t) {},
        [&](std::int64_t q, std::int64_t first, std::int64_t count, std::int32_t* tile) {
          isa.agreement(queries + q * corpus.bytes, corpus.rows + first * corpus.bytes, count,
                        corpus.bytes, tile);
        });
  };
  parallel_for(corpus.parts, static_cast<int>(corpus.parts), body);
}

void half_products(const Isa& isa, const float* queries, std::int64_t n_queries,
                   const std::uint16_t* rows, std::int64_t n, std::int64_t dim, std::int64_t parts,
                   float* scores) {
  const bool many = n_queries >= kManyQueries;
  const std::int64_t in_panels = many ? n_queries : 0;
  const Panels panels(isa, TokenVectors<float>{&queries, &in_panels, 1, dim});
  const auto of_few = [&](std::int64_t first, std::int64_t count) {
    for (std::int64_t q = 0; q < n_queries; ++q) {
      isa.half_dots(queries + q * dim, rows + first * dim, count, dim, scores + q * n + first);
    }
  };
  const auto of_many = [&](std::int64_t first, std::int64_t count, float* wide) {
    float* tile = wide + kWidened * dim;
    isa.widen_halves(rows + first * dim, count * dim, wide);
    for (std::int64_t q = 0; q < n_queries; q += isa.columns) {
      isa.products(wide, count, dim, panels.values.get() + q * dim, tile);
      for (std::int64_t c = 0; c < std::min(isa.columns, n_queries - q); ++c) {
        float* to = scores + (q + c) * n + first;
        for (std::int64_t r = 0; r < count; ++r) to[r] = tile[r * isa.columns + c];
      }
    }
  };
  parallel_for(parts, static_cast<int>(parts), [&](std::int64_t part, int) {
    const auto scratch = floats(many ? kWidened * (dim + isa.columns) : 0);
    const std::int64_t end = n * (part + 1) / parts;
    for (std::int64_t first = n * part / parts; first < end; first += kWidened) {
      const std::int64_t count = std::min(kWidened, end - first);
      many ? of_many(first, count, scratch.get()) : of_few(first, count);
    }
  });
}

std::int64_t quantize(const Isa& isa, const float* x, std::int64_t n, std::int64_t dim,
                      const float* starts, const float* steps, std::uint8_t flip,
                      std::uint8_t* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    if (!isa.quantize_row(x + i * dim, dim, starts, steps, flip, out + i * dim)) return i;
  }
  return -1;
}

}  // namespace mirror_rt::vector_ops
