// Biases of experts and clamped gates (pairs.h). A thread makes a number: block (x, y) numbers 256 y ... of pair x.
#pragma once
#include "common/launch.hpp"
#include "common/ptx.hpp"
#include "experts/pairs.h"

namespace tilegemm {
namespace {

constexpr int pair_threads = 256;

// The bias of column j of x for a pair, whose rows have `columns` numbers.
__device__ __forceinline__ float bias_of(const tg_pairs& a, int64_t pair, int64_t columns, int64_t j) {
  if (!a.bias) return 0;
  const uint32_t expert = a.experts[pair];
  return expert < uint32_t(a.count) ? a.bias[expert * columns + j] : 0;
}

__global__ void __launch_bounds__(pair_threads) bias_pairs(const __grid_constant__ tg_pairs a) {
  griddepcontrol_wait();
  launch_dependents();
  const int64_t pair = blockIdx.x, j = blockIdx.y * pair_threads + threadIdx.x, index = pair * a.columns + j;
  if (j >= a.columns) return;
  const bool exists = a.experts[pair] < uint32_t(a.count);
  const float bias = bias_of(a, pair, a.columns, j), x = a.x[index];
  // The weight of a pair whose expert does not exist may be NaN.
  a.d[index] = exists ? fmaf(a.scales ? a.scales[pair] : 1.0f, bias, x) : x;
}

// NaN stays NaN.
__device__ __forceinline__ float at_most(float x, float limit) { return x > limit ? limit : x; }

__global__ void __launch_bounds__(pair_threads) clamp_pairs(const __grid_constant__ tg_pairs a) {
  griddepcontrol_wait();
  launch_dependents();
  const int64_t pair = blockIdx.x, j = blockIdx.y * pair_threads + threadIdx.x, columns = 2 * a.columns;
  if (j >= a.columns) return;
  const int64_t gate_at = a.interleaved ? 2 * j : j, up_at = a.interleaved ? 2 * j + 1 : a.columns + j;
  const float* const x = a.x + pair * columns;
  const float gate = at_most(x[gate_at] + bias_of(a, pair, columns, gate_at), a.limit);
  const float up = -at_most(-at_most(x[up_at] + bias_of(a, pair, columns, up_at), a.limit), a.limit);
  const float steep = gate == -INFINITY ? 0 : gate / (1 + expf(-a.alpha * gate));
  a.d[pair * a.columns + j] = (up + 1) * steep;
}

inline tg_status launch_pairs(const tg_pairs& a, void (*kernel)(tg_pairs)) {
  const int64_t blocks = ceil_div(a.columns, pair_threads);
  if (a.pairs < 0 || a.columns < 0 || a.pairs > INT32_MAX || blocks > 65535) return TG_UNSUPPORTED;
  if (a.bias && !a.experts) return TG_UNSUPPORTED;
  if (a.pairs == 0 || a.columns == 0) return TG_OK;
  tg_gemm_args launch{};
  launch.stream = a.stream, launch.overlap = a.overlap;
  return Launch(launch, dim3(unsigned(a.pairs), unsigned(blocks)), dim3(pair_threads), 0)(kernel, a);
}

}  // namespace
}  // namespace tilegemm
