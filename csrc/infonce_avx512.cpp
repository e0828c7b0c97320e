// AVX-512: 32 registers, so twice the rows of a register tile.
#define MIRROR_RT_LANES 16
#define MIRROR_RT_ROW_STEP 8
#include "infonce_tile.h"

namespace mirror_rt::infonce {
namespace {

bool supported() {
#ifdef MIRROR_RT_EMULATE
  return true;  // compiled for another processor, to test the tiling
#else
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#endif
}

}  // namespace

extern const Isa k_avx512;
const Isa k_avx512 = {"avx512", supported, kPanel,    kRowStep, kPair,     dot,
                      pack,     scores,    logsumexp, weights,  accumulate};

}  // namespace mirror_rt::infonce
