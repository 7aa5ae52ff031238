// WMMA: tensor cores, with a 64 x 64 tile of D in the registers of each warp.
//
// A 16 x 16 fragment that is loaded once takes part in four products, 32 FLOP per byte instead of 0.5, and the tensor
// cores do a 16 x 16 x 16 product in two instructions. Nothing is shared between warps but what happens to be in L1,
// and nothing is loaded ahead: a warp waits for its fragments, multiplies, and waits again.
#include <cuda_fp16.h>
#include <mma.h>

#include "launched.hpp"

namespace {

namespace wmma = nvcuda::wmma;

constexpr int fragment = 16;                          // M, N and K of one product
constexpr int tile = 64, per_side = tile / fragment;  // of a warp
constexpr int warps = 2;                              // a block is 2 x 2 warps, neighbours in D: L1 may serve them both

using FragmentA = wmma::fragment<wmma::matrix_a, fragment, fragment, fragment, half, wmma::row_major>;
using FragmentB = wmma::fragment<wmma::matrix_b, fragment, fragment, fragment, half, wmma::col_major>;  // B^T
using Sums = wmma::fragment<wmma::accumulator, fragment, fragment, fragment, float>;

__global__ __launch_bounds__(32 * warps * warps) void wmma_gemm(const half* __restrict__ a, const half* __restrict__ b,
                                                                float* __restrict__ d, int m, int n, int k) {
  const int warp = threadIdx.x / 32;
  const int row = (blockIdx.y * warps + warp / warps) * tile, col = (blockIdx.x * warps + warp % warps) * tile;
  if (row >= m || col >= n) return;

  Sums sums[per_side][per_side];
  for (auto& line : sums) {
    for (auto& sum : line) wmma::fill_fragment(sum, 0.0f);
  }
  for (int at = 0; at < k; at += fragment) {
    FragmentA a_part[per_side];
    for (int i = 0; i < per_side; i++) {
      wmma::load_matrix_sync(a_part[i], a + size_t(row + i * fragment) * k + at, k);
    }
    for (int j = 0; j < per_side; j++) {
      FragmentB b_part;
      wmma::load_matrix_sync(b_part, b + size_t(col + j * fragment) * k + at, k);
      for (int i = 0; i < per_side; i++) wmma::mma_sync(sums[i][j], a_part[i], b_part, sums[i][j]);
    }
  }
  for (int i = 0; i < per_side; i++) {
    for (int j = 0; j < per_side; j++) {
      float* out = d + size_t(row + i * fragment) * n + col + j * fragment;
      wmma::store_matrix_sync(out, sums[i][j], n, wmma::mem_row_major);
    }
  }
}

int launch(const void* a, const void* b, void* d, int m, int n, int k, void* stream) {
  if (m % tile != 0 || n % tile != 0 || k % fragment != 0) return TG_RUNG_UNSUPPORTED;
  constexpr int block = warps * tile;
  const dim3 grid((n + block - 1) / block, (m + block - 1) / block);
  wmma_gemm<<<grid, 32 * warps * warps, 0, cudaStream_t(stream)>>>(
      static_cast<const half*>(a), static_cast<const half*>(b), static_cast<float*>(d), m, n, k);
  return launched();
}

}  // namespace

const tg_rung tg_rung_wmma = {"WMMA", "tensor cores; each warp keeps 64 x 64 sums in registers", {64, 64, 16}, launch};
