// Products of tiles (AMX): 16 rows of activations times 16 columns of weights, 16 units at a time.
//
// They read activations and packed weights as the other kernels do. A step of the depth has as many
// units as divide its blocks into whole steps, and the last rows of a block are computed with those
// before, so there is one shape of tiles for all of a product. The sums of a row depend on no other
// row.
#pragma once

#include "engine/product.h"

namespace mirror_rt::engine {
namespace {

static_assert(kColumns == kPanel && kLanes == 16);
constexpr std::int64_t kTile = 16, kTileBytes = 64;    // rows of a tile, and the bytes of each
constexpr std::int64_t kUnitBytes = kColumns * kUnit;  // from unit to unit of a strip

struct alignas(64) TileShapes {
  std::uint8_t palette, first_row, unused[14];
  std::uint16_t bytes[16];
  std::uint8_t rows[16];
};

// What this thread's tiles are shaped for: rows and units of a step; 0 for none.
thread_local std::int64_t shaped_rows = 0, shaped_units = 0;

/// Shapes the tiles: 0 to 3 for sums, 4 and 5 for activations, 6 and 7 for weights.
inline void shape_tiles(std::int64_t rows, std::int64_t units) {
  if (rows == shaped_rows && units == shaped_units) return;
  TileShapes shapes{};
  shapes.palette = 1;
  for (int tile = 0; tile < 8; ++tile) {
    const bool weights = tile >= 6, activations = tile >= 4 && !weights;
    shapes.rows[tile] = static_cast<std::uint8_t>(weights ? units : rows);
    shapes.bytes[tile] = static_cast<std::uint16_t>(activations ? units * kUnit : kTileBytes);
  }
  // GCC takes the intrinsic to read the first 8 bytes alone.
  __asm__ volatile("" : : "r"(&shapes) : "memory");
  _tile_loadconfig(&shapes);
  shaped_rows = rows, shaped_units = units;
}

/// Empties the tiles, which would otherwise be saved whenever the system changes threads.
inline void release_tiles() {
  if (shaped_rows == 0) return;
  _tile_release();
  shaped_rows = shaped_units = 0;
}

/// Returns the number of units of a block that has scales; of all that have none.
template <class Op>
inline std::int64_t units_of_block(std::int64_t units) {
  if constexpr (Op::kScaled) return smaller(units, Op::kBlock / Op::kSize);
  return units;
}

/// Returns the most units, of at most 16, that divide each block of the depth into whole steps.
inline std::int64_t units_of_step(std::int64_t units, std::int64_t block) {
  std::int64_t step = smaller(block, kTile);
  while (units % step != 0 || block % step != 0) --step;
  return step;
}

// The intrinsics take numbers of tiles as tokens.
#define MIRROR_RT_MULTIPLY_TILES(sum, a, b) \
  if constexpr (Op::kScaled) {              \
    _tile_dpbusd(sum, a, b);                \
  } else {                                  \
    _tile_dpbf16ps(sum, a, b);              \
  }

/// Sets [16][32] numbers of `sums`, which has rows of kColumns, to the products of the rows at `a`
/// with 32 columns of weights; and `next` to those of the rows at `b`, unless it is null.
template <class Op>
inline void multiply_tiles(const char* a, const char* b, std::int64_t stride, const char* weights,
                           std::int64_t units, std::int64_t step, std::int32_t* sums,
                           std::int32_t* next) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (std::int64_t unit = 0; unit < units; unit += step) {
    _tile_loadd(4, a + unit * kUnit, stride);
    _tile_loadd(6, weights + unit * kUnitBytes, kUnitBytes);
    _tile_loadd(7, weights + unit * kUnitBytes + kTileBytes, kUnitBytes);
    MIRROR_RT_MULTIPLY_TILES(0, 4, 6);
    MIRROR_RT_MULTIPLY_TILES(1, 4, 7);
    if (next != nullptr) {
      _tile_loadd(5, b + unit * kUnit, stride);
      MIRROR_RT_MULTIPLY_TILES(2, 5, 6);
      MIRROR_RT_MULTIPLY_TILES(3, 5, 7);
    }
  }
  constexpr std::int64_t kSumBytes = kColumns * 4;
  _tile_stored(0, sums, kSumBytes);
  _tile_stored(1, sums + kTile, kSumBytes);
  if (next != nullptr) {
    _tile_stored(2, next, kSumBytes);
    _tile_stored(3, next + kTile, kSumBytes);
  }
}

/// Adds the sums of a block of the depth, as what they stand for, to the `totals` of a row.
template <class Op>
inline void add_block(const std::int32_t* sums, const Operand& a, const Matrix& w,
                      std::int64_t of_row, std::int64_t of_columns, float* totals) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v, of_columns += kLanes, sums += kLanes, totals += kLanes) {
    if constexpr (Op::kScaled) {
      const auto products = load_as<IntVec>(sums);
      storeu(totals, loadu(totals) + scaled(products, a, w, of_row, of_columns));
    } else {
      storeu(totals, load_as<Vec>(sums));
    }
  }
}

inline void finish_row(const float* totals, const Matrix& w, std::int64_t column, std::int64_t row,
                       const Result& result) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v, column += kLanes, totals += kLanes) {
    const Vec total = loadu(totals) + loadu(w.bias + column);
    put(result, row, column, activate(total, result.activation));
  }
}

/// As `panel_rows`.
template <class Op>
inline void panel_of_tiles(const Operand& a, const Matrix& w, std::int64_t panel,
                           std::int64_t begin, std::int64_t end, const Result& result) {
  const std::int64_t rows = smaller(end - begin, kTile), column = panel * kColumns;
  const std::int64_t units = units_of_block<Op>(w.units), blocks = blocks_of(w.units, units);
  const std::int64_t step = units_of_step(w.units, units), stride = a.stride / Op::kSize * kUnit;
  const char* strip = static_cast<const char*>(w.packed) + panel * w.units * kUnitBytes;
  const auto* activations = static_cast<const char*>(a.values);
  shape_tiles(rows, step);
  for (std::int64_t row = begin; row < end; row += 2 * rows) {
    alignas(64) std::int32_t sums[2][kTile][kColumns];
    alignas(64) float totals[2 * kTile][kColumns] = {};
    const std::int64_t first = smaller(row, end - rows), second = smaller(row + rows, end - rows);
    const std::int64_t last = smaller(row + 2 * rows, end);
    const bool two = row + rows < end;
    for (std::int64_t block = 0; block < blocks; ++block) {
      const char* left = activations + block * units * kUnit;
      const char* right = strip + block * units * kUnitBytes;
      for (std::int64_t c = 0; c < kColumns; c += 2 * kTile) {
        multiply_tiles<Op>(left + first * stride, left + second * stride, stride, right + c * kUnit,
                           smaller(units, w.units - block * units), step, &sums[0][0][c],
                           two ? &sums[1][0][c] : nullptr);
      }
      for (std::int64_t i = row; i < last; ++i) {
        const std::int32_t* sum = i < row + rows ? sums[0][i - first] : sums[1][i - second];
        add_block<Op>(sum, a, w, i * blocks + block, block * w.panels * kPanel + column,
                      totals[i - row]);
      }
    }
    for (std::int64_t i = row; i < last; ++i) {
      finish_row(totals[i - row], w, column, i, result);
    }
  }
}

}  // namespace
}  // namespace mirror_rt::engine
