// Products of rows of tokens and packed weights, with what follows them.
#pragma once

#include "engine/units.h"

namespace mirror_rt::engine {
namespace {

// Rows of a register tile, and vectors of each: there are 32 registers for 16 lanes, else 16.
constexpr int kRows = kLanes == 16 ? 7 : 6;
constexpr int kVectors = kLanes == 16 ? 4 : 2;
constexpr int kColumns = kVectors * kLanes;
static_assert(kPanel % kColumns == 0);

// The weights of a small model come from the last cache or from memory, which takes longer than the
// arithmetic on a few rows, and the processor's own prefetching ends with every page of 4 KB.
constexpr std::int64_t kBytesAhead = 8192;

/// Sets sums[r][v] to the sum over k < units of a[r][k] b[k][v]; `b_stride` is in units. `Fetch`
/// fetches what follows in b into the cache.
template <class Op, int R, int V, bool Fetch = false>
inline void multiply(const typename Op::Unit* a, std::int64_t a_stride, const typename Op::Unit* b,
                     std::int64_t b_stride, std::int64_t units, typename Op::Sum (&sums)[R][V]) {
  typename Op::Sum local[R][V] = {};
  for (std::int64_t k = 0; k < units; ++k, b += b_stride) {
    typename Op::Units right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const auto* next = b + v * kLanes;
      right[v] = load_as<typename Op::Units>(next);
      if constexpr (Fetch) __builtin_prefetch(reinterpret_cast<const char*>(next) + kBytesAhead);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const auto left = Op::broadcast(a[r * a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) local[r][v] = Op::add(local[r][v], right[v], left);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = local[r][v];
  }
}

/// Calls f(integral constant R, row) for steps of at most kRows rows, as equal as possible.
template <int R, class F>
inline void rows_of(std::int64_t rows, std::int64_t row, const F& f) {
  if constexpr (R == 1) {
    f.template operator()<1>(row);
  } else if (rows == R) {
    f.template operator()<R>(row);
  } else {
    rows_of<R - 1>(rows, row, f);
  }
}

template <class F>
inline void in_steps(std::int64_t begin, std::int64_t end, const F& f) {
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t steps = (end - row + kRows - 1) / kRows;
    const std::int64_t rows = (end - row + steps - 1) / steps;
    rows_of<kRows>(rows, row, f);
    row += rows;
  }
}

inline void put(const Result& result, std::int64_t row, std::int64_t column, Vec x) {
  const std::int64_t place = row * result.stride + column;
  if (result.add) x += loadu(static_cast<const float*>(result.values) + place);
  store_as(result.halves, result.values, place, x, kLanes);
}

/// Rows of one panel of columns.
template <class Op>
struct PanelRows {
  const Operand& a;
  const Matrix& w;
  std::int64_t panel;
  std::int64_t begin;  // the first row: the later ones find the weights in the cache
  const Result& result;

  template <int R>
  void operator()(std::int64_t row) const {
    typedef typename Op::Unit Unit;
    const std::int64_t stride = a.stride / Op::kSize;
    const Unit* left = static_cast<const Unit*>(a.values) + row * stride;
    const Unit* right = static_cast<const Unit*>(w.packed) + panel * w.units * kPanel;
    for (int column = 0; column < kPanel; column += kColumns) {
      typename Op::Sum sums[R][kVectors];
      if (row == begin) {
        multiply<Op, R, kVectors, true>(left, stride, right + column, kPanel, w.units, sums);
      } else {
        multiply<Op, R, kVectors>(left, stride, right + column, kPanel, w.units, sums);
      }
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) {
        const std::int64_t at = panel * kPanel + column + v * kLanes;
        const Vec bias = loadu(w.bias + at);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Vec x = real(sums[r][v], row + r, at) + bias;
          put(result, row + r, at, activate(x, result.activation));
        }
      }
    }
  }

  Vec real(Vec sum, std::int64_t, std::int64_t) const { return sum; }
  Vec real(IntVec sum, std::int64_t row, std::int64_t column) const {
    const IntVec offset = load_as<IntVec>(w.sums + column) * a.zeros[row];
    return __builtin_convertvector(sum - offset, Vec) * (loadu(w.scales + column) * a.scales[row]);
  }
};

void product(Precision precision, const Operand& a, const Matrix& w, std::int64_t panel,
             std::int64_t begin, std::int64_t end, const Result& result) {
  switch (precision) {
    case Precision::float32:
      return in_steps(begin, end, PanelRows<Float32>{a, w, panel, begin, result});
    case Precision::bfloat16:
      return in_steps(begin, end, PanelRows<Bfloat16>{a, w, panel, begin, result});
    case Precision::int8:
      return in_steps(begin, end, PanelRows<Int8>{a, w, panel, begin, result});
  }
}

}  // namespace
}  // namespace mirror_rt::engine
