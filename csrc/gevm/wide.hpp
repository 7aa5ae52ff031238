// One to four rows of A and a short K, with many columns: a thread has its own columns, and goes through K.
//
// The blocks of gevm.cu split K over lanes and warps, so that a short K leaves a block little to read, and millions of
// columns many blocks. Here nothing is added over threads: the sums of a column are in the order of K.
#pragma once
#include "common/cuda_cores.hpp"

namespace tilegemm {
namespace {

template <class Row, int M>
struct Wide {
  using T = typename scalar<Row::dtype>::type;
  static constexpr int warps = 4, threads = warps * lanes;
  static constexpr int rows = M == 4 ? 4 : 8;   // rows of B that a thread has under way
  static constexpr int n = threads * width<T>;  // columns of a block
};

template <class Row, int M>
__global__ void __launch_bounds__(Wide<Row, M>::threads)
    gevm_wide(const __grid_constant__ GemvProblem<typename Wide<Row, M>::T> p,
              const __grid_constant__ Epilogue<typename Wide<Row, M>::T, float> epilogue) {
  using C = Wide<Row, M>;
  using T = typename C::T;
  launch_dependents();
  const Batch batch(p.inner_batch);
  const int first_n = (int(blockIdx.x) * C::threads + int(threadIdx.x)) * width<T>;
  if (first_n >= p.n) return;
  const T* a = batch.of<const T>(p.a);
  const T* b = batch.of<const T>(p.b) + first_n;
  const int64_t b_stride = p.b.row_stride;
  float sum[M][width<T>] = {};  // (M,N)
  griddepcontrol_wait();
  for (int k = 0; k < p.k; k += C::rows) {
    uint4 weights[C::rows];  // (K), a vector along N each
#pragma unroll
    for (int r = 0; r < C::rows; r++) {
      weights[r] = make_uint4(0, 0, 0, 0);
      if (k + r < p.k) weights[r] = load_weights(b + r * b_stride);
    }
    b += C::rows * b_stride;
#pragma unroll
    for (int r = 0; r < C::rows; r++) {
      if (k + r >= p.k) break;
      float x[M];
#pragma unroll
      for (int m = 0; m < M; m++)
        x[m] = float(a[(m < p.m ? m : 0) * p.a.row_stride + k + r]);  // all threads read the same number
#pragma unroll
      for (int i = 0; i < 4; i++) {
        constexpr int numbers = 4 / sizeof(T);
        float u[numbers];
        unpack<T>(word(weights[r], i), u);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
          for (int j = 0; j < numbers; j++) sum[m][i * numbers + j] = fmaf(u[j], x[m], sum[m][i * numbers + j]);
        }
      }
    }
  }
#pragma unroll
  for (int m = 0; m < M; m++) {
    if (m >= p.m) break;
    T* const to = batch.of<T>(p.d) + m * p.d.row_stride + first_n * p.d.col_stride;
    T out[width<T>];
#pragma unroll
    for (int j = 0; j < width<T>; j++) {
      if (!p.plain) sum[m][j] = epilogue.unrounded(sum[m][j], m, first_n + j, batch.outer, batch.inner);
      out[j] = T(sum[m][j]);
    }
    if (p.d.col_stride == 1 && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
      *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(out);
    } else {
#pragma unroll
      for (int j = 0; j < width<T>; j++) to[j * p.d.col_stride] = out[j];
    }
  }
}

template <class Row, int M>
tg_status launch_wide(const tg_gemm_args& args) {
  using C = Wide<Row, M>;
  using T = typename C::T;
  if (args.m > M || args.config.split != 1) return TG_UNSUPPORTED;
  const dim3 grid(unsigned(ceil_div(args.n, C::n)), unsigned(args.batch[0] * args.batch[1]));
  const GemvProblem<T> p(args);
  const Epilogue<T, float> epilogue(args);
  return Launch(args, grid, dim3(C::threads), 0)(gevm_wide<Row, M>, p, epilogue);
}

}  // namespace
}  // namespace tilegemm
