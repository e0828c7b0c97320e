// AVX-512 with products of int8 quadruples and of bfloat16 pairs.
#define MIRROR_RT_ISA avx512_bf16
#define MIRROR_RT_LANES 16
#include "engine/kernels.h"
