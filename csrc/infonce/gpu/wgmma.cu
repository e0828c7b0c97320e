// The kernels with WgmmaCore, compiled for sm_90a only; see cmake/cuda.cmake.
#include "infonce/gpu/kernels.cuh"
#include "infonce/gpu/wgmma.cuh"

namespace mirror_train {

TileKernels wgmma_kernels(bool split, bool bounded) {
  return tile_kernels<WgmmaCore>(split, bounded);
}

}  // namespace mirror_train
