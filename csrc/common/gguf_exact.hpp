// Results that are not finite, once more, number by number, as the kernels for few rows do (gguf_few_rows.hpp): weights in 16 bits may be zero, or have another
// sign, where a scale times a code and a minimum nearly cancel, and infinite scales need the codes themselves.
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

// The sum over k in [begin, end) of row m of A times row n of matrix `i` of W, number by number, by all lanes of a warp.
template <tg_format F>
__device__ __noinline__ float exact_sum_of_warp(const tg_gemm_args& args, int64_t m, int i, int64_t n, int64_t begin, int64_t end) {
  constexpr Block block = block_of(F);
  const uint8_t* const w = matrix_at<F>(args, i) + n * row_stride<F>(args);
  float sum = 0;
#pragma unroll 1
  for (int64_t k = begin + threadIdx.x % 32; k < end; k += 32) {
    sum += number(F, w + k / block.elements * block.bytes, int(k % block.elements)) * number_of_a(args, m * args.a.row_stride + k);
  }
#pragma unroll 1
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  return sum;
}

// A row of results: the row of A, the results of column 0 and on, and a factor of the sums. A null pointer: none.
template <class Out>
struct ResultRow {
  int64_t row_of_a;
  Out* d;
  float factor;
};

// Computes the results that are not finite of 16 columns from `first_n` on and of `rows` rows once more, over k in [begin, end). `row`(i): row i, a ResultRow. All
// lanes of the warp that has stored the results take part.
template <tg_format F, class Row>
__device__ __forceinline__ void repair(const tg_gemm_args& args, int matrix, int first_n, int rows, int64_t begin, int64_t end, const Row& row) {
  const int lane = threadIdx.x % 32, column = first_n + lane % rows_of_warp;
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < rows; i++) {
    const auto of = row(i);
    if (!of.d) continue;
    const bool is_wrong = column < args.n && !isfinite(float(of.d[column]));
#pragma unroll 1
    for (unsigned left = __ballot_sync(~0u, is_wrong) & ((1u << rows_of_warp) - 1); left; left &= left - 1) {
      const int n = first_n + __ffs(left) - 1;
      const float sum = exact_sum_of_warp<F>(args, of.row_of_a, matrix, n, begin, end);
      if (lane == 0) of.d[n] = std::remove_reference_t<decltype(*of.d)>(of.factor * sum);
    }
  }
}

}  // namespace
}  // namespace tilegemm::gguf
