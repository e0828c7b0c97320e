// AVX2 and POPCNT.
#define MIRROR_RT_ISA avx2
#define MIRROR_RT_SUPPORTED __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt")
#include "vector_ops/kernels.h"
