// AVX-512 with products of bfloat16 pairs, for 16-bit input.
#define MIRROR_RT_LANES 16
#define MIRROR_RT_ROW_STEP 8
#define MIRROR_RT_PAIRS
#include "infonce_tile.h"

namespace mirror_rt::infonce {
namespace {

bool supported() {
#ifdef MIRROR_RT_EMULATE
  return true;  // compiled for another processor, to test the tiling
#else
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bf16");
#endif
}

}  // namespace

extern const Isa k_avx512_bf16;
const Isa k_avx512_bf16 = {"avx512_bf16", supported, kPanel,    kRowStep, kPair,     dot,
                           pack,          scores,    logsumexp, weights,  accumulate};

}  // namespace mirror_rt::infonce
