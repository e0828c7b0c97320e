// The intrinsics of AMX that the engine uses, in plain C++, after the operations in Intel's manual
// (volume 2: LDTILECFG, TDPBF16PS, TDPBUSD and so on). A call that the processor would refuse ends
// the program. The compiler includes this file before the kernels (native_build.py).
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace amx_emulation {
namespace {

struct Tile {
  int rows, bytes;
  std::uint8_t data[16][64];
};
thread_local Tile tiles[8];
thread_local bool configured = false;

void require(bool holds) {
  if (!holds) std::abort();
}

void release() {
  std::memset(tiles, 0, sizeof tiles);
  configured = false;
}

void load_config(const void* config) {
  std::uint8_t bytes[64];
  std::memcpy(bytes, config, sizeof bytes);
  require(bytes[0] == 1);
  for (int i = 1; i < 16; ++i) require(bytes[i] == 0);
  release();
  for (int t = 0; t < 8; ++t) {
    std::uint16_t width;
    std::memcpy(&width, bytes + 16 + 2 * t, sizeof width);
    tiles[t].rows = bytes[48 + t], tiles[t].bytes = width;
    require(tiles[t].rows >= 1 && tiles[t].rows <= 16 && width >= 1 && width <= 64);
  }
  configured = true;
}

Tile& tile(int number) {
  require(configured);
  return tiles[number];
}

void zero(int number) { std::memset(tile(number).data, 0, sizeof(Tile::data)); }

void load(int number, const void* base, std::int64_t stride) {
  zero(number);
  for (int row = 0; row < tile(number).rows; ++row) {
    const auto* from = static_cast<const char*>(base) + row * stride;
    std::memcpy(tiles[number].data[row], from, static_cast<std::size_t>(tiles[number].bytes));
  }
}

void store(int number, void* base, std::int64_t stride) {
  for (int row = 0; row < tile(number).rows; ++row) {
    auto* to = static_cast<char*>(base) + row * stride;
    std::memcpy(to, tiles[number].data[row], static_cast<std::size_t>(tiles[number].bytes));
  }
}

float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

float from_bfloat16(const std::uint8_t* p) {
  std::uint16_t high;
  std::memcpy(&high, p, sizeof high);
  const std::uint32_t bits = std::uint32_t{high} << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return flushed(x);
}

/// Calls add(row, column, unit of a, unit of b) for each product of units, those of a sum in order.
template <class Start, class Add, class End>
void multiply(int sum, int a, int b, const Start& start, const Add& add, const End& end) {
  require(tile(a).rows == tile(sum).rows && tile(a).bytes == 4 * tile(b).rows &&
          tile(b).bytes == tile(sum).bytes && tile(b).bytes % 4 == 0);
  for (int row = 0; row < tiles[sum].rows; ++row) {
    for (int column = 0; column < tiles[sum].bytes; column += 4) {
      auto* place = tiles[sum].data[row] + column;
      start(place);
      for (int unit = 0; unit < tiles[b].rows; ++unit) {
        add(tiles[a].data[row] + 4 * unit, tiles[b].data[unit] + column);
      }
      end(place);
    }
  }
}

void dot_bfloat16(int sum, int a, int b) {
  float even, odd;
  multiply(
      sum, a, b, [&](auto*) { even = odd = 0; },
      [&](const auto* x, const auto* y) {
        even = flushed(std::fma(from_bfloat16(x), from_bfloat16(y), even));
        odd = flushed(std::fma(from_bfloat16(x + 2), from_bfloat16(y + 2), odd));
      },
      [&](auto* place) {
        float before;
        std::memcpy(&before, place, sizeof before);
        const float after = flushed(flushed(before) + flushed(even + odd));
        std::memcpy(place, &after, sizeof after);
      });
}

void dot_bytes(int sum, int a, int b) {
  std::uint32_t total;  // which wraps around
  multiply(
      sum, a, b, [&](auto* place) { std::memcpy(&total, place, sizeof total); },
      [&](const auto* x, const auto* y) {
        for (int i = 0; i < 4; ++i) {
          total += static_cast<std::uint32_t>(x[i] * static_cast<std::int8_t>(y[i]));
        }
      },
      [&](auto* place) { std::memcpy(place, &total, sizeof total); });
}

}  // namespace
}  // namespace amx_emulation

#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig(config) amx_emulation::load_config(config)
#define _tile_release() amx_emulation::release()
#define _tile_zero(tile) amx_emulation::zero(tile)
#define _tile_loadd(tile, base, stride) amx_emulation::load(tile, base, stride)
#define _tile_stored(tile, base, stride) amx_emulation::store(tile, base, stride)
#define _tile_dpbf16ps(sum, a, b) amx_emulation::dot_bfloat16(sum, a, b)
#define _tile_dpbusd(sum, a, b) amx_emulation::dot_bytes(sum, a, b)
