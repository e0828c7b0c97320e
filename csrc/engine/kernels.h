// The functions of an Isa, for the instruction set that this translation unit is compiled for.
//
// Each kernels_<isa>.cpp includes this file once, and defines MIRROR_RT_ISA (its name),
// MIRROR_RT_LANES (floats of a vector) and MIRROR_RT_SUPPORTED (whether the processor has it, where
// 16 lanes need more than AVX-512F, DQ, BW and VL). As in infonce/cpu/tile.h, everything has
// internal linkage and uses nothing of the C++ library.
#pragma once

#include "engine/attention.h"
#include "engine/product.h"
#include "engine/token_rows.h"

namespace mirror_rt::engine {
namespace {

bool supported() {
#ifdef MIRROR_RT_EMULATE
  return true;  // compiled for another processor, to test the tiling
#elif MIRROR_RT_LANES == 16
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         MIRROR_RT_SUPPORTED;
#else
  return MIRROR_RT_SUPPORTED;
#endif
}

}  // namespace

// Two macros are needed, so that the name is expanded before it is pasted.
#define MIRROR_RT_DEFINE(isa)                                                              \
  extern const Isa k_##isa;                                                                \
  const Isa k_##isa = {#isa,         supported, kColumns,  Bfloat16::kFast, Int8::kLevels, \
                       Int8::kBlock, product,   normalize, convert,         attend};
#define MIRROR_RT_EXPAND(isa) MIRROR_RT_DEFINE(isa)
MIRROR_RT_EXPAND(MIRROR_RT_ISA)

}  // namespace mirror_rt::engine
