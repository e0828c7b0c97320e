// Products of rows of tokens and packed weights, with what follows them.
#pragma once

#include "engine/units.h"

namespace mirror_rt::engine {
namespace {

// Rows of a register tile, and vectors of each: AVX-512 and NEON have 32 registers, others 16.
#ifdef __aarch64__
constexpr int kRows = 6, kVectors = 4;
#else
constexpr int kRows = kLanes == 16 ? 7 : 6, kVectors = kLanes == 16 ? 4 : 2;
#endif
constexpr int kColumns = kVectors * kLanes;
static_assert(kPanel % kColumns == 0);

// The weights of a small model come from the last cache or from memory, which takes longer than the
// arithmetic on a few rows, and the processor's own prefetching ends with every page of 4 KB. So
// each step of rows fetches its share of the next strip: at most kLines lines of the cache a unit.
// Of few rows all of memory's bandwidth is needed: the second cache, level 2, waits for more lines
// at a time than the first, which spares more rows the way from the second.
constexpr int kLine = 64, kLines = kColumns * 4 / kLine > 0 ? kColumns * 4 / kLine : 1;
constexpr std::int64_t kFewRows = (kLines > 3 ? kLines : 3) * kRows;

/// Where to fetch from while a unit is multiplied, and how much further for the next unit.
struct Ahead {
  const char* place;
  std::int64_t step;
};

/// Adds the products of S units to sums[r][v].
template <class Op, int S, int R, int V>
inline void add_units(const typename Op::Unit* a, std::int64_t a_stride, const typename Op::Unit* b,
                      std::int64_t b_stride, typename Op::Sum (&sums)[R][V]) {
  typename Op::Units right[V][S];
#pragma GCC unroll 4
  for (int v = 0; v < V; ++v) {
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) {
      const auto* next = b + s * b_stride + v * kLanes;
      right[v][s] = load_as<typename Op::Units>(next);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    typename Op::Units left[S];
#pragma GCC unroll 4
    for (int s = 0; s < S; ++s) left[s] = Op::broadcast(a[r * a_stride + s]);
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = Op::add(sums[r][v], right[v], left);
  }
}

/// Sets sums[r][v] to the sum over k < units of a[r][k] b[k][v]; `b_stride` is in units. Meanwhile
/// it fetches `Lines` lines a unit into the cache of `Level`.
template <class Op, int R, int V, int Lines = 0, int Level = 1>
inline void multiply(const typename Op::Unit* a, std::int64_t a_stride, const typename Op::Unit* b,
                     std::int64_t b_stride, std::int64_t units, typename Op::Sum (&sums)[R][V],
                     Ahead ahead = {}) {
  constexpr int kSteps = Op::kSteps;
  typename Op::Sum local[R][V] = {};
  const auto* end = a + units;
  for (; a + kSteps <= end; a += kSteps, b += kSteps * b_stride) {
    for (int line = 0; line < Lines * kSteps; ++line) {
      __builtin_prefetch(ahead.place + line * kLine, 0, 4 - Level);
    }
    if constexpr (Lines > 0) ahead.place += ahead.step * kSteps;
    add_units<Op, kSteps>(a, a_stride, b, b_stride, local);
  }
  if constexpr (kSteps > 1) {
    for (; a < end; ++a, b += b_stride) add_units<Op, 1>(a, a_stride, b, b_stride, local);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sums[r][v] = local[r][v];
  }
}

/// The same by products of two rows and two columns; an odd last row stands for two. Only one unit
/// of `b` is held at a time: the sums leave no registers for more.
template <class Op, int R, int V, int Lines>
inline void multiply_squares(const typename Op::Unit* a, std::int64_t a_stride,
                             const typename Op::Unit* b, std::int64_t b_stride, std::int64_t units,
                             typename Op::Sum (&sums)[R][V], Ahead ahead) {
  typename Op::Sum local[(R + 1) / 2][2 * V] = {};
  for (const auto* end = a + units; a < end; ++a, b += b_stride) {
    for (int line = 0; line < 2 * Lines; ++line) __builtin_prefetch(ahead.place + line * kLine);
    ahead.place += ahead.step;
    typename Op::Units left[(R + 1) / 2];
#pragma GCC unroll 4
    for (int r = 0; r < R; r += 2) {
      left[r / 2] = typename Op::Units{a[r * a_stride], a[(r + 1 < R ? r + 1 : r) * a_stride]};
    }
#pragma GCC unroll 8
    for (int v = 0; v < 2 * V; ++v) {
      const auto right = load_as<typename Op::Units>(b + 2 * v);
#pragma GCC unroll 4
      for (int r = 0; r < (R + 1) / 2; ++r) local[r][v] = Op::add(local[r][v], right, left[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      const auto* sum = local[r / 2] + 2 * v;
      sums[r][v] = r % 2 == 0 ? Op::first_row(sum[0], sum[1]) : Op::second_row(sum[0], sum[1]);
    }
  }
}

/// The one of the two that the units are for, with rows of an operand and a strip of weights.
template <class Op, int Lines, int Level, int R, int V>
inline void multiply_strip(const typename Op::Unit* a, std::int64_t a_stride,
                           const typename Op::Unit* b, std::int64_t units,
                           typename Op::Sum (&sums)[R][V], Ahead ahead) {
  if constexpr (sizeof(typename Op::Unit) == 4) {
    multiply<Op, R, V, Lines, Level>(a, a_stride, b, kColumns, units, sums, ahead);
  } else {
    multiply_squares<Op, R, V, Lines>(a, a_stride, b, kColumns, units, sums, ahead);
  }
}

/// Calls f.operator()<rows>(row), for a number of rows from 1 to R.
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

/// Calls it for steps of at most kRows rows, as equal as possible.
template <class F>
inline void in_steps(std::int64_t begin, std::int64_t end, const F& f) {
  for (std::int64_t row = begin; row < end;) {
    const std::int64_t steps = (end - row + kRows - 1) / kRows;
    const std::int64_t rows = (end - row + steps - 1) / steps;
    rows_of<kRows>(rows, row, f);
    row += rows;
  }
}

__attribute__((always_inline)) inline void put(const Result& result, std::int64_t row,
                                               std::int64_t column, Vec x) {
  const std::int64_t place = row * result.stride + column;
  if (result.add) x += loadu(static_cast<const float*>(result.values) + place);
  store_as(result.halves, result.values, place, x, kLanes);
}

/// Returns what sums of int8 products stand for, of the block of a row and those of columns.
inline Vec scaled(IntVec products, const Operand& a, const Matrix& w, std::int64_t of_row,
                  std::int64_t of_columns) {
  return __builtin_convertvector(products, Vec) *
             (loadu(w.scales + of_columns) * a.scales[of_row]) +
         loadu(w.sums + of_columns) * a.shifts[of_row];
}

/// Rows of one strip of columns.
template <class Op>
struct StripRows {
  const Operand& a;
  const Matrix& w;
  std::int64_t column;  // the first
  std::int64_t begin, end;
  const Result& result;

  template <int R>
  void operator()(std::int64_t row) const {
    Vec sums[R][kVectors] = {};
    constexpr std::int64_t kBytes = kColumns * sizeof(typename Op::Unit);  // of a unit
    const std::int64_t strip = w.units * kBytes, rows = end - begin;
    const char* next = static_cast<const char*>(w.packed) + (column / kColumns + 1) * strip;
    const Ahead ahead{next + strip * (row - begin) / rows, (kBytes * R + rows - 1) / rows};
    rows <= kFewRows ? sum_up<kLines, 2>(row, ahead, sums) : sum_up<1, 1>(row, ahead, sums);
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t at = column + v * kLanes;
      const Vec bias = loadu(w.bias + at);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        put(result, row + r, at, activate(sums[r][v] + bias, result.activation));
      }
    }
  }

  template <int Lines, int Level, int R>
  void sum_up(std::int64_t row, Ahead ahead, Vec (&sums)[R][kVectors]) const {
    typedef typename Op::Unit Unit;
    const std::int64_t stride = a.stride / Op::kSize;
    const Unit* left = static_cast<const Unit*>(a.values) + row * stride;
    const Unit* right = static_cast<const Unit*>(w.packed) + column * w.units;
    if constexpr (!Op::kScaled) {
      multiply_strip<Op, Lines, Level>(left, stride, right, w.units, sums, ahead);
    } else {
      constexpr std::int64_t kUnits = Op::kBlock / Op::kSize;
      const std::int64_t blocks = blocks_of(w.units, kUnits);
      for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t first = block * kUnits, units = smaller(kUnits, w.units - first);
        IntVec products[R][kVectors];
        multiply_strip<Op, Lines, Level>(left + first, stride, right + first * kColumns, units,
                                         products, {ahead.place + first * ahead.step, ahead.step});
        const std::int64_t columns = block * w.panels * kPanel + column;
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            sums[r][v] +=
                scaled(products[r][v], a, w, (row + r) * blocks + block, columns + v * kLanes);
          }
        }
      }
    }
  }
};

template <class Op>
inline void panel_rows(const Operand& a, const Matrix& w, std::int64_t panel, std::int64_t begin,
                       std::int64_t end, const Result& result) {
  for (std::int64_t column = panel * kPanel; column < (panel + 1) * kPanel; column += kColumns) {
    in_steps(begin, end, StripRows<Op>{a, w, column, begin, end, result});
  }
}

}  // namespace
}  // namespace mirror_rt::engine
