// Sums number by number: those that are not finite once more, and the kernel for groups and blocks of any size.
#pragma once
#include "common/epilogue.hpp"
#include "narrow/weights.hpp"

namespace tilegemm {
namespace {

__device__ __forceinline__ float number_of_a(const tg_gemm_args& args, int64_t at) {
  if (args.types.a == TG_F16) return float(static_cast<const __half*>(args.a.ptr)[at]);
  return float(static_cast<const __nv_bfloat16*>(args.a.ptr)[at]);
}

// The sum of row m of X times row n of W over k in [begin, end). All lanes of a warp take part.
template <Codes C>
__device__ __noinline__ float exact_sum(const tg_gemm_args& args, const NarrowWeights& w, int64_t m, int64_t n,
                                        int64_t begin, int64_t end) {
  float sum = 0;
#pragma unroll 1
  for (int64_t k = begin + threadIdx.x % 32; k < end; k += 32)
    sum = fmaf(narrow::number<C>(w, n, k), number_of_a(args, m * args.a.row_stride + k), sum);
#pragma unroll
  for (int bit = 16; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
  return sum;
}

// Whether a scale of row n in [begin, end) is not finite, for all lanes of a warp.
__device__ __noinline__ bool has_wild_scale(const NarrowWeights& w, int64_t n, int64_t begin, int64_t end) {
  const int64_t of_row = n / w.rows * w.stride_n, last = (end - 1) / w.group;
  bool is_wild = false;
#pragma unroll 1
  for (int64_t group = begin / w.group + threadIdx.x % 32; group <= last; group += 32)
    is_wild |= !isfinite(
        narrow::scale_to_float(w.format, narrow::scale_bits(w.format, w.scales, group * w.stride_k + of_row)));
  return __any_sync(~0u, is_wild);
}

constexpr int warps_of_exact = 8;

// A warp has an element of D.
template <Codes C, class Out>
__global__ void __launch_bounds__(32 * warps_of_exact)
    narrow_gemv_exact(const __grid_constant__ tg_gemm_args args, const __grid_constant__ NarrowWeights w,
                      const __grid_constant__ Epilogue<Out, float> epilogue) {
  griddepcontrol_wait();
  launch_dependents();
  const int64_t n = int64_t(blockIdx.x) * warps_of_exact + threadIdx.x / 32;
  if (n >= args.n) return;
  for (int64_t m = blockIdx.y; m < args.m; m += gridDim.y) {
    const float sum = exact_sum<C>(args, w, m, n, 0, args.k);
    if (threadIdx.x % 32 == 0)
      static_cast<Out*>(args.d.ptr)[m * args.d.row_stride + n * args.d.col_stride] = epilogue(sum, m, n, 0, 0);
  }
}

}  // namespace
}  // namespace tilegemm
