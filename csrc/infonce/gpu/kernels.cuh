// The kernels that work on tiles, as a table of what to launch: one for each core and precision.
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

/// Those of WgmmaCore; a file of its own, for only code for sm_90a may have its instructions.
TileKernels wgmma_kernels(bool split);

}  // namespace mirror_train
