// The kernel: every thread loads, multiplies and stores, tile after tile.
#pragma once
#include "common/mma.hpp"
#include "sm80_grouped_gemm/loader.hpp"
#include "sm80_grouped_gemm/store.hpp"

namespace tilegemm {
namespace {

// A warp's place in a tile, and where the warp's fragments lie in stage 0.
template <class S>
struct Warp {
  int row, column;
  typename S::A::template Fragments<true> a;
  typename S::W::template Fragments<false> w;

  __device__ Warp(uint32_t ring_a, uint32_t ring_w, int warp)
      : row(warp % S::warps_m * 16), column(warp / S::warps_m * S::warp_n), a(ring_a, row), w(ring_w, column) {}
};

// Waits for the oldest load: until all threads' copies of the block have arrived, and all threads have read the block
// before.
template <class S>
__device__ __forceinline__ void wait_for_block() {
  cp_async_wait<S::stages - 2>();
  __syncthreads();
}

// Multiplies and stores a tile of up to `fragments` * S::step_m rows, whose first block of K is in stage `read`.
// Fragments of a step are loaded while the step before multiplies.
template <class S, int fragments>
__device__ __forceinline__ void compute(const GroupedPlace& p, const GroupedTile& tile, const Warp<S>& warp,
                                        Loader<S>& loader, int& read) {
  using T = typename S::Element;
  float sum[fragments][2 * S::fragments_n][4] = {};      // (MMA_M,MMA_N,MMA)
  uint32_t a[2][fragments][4], w[2][S::fragments_n][4];  // (PIPE,MMA_M,MMA), (PIPE,MMA_N/2,MMA x 2)
  const auto load = [&](int step) {
#pragma unroll
    for (int i = 0; i < fragments; i++) warp.a.load(a[step % 2][i], read * S::A::stage_bytes, step, i * S::warps_m);
#pragma unroll
    for (int i = 0; i < S::fragments_n; i++) warp.w.load(w[step % 2][i], read * S::W::stage_bytes, step, i);
  };
  wait_for_block<S>();
  load(0);
#pragma unroll 1
  for (int left = p.k; left > 0; left -= S::tile_k) {
    const int before =
        read == 0 ? S::stages - 1 : read - 1;  // the stage of the block before, which nobody reads any more
#pragma unroll
    for (int step = 0; step < S::steps; step++) {
      if (step < S::steps - 1) {
        load(step + 1);
      } else {
        read = read == S::stages - 1 ? 0 : read + 1;
        if (left > S::tile_k) {
          wait_for_block<S>();
          load(0);
        }
      }
      if (step == 0) {
        loader.load(before);
        cp_async_fence();
      }
#pragma unroll
      for (int i = 0; i < fragments; i++) {
#pragma unroll
        for (int j = 0; j < 2 * S::fragments_n; j++) {
          const uint32_t (&of_w)[4] = w[step % 2][j / 2];
          mma_16<T>(sum[i][j], a[step % 2][i], of_w[j % 2 * 2], of_w[j % 2 * 2 + 1]);
        }
      }
    }
  }
  const int lane = threadIdx.x % 32, column = tile.n * S::tile_n + warp.column;
  const LaneRows<S, fragments> rows(p, tile, warp.row, lane);
  if (p.gated) {
    store_gated<S, fragments>(sum, p, rows, column, lane);
  } else {
    store_rows<S, fragments>(sum, p, rows, column, lane);
  }
}

// The tile in the least number of fragments that holds the rows.
template <class S, int fragments = S::fragments_m>
__device__ __forceinline__ void compute_in(int wanted, const GroupedPlace& p, const GroupedTile& tile,
                                           const Warp<S>& warp, Loader<S>& loader, int& read) {
  if constexpr (fragments > 1) {
    if (wanted < fragments) return compute_in<S, fragments - 1>(wanted, p, tile, warp, loader, read);
  }
  compute<S, fragments>(p, tile, warp, loader, read);
}

template <class S>
__global__ void __launch_bounds__(S::threads, S::most_blocks)
    sm80_grouped_gemm(const __grid_constant__ GroupedPlace p) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t ring_a = cast_smem_ptr_to_uint(shared), ring_w = ring_a + S::A::ring_bytes;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  typename S::List list(shared + S::ring_bytes, p.entries, p.n_tiles, 0);
  const GroupedSpan of_groups = list.fill(p.rows, reinterpret_cast<int*>(shared), warp, lane);
  const int columns = p.gated ? p.n / 2 : p.n;
  zero_rows_of_no_group(p.rows, of_groups, static_cast<uint4*>(p.d), p.d_stride / 8, columns / 8, threadIdx.x,
                        S::threads);

  Loader<S> loader(p, list, ring_a, ring_w);
#pragma unroll
  for (int stage = 0; stage < S::stages - 1; stage++) {
    loader.load(stage);
    cp_async_fence();
  }
  const Warp<S> own(ring_a, ring_w, warp);
  int read = 0;
#pragma unroll 1
  for (int u = blockIdx.x; u < list.total(); u += gridDim.x) {
    const GroupedTile tile = list.tile(u);
    compute_in<S>((tile.height + S::step_m - 1) / S::step_m, p, tile, own, loader, read);
  }
}

}  // namespace
}  // namespace tilegemm
