// AVX2 and FMA.
#define MIRROR_RT_ISA avx2
#define MIRROR_RT_LANES 8
#define MIRROR_RT_SUPPORTED __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
#include "engine/kernels.h"
