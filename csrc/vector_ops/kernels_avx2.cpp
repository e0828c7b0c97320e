// AVX2 and POPCNT.
#define MIRROR_RT_ISA avx2
#include "vector_ops/kernels.h"
