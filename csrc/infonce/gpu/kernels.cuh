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

template <typename Core, bool kSplit>
TileKernels tile_kernels() {
  return {{logsumexp_tiles<Core, kSplit>, sizeof(LogsumexpStorage<Core>)},
          {weights_tiles<Core, kSplit>, sizeof(WeightsStorage<Core>)},
          {accumulate_tiles<Core, kSplit>, sizeof(typename Core::Ring)}};
}

/// The kernels of WgmmaCore, in a file of their own because only code for sm_90a may contain their
/// instructions.
TileKernels wgmma_kernels(bool split);

}  // namespace mirror_train
