// AVX-512, without products of int8 or bfloat16.
#define MIRROR_RT_ISA avx512
#define MIRROR_RT_LANES 16
#include "engine/kernels.h"
