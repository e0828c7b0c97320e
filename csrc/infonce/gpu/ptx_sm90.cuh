// What only compute capability 9.0 has: wgmma, copies of boxes by the tensor memory accelerator,
// barriers in shared memory that count arrivals and bytes, and registers that move between warps.
#pragma once

#include "infonce/gpu/ptx.cuh"

#ifdef MIRROR_CUDA_EMULATION
#include "sm90_emulation.h"
#else

#include <cuda.h>

namespace mirror_train {

/// Describes a wgmma operand in shared memory with 128-byte swizzle by its start, and the distances
/// in bytes of atoms side by side (`beside`) and of consecutive atoms (`after`).
__device__ inline std::uint64_t wgmma_descriptor(const void* start, unsigned beside,
                                                 unsigned after) {
  constexpr std::uint64_t kSwizzle128 = std::uint64_t{1} << 62;
  const auto field = [](unsigned bytes) { return std::uint64_t{(bytes & 0x3ffff) >> 4}; };
  return field(shared_address(start)) | field(beside) << 16 | field(after) << 32 | kSwizzle128;
}

/// Keeps the compiler from moving uses of `d` across this point: it cannot see that wgmma goes on
/// writing `d` after its instruction.
template <int kCount>
__device__ void pin_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Must be called before the first of a series of products, after pin_registers.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }

/// Starts the products since the last call. Until wgmma_wait has waited for them neither `d` nor
/// the operands may be touched.
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}

/// Waits until at most `kPending` groups of this warpgroup's products are under way. After the last
/// wait, pin_registers must be called.
template <int kPending>
__device__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}

// The numbers of the first 64, 96 and 128 operands of an assembler statement, and sixteen operands.
#define MIRROR_64                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"             \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31" \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define MIRROR_96                                                                    \
  MIRROR_64                                                                          \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define MIRROR_128                                                                               \
  MIRROR_96                                                                                      \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, " \
  "%127"
#define MIRROR_OF_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define MIRROR_OF_16(d, i) \
  MIRROR_OF_4(d, i), MIRROR_OF_4(d, i + 4), MIRROR_OF_4(d, i + 8), MIRROR_OF_4(d, i + 12)
#define MIRROR_OF_32(d, i) MIRROR_OF_16(d, i), MIRROR_OF_16(d, i + 16)
#define MIRROR_OF_64(d) MIRROR_OF_32(d, 0), MIRROR_OF_32(d, 32)
// `a` to `e` are the numbers of the operands behind those of d.
#define MIRROR_WGMMA(columns, numbers, a, b, c, d, e, ...)                                    \
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %" #e                                          \
               ", 0;\nwgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.f16.f16 {" numbers \
               "}, %" #a ", %" #b ", p, 1, 1, %" #c ", %" #d "; }\n"                          \
               : __VA_ARGS__                                                                  \
               : "l"(left), "l"(right), "n"(kLeftTransposed ? 1 : 0),                         \
                 "n"(kRightTransposed ? 1 : 0), "r"(add))

/// Adds left [64, 16] right [16, 128] to d [64, 128], by a warpgroup, or overwrites d where `add`
/// is 0; see wgmma_wait. A warp has 16 rows. d[4 j] and the three elements after it are laid out as
/// the c of multiply_add, for the 8 columns from 8 j on.
template <bool kLeftTransposed, bool kRightTransposed>
__device__ void wgmma(float (&d)[64], std::uint64_t left, std::uint64_t right, int add) {
  MIRROR_WGMMA(128, MIRROR_64, 64, 65, 66, 67, 68, MIRROR_OF_64(d));
}

/// Does the same with right [16, 192].
template <bool kLeftTransposed, bool kRightTransposed>
__device__ void wgmma(float (&d)[96], std::uint64_t left, std::uint64_t right, int add) {
  MIRROR_WGMMA(192, MIRROR_96, 96, 97, 98, 99, 100, MIRROR_OF_64(d), MIRROR_OF_32(d, 64));
}

/// Does the same with right [16, 256]: `low` is d of columns 0 .. 127, and `high` of those after.
template <bool kLeftTransposed, bool kRightTransposed>
__device__ void wgmma(float (&low)[64], float (&high)[64], std::uint64_t left, std::uint64_t right,
                      int add) {
  MIRROR_WGMMA(256, MIRROR_128, 128, 129, 130, 131, 132, MIRROR_OF_64(low), MIRROR_OF_64(high));
}

/// A barrier in shared memory. A phase is complete when so many threads as it counts have arrived,
/// and as many bytes have been copied as were announced.
using Barrier = std::uint64_t;

__device__ inline void init_barrier(Barrier& barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(&barrier)),
               "r"(arrivals)
               : "memory");
}

/// Makes initialised barriers visible to the accelerator; the threads must synchronise after it.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ inline void arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(&barrier))
               : "memory");
}

/// Announces the bytes of copies that will complete on the barrier, and arrives.
__device__ inline void expect_bytes(Barrier& barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(&barrier)),
      "r"(bytes)
      : "memory");
}

/// Waits until the phase with this parity is complete. Of a new barrier the phase under way has
/// parity 0, and the one before it counts as complete.
__device__ inline void wait_barrier(Barrier& barrier, unsigned parity) {
  unsigned done = 0;
  do {
    asm volatile(
        "{ .reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p; }\n"
        : "=r"(done)
        : "r"(shared_address(&barrier)), "r"(parity)
        : "memory");
  } while (done == 0);
}

constexpr int kBoxSide = 64;  // 16-bit elements: a line of a box has the 128 bytes of a swizzle

/// How the accelerator sees a matrix of 16-bit elements in global memory.
using TensorMap = CUtensorMap;

/// Describes [lines, columns], of which boxes of kBoxSide x kBoxSide are copied, with 128-byte
/// swizzle.
inline TensorMap make_tensor_map(const std::uint16_t* data, std::int64_t lines,
                                 std::int64_t columns) {
  // Asked of the driver by name, so that the extension loads where there is none.
  static const auto encode = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000,
                                                cudaEnableDefault, &result),
               "cudaGetDriverEntryPointByVersion");
#else
    check_cuda(
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result),
        "cudaGetDriverEntryPoint");
#endif
    if (found == nullptr) throw std::runtime_error("the driver has no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
  }();
  TensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(lines)};
  const cuuint64_t pitch[] = {sizes[0] * sizeof(std::uint16_t)};
  const cuuint32_t box[] = {kBoxSide, kBoxSide}, steps[] = {1, 1};
  const CUresult result =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, const_cast<std::uint16_t*>(data), sizes,
             pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled: error " + std::to_string(result));
  }
  return map;
}

/// Starts to copy the box whose first element is [line, column] to `shared`, aligned to 1024 bytes;
/// its bytes count on `barrier`. What lies outside the matrix is 0.
__device__ inline void copy_box(void* shared, const TensorMap& map, int line, int column,
                                Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3}], [%4];\n" ::"r"(shared_address(shared)),
      "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(column), "r"(line),
      "r"(shared_address(&barrier))
      : "memory");
}

/// Lets every thread of this warpgroup have at most, or at least, kCount registers.
template <int kCount>
__device__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

/// Arrives at barrier `number` of the block, where `threads` arrive in all, and waits for them.
__device__ inline void sync_barrier(int number, int threads) {
  asm volatile("barrier.sync %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

/// Does the same without waiting.
__device__ inline void arrive_at_barrier(int number, int threads) {
  asm volatile("barrier.arrive %0, %1;\n" ::"r"(number), "r"(threads) : "memory");
}

}  // namespace mirror_train

#endif  // MIRROR_CUDA_EMULATION
