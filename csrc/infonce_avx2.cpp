// AVX2 and FMA.
#define MIRROR_RT_LANES 8
#define MIRROR_RT_ROW_STEP 4
#include "infonce_tile.h"

namespace mirror_rt::infonce {
namespace {

bool supported() {
#ifdef MIRROR_RT_EMULATE
  return true;  // compiled for another processor, to test the tiling
#else
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
}

}  // namespace

extern const Isa k_avx2;
const Isa k_avx2 = {"avx2", supported, kPanel,    kRowStep, kPair,     dot,
                    pack,   scores,    logsumexp, weights,  accumulate};

}  // namespace mirror_rt::infonce
