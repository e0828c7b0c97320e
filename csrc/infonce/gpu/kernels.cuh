// The kernels that work on tiles, as a table of functions that launch them: one table for each core
// and precision.
#pragma once

#include "infonce/gpu/contract.cuh"
#include "infonce/gpu/logsumexp.cuh"

namespace mirror_train {

/// Each function computes a wave.
struct TileKernels {
  void (*logsumexp)(const LogsumexpParams&, void* stream);
  void (*weights)(const ContractParams&, void* stream);
  void (*teacher_weights)(const ContractParams&, void* stream);
  void (*student_weights)(const ContractParams&, void* stream);
  void (*accumulate)(const ContractParams&, void* stream);
  int column_parts;  // see LogsumexpParams
};

inline dim3 tile_blocks(const Wave& wave) {
  return dim3(static_cast<unsigned>(groups_of<1>(wave)));
}

/// Returns the number of output tiles of `accumulate`.
inline int outputs_of(const ContractParams& p) {
  return p.wave.outputs(/*columns=*/p.column_sums != nullptr);
}

template <typename Core, bool kSplit, typename Sum>
void launch_logsumexp(const LogsumexpParams& p, void* stream) {
  launch("logsumexp_tiles", logsumexp_tiles<Core, kSplit, Sum>, tile_blocks(p.wave), Core::kThreads,
         sizeof(LogsumexpStorage<Core, Sum>), stream, p);
}

template <typename Core, bool kSplit, Role kRole, typename Weight>
void launch_weights(const ContractParams& p, void* stream) {
  launch("weights_tiles", weights_tiles<Core, kSplit, kRole, Weight>, tile_blocks(p.wave),
         Core::kThreads, sizeof(WeightsStorage), stream, p);
}

template <typename Core, bool kSplit>
void launch_accumulate(const ContractParams& p, void* stream) {
  const dim3 grid(static_cast<unsigned>(p.scores.rows.stride / kTile),
                  static_cast<unsigned>(outputs_of(p)));
  launch("accumulate_tiles", accumulate_tiles<Core, kSplit>, grid, Core::kThreads, sizeof(Ring),
         stream, p);
}

template <typename Core, bool kSplit, typename Sum, typename Weight>
TileKernels kernels_of() {
  return {launch_logsumexp<Core, kSplit, Sum>,
          launch_weights<Core, kSplit, Role::kAlone, Weight>,
          launch_weights<Core, kSplit, Role::kTeacher, Weight>,
          launch_weights<Core, kSplit, Role::kStudent, Weight>,
          launch_accumulate<Core, kSplit>,
          1};
}

/// Returns the kernels for bounded scores or any, of split rows or not.
template <typename Core, bool kSplit>
TileKernels tile_kernels(bool bounded) {
  return bounded ? kernels_of<Core, kSplit, BoundedSum, BoundedWeight>()
                 : kernels_of<Core, kSplit, OnlineSum, AnyWeight>();
}

/// The kernels fed by the tensor memory accelerator, in a file of their own because only code for
/// sm_90a may contain their instructions.
TileKernels tma_kernels(bool split, bool bounded);

}  // namespace mirror_train
