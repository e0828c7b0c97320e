// The functions of an Isa, for the instruction set that this translation unit is compiled for.
//
// Each kernels_<isa>.cpp includes this file once, and defines MIRROR_RT_ISA (its name, as in
// isa_list.cpp) and MIRROR_RT_LANES (floats of a vector), and MIRROR_RT_TILES for tiles. As in
// infonce/cpu/tile.h, everything has internal linkage and uses nothing of the C++ library.
#pragma once

#include "engine/attention.h"
#include "engine/product.h"
#include "engine/token_rows.h"
#ifdef MIRROR_RT_TILES
#include "engine/tiles.h"
#endif

namespace mirror_rt::engine {
namespace {

#ifdef MIRROR_RT_TILES
void rest() { release_tiles(); }
#else
template <class Op>
constexpr auto* panel_of_tiles = panel_rows<Op>;
void rest() {}
#endif

void product(Precision precision, const Operand& a, const Matrix& w, std::int64_t panel,
             std::int64_t begin, std::int64_t end, const Result& result) {
  const auto rows = precision == Precision::float32    ? panel_rows<Float32>
                    : precision == Precision::bfloat16 ? panel_of_tiles<Bfloat16Product>
                                                       : panel_of_tiles<Int8Product>;
  rows(a, w, panel, begin, end, result);
}

}  // namespace

// Two macros are needed, so that the name is expanded before it is pasted.
#define MIRROR_RT_DEFINE(isa)                                                                      \
  extern const Isa k_##isa;                                                                        \
  const Isa k_##isa = {#isa,    kColumns, kUnit,     Bfloat16::kFast, Int8::kLevels, Int8::kBlock, \
                       product, rest,     normalize, convert,         attend};
#define MIRROR_RT_EXPAND(isa) MIRROR_RT_DEFINE(isa)
MIRROR_RT_EXPAND(MIRROR_RT_ISA)

}  // namespace mirror_rt::engine
