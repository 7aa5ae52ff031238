// How the host launches a kernel: shared memory, clusters, and the overlap with the kernel before.
#pragma once
#include <atomic>

#include "common/kernel.hpp"

namespace tilegemm {

// Allows `kernel` to have `bytes` of shared memory on the current device; the call to CUDA is made once per device and
// `Config`.
template <class Config, class... Parameters>
cudaError_t allow_shared_memory(void (*kernel)(Parameters...), int bytes) {
  static std::atomic<uint64_t> allowed{0};  // one bit per device
  if (Rehearsal::knows(bytes)) return cudaSuccess;
  int device;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  const uint64_t bit = device < 64 ? uint64_t(1) << device : 0;
  if (allowed.load(std::memory_order_relaxed) & bit) return cudaSuccess;
  const cudaError_t error = set_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
  if (error == cudaSuccess) allowed.fetch_or(bit, std::memory_order_relaxed);
  return error;
}

// The launch of a kernel: in clusters, and, on request, while the kernel before still runs (common/ptx.hpp).
class Launch {
 public:
  Launch(const tg_gemm_args& args, dim3 grid, dim3 block, int shared_bytes, dim3 cluster = dim3(1, 1, 1)) {
    config_.gridDim = grid;
    config_.blockDim = block;
    config_.dynamicSmemBytes = size_t(shared_bytes);
    config_.stream = cudaStream_t(args.stream);
    config_.attrs = attributes_;
    if (cluster.x * cluster.y * cluster.z > 1) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeClusterDimension;
      attributes_[config_.numAttrs++].val.clusterDim = {cluster.x, cluster.y, cluster.z};
    }
    if (args.overlap) {
      attributes_[config_.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes_[config_.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
  }
  Launch(const Launch&) = delete;

  // `parameters` have the types of the kernel's parameters.
  template <class... Parameters>
  tg_status operator()(void (*kernel)(Parameters...), const Parameters&... parameters) const {
    void* list[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
    if (Rehearsal::knows(int(config_.dynamicSmemBytes))) return TG_OK;
    return cuda_status(cudaLaunchKernelExC(&config_, reinterpret_cast<const void*>(kernel), list));
  }

 private:
  cudaLaunchAttribute attributes_[2];
  cudaLaunchConfig_t config_{};
};

// Launches blocks of C::threads threads with C::shared_bytes of shared memory; the blocks of a cluster are neighbours.
template <class C, class... Parameters>
tg_status launch_configured(const tg_gemm_args& args, int64_t blocks, int cluster, void (*kernel)(Parameters...),
                            const Parameters&... parameters) {
  if (const cudaError_t error = allow_shared_memory<C>(kernel, C::shared_bytes)) return cuda_status(error);
  return Launch(args, dim3(unsigned(blocks)), dim3(C::threads), C::shared_bytes, dim3(cluster))(kernel, parameters...);
}

// A launch without attributes: for kernels of every architecture.
template <class... Parameters>
tg_status launch_plainly(const tg_gemm_args& args, dim3 grid, dim3 block, int shared_bytes,
                         void (*kernel)(Parameters...), const Parameters&... parameters) {
  if (Rehearsal::knows(shared_bytes)) return TG_OK;
  void* list[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  const auto address = reinterpret_cast<const void*>(kernel);
  return cuda_status(cudaLaunchKernel(address, grid, block, list, size_t(shared_bytes), cudaStream_t(args.stream)));
}

}  // namespace tilegemm
