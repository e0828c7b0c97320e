// NEON with products of int8 quadruples and of bfloat16 pairs (HWCAP2_BF16, new to glibc 2.31).
#include <sys/auxv.h>

#define MIRROR_RT_ISA neon_bf16
#define MIRROR_RT_LANES 4
#define MIRROR_RT_SUPPORTED \
  (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 && (getauxval(AT_HWCAP2) >> 14 & 1) != 0
#include "engine/kernels.h"
