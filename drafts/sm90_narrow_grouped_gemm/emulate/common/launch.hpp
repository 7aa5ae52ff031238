#pragma once
#include "common/kernel.hpp"
namespace tilegemm {
template <class C, class... P> cudaError_t allow_shared_memory(void (*)(P...), int bytes) { return bytes <= 227 * 1024 ? cudaSuccess : cudaErrorInvalidValue; }
struct Launch {
  dim3 grid, block; int bytes;
  Launch(const tg_gemm_args&, dim3 grid, dim3 block, int bytes) : grid(grid), block(block), bytes(bytes) {}
  template <class... P> tg_status operator()(void (*kernel)(P...), const std::remove_reference_t<P>&... p) const { emu::run(grid, block, bytes, [&] { kernel(p...); }); return TG_OK; }
};
}  // namespace tilegemm
