// AVX2, FMA, F16C and POPCNT.
#define MIRROR_RT_ISA avx2
#define MIRROR_RT_LANES 8
#include "vector_ops/kernels.h"
