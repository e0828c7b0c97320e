// AVX-512 with products of int8 quadruples (VNNI).
#define MIRROR_RT_ISA avx512_vnni
#define MIRROR_RT_LANES 16
#include "engine/kernels.h"
