// AVX2 and FMA, with products of int8 quadruples (AVX-VNNI).
#define MIRROR_RT_ISA avx_vnni
#define MIRROR_RT_LANES 8
#include "engine/kernels.h"
