// The functions of an Isa, for the instruction set that this translation unit is compiled for.
//
// Each tile_<isa>.cpp includes this file once, and defines MIRROR_RT_ISA (its name),
// MIRROR_RT_LANES (floats of a vector), MIRROR_RT_ROW_STEP (rows of a register tile)
// and, for bfloat16 pairs, MIRROR_RT_PAIRS. Names are those of isa_list.cpp.
// Everything has internal linkage and uses nothing of the C++ library: if the linker merged a
// function with that of another file, it could run instructions that the processor lacks.
#pragma once

#include "infonce/cpu/isa.h"
#include "infonce/cpu/vector.h"

namespace mirror_rt::infonce {
namespace {

constexpr int kRowStep = MIRROR_RT_ROW_STEP;
constexpr int kVectors = 3;  // of a row of a register tile: it has kRowStep * 3 accumulators
constexpr int kPanel = kVectors * kLanes;
// The summed index is taken so many steps at a time, as these rows of a panel stay in the L1 cache.
constexpr std::int64_t kDepth = 24576 / (kPanel * 4) / kPanel * kPanel;
static_assert(kPanel % kRowStep == 0 && kDepth > 0);

std::int64_t round_up(std::int64_t n, std::int64_t step) { return (n + step - 1) / step * step; }

std::int64_t least(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// The left operand of a register tile; operator() is its element in row r at summed index k.
struct ByPanel {  // [depth / P][rows][P]: rows adjacent, k within a panel
  const Unit* data;
  std::int64_t panel_stride;

  ByPanel at(std::int64_t panel) const { return {data + panel * panel_stride, panel_stride}; }
  Unit operator()(int r, std::int64_t k) const { return data[r * kPanel + k]; }
};

struct ByDepth {  // [depth][P]: k adjacent by P, rows within a panel
  const Unit* data;

  ByDepth at(std::int64_t panel) const { return {data + panel * kPanel * kPanel}; }
  Unit operator()(int r, std::int64_t k) const { return data[k * kPanel + r]; }
};

/// Sets c[r][0 .. P), or with `add` adds to it, the sum over k < depth of a(r, k) b[k][0 .. P), all
/// in registers.
template <class Left>
inline void multiply(const Left& a, const Unit* b, std::int64_t depth, float* c,
                     std::int64_t stride, bool add) {
  Vec sums[kRowStep][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRowStep; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) sums[r][v] = add ? load(c + r * stride + v * kLanes) : Vec{};
  }
  for (std::int64_t start = 0; start < depth; start += kPanel) {
    const Left panel = a.at(start / kPanel);
    const std::int64_t count = least(kPanel, depth - start);
    for (std::int64_t k = 0; k < count; ++k, b += kPanel) {
      UnitVec right[kVectors];
      for (int v = 0; v < kVectors; ++v) right[v] = load(b + v * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRowStep; ++r) {
        const UnitVec left = broadcast(panel(r, k));
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) sums[r][v] = multiply_add(left, right[v], sums[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRowStep; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) store(c + r * stride + v * kLanes, sums[r][v]);
  }
}

/// Returns the offset of element (i, j) in a tile, or in a block packed by panels of columns.
std::int64_t at(const Geometry& g, std::int64_t i, std::int64_t j) {
  return (j / kPanel * g.block + i) * kPanel + j % kPanel;
}

void scores(const Geometry& g, const PackedBlock& rows, const PackedBlock& columns, float* scores) {
  const auto* left = static_cast<const Unit*>(rows.by_dim);
  const auto* right = static_cast<const Unit*>(columns.transposed);
  const std::int64_t units = g.dim / kPair, panel_stride = g.block * kPanel;
  const std::int64_t parts = (units + kDepth - 1) / kDepth;
  const std::int64_t step = round_up((units + parts - 1) / parts, kPanel);
  for (std::int64_t k = 0; k < units; k += step) {
    const std::int64_t depth = least(step, units - k);
    for (std::int64_t j = 0; j < columns.rows; j += kPanel) {
      const Unit* b = right + (j / kPanel * units + k) * kPanel;
      for (std::int64_t i = 0; i < rows.rows; i += kRowStep) {
        const ByPanel a{left + k / kPanel * panel_stride + i * kPanel, panel_stride};
        multiply(a, b, depth, scores + at(g, i, j), kPanel, k > 0);
      }
    }
  }
}

/// Adds to sums[i][0 .. dim) the sum over k < depth of left(i, k) right[k]; `right` is packed as
/// by_row.
template <class Left, class LeftAt>
void weighted_sums(const Geometry& g, std::int64_t n, std::int64_t depth, const LeftAt& left_at,
                   const Unit* right, float* sums) {
  for (std::int64_t d = 0; d < g.dim; d += kPanel) {
    const Unit* b = right + d * (g.block / kPair);
    for (std::int64_t i = 0; i < n; i += kRowStep) {
      multiply<Left>(left_at(i), b, depth, sums + i * g.dim + d, g.dim, true);
    }
  }
}

/// A tile of W as the left operands of the two products.
struct TileUnits {
  const Unit* along_columns;  // [T / pair / P][T][P]
  const Unit* along_rows;     // [T / P][T / pair][P]
};

#ifndef MIRROR_RT_PAIRS
TileUnits tile_units(const Geometry&, std::int64_t, std::int64_t, float* w, void*) {
  return {w, w};
}
#else
TileUnits tile_units(const Geometry& g, std::int64_t n_rows, std::int64_t n_columns, float* w,
                     void* scratch) {
  auto* along_columns = static_cast<Unit*>(scratch);
  auto* along_rows = along_columns + g.block * round_up(g.block / kPair, kPanel);
  for (std::int64_t j = 0; j < n_columns; j += kLanes) {
    // The row that completes the last pair must add nothing; padding columns are 0 already.
    if (n_rows % kPair != 0) store(w + at(g, n_rows, j), Vec{});
    const std::int64_t panel = j / kPanel * (g.block / kPair);
    for (std::int64_t i = 0; i < n_rows; i += kPair) {
      const Vec first = load(w + at(g, i, j)), second = load(w + at(g, i + 1, j));
      store(along_rows + (panel + i / kPair) * kPanel + j % kPanel, pairs_of(first, second));
      store_units(along_columns + at(g, i, j / kPair), first);
      store_units(along_columns + at(g, i + 1, j / kPair), second);
    }
  }
  return {along_columns, along_rows};
}
#endif

void accumulate(const Geometry& g, const PackedBlock& rows, const PackedBlock& columns,
                float* scores, void* scratch, float* row_sums, float* column_sums) {
  const TileUnits w = tile_units(g, rows.rows, columns.rows, scores, scratch);
  const std::int64_t stride = g.block * kPanel;
  weighted_sums<ByPanel>(
      g, rows.rows, (columns.rows + kPair - 1) / kPair,
      [&](std::int64_t i) { return ByPanel{w.along_columns + i * kPanel, stride}; },
      static_cast<const Unit*>(columns.by_row), row_sums);
  if (column_sums == nullptr) return;
  weighted_sums<ByDepth>(
      g, columns.rows, (rows.rows + kPair - 1) / kPair,
      [&](std::int64_t j) {
        return ByDepth{w.along_rows + j / kPanel * (stride / kPair) + j % kPanel};
      },
      static_cast<const Unit*>(rows.by_row), column_sums);
}

float sum(Vec x) {
  float total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += x[lane];
  return total;
}

float largest(Vec x) {
  float most = x[0];
  for (int lane = 1; lane < kLanes; ++lane) most = x[lane] > most ? x[lane] : most;
  return most;
}

Vec larger(Vec a, Vec b) { return where(a > b, a, b); }  // for a NaN in a and a number in b: b

/// Every maximum is `scale`, so one exponential per score serves both its row and its column.
void add_with_fixed_maximum(const Geometry& g, std::int64_t n_rows, std::int64_t n_columns,
                            const float* scores, float scale, double* row_sums,
                            double* column_sums) {
  const Vec factor = all(scale);
  for (std::int64_t j = 0; j < n_columns; j += kPanel) {
    Vec columns[kVectors] = {};
    for (std::int64_t i = 0; i < n_rows; ++i) {
      Vec row = {};
      for (int v = 0; v < kVectors; ++v) {
        const Vec score = load(scores + at(g, i, j) + v * kLanes);
        const Vec e = exp2(score * factor - factor);
        row += e;
        columns[v] += e;
      }
      row_sums[i] += sum(row);
    }
    if (column_sums == nullptr) continue;
    for (int c = 0; c < least(kPanel, n_columns - j); ++c) {
      column_sums[j + c] += columns[c / kLanes][c % kLanes];
    }
  }
}

/// Merges a tile's sum of 2^(score - maximum) into (maxima, sums).
void merge(float maximum, double sum, float* maxima, double* sums) {
  if (maximum > *maxima) {
    *sums = *sums * exp2_one(*maxima - maximum) + sum;
    *maxima = maximum;
  } else {
    // Equal maxima, even -inf, need no factor; an empty sum is 0, and a NaN is passed on.
    *sums += maximum == *maxima ? sum : sum * exp2_one(maximum - *maxima);
  }
}

float finite_or_zero(float maximum) { return maximum > -kInfinity ? maximum : 0.0f; }

void add_rows_online(const Geometry& g, std::int64_t n_rows, std::int64_t n_columns,
                     const float* scores, float scale, const LogSumExp& rows) {
  const Vec factor = all(scale);
  for (std::int64_t i = 0; i < n_rows; ++i) {
    Vec most = all(-kInfinity), total = {};
    for (std::int64_t j = 0; j < n_columns; j += kLanes) {
      most = larger(load(scores + at(g, i, j)), most);
    }
    const float maximum = scale * largest(most);
    const Vec shift = all(finite_or_zero(maximum));
    for (std::int64_t j = 0; j < n_columns; j += kLanes) {
      total += exp2(load(scores + at(g, i, j)) * factor - shift);
    }
    merge(maximum, sum(total), rows.maxima + i, rows.sums + i);
  }
}

void add_columns_online(const Geometry& g, std::int64_t n_rows, std::int64_t n_columns,
                        const float* scores, float scale, const LogSumExp& columns) {
  const Vec factor = all(scale);
  for (std::int64_t j = 0; j < n_columns; j += kLanes) {
    const float* column = scores + at(g, 0, j);
    Vec most = all(-kInfinity), total = {};
    for (std::int64_t i = 0; i < n_rows; ++i) most = larger(load(column + i * kPanel), most);
    const Vec maximum = most * factor;
    const Vec shift = where(maximum > all(-kInfinity), maximum, Vec{});
    for (std::int64_t i = 0; i < n_rows; ++i) {
      total += exp2(load(column + i * kPanel) * factor - shift);
    }
    for (int c = 0; c < least(kLanes, n_columns - j); ++c) {
      merge(maximum[c], total[c], columns.maxima + j + c, columns.sums + j + c);
    }
  }
}

void logsumexp(const Geometry& g, std::int64_t n_rows, std::int64_t n_columns, float* scores,
               float scale, bool fixed_maximum, const LogSumExp& rows, const LogSumExp& columns) {
  if (fixed_maximum) {
    add_with_fixed_maximum(g, n_rows, n_columns, scores, scale, rows.sums, columns.sums);
    return;
  }
  add_rows_online(g, n_rows, n_columns, scores, scale, rows);
  if (columns.sums != nullptr) add_columns_online(g, n_rows, n_columns, scores, scale, columns);
}

/// Returns W of the exponents scale s of row i, where b are the log weights of the columns.
inline Vec weights_of(Vec exponents, Weighing how, std::int64_t i, Vec b) {
  const Vec a = all(how.log_weights.rows[i]);
  if (how.one_exponential) return exp2(exponents - all(how.scale)) * (a + b);
  return exp2(exponents + a) + exp2(exponents + b);
}

void weights(const Geometry& g, std::int64_t n_rows, std::int64_t n_columns, float* scores,
             Weighing how) {
  const Vec factor = all(how.scale);
  for (std::int64_t j = 0; j < n_columns; j += kLanes) {
    const Vec b = load(how.log_weights.columns + j);
    for (std::int64_t i = 0; i < n_rows; ++i) {
      float* score = scores + at(g, i, j);
      store(score, weights_of(load(score) * factor, how, i, b));
    }
  }
}

double taught_weights(const Geometry& g, std::int64_t n_rows, std::int64_t n_columns, float* scores,
                      const float* teacher_scores, Weighing student, Weighing teacher) {
  const Vec factor = all(student.scale), teacher_factor = all(teacher.scale);
  double total = 0;
  for (std::int64_t j = 0; j < n_columns; j += kLanes) {
    const Vec b = load(student.log_weights.columns + j);
    const Vec teacher_b = load(teacher.log_weights.columns + j);
    Vec column = {};
    for (std::int64_t i = 0; i < n_rows; ++i) {
      float* score = scores + at(g, i, j);
      const Vec s = load(score) * factor;
      const Vec t = load(teacher_scores + at(g, i, j)) * teacher_factor;
      const Vec target = weights_of(t, teacher, i, teacher_b);
      store(score, weights_of(s, student, i, b) - target);
      column += where(t > all(-kInfinity), target * (t - s), Vec{});  // -inf: masked in both
    }
    total += sum(column);
  }
  return total;
}

/// Packs by_dim, and from it `transposed`, a panel at a time, since a panel stays in the cache.
void pack_rows(const Geometry& g, const float* unit, Unit* by_dim, Unit* transposed) {
  const std::int64_t units = g.dim / kPair;
  for (std::int64_t i = 0; i < g.block; ++i) {
    for (std::int64_t d = 0; d < g.dim; d += kLanes) {
      store_units(by_dim + at(g, i, d / kPair), load(unit + i * g.dim + d));
    }
  }
  for (std::int64_t i = 0; i < g.block; i += kPanel) {
    for (std::int64_t k = 0; k < units; ++k) {
      const Unit* column = by_dim + at(g, i, k);
      for (int c = 0; c < kPanel; ++c) *transposed++ = column[c * kPanel];
    }
  }
}

void pack(const Geometry& g, const float* unit, void* by_dim, void* transposed, void* by_row) {
  pack_rows(g, unit, static_cast<Unit*>(by_dim), static_cast<Unit*>(transposed));
#ifdef MIRROR_RT_PAIRS  // for floats, by_row is by_dim
  auto* rows = static_cast<Unit*>(by_row);
  for (std::int64_t i = 0; i < g.block / kPair; ++i) {
    const float* pair = unit + i * kPair * g.dim;
    for (std::int64_t d = 0; d < g.dim; d += kLanes) {
      store(rows + (d / kPanel * (g.block / kPair) + i) * kPanel + d % kPanel,
            pairs_of(load(pair + d), load(pair + g.dim + d)));
    }
  }
#else
  static_cast<void>(by_row);
#endif
}

}  // namespace

// Two macros are needed, so that the name is expanded before it is pasted.
#define MIRROR_RT_DEFINE(isa)                                                        \
  extern const Isa k_##isa;                                                          \
  const Isa k_##isa = {#isa,   kPanel,    kRowStep, kPair,          dot,       pack, \
                       scores, logsumexp, weights,  taught_weights, accumulate};
#define MIRROR_RT_EXPAND(isa) MIRROR_RT_DEFINE(isa)
MIRROR_RT_EXPAND(MIRROR_RT_ISA)

}  // namespace mirror_rt::infonce
