// The functions of an Isa, for the instruction set that this translation unit is compiled for.
//
// Each kernels_<isa>.cpp includes this file once, and defines MIRROR_RT_ISA (its name, as in
// isa_list.cpp) and MIRROR_RT_LANES (floats of a vector). As in infonce/cpu/tile.h, everything has
// internal linkage and uses nothing of the C++ library.
#pragma once

#include "engine/attention.h"
#include "engine/product.h"
#include "engine/token_rows.h"

namespace mirror_rt::engine {

// Two macros are needed, so that the name is expanded before it is pasted.
#define MIRROR_RT_DEFINE(isa)                                                             \
  extern const Isa k_##isa;                                                               \
  const Isa k_##isa = {#isa,         kColumns, kUnit,     Bfloat16::kFast, Int8::kLevels, \
                       Int8::kBlock, product,  normalize, convert,         attend};
#define MIRROR_RT_EXPAND(isa) MIRROR_RT_DEFINE(isa)
MIRROR_RT_EXPAND(MIRROR_RT_ISA)

}  // namespace mirror_rt::engine
