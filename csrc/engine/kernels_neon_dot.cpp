// NEON with products of int8 quadruples.
#include <sys/auxv.h>

#define MIRROR_RT_ISA neon_dot
#define MIRROR_RT_LANES 4
#define MIRROR_RT_SUPPORTED (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0
#include "engine/kernels.h"
