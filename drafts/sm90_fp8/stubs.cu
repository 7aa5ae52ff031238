// What csrc/registry.cpp has for the library.
#include <cstdio>

#include "common/kernel.hpp"
namespace tilegemm {
tg_status cuda_status(cudaError_t error) {
  if (error == cudaSuccess) return TG_OK;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(error));
  return TG_CUDA_ERROR;
}
Rehearsal::Rehearsal() {}
Rehearsal::~Rehearsal() {}
bool Rehearsal::is_on() { return false; }
bool Rehearsal::knows(int) { return false; }
cudaError_t set_shared_memory(const void* kernel, int bytes) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
tg_status load_module(const void*) { return TG_OK; }
}  // namespace tilegemm
