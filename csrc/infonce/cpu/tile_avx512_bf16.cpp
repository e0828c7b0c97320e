// AVX-512 with products of bfloat16 pairs, for 16-bit input.
#define MIRROR_RT_ISA avx512_bf16
#define MIRROR_RT_LANES 16
#define MIRROR_RT_ROW_STEP 8
#define MIRROR_RT_PAIRS
#include "infonce/cpu/tile.h"
