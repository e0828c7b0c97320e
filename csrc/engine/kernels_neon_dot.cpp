// NEON with products of int8 quadruples.
#define MIRROR_RT_ISA neon_dot
#define MIRROR_RT_LANES 4
#include "engine/kernels.h"
