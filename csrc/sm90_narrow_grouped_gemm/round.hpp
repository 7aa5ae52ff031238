// A in f32 becomes bf16, row by row, in the workspace: threads that copy cannot round.
#pragma once
#include "common/launch.hpp"
#include "common/ptx.hpp"

namespace tilegemm {
namespace {

// Bytes from row to row there.
constexpr int64_t pitch_of(int64_t k) { return ceil_div(k, 8) * 16; }

// A thread has eight numbers of a row, and goes from row to row. Behind the end of K are zeros.
constexpr int rounding_threads = 256, most_rows_of_grid = 65535;
__global__ void __launch_bounds__(rounding_threads)
    sm90_narrow_grouped_gemm_round(const float* a, int64_t stride, int rows, int k, uint4* to) {
  griddepcontrol_wait();
  launch_dependents();
  const int pieces = (k + 7) / 8, piece = int(blockIdx.x) * rounding_threads + int(threadIdx.x), left = k - 8 * piece;
  if (left <= 0) return;
#pragma unroll 1
  for (int row = blockIdx.y; row < rows; row += gridDim.y) {
    const float* const from = a + row * stride + 8 * piece;
    float x[8] = {};
#pragma unroll
    for (int i = 0; i < 8; i += 4) {
      if (left >= i + 4) {
        const float4 v = *reinterpret_cast<const float4*>(from + i);
        x[i] = v.x, x[i + 1] = v.y, x[i + 2] = v.z, x[i + 3] = v.w;
      } else {
#pragma unroll
        for (int j = 0; j < 3; j++) x[i + j] = i + j < left ? from[i + j] : 0.0f;
      }
    }
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const __nv_bfloat162 two = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
      words[i] = reinterpret_cast<const uint32_t&>(two);
    }
    to[int64_t(row) * pieces + piece] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

inline tg_status launch_round(const tg_gemm_args& args, int64_t rows, void* to) {
  const int64_t blocks = ceil_div(ceil_div(args.k, 8), rounding_threads);
  const dim3 grid(unsigned(blocks), unsigned(rows < most_rows_of_grid ? rows : most_rows_of_grid));
  return Launch(args, grid, dim3(rounding_threads), 0)(sm90_narrow_grouped_gemm_round,
                                                       static_cast<const float*>(args.a.ptr), args.a.row_stride,
                                                       int(rows), int(args.k), static_cast<uint4*>(to));
}

}  // namespace
}  // namespace tilegemm
