// Sums number by number, of those that are not finite.
#pragma once
#include "common/kernel.hpp"
#include "narrow/numbers.hpp"

namespace tilegemm {
namespace {

__device__ __forceinline__ float number_of_a(const tg_gemm_args& args, int64_t at) {
  switch (args.types.a) {
    case TG_F16: return __half2float(static_cast<const __half*>(args.a.ptr)[at]);
    case TG_BF16: return __bfloat162float(static_cast<const __nv_bfloat16*>(args.a.ptr)[at]);
    default: return static_cast<const float*>(args.a.ptr)[at];
  }
}

// The sum of row m of X times row n of W over k in [begin, end). All lanes of a warp take part.
__device__ __noinline__ float exact_sum(const tg_gemm_args& args, int64_t m, int64_t n, int64_t begin, int64_t end) {
  const narrow::Column column(args, 0, 0, n);
  float sum = 0;
#pragma unroll 1
  for (int64_t k = begin + threadIdx.x % 32; k < end; k += 32)
    sum = fmaf(column[k], number_of_a(args, m * args.a.row_stride + k), sum);
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
  return sum;
}

// Whether a factor of row n in [begin, end) is not finite, for all lanes of a warp.
__device__ __noinline__ bool has_wild_factor(const tg_gemm_args& args, int64_t n, int64_t begin, int64_t end) {
  const tg_scale& scale = args.b_scale;
  if (!scale.ptr) return false;
  const int64_t of_row = narrow::group_of(n, scale.columns) * scale.col_stride;
  const int64_t last = narrow::group_of(end - 1, scale.rows);
  bool is_wild = false;
#pragma unroll 1
  for (int64_t group = narrow::group_of(begin, scale.rows) + threadIdx.x % 32; group <= last; group += 32)
    is_wild |= !isfinite(narrow::factor_at(scale.format, scale.ptr, group * scale.row_stride + of_row));
  return __any_sync(~0u, is_wild);
}

}  // namespace
}  // namespace tilegemm
