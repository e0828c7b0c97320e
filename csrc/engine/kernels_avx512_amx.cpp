// AVX-512 with products of tiles of int8 and of bfloat16 (AMX).
#define MIRROR_RT_ISA avx512_amx
#define MIRROR_RT_LANES 16
#define MIRROR_RT_TILES
#include "engine/kernels.h"
