// AVX2 and FMA.
#define MIRROR_RT_ISA avx2
#define MIRROR_RT_LANES 8
#include "engine/kernels.h"
