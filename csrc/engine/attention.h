// Attention within one text, for one head, in float32.
#pragma once

#include "engine/product.h"

namespace mirror_rt::engine {
namespace {

/// Lays out the keys by panels of tokens, [tokens / kPanel][size][kPanel], and the values row by
/// row, [tokens][wide]; what is added is 0.
inline void lay_out(const Head& head, std::int64_t wide, float* keys, float* values) {
  for (std::int64_t j = 0; j < (head.tokens + kPanel - 1) / kPanel * kPanel; ++j) {
    float* column = keys + j / kPanel * head.size * kPanel + j % kPanel;
    const float* key = head.key + j * head.stride;
    for (std::int64_t d = 0; d < head.size; ++d) {
      column[d * kPanel] = j < head.tokens ? key[d] : 0.0f;
    }
  }
  for (std::int64_t j = 0; j < head.tokens; ++j) {
    const float* value = head.value + j * head.stride;
    for (std::int64_t d = 0; d < wide; ++d) values[j * wide + d] = d < head.size ? value[d] : 0.0f;
  }
}

/// Turns a row of scores into 2^(score - maximum), and returns 1 / their sum.
inline float exponentials(const Head& head, std::int64_t row, float* scores) {
  const std::int64_t n = head.tokens;
  const Vec factor = all(head.scale * 1.44269504f);
  const float* relative = head.relative == nullptr ? nullptr : head.relative - row;
  Vec most = all(-kInfinity);
  for (std::int64_t j = 0; j < n; j += kLanes) {
    Vec score = loadu(scores + j) * factor;
    if (relative != nullptr) score += loadu(relative + j) * 1.44269504f;
    for (std::int64_t lane = n - j; lane < kLanes; ++lane) score[lane] = -kInfinity;
    storeu(scores + j, score);
    most = larger(score, most);
  }
  const Vec shift = all(largest_of(most));
  Vec total = {};
  for (std::int64_t j = 0; j < n; j += kLanes) {
    const Vec e = exp2(loadu(scores + j) - shift);
    storeu(scores + j, e);
    total += e;
  }
  return 1.0f / sum_of(total);
}

inline void put_context(const Head& head, std::int64_t row, std::int64_t d, Vec x) {
  const std::int64_t count = head.size - d < kLanes ? head.size - d : kLanes;
  const std::int64_t place = row * head.out_stride + d;
  if (head.halves) {
    const ShortVec halves = to_bfloat16(x);
    __builtin_memcpy(static_cast<std::uint16_t*>(head.out) + place, &halves, count * 2);
  } else {
    __builtin_memcpy(static_cast<float*>(head.out) + place, &x, count * 4);
  }
}

struct QueryRows {
  const Head& head;
  const float* keys;
  const float* values;
  std::int64_t wide;
  float* scores;  // [kRows][padded]
  std::int64_t padded;

  template <int R>
  void operator()(std::int64_t row) const {
    const float* query = head.query + row * head.stride;
    for (std::int64_t j = 0; j < head.tokens; j += kColumns) {
      Vec sums[R][kVectors];
      const float* right = keys + j / kPanel * head.size * kPanel + j % kPanel;
      multiply<Float32, R, kVectors>(query, head.stride, right, kPanel, head.size, sums);
      for (int r = 0; r < R; ++r) {
        for (int v = 0; v < kVectors; ++v) {
          storeu(scores + r * padded + j + v * kLanes, sums[r][v]);
        }
      }
    }
    float inverse[R];
    for (int r = 0; r < R; ++r) inverse[r] = exponentials(head, row + r, scores + r * padded);
    std::int64_t d = 0;
    for (; d + 2 * kLanes <= wide; d += 2 * kLanes) context<R, 2>(row, d, inverse);
    for (; d < wide; d += kLanes) context<R, 1>(row, d, inverse);
  }

  template <int R, int V>
  void context(std::int64_t row, std::int64_t d, const float* inverse) const {
    Vec sums[R][V];
    multiply<Float32, R, V>(scores, padded, values + d, wide, head.tokens, sums);
    for (int r = 0; r < R; ++r) {
      for (int v = 0; v < V; ++v) {
        put_context(head, row + r, d + v * kLanes, sums[r][v] * inverse[r]);
      }
    }
  }
};

void attend(const Head& head, float* scratch) {
  const std::int64_t padded = (head.tokens + kPanel - 1) / kPanel * kPanel;
  const std::int64_t wide = (head.size + kLanes - 1) / kLanes * kLanes;
  float* keys = scratch;
  float* values = keys + padded * head.size;
  float* scores = values + padded * wide;
  lay_out(head, wide, keys, values);
  in_steps(0, head.tokens, QueryRows{head, keys, values, wide, scores, padded});
}

}  // namespace
}  // namespace mirror_rt::engine
