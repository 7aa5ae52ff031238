// Sums number by number, for results that are not finite.
#pragma once
#include "common/gguf.hpp"
#include "common/gguf_ring.hpp"

namespace tilegemm::gguf {
namespace {

// Number `at` of A.
__device__ __forceinline__ float number_of_a(const tg_gemm_args& args, int64_t at) {
  switch (args.types.a) {
    case TG_F32: return static_cast<const float*>(args.a.ptr)[at];
    case TG_F16: return float(static_cast<const __half*>(args.a.ptr)[at]);
    default: return float(static_cast<const __nv_bfloat16*>(args.a.ptr)[at]);
  }
}

// The sum of the products of row m of A and row n of matrix `i` of W, number by number, over k = begin, begin + step ... below end.
template <tg_format F>
__device__ __noinline__ float exact_sum(const tg_gemm_args& args, int64_t m, int i, int64_t n, int64_t begin, int64_t end, int step) {
  constexpr Block block = block_of(F);
  const uint8_t* const w = matrix_at<F>(args, i) + n * row_stride<F>(args);
  float sum = 0;
#pragma unroll 1
  for (int64_t k = begin; k < end; k += step) {
    sum += number(F, w + k / block.elements * block.bytes, int(k % block.elements)) * number_of_a(args, m * args.a.row_stride + k);
  }
  return sum;
}

}  // namespace
}  // namespace tilegemm::gguf
