// Launches of this folder's kernels.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <atomic>

#include "common/kernel.hpp"
#include "common/ptx.hpp"
#include "layer/layer.h"

namespace tilegemm {
namespace {

// Launches in clusters of `cluster` blocks, and, on request, while the kernel before still runs.
template <class... Parameters>
tg_status start(const tg_launch& launch, dim3 grid, int threads, int shared_bytes, int cluster,
                void (*kernel)(Parameters...), const Parameters&... parameters) {
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = size_t(shared_bytes);
  config.stream = cudaStream_t(launch.stream);
  config.attrs = attributes;
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(cluster), 1, 1};
  }
  if (launch.overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  void* list[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  return cuda_status(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), list));
}

// Lets `kernel` have `bytes` of shared memory, and clusters of 16, on the current device; once per device and `Key`.
template <class Key, class... Parameters>
cudaError_t allow(void (*kernel)(Parameters...), int bytes, bool large_clusters) {
  static std::atomic<uint64_t> allowed[2];
  int device;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  const uint64_t bit = device < 64 ? uint64_t(1) << device : 0;
  if (allowed[large_clusters].load(std::memory_order_relaxed) & bit) return cudaSuccess;
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess && large_clusters) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  }
  if (error == cudaSuccess) allowed[large_clusters].fetch_or(bit, std::memory_order_relaxed);
  return error;
}

inline int multiprocessors_of(const tg_launch& launch) {
  if (launch.multiprocessors > 0) return launch.multiprocessors;
  int device = 0, count = 0;
  if (cudaGetDevice(&device) || cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device)) return 0;
  return count;
}

inline bool at_multiple(const void* at, int bytes) { return reinterpret_cast<uintptr_t>(at) % bytes == 0; }

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__half x) { return __half2float(x); }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
template <class T> __device__ inline T from_float(float x);
template <> __device__ inline float from_float<float>(float x) { return x; }
template <> __device__ inline __half from_float<__half>(float x) { return __float2half_rn(x); }
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) { return __float2bfloat16_rn(x); }

// Cosine and sine of position * frequency. The product of two floats is exact in f64, so the angle keeps its precision
// at large positions; half turns are counted in f64, the rest fits a float.
__device__ inline float2 turn_of(int position, float frequency) {
  const double halves = double(position) * double(frequency) * 0.318309886183790671538;
  float2 turn;
  sincospif(float(halves - 2 * rint(halves * 0.5)), &turn.y, &turn.x);
  return turn;
}
__device__ inline void rotate(float& x, float& y, float2 turn) {
  const float u = fmaf(x, turn.x, -(y * turn.y)), v = fmaf(x, turn.y, y * turn.x);
  x = u, y = v;
}

}  // namespace
}  // namespace tilegemm
