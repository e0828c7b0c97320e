// Four lanes on any processor: SSE2 on x86-64, NEON on aarch64, scalar code elsewhere.
#define MIRROR_RT_ISA portable
#define MIRROR_RT_LANES 4
#include "engine/kernels.h"
