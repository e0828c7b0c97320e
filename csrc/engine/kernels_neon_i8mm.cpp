// NEON with products of two rows and two columns, of int8 and of bfloat16.
#define MIRROR_RT_ISA neon_i8mm
#define MIRROR_RT_LANES 4
#include "engine/kernels.h"
