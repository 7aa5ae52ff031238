// Activations in bf16, in the order of K that the weights have in registers: rows of a multiple of 64 numbers in the workspace.
#pragma once
#include "common/convert.hpp"

namespace tilegemm {
namespace {

constexpr int preparing_threads = 256;

// A thread has four neighbouring numbers of a row. Behind the end of K are zeros.
template <class T>
__global__ void __launch_bounds__(preparing_threads) prepare(const __grid_constant__ tg_gemm_args args, uint32_t* to, int pitch) {
  griddepcontrol_wait();
  launch_dependents();  // after the wait: the product reads W before this kernel ends, and W may be of the kernel before
  const int quads = pitch / 4;
  const int64_t index = int64_t(blockIdx.x) * preparing_threads + threadIdx.x;
  if (index >= args.m * quads) return;
  const int64_t row = index / quads;
  const int quad = int(index - row * quads), k = 4 * quad;
  float x[Numbers<T>::width];
  Numbers<T>(args).load(row, k, x);
  const __nv_bfloat162 pairs[2] = {{to_bf16(x[0]), to_bf16(x[1])}, {to_bf16(x[2]), to_bf16(x[3])}};
  uint32_t* const step = to + row * (pitch / 2) + quad / 4 * 8 + quad % 4;
  step[0] = reinterpret_cast<const uint32_t&>(pairs[0]);
  step[4] = reinterpret_cast<const uint32_t&>(pairs[1]);
}

template <class T>
tg_status launch_prepare(const tg_gemm_args& args, void* to, int pitch) {
  const int64_t blocks = ceil_div(args.m * (pitch / 4), preparing_threads);
  if (blocks > INT_MAX) return TG_UNSUPPORTED;
  return Launch(args, dim3(unsigned(blocks)), dim3(preparing_threads), 0)(prepare<T>, args, static_cast<uint32_t*>(to), pitch);
}

}  // namespace
}  // namespace tilegemm
