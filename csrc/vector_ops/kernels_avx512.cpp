// AVX-512 with products of 16-bit integers (BW), and POPCNT.
#define MIRROR_RT_ISA avx512
#define MIRROR_RT_SUPPORTED                                                       \
  __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&      \
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && \
      __builtin_cpu_supports("popcnt")
#include "vector_ops/kernels.h"
