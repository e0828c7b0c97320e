// Four lanes on any processor: SSE2 on x86-64, NEON on aarch64, scalar code elsewhere.
#define MIRROR_RT_LANES 4
#define MIRROR_RT_ROW_STEP 4
#include "infonce_tile.h"

namespace mirror_rt::infonce {
namespace {

bool supported() {
#ifdef MIRROR_RT_EMULATE
  return true;  // compiled for another processor, to test the tiling
#else
  return true;
#endif
}

}  // namespace

extern const Isa k_portable;
const Isa k_portable = {"portable", supported, kPanel,    kRowStep, kPair,     dot,
                        pack,       scores,    logsumexp, weights,  accumulate};

}  // namespace mirror_rt::infonce
