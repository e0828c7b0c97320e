// AVX2 and FMA.
#define MIRROR_RT_ISA avx2
#define MIRROR_RT_LANES 8
#define MIRROR_RT_ROW_STEP 4
#include "infonce/cpu/tile.h"
