// The instructions that every processor of the architecture has: SSE2 on x86-64, NEON on aarch64.
#define MIRROR_RT_ISA portable
#define MIRROR_RT_LANES 4
#include "vector_ops/kernels.h"
