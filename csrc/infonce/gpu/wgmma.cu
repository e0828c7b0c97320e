// The kernels with WgmmaCore, compiled for sm_90a only; see cmake/cuda.cmake.
#include "infonce/gpu/kernels.cuh"
#include "infonce/gpu/wgmma.cuh"

namespace mirror_train {

TileKernels wgmma_kernels(bool split) {
  return split ? tile_kernels<WgmmaCore, true>() : tile_kernels<WgmmaCore, false>();
}

}  // namespace mirror_train
