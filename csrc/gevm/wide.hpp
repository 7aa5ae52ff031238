// One to four rows of A and a short K, with many columns: a thread has its own columns, and goes through K.
//
// The blocks of gevm.cu split K over lanes and warps, so that a short K leaves a block little to read, and millions of columns many blocks. Here nothing is added
// over threads: the sums of a column are in the order of K.
#pragma once
#include "common/cuda_cores.hpp"

namespace tilegemm {
namespace {

// Numbers of B, which displace nothing in L1 or L2. The load is not `.nc`: the kernel before may have written B, and the compiler moved such
// loads above griddepcontrol.wait.
__device__ inline uint4 load_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(evict_first) : "memory");
  return v;
}

template <class Row, int M>
struct Wide {
  using T = typename scalar<Row::dtype>::type;
  static constexpr int warps = 4, threads = warps * lanes;
  static constexpr int rows = M == 1 ? 16 : 8;  // rows of B that a thread has under way
  static constexpr int n = threads * width<T>;  // columns of a block
  static constexpr int part = 128;  // numbers of a row of A in shared memory
  static_assert(part % rows == 0);
};

template <class Row, int M>
__global__ void __launch_bounds__(Wide<Row, M>::threads)
    gevm_wide(const __grid_constant__ GemvProblem<typename Wide<Row, M>::T> p,
              const __grid_constant__ Epilogue<typename Wide<Row, M>::T, float> epilogue) {
  using C = Wide<Row, M>;
  using T = typename C::T;
  __shared__ __align__(16) float x[M][C::part];
  launch_dependents();
  const Batch batch(p.inner_batch);
  const int first_n = (int(blockIdx.x) * C::threads + int(threadIdx.x)) * width<T>;
  const bool exists = first_n < p.n;
  const T* a = batch.of<const T>(p.a);
  const T* b = batch.of<const T>(p.b) + first_n;
  const int64_t b_stride = p.b.row_stride;
  float sum[M][width<T>] = {};
  griddepcontrol_wait();
  for (int part = 0; part < p.k; part += C::part) {
    if (part > 0) __syncthreads();  // all threads have read the part before
#pragma unroll
    for (int m = 0; m < M; m++) {
      const int k = part + int(threadIdx.x);
      x[m][threadIdx.x] = m < p.m && k < p.k ? float(a[m * p.a.row_stride + k]) : 0.0f;
    }
    static_assert(C::part == C::threads);
    __syncthreads();
    if (!exists) continue;
    for (int first = 0; first < C::part && part + first < p.k; first += C::rows) {
      uint4 weights[C::rows];
#pragma unroll
      for (int r = 0; r < C::rows; r++) {
        weights[r] = make_uint4(0, 0, 0, 0);
        if (part + first + r < p.k) weights[r] = load_once(b + r * b_stride);
      }
      b += C::rows * b_stride;
#pragma unroll
      for (int r = 0; r < C::rows; r += 4) {
        float4 of_a[M];
#pragma unroll
        for (int m = 0; m < M; m++) of_a[m] = *reinterpret_cast<const float4*>(&x[m][first + r]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          constexpr int numbers = 4 / sizeof(T);
#pragma unroll
          for (int w = 0; w < 4; w++) {
            float u[numbers];
            unpack<T>(word(weights[r + i], w), u);
#pragma unroll
            for (int m = 0; m < M; m++) {
              const float y = i == 0 ? of_a[m].x : i == 1 ? of_a[m].y : i == 2 ? of_a[m].z : of_a[m].w;
#pragma unroll
              for (int j = 0; j < numbers; j++) sum[m][w * numbers + j] = fmaf(u[j], y, sum[m][w * numbers + j]);
            }
          }
        }
      }
    }
  }
  if (!exists) return;
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
