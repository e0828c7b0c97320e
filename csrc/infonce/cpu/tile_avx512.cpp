// AVX-512 has 32 registers, so a register tile has twice the rows.
#define MIRROR_RT_ISA avx512
#define MIRROR_RT_LANES 16
#define MIRROR_RT_ROW_STEP 8
#include "infonce/cpu/tile.h"
