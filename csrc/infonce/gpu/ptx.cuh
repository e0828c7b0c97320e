// Everything that the InfoNCE kernels need of the GPU beyond plain CUDA C++: tensor-core
// instructions, asynchronous copies, shared memory, launches. tests/support/cuda_emulation replaces
// only this header, and ptx_sm90.cuh, to run the same kernels on the host.
#pragma once

#ifdef MIRROR_CUDA_EMULATION
#include "cuda_emulation.h"
#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace mirror_train {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define MIRROR_ASYNC_COPY 0
#else
#define MIRROR_ASYNC_COPY 1
#endif

/// Returns the block's dynamic shared memory as a T.
template <typename T>
__device__ T& shared_memory() {
  extern __shared__ __align__(1024) unsigned char shared_bytes[];
  return *reinterpret_cast<T*>(shared_bytes);
}

__device__ inline unsigned shared_address(const void* shared) {
  return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}

/// A 16-byte copy from global to shared memory in two steps; the work between `start` and `finish`
/// hides the load. From sm_80 on the hardware copies by itself; before, a register is used.
class Copy16 {
 public:
  __device__ void start(void* shared, const void* global) {
#if MIRROR_ASYNC_COPY
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(shared_address(shared)),
                 "l"(global)
                 : "memory");
#else
    shared_ = static_cast<uint4*>(shared);
    value_ = __ldg(static_cast<const uint4*>(global));
#endif
  }

  __device__ void finish() {
#if !MIRROR_ASYNC_COPY
    *shared_ = value_;
#endif
  }

#if !MIRROR_ASYNC_COPY
 private:
  uint4* shared_;
  uint4 value_;
#endif
};

/// Copies 16 bytes; both addresses must be aligned to 16 bytes.
__device__ inline void copy_chunk(void* to, const void* from) {
  *static_cast<uint4*>(to) = *static_cast<const uint4*>(from);
}

/// Ends the group of copies that this thread has started since the last call.
__device__ inline void commit_copies() {
#if MIRROR_ASYNC_COPY
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

/// Waits until at most `kPending` groups of this thread's copies are under way.
template <int kPending>
__device__ void wait_copies() {
#if MIRROR_ASYNC_COPY
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
#endif
}

/// Loads four 8x8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix
/// l / 8, and receives elements 2 * (l % 4) and 2 * (l % 4) + 1 of row l / 4 of each matrix.
__device__ inline void load_matrices(std::uint32_t (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}

/// Does the same for the transposed matrices.
__device__ inline void load_matrices_transposed(std::uint32_t (&r)[4], const void* shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(shared))
               : "memory");
}

#if !MIRROR_ASYNC_COPY
/// Adds a [16, 8] b [8, 8] to c, the largest fp16 shape of sm_75.
__device__ inline void multiply_add_k8(float* c, std::uint32_t a0, std::uint32_t a1,
                                       std::uint32_t b0) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b0));
}
#endif

/// Adds a [16, 16] b [16, 8] to c, in fp16 with fp32 sums. Of c, lane l holds the elements
/// (l / 4, 2 * (l % 4) + {0, 1}) and those 8 rows below.
__device__ inline void multiply_add(float* c, const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
#if MIRROR_ASYNC_COPY
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  multiply_add_k8(c, a[0], a[1], b0);
  multiply_add_k8(c, a[2], a[3], b1);
#endif
}

__device__ inline std::uint16_t half_bits(float x) { return __half_as_ushort(__float2half_rn(x)); }

/// Returns both numbers in fp16, the first in the low half.
__device__ inline std::uint32_t half_pair(float x, float y) {
  const __half2 pair = __floats2half2_rn(x, y);
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

/// Returns 2^x with a relative error below 2^-22; what is below 2^-126 becomes 0.
__device__ inline float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float half_value(std::uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

/// Throws an exception that describes `result` unless it is success.
inline void check_cuda(cudaError_t result, const char* call) {
  if (result == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());  // clears it, or whoever asks next would get it
  throw std::runtime_error(std::string(call) + ": " + cudaGetErrorName(result) + ", " +
                           cudaGetErrorString(result));
}

/// Makes `device` current for this thread, unless it is.
inline void choose_device(int device) {
  int current = -1;
  check_cuda(cudaGetDevice(&current), "cudaGetDevice");
  if (current != device) check_cuda(cudaSetDevice(device), "cudaSetDevice");
}

inline int current_device() {
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  return device;
}

/// Returns the compute capability of the current device, such as 90 for sm_90.
inline int compute_capability() {
  const int device = current_device();
  int major = 0, minor = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
             "cudaDeviceGetAttribute");
  return 10 * major + minor;
}

/// Returns how many multiprocessors the current device has.
inline int multiprocessors() {
  int count = 0;
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, current_device()),
             "cudaDeviceGetAttribute");
  return count;
}

/// Queues `kernel` on `stream`; throws if it cannot start.
template <typename Params>
void launch(const char* name, void (*kernel)(Params), dim3 grid, int threads,
            std::size_t shared_bytes, void* stream, const Params& params) {
  if (grid.x == 0 || grid.y == 0) return;
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (shared_bytes > kWithoutAsking) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)),
               "cudaFuncSetAttribute");
  }
  Params copy = params;
  void* arguments[] = {&copy};
  check_cuda(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, dim3(threads), arguments,
                              shared_bytes, static_cast<cudaStream_t>(stream)),
             name);
}

}  // namespace mirror_train

#endif  // MIRROR_CUDA_EMULATION
