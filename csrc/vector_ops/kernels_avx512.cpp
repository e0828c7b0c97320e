// AVX-512 with products of 16-bit integers (BW), and POPCNT.
#define MIRROR_RT_ISA avx512
#define MIRROR_RT_LANES 16
#include "vector_ops/kernels.h"
