// The array of the kernels in this build, the loading of their modules, and the errors of the CUDA runtime.
#include <cuda.h>

#include <cstdio>
#include <vector>

#include "common/kernel.hpp"
#include "library.h"

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
thread_local int rehearsals = 0, rehearsed_bytes = 0;

// A function of the driver. Errors of the function do not change the runtime's last error.
template <class Function>
Function* find_driver_function(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result);
  return reinterpret_cast<Function*>(found);
}
#define DRIVER_FUNCTION(NAME, VERSION)                                                 \
  [] {                                                                                 \
    static const auto function = find_driver_function<decltype(NAME)>(#NAME, VERSION); \
    return function;                                                                   \
  }()

// The runtime uses the driver's error numbers.
tg_status driver_status(CUresult result) { return tilegemm::cuda_status(cudaError_t(result)); }

// Makes a call that would otherwise invalidate a capture that another thread has begun in global mode.
template <class Call>
tg_status relaxed(Call call) {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (const tg_status status = tilegemm::cuda_status(cudaThreadExchangeStreamCaptureMode(&mode))) return status;
  const tg_status status = call();
  cudaThreadExchangeStreamCaptureMode(&mode);
  return status;
}

}  // namespace

tilegemm::Rehearsal::Rehearsal() {
  if (rehearsals++ == 0) rehearsed_bytes = 0;
}
tilegemm::Rehearsal::~Rehearsal() { rehearsals--; }
bool tilegemm::Rehearsal::is_on() { return rehearsals > 0; }
bool tilegemm::Rehearsal::knows(int shared_bytes) {
  if (is_on() && shared_bytes > rehearsed_bytes) rehearsed_bytes = shared_bytes;
  return is_on();
}

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

int32_t tg_rehearsed_shared_bytes(void) { return rehearsed_bytes; }

int32_t tg_runtime_version(void) {
  int version = 0;
  return cudaRuntimeGetVersion(&version) == cudaSuccess ? version : 0;
}

const char* tg_last_cuda_error(void) {
  thread_local char text[256];
  std::snprintf(text, sizeof(text), "%s: %s", cudaGetErrorName(last_error), cudaGetErrorString(last_error));
  return text;
}

}  // extern "C"
