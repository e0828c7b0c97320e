// Attention within one text, for one head: float32, or bfloat16 pairs summed in float32.
#pragma once

#include "engine/product.h"

namespace mirror_rt::engine {
namespace {

/// Lays out the keys by panels of tokens, [tokens / kPanel][size / u][kPanel]; what is added
/// repeats the last. Whole vectors are written, as numbers one by one would each wait for a line.
template <class Unit>
inline void lay_out_keys(const Head& head, std::int64_t units, Unit* keys) {
  const std::int64_t bytes = head.stride * (head.pairs ? 2 : 4), last = head.tokens - 1;
  const auto* rows = static_cast<const char*>(head.key);
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

/// Turns the scores [begin, end) of a row into units of 2^(score - maximum), and returns 1 / their
/// sum. Bfloat16 takes the place of scores that have been read.
template <class Op>
inline float exponentials(const Head& head, std::int64_t row, std::int64_t begin, std::int64_t end,
                          typename Op::Unit* units) {
  auto* scores = reinterpret_cast<float*>(units);
  auto* powers = reinterpret_cast<typename Op::Number*>(units);
  const auto first = static_cast<std::int32_t>(larger<std::int64_t>(row - head.back, 0));
  const auto last = static_cast<std::int32_t>(smaller(row + head.ahead + 1, head.tokens));
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

template <class Op>
struct Scores {
  const LaidOut<Op>& t;

  template <int R, int V>
  void at(std::int64_t row, std::int64_t j) const {
    Vec sums[R][V];
    const std::int64_t units = t.head.size / Op::kSize, stride = t.head.stride / Op::kSize;
    const auto* query = static_cast<const typename Op::Unit*>(t.head.query) + row * stride;
    const auto* right = t.keys + j / kPanel * units * kPanel + j % kPanel;
    multiply<Op, R, V>(query, stride, right, kPanel, units, sums);
    for (int r = 0; r < R; ++r) {
      auto* scores = reinterpret_cast<float*>(t.scores + r * t.padded) + j;
      for (int v = 0; v < V; ++v) storeu(scores + v * kLanes, sums[r][v]);
    }
  }
};

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

template <class Op>
struct QueryRows {
  LaidOut<Op> t;

  template <int R>
  void operator()(std::int64_t row) const {
    const Head& head = t.head;
    const std::int64_t begin = larger<std::int64_t>(row - head.back, 0) / kColumns * kColumns;
    const std::int64_t end = smaller(row + R + head.ahead, head.tokens);
    columns_of<R>(row, begin, end, Scores<Op>{t});
    float inverse[R];
    for (int r = 0; r < R; ++r) {
      inverse[r] = exponentials<Op>(head, row + r, begin, end, t.scores + r * t.padded);
    }
    const std::int64_t first = begin / Op::kSize, units = round_up(end, Op::kSize) / Op::kSize;
    columns_of<R>(row, 0, t.wide, Context<Op>{t, first, units - first, inverse});
  }
};

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
    lay_out_keys(head, head.size / Op::kSize, keys);
    lay_out_values(head, wide, values);
  }
  in_steps(0, head.tokens, QueryRows<Op>{{head, keys, values, scores, padded, wide}});
}

void attend(const Head& head, float* scratch) {
  head.pairs ? attend_in<Bfloat16>(head, scratch) : attend_in<Float32>(head, scratch);
}

}  // namespace
}  // namespace mirror_rt::engine
