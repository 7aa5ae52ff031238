// The array of the kernels that were built, and what the CUDA runtime says of the devices.
#include <cuda.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "common/kernel.hpp"

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

// A function of the driver, whose errors are not the runtime's last error: that one stays as it was found.
template <class Function>
Function* find_driver_function(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  return reinterpret_cast<Function*>(found);
}
#define DRIVER_FUNCTION(NAME, VERSION)                                                     \
  [] {                                                                                     \
    static const auto function = find_driver_function<decltype(NAME)>(#NAME, VERSION);     \
    return function;                                                                       \
  }()

// The runtime has the driver's numbers.
tg_status driver_status(CUresult result) { return tilegemm::cuda_status(cudaError_t(result)); }

// Calls what would make a capture invalid that another thread has begun in global mode.
template <class Call>
tg_status relaxed(Call call) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (const tg_status status = tilegemm::cuda_status(cudaThreadExchangeStreamCaptureMode(&mode))) return status;
  const tg_status status = call();
  cudaThreadExchangeStreamCaptureMode(&mode);
  return status;
}

// Gives the thread the context of its device, as calls of the runtime do: the driver's do not.
bool make_context() {
  CUcontext context = nullptr;
  const auto current = DRIVER_FUNCTION(cuCtxGetCurrent, 4000);
  if (current && current(&context) == CUDA_SUCCESS && context) return true;
  return relaxed([] { return tilegemm::cuda_status(cudaFree(nullptr)); }) == TG_OK;
}

}  // namespace

tg_status tilegemm::cuda_status(cudaError_t error) {
  if (error == cudaSuccess) return TG_OK;
  last_error = error;
  return TG_CUDA_ERROR;
}

cudaError_t tilegemm::set_shared_memory(const void* kernel, int bytes) {
  const auto set = DRIVER_FUNCTION(cuFuncSetAttribute, 9000);
  if (!set) return cudaErrorCallRequiresNewerDriver;
  cudaFunction_t function = nullptr;
  if (const cudaError_t error = cudaGetFuncBySymbol(&function, kernel)) return error;
  return cudaError_t(set(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes));
}

tg_status tilegemm::load_module(const void* kernel) {
  const auto module_of = DRIVER_FUNCTION(cuFuncGetModule, 11000);
  const auto count_of = DRIVER_FUNCTION(cuModuleGetFunctionCount, 12040);
  const auto enumerate = DRIVER_FUNCTION(cuModuleEnumerateFunctions, 12040);
  const auto load = DRIVER_FUNCTION(cuFuncLoad, 12040);
  if (!module_of || !count_of || !enumerate || !load) return cuda_status(cudaErrorCallRequiresNewerDriver);
  return relaxed([&]() -> tg_status {
    cudaFunction_t function = nullptr;
    if (const tg_status status = cuda_status(cudaGetFuncBySymbol(&function, kernel))) return status;
    CUmodule module = nullptr;
    unsigned count = 0;
    if (const tg_status status = driver_status(module_of(&module, function))) return status;
    if (const tg_status status = driver_status(count_of(&count, module))) return status;
    std::vector<CUfunction> functions(count);
    if (const tg_status status = driver_status(enumerate(functions.data(), count, module))) return status;
    for (CUfunction each : functions) {
      if (const tg_status status = driver_status(load(each))) return status;
    }
    return TG_OK;
  });
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

// CUDA does not tell the number of a stream that is being captured, and asking ends the capture. But CUDA tells the attributes of such
// a stream, and a new stream has none. An access policy window of no bytes has no effect; its address is the mark.
tg_status tg_mark_stream(void* stream, uint64_t mark) {
  const auto get = DRIVER_FUNCTION(cuStreamGetAttribute, 11000);
  const auto set = DRIVER_FUNCTION(cuStreamSetAttribute, 11000);
  if (!get || !set) return driver_status(CUDA_ERROR_NOT_SUPPORTED);
  CUstreamAttrValue value{};
  if (const tg_status status = driver_status(get(CUstream(stream), CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value))) return status;
  if (value.accessPolicyWindow.num_bytes != 0) return TG_OK;  // the program's own
  value.accessPolicyWindow = {};
  value.accessPolicyWindow.base_ptr = reinterpret_cast<void*>(uintptr_t(mark));
  return driver_status(set(CUstream(stream), CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value));
}

int32_t tg_stream_may_have_mark(void* stream, uint64_t mark) {
  const auto get = DRIVER_FUNCTION(cuStreamGetAttribute, 11000);
  CUstreamAttrValue value{};
  if (!get || get(CUstream(stream), CU_STREAM_ATTRIBUTE_ACCESS_POLICY_WINDOW, &value) != CUDA_SUCCESS) return 0;
  const CUaccessPolicyWindow& window = value.accessPolicyWindow;
  return window.num_bytes != 0 || window.base_ptr == reinterpret_cast<void*>(uintptr_t(mark));
}

int32_t tg_stream_is_capturing(void* stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const auto ask = DRIVER_FUNCTION(cuStreamIsCapturing, 10000);
  if (!ask || !make_context()) return 1;
  // The driver cannot tell of the default stream while another one is captured.
  return ask(CUstream(stream), &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

tg_status tg_allocate(uint64_t bytes, void** pointer) {
  const auto allocate = DRIVER_FUNCTION(cuMemAlloc, 3020);
  if (!allocate || !make_context()) return driver_status(CUDA_ERROR_INVALID_CONTEXT);
  return relaxed([&] {
    CUdeviceptr address = 0;
    const tg_status status = driver_status(allocate(&address, size_t(bytes)));
    *pointer = reinterpret_cast<void*>(address);
    return status;
  });
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
