// Four lanes on any processor: SSE2 on x86-64, NEON on aarch64, scalar code elsewhere.
#define MIRROR_RT_ISA portable
#define MIRROR_RT_LANES 4
#ifdef __aarch64__  // with 32 registers
#define MIRROR_RT_ROW_STEP 6
#else
#define MIRROR_RT_ROW_STEP 4
#endif
#include "infonce/cpu/tile.h"
