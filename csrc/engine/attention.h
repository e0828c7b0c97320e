// Attention within one text, for one head: float32, or bfloat16 pairs summed in float32.
#pragma once

#include "engine/product.h"

namespace mirror_rt::engine {
namespace {

/// Lays out the rows of keys by panels of tokens, [tokens / kPanel][size / u][kPanel], as weights
/// are; the last token is repeated to fill its panel. Whole vectors are written, as numbers one by
/// one would each wait for a line.
template <class Unit>
inline void lay_out_keys(const Unit* from, std::int64_t stride, std::int64_t tokens,
                         std::int64_t units, Unit* keys) {
  const std::int64_t bytes = stride * 4, last = tokens - 1;
  const auto* rows = reinterpret_cast<const char*>(from);
  for (std::int64_t j = 0; j <= last; j += kLanes) {
    Unit* column = keys + j / kPanel * units * kPanel + j % kPanel;
    for (std::int64_t k = 0; k < units; ++k) {
      IntVec unit;
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        unit[i] = load_as<std::int32_t>(rows + smaller(j + i, last) * bytes + k * 4);
      }
      __builtin_memcpy(column + k * kPanel, &unit, sizeof unit);
    }
  }
}

/// Lays out the values row by row, [tokens][wide].
inline void lay_out_values(const Head& head, std::int64_t wide, float* values) {
  for (std::int64_t j = 0; j < head.tokens; ++j) {
    const float* value = static_cast<const float*>(head.value) + j * head.stride;
    for (std::int64_t d = 0; d < wide; d += kLanes) {
      storeu(values + j * wide + d, loadu(value + d, head.size - d));
    }
  }
}

/// The same with two tokens a unit, [tokens / 2][wide].
inline void lay_out_values(const Head& head, std::int64_t wide, std::int32_t* values) {
  const auto* rows = static_cast<const std::uint16_t*>(head.value);
  for (std::int64_t j = 0; j < head.tokens; j += 2) {
    const std::uint16_t *first = rows + j * head.stride, *second = first + head.stride;
    const bool last = j + 1 == head.tokens;
    std::int32_t* out = values + j / 2 * wide;
    for (std::int64_t d = 0; d < head.size; ++d) {
      const std::uint32_t high = last ? 0 : second[d];
      out[d] = static_cast<std::int32_t>(first[d] | high << 16);
    }
    for (std::int64_t d = head.size; d < wide; ++d) out[d] = 0;
  }
}

/// Divides the numbers of each row by the root of their mean square, and scales them.
template <class T>
inline void normalize_head(const Head& head, const float* norm, T* x) {
  for (std::int64_t j = 0; j < head.tokens; ++j, x += head.stride) {
    Vec squares = {};
    for (std::int64_t d = 0; d < head.size; d += kLanes) {
      const Vec a = loadu(x + d, head.size - d);
      squares += a * a;
    }
    const float mean = sum_of(squares) / static_cast<float>(head.size);
    const Vec factor = all(1.0f / __builtin_sqrtf(mean + head.epsilon));
    for (std::int64_t d = 0; d < head.size; d += kLanes) {
      const std::int64_t n = head.size - d;
      storeu(x + d, loadu(x + d, n) * factor * loadu(norm + d, n), n);
    }
  }
}

/// Rotates each number of the rows with the one half a head further, by the angle of its position.
template <class T>
inline void rotate(const Head& head, T* x) {
  const std::int64_t half = head.size / 2;
  for (std::int64_t j = 0; j < head.tokens; ++j, x += head.stride) {
    const float *cosines = head.rotary + j * head.size, *sines = cosines + half;
    for (std::int64_t d = 0; d < half; d += kLanes) {
      const std::int64_t n = half - d;
      const Vec a = loadu(x + d, n), b = loadu(x + d + half, n);
      const Vec cosine = loadu(cosines + d, n), sine = loadu(sines + d, n);
      storeu(x + d, a * cosine - b * sine, n);
      storeu(x + d + half, b * cosine + a * sine, n);
    }
  }
}

/// Turns the scores [begin, end) of a row into units of 2^(score - maximum), 0 for keys that are
/// not attended to, and returns 1 / their sum. Bfloat16 takes the place of scores that have been
/// read.
template <class Op>
inline float exponentials(const Head& head, std::int64_t row, std::int64_t begin, std::int64_t end,
                          typename Op::Unit* units) {
  auto* scores = reinterpret_cast<float*>(units);
  auto* powers = reinterpret_cast<typename Op::Number*>(units);
  const auto first = static_cast<std::int32_t>(larger<std::int64_t>(row - head.back, 0));
  const auto last = static_cast<std::int32_t>(smaller(row + head.ahead + 1, head.attended));
  const Vec factor = all(head.scale * 1.44269504f);
  const float* relative = head.relative == nullptr ? nullptr : head.relative - row;
  Vec most = all(-kInfinity);
  for (std::int64_t j = begin; j < end; j += kLanes) {
    Vec score = loadu(scores + j) * factor;
    if (relative != nullptr) score += loadu(relative + j) * 1.44269504f;
    if (j < first || j + kLanes > last) {
      const IntVec key = lane_numbers(j);
      score = ((key >= first) & (key < last)) ? score : all(-kInfinity);
    }
    storeu(scores + j, score);
    most = larger(score, most);
  }
  const Vec shift = all(largest_of(most));
  Vec total = {};
  for (std::int64_t j = begin; j < end; j += kLanes) {
    const Vec power = exp2(loadu(scores + j) - shift);
    storeu(powers + j, power);
    total += power;
  }
  return 1.0f / sum_of(total);
}

/// Calls f.at<R, V>(row, column) for the columns in steps of at most kVectors vectors.
template <int R, int V = kVectors, class F>
inline void columns_of(std::int64_t row, std::int64_t begin, std::int64_t end, const F& f) {
  for (; begin + (V - 1) * kLanes < end; begin += V * kLanes) f.template at<R, V>(row, begin);
  if constexpr (V > 1) columns_of<R, V - 1>(row, begin, end, f);
}

/// One head, its keys and values laid out, and room for the scores of some rows.
template <class Op>
struct LaidOut {
  typedef typename Op::Unit Unit;
  const Head& head;
  const Unit *keys, *values;
  Unit* scores;  // [kRows][padded]
  std::int64_t padded, wide;
};

/// Products of rows of queries with what is laid out as keys.
template <class Op>
struct Scores {
  typedef typename Op::Unit Unit;
  const Unit* query;  // first row
  std::int64_t stride;
  const Unit* keys;
  std::int64_t units, columns;
  float* out;  // first row
  std::int64_t out_stride;

  template <int R, int V>
  void at(std::int64_t row, std::int64_t j) const {
    Vec sums[R][V];
    const auto* right = keys + j / kPanel * units * kPanel + j % kPanel;
    multiply<Op, R, V>(query + row * stride, stride, right, kPanel, units, sums);
    for (int r = 0; r < R; ++r) {
      float* scores = out + (row + r) * out_stride + j;
      for (int v = 0; v < V; ++v) storeu(scores + v * kLanes, sums[r][v]);
    }
  }

  template <int R>
  void operator()(std::int64_t row) const {
    columns_of<R>(row, 0, columns, *this);
  }
};

/// Products of all queries, and of all keys, with the vectors of the buckets of a text.
struct Distances {
  const float *of_queries, *of_keys;  // [tokens][stride], from bucket `first` on
  std::int64_t stride, first;
};

template <class Op>
inline Distances multiply_distances(const Head& head, typename Op::Unit* scratch) {
  typedef typename Op::Unit Unit;
  const std::int64_t units = head.size / Op::kSize, row = head.distance_stride / Op::kSize;
  const std::int64_t first = head.buckets[1 - head.tokens];
  const std::int64_t count = head.buckets[head.tokens - 1] + 1 - first,
                     stride = distance_row(count);
  float* out[2] = {reinterpret_cast<float*>(scratch + round_up(count, kPanel) * head.size)};
  out[1] = out[0] + head.tokens * stride;
  for (int side = 0; side < 2; ++side) {
    const auto* left = static_cast<const Unit*>(side == 0 ? head.query : head.key);
    const auto* vectors = static_cast<const Unit*>(head.distances[side]) + first * row;
    lay_out_keys(vectors, row, count, units, scratch);
    in_steps(0, head.tokens,
             Scores<Op>{left, head.stride / Op::kSize, scratch, units, count, out[side], stride});
  }
  return {out[0], out[1], stride, first};
}

/// Adds to the scores [begin, end) of a row what the distances of its keys add.
inline void add_distances(const Head& head, const Distances& d, std::int64_t row,
                          std::int64_t begin, std::int64_t end, float* scores) {
  const std::int32_t* buckets = head.buckets - row;
  for (std::int64_t j = begin; j < smaller(end, head.attended); ++j) {
    const std::int64_t bucket = buckets[j] - d.first;
    scores[j] += d.of_queries[row * d.stride + bucket] + d.of_keys[j * d.stride + bucket];
  }
}

/// Products of the powers of rows with the values, divided by the sums: what attention gives.
template <class Op>
struct Context {
  const LaidOut<Op>& t;
  std::int64_t first, units;  // of the keys, and of the powers that the scores have become
  const float* inverse;

  template <int R, int V>
  void at(std::int64_t row, std::int64_t d) const {
    Vec sums[R][V];
    const auto* values = t.values + first * t.wide + d;
    multiply<Op, R, V>(t.scores + first, t.padded, values, t.wide, units, sums);
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) {
        const std::int64_t column = d + v * kLanes, place = (row + r) * t.head.out_stride + column;
        const Vec x = sums[r][v] * inverse[r];
        store_as(t.head.halves, t.head.out, place, x, t.head.size - column);
      }
    }
  }
};

/// Attends for R rows of queries: scores, what distances add to them, powers, context.
template <class Op>
struct QueryRows {
  LaidOut<Op> t;
  Distances distances;

  template <int R>
  void operator()(std::int64_t row) const {
    const Head& head = t.head;
    const std::int64_t begin = larger<std::int64_t>(row - head.back, 0) / kColumns * kColumns;
    const std::int64_t end = smaller(row + R + head.ahead, head.attended);
    const std::int64_t units = head.size / Op::kSize, stride = head.stride / Op::kSize;
    auto* scores = reinterpret_cast<float*>(t.scores);
    const auto* queries = static_cast<const typename Op::Unit*>(head.query) + row * stride;
    columns_of<R>(0, begin, end, Scores<Op>{queries, stride, t.keys, units, end, scores, t.padded});
    float inverse[R];
    for (int r = 0; r < R; ++r) {
      if (head.buckets != nullptr) {
        add_distances(head, distances, row + r, begin, end, scores + r * t.padded);
      }
      inverse[r] = exponentials<Op>(head, row + r, begin, end, t.scores + r * t.padded);
    }
    const std::int64_t first = begin / Op::kSize, powers = round_up(end, Op::kSize) / Op::kSize;
    columns_of<R>(row, 0, t.wide, Context<Op>{t, first, powers - first, inverse});
  }
};

/// Normalises and rotates queries and keys where they are, and attends with these; heads that share
/// keys find them laid out in `scratch`.
template <class Op>
inline void attend_in(const Head& head, void* scratch) {
  typedef typename Op::Number Number;
  const std::int64_t padded = round_up(head.tokens, kPanel), wide = round_up(head.size, kLanes);
  auto* keys = static_cast<typename Op::Unit*>(scratch);
  auto *values = keys + padded * head.size, *scores = values + padded * wide;
  const auto prepare = [&](void* rows, const float* norm) {
    if (norm != nullptr) normalize_head(head, norm, static_cast<Number*>(rows));
    if (head.rotary != nullptr) rotate(head, static_cast<Number*>(rows));
  };
  prepare(head.query, head.query_norm);
  if (!head.laid_out) {
    prepare(head.key, head.key_norm);
    lay_out_keys(static_cast<const typename Op::Unit*>(head.key), head.stride / Op::kSize,
                 head.tokens, head.size / Op::kSize, keys);
    lay_out_values(head, wide, values);
  }
  Distances distances{};
  if (head.buckets != nullptr) distances = multiply_distances<Op>(head, scores + 16 * padded);
  in_steps(0, head.tokens, QueryRows<Op>{{head, keys, values, scores, padded, wide}, distances});
}

void attend(const Head& head, float* scratch) {
  head.pairs ? attend_in<Bfloat16>(head, scratch) : attend_in<Float32>(head, scratch);
}

}  // namespace
}  // namespace mirror_rt::engine
