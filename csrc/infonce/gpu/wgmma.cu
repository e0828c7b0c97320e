// The kernels with WgmmaCore and those with TMA, compiled for sm_90a only; see cmake/cuda.cmake.
#include "infonce/gpu/kernels.cuh"
#include "infonce/gpu/tma_kernels.cuh"
#include "infonce/gpu/wgmma.cuh"

namespace mirror_train {

TileKernels wgmma_kernels(bool split, bool bounded) {
  return split ? tile_kernels<WgmmaCore, true>(bounded) : tile_kernels<WgmmaCore, false>(bounded);
}

TileKernels tma_kernels(bool split, bool bounded) {
  if (split) {
    return bounded ? tma_kernels_of<true, BoundedSum, BoundedWeight>()
                   : tma_kernels_of<true, OnlineSum, AnyWeight>();
  }
  return bounded ? tma_kernels_of<false, BoundedSum, BoundedWeight>()
                 : tma_kernels_of<false, OnlineSum, AnyWeight>();
}

}  // namespace mirror_train
