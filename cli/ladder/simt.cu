// Naive SIMT: one thread per element of D, operands straight from global memory.
//
// Whatever a thread loads, it uses once: two f16 for one multiply-add, 0.5 FLOP per byte. The caches save the DRAM, but
// every operand still takes its own trip through the load units, and neighbours in N read B a whole row apart.
#include <cuda_fp16.h>

#include "launched.hpp"

namespace {

constexpr int side = 16;  // a block is 16 x 16 threads

__global__ void simt(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ d, int m, int n,
                     int k) {
  const int col = blockIdx.x * side + threadIdx.x, row = blockIdx.y * side + threadIdx.y;
  if (row >= m || col >= n) return;
  const __half *a_row = a + size_t(row) * k, *b_row = b + size_t(col) * k;
  float sum = 0;
  for (int i = 0; i < k; i++) sum += __half2float(a_row[i]) * __half2float(b_row[i]);
  d[size_t(row) * n + col] = sum;
}

int launch(const void* a, const void* b, void* d, int m, int n, int k, void* stream) {
  const dim3 grid((n + side - 1) / side, (m + side - 1) / side);
  simt<<<grid, dim3(side, side), 0, cudaStream_t(stream)>>>(static_cast<const half*>(a), static_cast<const half*>(b),
                                                            static_cast<float*>(d), m, n, k);
  return launched();
}

}  // namespace

const tg_rung tg_rung_simt = {"naive SIMT", "a thread per output, thousands at once", {1, 1, 1}, launch};
