// What only compute capability 9.0 has: wgmma, copies of boxes by the tensor memory accelerator,
// barriers in shared memory that count arrivals and bytes, and registers that move between warps.
#pragma once

#include "infonce/gpu/ptx.cuh"

#ifdef MIRROR_CUDA_EMULATION
#include "sm90_emulation.h"
#else

#include <cuda.h>

namespace mirror_train {

/// Makes this thread's finished copies to shared memory visible to wgmma.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

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
__device__ inline void pin_registers(float (&d)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) asm volatile("" : "+f"(d[i])::"memory");
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

/// Adds left [64, 16] right [16, 128] to d [64, 128], by a warpgroup; see wgmma_wait. A
/// warp has 16 rows. d[4 j] and the three elements after it are laid out as the c of multiply_add,
/// for the 8 columns from 8 j on.
template <bool kLeftTransposed, bool kRightTransposed>
__device__ void wgmma(float (&d)[64], std::uint64_t left, std::uint64_t right) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %68, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, %66, %67; }\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
        "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
        "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
        "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
        "+f"(d[63])
      : "l"(left), "l"(right), "n"(kLeftTransposed ? 1 : 0), "n"(kRightTransposed ? 1 : 0), "r"(1));
}

/// Does the same with right [16, 256]: `low` is d of columns 0 .. 127, and `high` of those after.
template <bool kLeftTransposed, bool kRightTransposed>
__device__ void wgmma_wide(float (&low)[64], float (&high)[64], std::uint64_t left,
                           std::uint64_t right) {
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %132, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
      "%127}, "
      "%128, %129, p, 1, 1, %130, %131; }\n"
      : "+f"(low[0]), "+f"(low[1]), "+f"(low[2]), "+f"(low[3]), "+f"(low[4]), "+f"(low[5]),
        "+f"(low[6]), "+f"(low[7]), "+f"(low[8]), "+f"(low[9]), "+f"(low[10]), "+f"(low[11]),
        "+f"(low[12]), "+f"(low[13]), "+f"(low[14]), "+f"(low[15]), "+f"(low[16]), "+f"(low[17]),
        "+f"(low[18]), "+f"(low[19]), "+f"(low[20]), "+f"(low[21]), "+f"(low[22]), "+f"(low[23]),
        "+f"(low[24]), "+f"(low[25]), "+f"(low[26]), "+f"(low[27]), "+f"(low[28]), "+f"(low[29]),
        "+f"(low[30]), "+f"(low[31]), "+f"(low[32]), "+f"(low[33]), "+f"(low[34]), "+f"(low[35]),
        "+f"(low[36]), "+f"(low[37]), "+f"(low[38]), "+f"(low[39]), "+f"(low[40]), "+f"(low[41]),
        "+f"(low[42]), "+f"(low[43]), "+f"(low[44]), "+f"(low[45]), "+f"(low[46]), "+f"(low[47]),
        "+f"(low[48]), "+f"(low[49]), "+f"(low[50]), "+f"(low[51]), "+f"(low[52]), "+f"(low[53]),
        "+f"(low[54]), "+f"(low[55]), "+f"(low[56]), "+f"(low[57]), "+f"(low[58]), "+f"(low[59]),
        "+f"(low[60]), "+f"(low[61]), "+f"(low[62]), "+f"(low[63]), "+f"(high[0]), "+f"(high[1]),
        "+f"(high[2]), "+f"(high[3]), "+f"(high[4]), "+f"(high[5]), "+f"(high[6]), "+f"(high[7]),
        "+f"(high[8]), "+f"(high[9]), "+f"(high[10]), "+f"(high[11]), "+f"(high[12]),
        "+f"(high[13]), "+f"(high[14]), "+f"(high[15]), "+f"(high[16]), "+f"(high[17]),
        "+f"(high[18]), "+f"(high[19]), "+f"(high[20]), "+f"(high[21]), "+f"(high[22]),
        "+f"(high[23]), "+f"(high[24]), "+f"(high[25]), "+f"(high[26]), "+f"(high[27]),
        "+f"(high[28]), "+f"(high[29]), "+f"(high[30]), "+f"(high[31]), "+f"(high[32]),
        "+f"(high[33]), "+f"(high[34]), "+f"(high[35]), "+f"(high[36]), "+f"(high[37]),
        "+f"(high[38]), "+f"(high[39]), "+f"(high[40]), "+f"(high[41]), "+f"(high[42]),
        "+f"(high[43]), "+f"(high[44]), "+f"(high[45]), "+f"(high[46]), "+f"(high[47]),
        "+f"(high[48]), "+f"(high[49]), "+f"(high[50]), "+f"(high[51]), "+f"(high[52]),
        "+f"(high[53]), "+f"(high[54]), "+f"(high[55]), "+f"(high[56]), "+f"(high[57]),
        "+f"(high[58]), "+f"(high[59]), "+f"(high[60]), "+f"(high[61]), "+f"(high[62]),
        "+f"(high[63])
      : "l"(left), "l"(right), "n"(kLeftTransposed ? 1 : 0), "n"(kRightTransposed ? 1 : 0), "r"(1));
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

__device__ inline void sleep_briefly(unsigned nanoseconds) { __nanosleep(nanoseconds); }

/// Waits for the other threads of the warpgroup; `number` is its own, from 0 on.
__device__ inline void sync_warpgroup(int number) {
  // Barrier 0 is that of __syncthreads.
  asm volatile("barrier.sync %0, 128;\n" ::"r"(number + 1) : "memory");
}

}  // namespace mirror_train

#endif  // MIRROR_CUDA_EMULATION
