// Tiles of up to 4 x 4: each thread multiplies its own k's, straight from global memory.
#pragma once
#include "split_k/block.hpp"

namespace tilegemm {
namespace {

template <class T, class Out, class Acc, int TM, int TN>
__global__ void __launch_bounds__(threads)
    split_k_dot(const __grid_constant__ tg_gemm_args args, const __grid_constant__ Grid grid,
                const __grid_constant__ Epilogue<Out, Acc> epilogue) {
  constexpr int unroll = TM + TN <= 2 ? 8 : 4, outputs = TM * TN;  // k's whose loads are on their way at the same time
  constexpr int chains = chain / unroll;
  launch_dependents();
  const Place place(args, grid, TM, TN);
  griddepcontrol_wait();

  // Rows and columns beyond D repeat the last one and are never stored.
  int64_t row[TM], column[TN];
#pragma unroll
  for (int i = 0; i < TM; i++) row[i] = min(place.m0 + i, args.m - 1) * args.a.row_stride;
#pragma unroll
  for (int j = 0; j < TN; j++) column[j] = min(place.n0 + j, args.n - 1) * args.b.col_stride;
  const T *const a = place.of<const T>(args.a), *const b = place.of<const T>(args.b);

  Total<Acc> total[outputs];
  Acc sum[outputs] = {};
  const auto multiply = [&](const T(&x)[TM], const T(&y)[TN]) {
#pragma unroll
    for (int i = 0; i < TM; i++) {
#pragma unroll
      for (int j = 0; j < TN; j++) sum[i * TN + j] += Acc(x[i]) * Acc(y[j]);
    }
  };
  const auto flush = [&] {
#pragma unroll
    for (int i = 0; i < outputs; i++) total[i].add(sum[i]), sum[i] = Acc(0);
  };
  const auto load = [&](T(&x)[TM], T(&y)[TN], int64_t k) {
#pragma unroll
    for (int i = 0; i < TM; i++) x[i] = a[row[i] + k * args.a.col_stride];
#pragma unroll
    for (int j = 0; j < TN; j++) y[j] = b[column[j] + k * args.b.row_stride];
  };

  // A thread takes two neighbouring k's at a time: products that cancel each other meet in one chain.
  const auto ahead = [](int u) { return u / 2 * 2 * threads + u % 2; };
  int64_t k = place.k_begin + 2 * threadIdx.x;
  for (int turn = 0; k + ahead(unroll - 1) < place.k_end; k += unroll * threads) {
    T x[unroll][TM], y[unroll][TN];  // (K,M), (K,N)
#pragma unroll
    for (int u = 0; u < unroll; u++) load(x[u], y[u], k + ahead(u));
#pragma unroll
    for (int u = 0; u < unroll; u++) multiply(x[u], y[u]);
    if (++turn % chains == 0) flush();
  }
  // The last k's are loaded at once, too. Loads beyond the last k repeat the last k.
  if (k < place.k_end) {
    T x[unroll - 1][TM], y[unroll - 1][TN];  // (K,M), (K,N)
#pragma unroll
    for (int u = 0; u < unroll - 1; u++) load(x[u], y[u], min(k + ahead(u), place.k_end - 1));
#pragma unroll
    for (int u = 0; u < unroll - 1; u++) {
      if (k + ahead(u) < place.k_end) multiply(x[u], y[u]);
    }
  }
  flush();

  __shared__ Acc sums[warps][outputs];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int i = 0; i < outputs; i++) {
    Acc value = total[i].value();
#pragma unroll
    for (int bit = 16; bit > 0; bit /= 2) value += __shfl_xor_sync(~0u, value, bit);
    if (lane == 0) sums[warp][i] = value;
  }
  __syncthreads();
  if (threadIdx.x >= outputs) return;
  Total<Acc> all;
#pragma unroll
  for (int w = 0; w < warps; w++) all.add(sums[w][threadIdx.x]);
  const int64_t i = place.m0 + threadIdx.x / TN, j = place.n0 + threadIdx.x % TN;
  if (i < args.m && j < args.n) place.emit(all.value(), i, j, args, grid, epilogue);
}

}  // namespace
}  // namespace tilegemm
