// The array of the kernels that were built, and what the CUDA runtime says of the devices.
#include <cstdio>
#include <cstring>

#include "kernel.hpp"

#define TG_ENTRY(NAME) extern "C" const tg_kernel NAME;
#include "tg_kernels.inc"
#undef TG_ENTRY

namespace {

const tg_kernel* const kernels[] = {
#define TG_ENTRY(NAME) &NAME,
#include "tg_kernels.inc"
#undef TG_ENTRY
    nullptr};

thread_local cudaError_t last_error = cudaSuccess;

}  // namespace

tg_status tilegemm::cuda_status(cudaError_t error) {
  if (error == cudaSuccess) return TG_OK;
  last_error = error;
  return TG_CUDA_ERROR;
}

extern "C" {

int32_t tg_abi_version(void) { return TG_ABI_VERSION; }

const tg_kernel* const* tg_kernels(size_t* count) {
  *count = sizeof(kernels) / sizeof(kernels[0]) - 1;
  return kernels;
}

int32_t tg_device_count(void) {
  int count = 0;
  const tg_status status = tilegemm::cuda_status(cudaGetDeviceCount(&count));
  return status == TG_OK ? count : 0;
}

tg_status tg_driver_version(int32_t* version) { return tilegemm::cuda_status(cudaDriverGetVersion(version)); }

tg_status tg_current_device(int32_t* ordinal) { return tilegemm::cuda_status(cudaGetDevice(ordinal)); }

tg_status tg_device(int32_t ordinal, tg_device_info* info) {
  cudaDeviceProp properties;
  const tg_status status = tilegemm::cuda_status(cudaGetDeviceProperties(&properties, ordinal));
  if (status != TG_OK) return status;
  std::snprintf(info->name, sizeof(info->name), "%s", properties.name);
  info->compute_capability = properties.major * 10 + properties.minor;
  info->sm_count = properties.multiProcessorCount;
  info->shared_memory_per_block = int32_t(properties.sharedMemPerBlockOptin);
  info->l2_bytes = properties.l2CacheSize;
  info->memory_bytes = int64_t(properties.totalGlobalMem);
  return TG_OK;
}

tg_status tg_stream_id(void* stream, uint64_t* id) {
  unsigned long long number = 0;
  const tg_status status = tilegemm::cuda_status(cudaStreamGetId(cudaStream_t(stream), &number));
  *id = number;
  return status;
}

int32_t tg_stream_is_capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(cudaStream_t(stream), &status) == cudaSuccess) return status != cudaStreamCaptureStatusNone;
  cudaGetLastError();  // the default stream, while another one is captured; not an error of the next launch
  return 1;
}

tg_status tg_allocate(uint64_t bytes, void** pointer) {
  // cudaMalloc would make a capture invalid that another thread has begun in global mode.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  tg_status status = tilegemm::cuda_status(cudaThreadExchangeStreamCaptureMode(&mode));
  if (status != TG_OK) return status;
  status = tilegemm::cuda_status(cudaMalloc(pointer, bytes));
  if (status != TG_OK) cudaGetLastError();  // it is told by the status; the next launch did not fail
  cudaThreadExchangeStreamCaptureMode(&mode);
  return status;
}

tg_status tg_event(void** event) {
  cudaEvent_t made = nullptr;
  const tg_status status = tilegemm::cuda_status(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  *event = made;
  return status;
}

tg_status tg_wait(void* stream, void* event) {
  return tilegemm::cuda_status(cudaStreamWaitEvent(cudaStream_t(stream), cudaEvent_t(event), 0));
}

tg_status tg_record(void* stream, void* event) {
  return tilegemm::cuda_status(cudaEventRecord(cudaEvent_t(event), cudaStream_t(stream)));
}

const char* tg_last_cuda_error(void) {
  thread_local char text[256];
  std::snprintf(text, sizeof(text), "%s: %s", cudaGetErrorName(last_error), cudaGetErrorString(last_error));
  return text;
}

}  // extern "C"
