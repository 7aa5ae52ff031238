// Hopper: f32 products by one TF32 wgmma, the device side.
//
// C[R, S] = P[R, K] @ Q[S, K]^T. P is wgmma's M side and Q is wgmma's N side. P and Q are A and B, and C is D; or, with
// swap_ab, P and Q are B and A, and C is D transposed. wgmma reads TF32 K-major only. So
//
//     P   K-major: wgmma reads shared memory       MN-major ([K, R] in memory): through registers
//     Q   K-major: wgmma reads shared memory       MN-major: transposed into the workspace beforehand
//
// TMA rounds to TF32 on the way in. Blocks are persistent: a producer thread keeps a ring of loads full, two warp
// groups multiply, 64 rows of P each. The blocks of a cluster have neighbouring rows of P and share each load of Q by
// multicast. D leaves through small panels of shared memory and TMA, while the loads of the next tile are under way.
//
// Repeated reads from L2 limit narrow tiles. There the blocks of a cluster may also have neighbouring rows of Q and
// share each load of P, or share loads of both operands. Where tiles are few and K is long, each block of a pair takes
// half of K. The partial sums then meet in distributed shared memory, and each block stores half of the tile. The sums
// need no workspace, and a product has the same bits every time.
#pragma once
#include <algorithm>
#include <cstddef>

#include "common/epilogue.hpp"
#include "common/panel.hpp"
#include "common/pipeline.hpp"
#include "common/ptx.hpp"
#include "common/tensor_map.hpp"
#include "common/tile_order.hpp"
#include "common/transpose.hpp"
#include "common/wgmma.hpp"

namespace tilegemm {
namespace {

// The shape of a tile: 128 rows of P, `Width` rows of Q. `Registers`: P goes through registers. `Share`: blocks of a
// cluster, unless the kernel adapts to the cluster of its launch.
template <bool Registers, int Width, bool SwapAB, int Share>
struct Config {
  static constexpr bool registers = Registers, swap_ab = SwapAB;
  static constexpr int depth = 32;  // of K: 128 bytes, the width of a swizzled box
  static constexpr int p_rows = 128, q_rows = Width, share = Share;
  static constexpr int consumer_warps = 8, threads = 32 * (consumer_warps + 4);
  static constexpr int p_bytes = p_rows * 128, q_bytes = q_rows * 128, stage_bytes = p_bytes + q_bytes;
  static constexpr int box_bytes = 32 * 128;  // of P where P goes through registers: 32 of K by 32 rows
  static constexpr bool adapts = q_rows == 64 && share == 2;
  static_assert(q_rows / share % 8 == 0 && share <= 2 && q_rows % 32 == 0);

  // D leaves in panels of 32 columns: each warp has 16 rows of D; with swap_ab, each pair of warps has 32 rows. Two
  // panels let a warp fill one panel while TMA reads the other panel; there are four panels where four panels cost no
  // stage.
  static constexpr int panel_rows = swap_ab ? 32 : 16, panel_bytes = panel_rows * 128;
  static constexpr int panel_owners = consumer_warps * 16 / panel_rows, panels = q_rows / 32;
  static constexpr int shared_most = 227 * 1024, most_stages = 8, barriers_bytes = 16 * most_stages + (adapts ? 8 : 0);
  static constexpr int stages_with(int buffers) {
    return std::min(most_stages, (shared_most - barriers_bytes - panel_owners * buffers * panel_bytes) / stage_bytes);
  }
  static constexpr int buffers = stages_with(4) == stages_with(2) ? 4 : 2, stages = stages_with(buffers);
  static constexpr int panels_bytes = panel_owners * buffers * panel_bytes;
  static constexpr int shared_bytes = stages * stage_bytes + panels_bytes + barriers_bytes;
  static_assert(stages >= 3 && buffers >= 2);

  // Registers of a thread: a multiprocessor has 512 for one thread of each warp group.
  static constexpr int consumer_registers = 232, producer_registers = 40;
};

// The shape of a cluster, each number 1 or 2: blocks along R share Q; blocks along S share P; `split` blocks have parts
// of K.
struct Cluster {
  int share_q, share_p, split;
  __host__ __device__ int log2() const { return share_q + share_p + split - 3; }
  bool is(int q, int p, int parts) const { return share_q == q && share_p == p && split == parts; }
};

// The arguments of a launch.
struct Work {
  Cluster cluster;  // of this launch, for a kernel that adapts
  int r, s, k_blocks;
  TileOrder order;  // of clusters, with R for M and S for N
  bool bare;        // the epilogue is alpha alone
  uint64_t load_policy, store_policy;
};

// The place of a warp's part of a tile: the warp's first row of P, the tile's first row of Q.
struct Part {
  int r, s, batch0, batch1;
};

// Adds the partial sums of two parts of K: panel `mine` of this block and of the other block. Both panels of `sum` here
// receive the total. The other block sends its sums to `inbox`, and this block sends the other panel to the other
// block's inbox.
__device__ __forceinline__ void meet(float (&sum)[32], int mine, uint32_t inbox, uint32_t arrived, uint32_t other) {
  const uint32_t to = map_shared(inbox, other), barrier = map_shared(arrived, other);
  float own[16];
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    float theirs[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      own[i + e] = mine ? sum[16 + i + e] : sum[i + e], theirs[e] = mine ? sum[i + e] : sum[16 + i + e];
    }
    store_async(to + i * 128, barrier, make_float4(theirs[0], theirs[1], theirs[2], theirs[3]));
  }
  mbarrier_wait(arrived, 0);
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 16; i += 4) {
    const float4 v = load_shared_4_ordered(inbox + i * 128);
    const float got[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int e = 0; e < 4; e++) sum[i + e] = sum[16 + i + e] = own[i + e] + got[e];
  }
}

// Stores a warp's sums to D; the TMA stores complete asynchronously. `buffer`: the next panel, kept from tile to tile.
// `only`: the only panel to store, of a kernel that adapts, or -1.
template <class C>
__device__ __forceinline__ void store_tile(float (&sum)[C::q_rows / 2], const CUtensorMap& d_map, const Work& w,
                                           const Epilogue<float, float>& epilogue, const Part& part, uint32_t panels_at,
                                           int& buffer, int only) {
  const auto skips = [&](int c) { return C::adapts && only >= 0 && c != only; };
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const bool leads = lane == 0 && (!C::swap_ab || warp % 2 == 0);
  const auto sync = [&] {
    if constexpr (C::swap_ab) bar_sync(1 + warp / 2, 64);
    else __syncwarp();
  };
  const int d_row = C::swap_ab ? part.s : part.r, d_column = C::swap_ab ? part.r - warp % 2 * 16 : part.s;

  // Stores panel `c`, sums v[0] to v[15] of each lane: `change(panel, row, column)` computes the numbers of D.
  const auto store = [&](const float* v, int c, const auto& change) __attribute__((always_inline)) {
    const uint32_t panel = panels_at + buffer * C::panel_bytes;
    if (leads) tma_store_wait_read<C::buffers - 1>();
    sync();
    if constexpr (C::swap_ab) {
      const uint32_t at = panel + 2 * q * 128 + (uint32_t((4 * (warp % 2) + g / 4) ^ (2 * q)) << 4) + g % 4 * 4;
#pragma unroll
      for (int j = 0; j < 4; j++) {
        store_shared(at + j * 1024, v[4 * j]);
        store_shared((at ^ 16) + j * 1024 + 128, v[4 * j + 1]);
        store_shared((at ^ 32) + j * 1024, v[4 * j + 2]);
        store_shared((at ^ 48) + j * 1024 + 128, v[4 * j + 3]);
      }
    } else {
      store_panel(v, panel, g, q);
    }
    const int row = d_row + (C::swap_ab ? 32 * c : 0), column = d_column + (C::swap_ab ? 0 : 32 * c);
    change(panel, row, column);
    fence_proxy_async();
    sync();
    if (leads) {
      const int rows = C::swap_ab ? w.s : w.r, columns = C::swap_ab ? w.r : w.s;
      if (row < rows && column < columns) {
        tma_store(&d_map, panel, column, row, part.batch1, part.batch0, w.store_policy);
      }
      tma_store_commit();
    }
    buffer = buffer + 1 == C::buffers ? 0 : buffer + 1;
  };

  if (w.bare) {
    if (epilogue.alpha != 1) {
#pragma unroll
      for (int i = 0; i < C::q_rows / 2; i++) sum[i] *= epilogue.alpha;
    }
#pragma unroll
    for (int c = 0; c < C::panels; c++) {
      if (!skips(c)) store(sum + 16 * c, c, [](uint32_t, int, int) {});
    }
    return;
  }
  // A loop over the panels: an unrolled epilogue would be too large. In a panel a warp has 16 rows, and a lane has a
  // column.
#pragma unroll 1
  for (int c = 0; c < C::panels; c++) {
    if (skips(c)) continue;
    float v[16] = {};
#pragma unroll
    for (int i = 0; i < C::panels; i++) {
#pragma unroll
      for (int e = 0; e < 16; e++) v[e] = i == c ? sum[16 * i + e] : v[e];
    }
    store(v, c, [&](uint32_t panel, int row, int column) __attribute__((always_inline)) {
      const int first = C::swap_ab ? warp % 2 * 16 : 0;
      const auto place = [&](int e) { return in_strip(panel + first * 128, 0, e, lane); };
      float x[16];
      int i[16], j[16];
      bool inside[16];
      sync();
#pragma unroll
      for (int e = 0; e < 16; e++) {
        x[e] = __uint_as_float(load_shared(place(e)));
        i[e] = row + first + e, j[e] = column + lane;
        inside[e] = i[e] < (C::swap_ab ? w.s : w.r) && j[e] < (C::swap_ab ? w.r : w.s);
      }
      epilogue.each(x, i, j, inside, part.batch0, part.batch1);
#pragma unroll
      for (int e = 0; e < 16; e++) store_shared(place(e), x[e]);
    });
  }
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    sm90_tf32(const __grid_constant__ CUtensorMap p_map, const __grid_constant__ CUtensorMap q_map,
              const __grid_constant__ CUtensorMap d_map, const __grid_constant__ Work w,
              const __grid_constant__ Epilogue<float, float> epilogue) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), panels_at = ring + C::stages * C::stage_bytes;
  const uint32_t full = panels_at + C::panels_bytes, empty = full + 8 * C::stages;
  const uint32_t arrived = empty + 8 * C::stages;  // barrier: the sums of the block with the other part of K
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  // In a kernel that does not adapt, sharing and splitting cost nothing: the values are constants.
  const int share_q = C::adapts ? w.cluster.share_q : C::share, share_p = C::adapts ? w.cluster.share_p : 1;
  const int split = C::adapts ? w.cluster.split : 1, cluster_log2 = share_q + share_p + split - 3;
  const int rank = C::share > 1 ? int(cluster_rank()) : 0, r_at = C::adapts ? rank & (share_q - 1) : rank;
  const int s_at = C::adapts ? rank >> (share_q - 1) & (share_p - 1) : 0;
  const int part = C::adapts ? rank >> (share_q + share_p - 2) : 0;
  const int sharing = share_q + share_p - 1;  // blocks with loads in common: rank ^ 0, 1 and 2
  const int half = w.k_blocks / 2, k_blocks = split == 1 ? w.k_blocks : part == 0 ? half : w.k_blocks - half;
  const int first = blockIdx.x >> cluster_log2, step = gridDim.x >> cluster_log2;

  if (threadIdx.x == 0) {
    init_ring(full, empty, C::stages, C::consumer_warps * sharing);
    if (split > 1) {
      mbarrier_init(arrived, 1);
      mbarrier_arrive_expect(arrived, C::consumer_warps * 16 * 128);  // a panel of each warp
    }
    fence_mbarrier_init();
  }
  __syncwarp();
  if (C::share > 1) cluster_sync();
  else __syncthreads();

  if (warp >= C::consumer_warps) {
    setmaxnreg_dec<C::producer_registers>();
    if (warp == C::consumer_warps && lane == 0) {
      prefetch_tensor_map(&p_map);
      prefetch_tensor_map(&q_map);
      prefetch_tensor_map(&d_map);
      launch_dependents();  // early: blocks of the next kernel find no room beside the blocks of this kernel
      griddepcontrol_wait();
      Stage at = Stage::to_fill();
      for (int t = first; t < w.order.total; t += step) {
        const Tile place = w.order.at(t);
        const int batch0 = place.batch0, batch1 = place.batch1;
        const int q_slice = C::q_rows >> (share_q - 1),
                  p_slice = C::p_rows >> (share_p - 1);  // rows that this block loads
        const int p_row = (place.m * share_q + r_at) * C::p_rows;
        const int q_row = (place.n * share_p + s_at) * C::q_rows + r_at * q_slice;
        const uint16_t p_blocks = uint16_t(1 << rank | 1 << (rank ^ share_q));
        const uint16_t q_blocks = C::adapts ? uint16_t(1 << rank | 1 << (rank ^ 1)) : uint16_t(3);
        // Boxes of P outside of the matrix are left out: their rows are not stored, and TMA takes as long for such a
        // box as for any other.
        const int boxes = C::registers ? min(4, max(0, (w.r - p_row + 31) / 32)) : 0;
        const uint32_t bytes = C::q_bytes + (C::registers ? boxes * C::box_bytes : C::p_bytes);
        const int from = part * half * C::depth;
        for (int k = from; k < from + k_blocks * C::depth; k += C::depth) {
          const uint32_t p = ring + at.s * C::stage_bytes, q = p + C::p_bytes + r_at * (q_slice * 128);
          const uint32_t barrier = at.acquire(full, empty, bytes);
          if constexpr (C::registers) {
            for (int i = s_at; i < boxes; i += share_p) {
              const uint32_t to = p + i * C::box_bytes;
              if (share_p > 1) {
                tma_load_multicast(&p_map, to, barrier, p_row + 32 * i, k, batch1, batch0, w.load_policy, p_blocks);
              } else {
                tma_load(&p_map, to, barrier, p_row + 32 * i, k, batch1, batch0, w.load_policy);
              }
            }
          } else if (share_p > 1) {
            const int slice = s_at * p_slice;
            tma_load_multicast(&p_map, p + slice * 128, barrier, k, p_row + slice, batch1, batch0, w.load_policy,
                               p_blocks);
          } else {
            tma_load(&p_map, p, barrier, k, p_row, batch1, batch0, w.load_policy);
          }
          if (share_q > 1) {
            tma_load_multicast(&q_map, q, barrier, k, q_row, batch1, batch0, w.load_policy, q_blocks);
          } else {
            tma_load(&q_map, q, barrier, k, q_row, batch1, batch0, w.load_policy);
          }
          at.advance(C::stages);
        }
      }
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<C::consumer_registers>();
    float sum[C::q_rows / 2];  // ((2,2,q_rows/8))
    wgmma_zero(sum);           // the first product overwrites the zeros

    // P through registers: boxes of 32 of K by 32 rows, swizzled. In each eight along K a lane takes q and q + 4; odd
    // lanes read q + 4 first, so that the warp has no bank conflicts.
    const int g = lane / 4, q = lane % 4, k_first = q ^ q % 2 * 4;
    const bool second_first = q % 2;
    const uint32_t p_line =
        ring + warp / 2 * C::box_bytes + k_first * 128 + (uint32_t((warp % 2 * 4 + g / 4) ^ k_first) << 4) + g % 4 * 4;
    const auto fetch = [&](uint32_t (&f)[4], int s, int k8) __attribute__((always_inline)) {
      const uint32_t at = p_line + s * C::stage_bytes + k8 * 1024;
      const uint32_t x0 = load_shared(at), x1 = load_shared(at ^ 0x20);
      const uint32_t y0 = load_shared(at ^ 0x240), y1 = load_shared(at ^ 0x260);
      f[0] = second_first ? y0 : x0, f[1] = second_first ? y1 : x1;
      f[2] = second_first ? x0 : y0, f[3] = second_first ? x1 : y1;
#pragma unroll
      for (int e = 0; e < 4; e++)
        asm volatile("" : "+r"(f[e])::"memory");  // loaded here, not between a fence and its products
    };

    // Each of the first lanes signals a free stage to one of the blocks that share loads.
    const uint32_t empty_there =
        C::share > 1 && lane < sharing ? map_shared(empty, C::adapts ? rank ^ lane : lane) : empty;
    const auto release = [&](int s) { release_stage(empty_there, s, lane, C::share > 1, sharing); };
    const uint64_t p0 = wgmma_descriptor(ring + warp / 4 * (64 * 128)), q0 = wgmma_descriptor(ring + C::p_bytes);
    const uint32_t my_panels = panels_at + (C::swap_ab ? warp / 2 : warp) * (C::buffers * C::panel_bytes);
    int buffer = 0;
    Stage at = Stage::to_read();

    for (int t = first; t < w.order.total; t += step) {
      const Tile place = w.order.at(t);
      Part d{(place.m * share_q + r_at) * C::p_rows + warp * 16, (place.n * share_p + s_at) * C::q_rows, place.batch0,
             place.batch1};
      // Computed here, under the first loads, and not behind the products.
      asm volatile("" : "+r"(d.r), "+r"(d.s), "+r"(d.batch0), "+r"(d.batch1));
      int before = 0;
      if constexpr (C::registers) {
        // Three products are under way while P's fragments for the next product go to registers.
        uint32_t f[4][4];  // (MMA_K,MMA), of P
        at.wait(full);
        fetch(f[0], at.s, 0);
        for (int i = 0; i < k_blocks; i++) {
          const int now = at.s;
          at.advance(C::stages);
#pragma unroll
          for (int j = 0; j < 4; j++) {
            if (j < 3) {
              fetch(f[j + 1], now, j + 1);
            } else if (i + 1 < k_blocks) {
              at.wait(full);
              fetch(f[0], at.s, 0);
            }
            wgmma_fence();
            wgmma_tf32<C::q_rows>(sum, f[j], q0 + uint32_t(now) * (C::stage_bytes >> 4) + 2 * j, j ? 1 : i);
            wgmma_commit_and_wait<2>();
            if (j == 1 && i > 0) release(before);
          }
          before = now;
        }
      } else {
        for (int i = 0; i < k_blocks; i++) {
          at.wait(full);
          const uint32_t stage = uint32_t(at.s) * (C::stage_bytes >> 4);
          wgmma_fence();
#pragma unroll
          for (int j = 0; j < 4; j++) wgmma_tf32<C::q_rows>(sum, p0 + stage + 2 * j, q0 + stage + 2 * j, j ? 1 : i);
          wgmma_commit_and_wait<1>();
          if (i > 0) release(before);
          before = at.s;
          at.advance(C::stages);
        }
      }
      wgmma_wait();
      wgmma_pin(sum);
      release(before);

      if constexpr (C::adapts) {
        // A block has one tile and stores one panel of the tile: the other buffer is free.
        const uint32_t inbox =
            my_panels + C::panel_bytes + (C::swap_ab ? warp % 2 * (C::panel_bytes / 2) : 0) + lane * 16;
        if (split > 1) meet(sum, part, inbox, arrived, rank ^ share_q * share_p);
      }
      griddepcontrol_wait();  // in the threads that read C and the bias and write D
      store_tile<C>(sum, d_map, w, epilogue, d, my_panels, buffer, split > 1 ? part : -1);
    }
    if (lane == 0) tma_store_wait_read<0>();  // shared memory must outlive the reads of TMA
    __syncwarp();
  }
  if (C::share > 1)
    cluster_sync();  // this block stays while another block may signal or store to this block's shared memory
}

}  // namespace
}  // namespace tilegemm
