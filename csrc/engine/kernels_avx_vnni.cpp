// AVX2 and FMA, with products of int8 quadruples (AVX-VNNI).
#include <cpuid.h>

static bool has_avx_vnni() {
  unsigned a = 0, b, c, d;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a >> 4 & 1) != 0;
}

#define MIRROR_RT_ISA avx_vnni
#define MIRROR_RT_LANES 8
#define MIRROR_RT_SUPPORTED \
  __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_avx_vnni()
#include "engine/kernels.h"
