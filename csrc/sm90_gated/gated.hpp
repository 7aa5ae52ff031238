// The kernel of sm90_gated.cu.
//
//     W  |  gate 0 ... gate n - 1  |  up 0 ... up n - 1  |       a tile takes `half` rows of W from either half
//
// A stage of the ring has the rows of the gates, the rows of the numbers that the gates multiply, and rows of A. W is
// wgmma's N side, so that a thread has the sums of a gate and of the number that this gate multiplies: no sums change
// places. Where two tiles of A share W, each block loads one half for both blocks.
//
// One warp loads; each warp group multiplies 64 rows of A, and releases a stage when the products of the next stage are
// under way. Nothing but the ring ties the warp groups together: one may store while the other multiplies.
//
// TMA takes 2 ns for each row outside of a tensor, so loads avoid such rows: the height of a tile of A is M divided by
// the number of tiles along M, and the last tile of W moves back to end with D.
#pragma once
#include "common/pipeline.hpp"
#include "common/tile_order.hpp"
#include "common/wgmma.hpp"
#include "sm90_gated/store.hpp"

namespace tilegemm {
namespace {

template <class Row>
struct Gated {
  using T = typename scalar<Row::dtype>::type;
  static constexpr int rows = Row::tile_m, width = Row::tile_n, half = width / 2, depth = Row::tile_k;
  static_assert(sizeof(T) == 2 && depth == 64 && rows % 64 == 0 && half % 8 == 0);
  static_assert(Row::cluster_m <= 2 && Row::cluster_n == 1);

  static constexpr int consumer_warps = rows / 16, threads = 32 * (consumer_warps + 1);
  static constexpr int half_bytes = half * 128, w_bytes = 2 * half_bytes, stage_bytes = w_bytes + rows * 128;
  static constexpr int most_stages = 16, barriers_bytes = 16 * most_stages, shared_per_block = 227 * 1024;
  static constexpr int stages = std::min(most_stages, (shared_per_block - barriers_bytes) / stage_bytes);
  static constexpr int shared_bytes = stages * stage_bytes + barriers_bytes;
  static_assert(stages >= 3);
};

struct GatedPlace {
  tg_matrix d;
  int m, n, k;      // n: columns of D
  int share;        // blocks of a cluster that share W: 1 or 2
  int a_box;        // rows of a tile of A
  int prefetch;     // stages of W, to prefetch into L2 before the previous kernel ends
  TileOrder order;  // of clusters
  bool wide;        // rows of D are aligned to 16 bytes
  tg_activation activation;
  float alpha;
};

// Adds the products of a stage to the sums. On return the products of the stage before have ended, and the products of
// this stage may be under way.
template <class C>
__device__ __forceinline__ void multiply_stage(float (&sum)[C::width / 2], uint32_t a, uint32_t w) {
  wgmma_pin(sum);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < C::depth / 16; j++) {
    wgmma<typename C::T, C::width>(sum, wgmma_descriptor(a + j * 32), wgmma_descriptor(w + j * 32));
  }
  wgmma_commit_and_wait<1>();
  wgmma_pin(sum);
}

// Where D has more tiles than the device has room for, clusters go over several tiles: the loads of the next tile are
// under way while a tile is stored.
template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    sm90_gated(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap a_map,
               const __grid_constant__ GatedPlace p) {
  using T = typename C::T;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int share = p.share;
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared));
  const uint32_t full = ring + C::stages * C::stage_bytes, empty = full + 8 * C::stages;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int rank = share > 1 ? int(cluster_rank()) : 0;
  const int k_tiles = (p.k + C::depth - 1) / C::depth;
  const int group0 = blockIdx.x >> (share - 1), step = gridDim.x >> (share - 1);
  const auto m0_of = [&](const Tile& tile) { return (tile.m * share + rank) * p.a_box; };
  // Unless W has a single tile, the last tile ends with D or up to 7 columns later: a tile begins at a multiple of 16
  // bytes of D.
  const int last_n0 = (max(p.n - C::half, 0) + 7) / 8 * 8;
  const auto n0_of = [&](const Tile& tile) { return min(tile.n * C::half, last_n0); };

  if (warp == C::consumer_warps && lane == 0) {
    prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&a_map);
    init_ring(full, empty, C::stages, C::consumer_warps * share);
    fence_mbarrier_init();
  }
  __syncwarp();
  // Without a cluster, the cluster barrier is the block's own, and every arrival needs a wait.
  if (share > 1) cluster_arrive_relaxed();
  else __syncthreads();

  if (warp == C::consumer_warps) {
    if (lane == 0) {
      const int n0 = n0_of(p.order.at(group0));
      for (int i = 0; i < min(k_tiles, p.prefetch); i++) {
        for (int part = rank; part < 2; part += share) tma_prefetch(&w_map, i * C::depth, n0 + part * p.n, 0);
      }
    }
    __syncwarp();
    if (share > 1) cluster_wait();  // the loads of this block also arrive at the barriers of the other block
    if (lane == 0) {
      griddepcontrol_wait();
      const uint32_t bytes = C::w_bytes + p.a_box * 128;
      Stage at = Stage::to_fill();
      for (int group = group0; group < p.order.total; group += step) {
        const Tile tile = p.order.at(group);
        const int m0 = m0_of(tile), n0 = n0_of(tile);
        for (int i = 0; i < k_tiles; i++) {
          const uint32_t w = ring + at.s * C::stage_bytes, barrier = at.acquire(full, empty, bytes);
          const int k = i * C::depth;
          if (share > 1) {
            const uint32_t to = w + rank * C::half_bytes;
            tma_load_multicast(&w_map, to, barrier, k, n0 + rank * p.n, 0, evict_normal, 3);
          } else {
            tma_load(&w_map, w, barrier, k, n0, 0, evict_normal);
            tma_load(&w_map, w + C::half_bytes, barrier, k, n0 + p.n, 0, evict_normal);
          }
          tma_load(&a_map, w + C::w_bytes, barrier, k, m0, 0, evict_normal);
          at.advance(C::stages);
        }
      }
      launch_dependents();  // earlier, the next kernel would take a share of the multiprocessors from this kernel
    }
    __syncwarp();
    if (share > 1) cluster_sync();
    return;
  }

  if (share > 1) cluster_wait();
  // Lane t signals a free stage to the t-th of the blocks that share W.
  const uint32_t empty_there = share > 1 && lane < share ? map_shared(empty, lane) : empty;
  const auto release = [&](int s) { release_stage(empty_there, s, lane, share > 1, share); };

  T* const d = static_cast<T*>(p.d.ptr);
  // Stages to release. No producer waits for the last stages, and the other block may have ended.
  int left = (p.order.total - group0 + step - 1) / step * k_tiles - C::stages;
  Stage at = Stage::to_read();
  for (int group = group0; group < p.order.total; group += step) {
    float sum[C::width / 2] = {};  // ((2,2,width/8)): gates, and numbers that they multiply
    int before = 0;
#pragma unroll 1
    for (int i = 0; i < k_tiles; i++) {
      at.wait(full);
      const uint32_t w = ring + at.s * C::stage_bytes;
      multiply_stage<C>(sum, w + C::w_bytes + warp / 4 * (64 * 128), w);
      if (i > 0 && left-- > 0) release(before);
      before = at.s;
      at.advance(C::stages);
    }
    wgmma_commit_and_wait();
    wgmma_pin(sum);
    if (left-- > 0) release(before);
    if (share > 1 && group + step >= p.order.total) cluster_arrive();

    griddepcontrol_wait();  // in the threads that write D
    const Tile tile = p.order.at(group);
    const int m0 = m0_of(tile);
    const Part<T> to{d,   p.d.row_stride, m0 + warp * 16, min(m0 + p.a_box, p.m), n0_of(tile), tile.n * C::half,
                     p.n, p.wide};
    store_gated<T>(sum, to, p.activation, p.alpha);
  }
  if (share > 1) cluster_wait();
}

}  // namespace
}  // namespace tilegemm
