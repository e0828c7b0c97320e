// The kernels that work on tiles, as a table to launch from: one table for each core and precision.
#pragma once

#include "infonce/gpu/contract.cuh"
#include "infonce/gpu/logsumexp.cuh"

namespace mirror_train {

template <typename Params>
struct TileKernel {
  void (*function)(Params);
  std::size_t shared_bytes;
};

struct TileKernels {
  TileKernel<LogsumexpParams> logsumexp;
  TileKernel<ContractParams> weights;
  TileKernel<ContractParams> accumulate;
};

template <typename Core, bool kSplit, typename Sum, typename Weight>
TileKernels kernels_of() {
  return {{logsumexp_tiles<Core, kSplit, Sum>, sizeof(LogsumexpStorage<Core, Sum>)},
          {weights_tiles<Core, kSplit, Weight>, sizeof(WeightsStorage<Core>)},
          {accumulate_tiles<Core, kSplit>, sizeof(typename Core::Ring)}};
}

/// Returns the kernels for split rows or not, and for bounded scores or any.
template <typename Core>
TileKernels tile_kernels(bool split, bool bounded) {
  if (split) {
    return bounded ? kernels_of<Core, true, BoundedSum, BoundedWeight>()
                   : kernels_of<Core, true, OnlineSum, AnyWeight>();
  }
  return bounded ? kernels_of<Core, false, BoundedSum, BoundedWeight>()
                 : kernels_of<Core, false, OnlineSum, AnyWeight>();
}

/// The kernels of WgmmaCore, in a file of their own because only code for sm_90a may contain their
/// instructions.
TileKernels wgmma_kernels(bool split, bool bounded);

}  // namespace mirror_train
