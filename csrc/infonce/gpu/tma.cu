// The kernels with TMA, compiled for sm_90a only; see cmake/cuda.cmake.
#include "infonce/gpu/tma_kernels.cuh"

namespace mirror_train {

TileKernels tma_kernels(bool split, bool bounded) {
  if (split) {
    return bounded ? tma_kernels_of<true, BoundedSum, BoundedWeight>()
                   : tma_kernels_of<true, OnlineSum, AnyWeight>();
  }
  return bounded ? tma_kernels_of<false, BoundedSum, BoundedWeight>()
                 : tma_kernels_of<false, OnlineSum, AnyWeight>();
}

}  // namespace mirror_train
