// The vector operations against their definitions, without Python: for sanitizers and for other
// processors. Prints what it compared and returns 1 where something differs.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "isa_list.h"
#include "vector_ops/vector_ops.h"

using namespace mirror_rt::vector_ops;

namespace {

std::mt19937 generator(1);

template <class T>
std::vector<T> random_integers(std::int64_t count, int least, int most) {
  std::uniform_int_distribution<int> value(least, most);
  std::vector<T> out(static_cast<std::size_t>(count));
  for (T& x : out) x = static_cast<T>(value(generator));
  return out;
}

struct Case {
  const Isa* isa;
  std::int64_t rows, bytes, k, parts;
};

using Hit = std::pair<std::int64_t, std::int64_t>;  // (- score, index): smaller is better

/// Whether the heaps of all parts hold the best k of `scores` [queries, rows].
bool holds_best(const Case& c, std::int64_t queries, const std::vector<std::int64_t>& scores,
                const std::vector<std::int32_t>& found_scores,
                const std::vector<std::int64_t>& found) {
  for (std::int64_t q = 0; q < queries; ++q) {
    std::vector<Hit> expected, got;
    for (std::int64_t r = 0; r < c.rows; ++r) expected.emplace_back(-scores[q * c.rows + r], r);
    for (std::int64_t p = 0; p < c.parts; ++p) {
      for (std::int64_t i = 0; i < c.k; ++i) {
        const std::int64_t place = (p * queries + q) * c.k + i;
        if (found[place] >= 0) got.emplace_back(-std::int64_t{found_scores[place]}, found[place]);
      }
    }
    std::sort(expected.begin(), expected.end());
    std::sort(got.begin(), got.end());
    const std::int64_t n = std::min(c.k, c.rows);
    if (std::int64_t(got.size()) < n) return false;
    if (!std::equal(got.begin(), got.begin() + n, expected.begin())) return false;
  }
  return true;
}

bool check_search(const Case& c, std::uint8_t flip) {
  const std::int64_t queries = 3;
  const auto corpus = random_integers<std::uint8_t>(c.rows * c.bytes, 0, 255);
  const auto wide = random_integers<std::int16_t>(queries * c.bytes, -9000, 9000);
  const auto bits = random_integers<std::uint8_t>(queries * c.bytes, 0, 255);
  std::vector<std::int64_t> products(queries * c.rows), agreement(queries * c.rows);
  for (std::int64_t q = 0; q < queries; ++q) {
    for (std::int64_t r = 0; r < c.rows; ++r) {
      std::int64_t product = 0, different = 0;
      for (std::int64_t i = 0; i < c.bytes; ++i) {
        const int code = corpus[r * c.bytes + i];
        product += wide[q * c.bytes + i] * (flip != 0 && code > 127 ? code - 256 : code);
        different += __builtin_popcount(unsigned(code ^ bits[q * c.bytes + i]));
      }
      products[q * c.rows + r] = product;
      agreement[q * c.rows + r] = -different;
    }
  }
  const Corpus rows{corpus.data(), c.rows, c.bytes, c.parts, flip};
  const auto places = static_cast<std::size_t>(c.parts * queries * c.k);
  const std::int32_t least = std::numeric_limits<std::int32_t>::min();
  std::vector<std::int32_t> scores(places, least);
  std::vector<std::int64_t> indices(places, -1);
  search_codes(*c.isa, rows, wide.data(), queries, c.k, scores.data(), indices.data());
  if (!holds_best(c, queries, products, scores, indices)) return false;
  scores.assign(places, least);
  indices.assign(places, -1);
  search_bits(*c.isa, rows, bits.data(), queries, c.k, scores.data(), indices.data());
  return holds_best(c, queries, agreement, scores, indices);
}

bool check_quantize(const Isa& isa, std::int64_t rows, std::int64_t dim) {
  std::normal_distribution<float> normal;
  std::vector<float> x(rows * dim), starts(dim, -1.5f), steps(dim, 3.0f / 255);
  for (float& value : x) value = normal(generator);
  std::vector<std::uint8_t> codes(rows * dim);
  if (quantize(isa, x.data(), rows, dim, starts.data(), steps.data(), 0x80, codes.data()) != -1) {
    return false;
  }
  for (std::int64_t i = 0; i < rows * dim; ++i) {
    const float level = std::floor((x[i] + 1.5f) / steps[0]);
    const int code = static_cast<int>(std::min(255.0f, std::max(0.0f, level)));
    if (codes[i] != (code ^ 0x80)) return false;
  }
  x[(rows - 1) * dim] = std::numeric_limits<float>::quiet_NaN();
  return quantize(isa, x.data(), rows, dim, starts.data(), steps.data(), 0, codes.data()) ==
         rows - 1;
}

/// Queries of eighths, and documents that are parts of the rows, whose `values` are eighths, too.
template <class Number>
bool check_similarities(const Isa& isa, const std::vector<Number>& rows,
                        const std::vector<float>& values, std::int64_t n, std::int64_t dim) {
  const auto eighths = random_integers<std::int8_t>(5 * dim, -15, 15);
  std::vector<float> query;
  for (const int x : eighths) query.push_back(static_cast<float>(x) / 8);
  const float* queries[] = {query.data(), query.data() + dim};
  const std::int64_t query_lengths[] = {5, 1}, lengths[] = {n, 0, n / 2};
  const Number* documents[] = {rows.data(), rows.data(), rows.data() + (n - n / 2) * dim};
  float scores[6];
  max_similarities<Number>(isa, {queries, query_lengths, 2, dim}, {documents, lengths, 3, dim}, 2,
                           scores);
  for (int i = 0; i < 6; ++i) {
    double sum = 0;
    for (std::int64_t token = 0; token < query_lengths[i / 3]; ++token) {
      float best = -std::numeric_limits<float>::infinity();
      for (std::int64_t r = 0; r < lengths[i % 3]; ++r) {
        const float* row = values.data() + (documents[i % 3] - rows.data()) + r * dim;
        float product = 0;
        for (std::int64_t d = 0; d < dim; ++d) product += queries[i / 3][token * dim + d] * row[d];
        best = std::max(best, product);
      }
      sum += best;
    }
    if (scores[i] != static_cast<float>(sum)) return false;
  }
  return true;
}

/// Numbers of eighths, whose products and sums are exact in any order.
bool check_halves(const Isa& isa, std::int64_t rows, std::int64_t dim, std::int64_t parts,
                  std::int64_t queries) {
  const auto eighths = random_integers<std::int8_t>((rows + queries) * dim, -15, 15);
  std::vector<float> values;
  std::vector<std::uint16_t> halves;
  for (const int x : eighths) {
    values.push_back(static_cast<float>(x) / 8);
    const int size = std::abs(x), power = size < 2 ? 0 : size < 4 ? 1 : size < 8 ? 2 : 3;
    const int bits = (12 + power) << 10 | ((size << (10 - power)) & 1023);
    halves.push_back(static_cast<std::uint16_t>(size == 0 ? 0 : x < 0 ? 0x8000 | bits : bits));
  }
  std::vector<float> products(queries * rows);
  const float* query = values.data() + rows * dim;
  half_products(isa, query, queries, halves.data(), rows, dim, parts, products.data());
  for (std::int64_t q = 0; q < queries; ++q) {
    for (std::int64_t r = 0; r < rows; ++r) {
      float product = 0;
      for (std::int64_t d = 0; d < dim; ++d) product += query[q * dim + d] * values[r * dim + d];
      if (products[q * rows + r] != product) return false;
    }
  }
  const std::vector<float> codes(eighths.begin(), eighths.end());
  return check_similarities(isa, values, values, rows, dim) &&
         check_similarities(isa, halves, values, rows, dim) &&
         check_similarities(isa, eighths, codes, rows, dim);
}

/// Coded rows of documents, some of which are those of others, in float64.
bool check_residuals(const Isa& isa, std::int64_t n, std::int64_t bytes, std::int64_t per_byte) {
  const std::int64_t dim = bytes * per_byte, count = 3;
  const std::int64_t width = 4 + bytes;
  auto coded = random_integers<std::uint8_t>(n * width, 0, 255);
  const auto numbers = random_integers<std::int32_t>(n, 0, count - 1);
  for (std::int64_t r = 0; r < n; ++r) std::memcpy(&coded[r * width], &numbers[r], 4);
  std::normal_distribution<float> normal;
  std::vector<float> query(2 * dim), centroids(count * dim), weights(256 * per_byte);
  for (auto* values : {&query, &centroids, &weights}) {
    for (float& value : *values) value = normal(generator);
  }
  const float* queries[] = {query.data()};
  const std::uint8_t* rows[] = {coded.data(), coded.data() + n / 2 * width};
  const std::int64_t tokens = 2, lengths[] = {n, n - n / 2};
  float scores[2];
  max_similarities(isa, {queries, &tokens, 1, dim}, {rows, lengths, 2, width},
                   {centroids.data(), weights.data(), per_byte}, 2, scores);
  for (int document = 0; document < 2; ++document) {
    double sum = 0, size = 0;
    for (std::int64_t token = 0; token < tokens; ++token) {
      double best = -std::numeric_limits<double>::infinity();
      for (std::int64_t r = 0; r < lengths[document]; ++r) {
        double product = 0, squares = 0, absolute = 0;
        for (std::int64_t d = 0; d < dim; ++d) {
          const int byte = rows[document][r * width + 4 + d / per_byte];
          const double x = double{centroids[numbers[n - lengths[document] + r] * dim + d]} +
                           weights[byte * per_byte + d % per_byte];
          product += x * query[token * dim + d];
          absolute += std::abs(x * query[token * dim + d]);
          squares += x * x;
        }
        best = std::max(best, product / std::sqrt(squares));
        size = std::max(size, absolute / std::sqrt(squares));
      }
      sum += best;
    }
    // Each product is within a rounding for each dimension, and a few of its row.
    if (!(std::abs(scores[document] - sum) <= 2 * size * (dim + 8) * 6e-8)) return false;
  }
  return true;
}

bool check_keep_best(const Isa& isa, std::int64_t n, std::int64_t k) {
  std::uniform_int_distribution<int> value(0, 9);
  std::vector<float> scores(n);
  for (float& score : scores) score = static_cast<float>(value(generator));
  if (n > 40) scores[40] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> best(k, -std::numeric_limits<float>::infinity());
  std::vector<std::int64_t> indices(k, -1);
  keep_best(isa, scores.data(), n, 0, Best<float>{best.data(), indices.data(), k});
  std::vector<std::pair<float, std::int64_t>> expected, got;
  for (std::int64_t i = 0; i < n; ++i) {
    if (scores[i] == scores[i]) expected.emplace_back(-scores[i], i);
  }
  for (std::int64_t i = 0; i < k; ++i) {
    if (indices[i] >= 0) got.emplace_back(-best[i], indices[i]);
  }
  std::sort(expected.begin(), expected.end());
  std::sort(got.begin(), got.end());
  expected.resize(std::min<std::size_t>(expected.size(), static_cast<std::size_t>(k)));
  return got == expected;
}

}  // namespace

int main() {
  for (const Isa* const* isa = kIsas; *isa != nullptr; ++isa) {
    if (!mirror_rt::processor_has((*isa)->name)) continue;
    int cases = 0;
    for (const std::int64_t rows : {1, 31, 32, 33, 130}) {
      for (const std::int64_t size : {1, 7, 48, 129}) {
        for (const std::int64_t parts : {1, 3}) {
          for (const std::uint8_t flip : {0, 0x80}) {
            const Case c{*isa, rows, size, 5 + rows % 40, parts};
            if (!check_search(c, flip) || !check_quantize(**isa, rows, size) ||
                !check_halves(**isa, rows, size, parts, 3) ||
                !check_halves(**isa, rows, size, parts, 35) ||
                !check_residuals(**isa, rows, size, 2) || !check_residuals(**isa, rows, size, 4) ||
                !check_residuals(**isa, rows, size, 8) || !check_keep_best(**isa, rows * 3, c.k)) {
              std::printf("%s: wrong for %d rows of %d bytes\n", (*isa)->name, int(rows),
                          int(size));
              return 1;
            }
            ++cases;
          }
        }
      }
    }
    std::printf("%s: %d cases\n", (*isa)->name, cases);
  }
  return 0;
}
