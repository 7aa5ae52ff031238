// The kernel: producers load, consumers multiply and store, tile after tile.
#pragma once
#include "common/pipeline.hpp"
#include "common/wgmma.hpp"
#include "experts/unit_list.hpp"
#include "sm90_grouped_gemm/shape.hpp"
#include "sm90_grouped_gemm/store.hpp"

namespace tilegemm {
namespace {

struct GroupedPlace {
  GroupedRows rows;
  Divisor pairs_per_row;
  const void* a;
  void* d;
  int64_t a_stride, d_stride;
  float alpha;
  tg_activation activation;
  bool gated;
  int columns, k, n_tiles, entries, stages;  // `columns`: of D
};

// The rows of W of a box of a tile. Gated: a warp group's first box has the gates of 64 columns of D (`half` 0), and
// the second box the numbers that these gates multiply (`half` 1). Otherwise boxes are neighbours.
struct BoxOfW {
  int row, half;
};
template <class S>
__device__ __forceinline__ BoxOfW box_of_w(int tile_n, int box, bool gated) {
  constexpr int boxes = S::w_rows / S::w_box;
  if (gated) return {(tile_n * (boxes / 2) + box / 2) * S::w_box, box % 2};
  return {(tile_n * boxes + box) * S::w_box, 0};
}

// Addresses in shared memory. `full` and `empty`: barriers of the ring; `known` and `used`: barriers of the places, two
// tiles.
struct GroupedShared {
  uint32_t ring, full, empty, known, used;
  float* places;
};

// The rows of D, and the factors, of one of two tiles.
template <class S>
struct Places {
  float* scales;
  uint32_t* rows;
  __device__ Places(const GroupedShared& at, int i)
      : scales(at.places + i * 2 * S::most), rows(reinterpret_cast<uint32_t*>(scales + S::most)) {}
};

// Loads stages. W comes by TMA with the group as a coordinate. Rows of A lie anywhere: each thread copies 16 bytes of
// every 16th row (of every 32nd with two warp groups) to where TMA's 128-byte swizzle puts the bytes. A copy takes four
// instructions: with addresses computed anew for each stage, a copy took 28, and their power and issue slots took an
// eighth of the speed.
template <class S>
__device__ __forceinline__ void produce(const void* w_map, const GroupedPlace& p, const GroupedShared& at,
                                        UnitList<S::most, S::cluster>& list, int thread, int rank) {
  using T = typename S::Element;
  constexpr int threads = 128 * S::producers, step = threads / 8, per_thread = (S::most + step - 1) / step;
  const int chunk = thread % 8, row0 = thread / 8, k_tiles = (p.k + S::depth - 1) / S::depth;
  const T* const a = static_cast<const T*>(p.a);
  Stage stage = Stage::to_fill(), places = Stage::to_fill();
  for (int u = blockIdx.x / S::cluster; u < list.total(); u += gridDim.x / S::cluster) {
    const GroupedTile tile = list.tile(u);
    places.wait(at.used);
    const Places<S> to(at, places.s);
    for (int i = thread; i < tile.height; i += threads) {
      const int64_t row = p.rows.row_of_d(tile.first + i);
      to.rows[i] = row < 0 ? no_row : uint32_t(row);
      if (p.rows.groups.scales) to.scales[i] = row < 0 ? 0.0f : p.rows.scale_of(row);
    }
    mbarrier_arrive(at.known + 8 * places.s);
    places.advance(2);

    const T* from[per_thread];  // the bytes of the next stage; of a row that D does not have, those of A's first row
#pragma unroll
    for (int i = 0; i < per_thread; i++) {
      const int r = row0 + step * i;
      const int64_t row = r < tile.height ? p.rows.row_of_d(tile.first + r) : -1;
      from[i] = a + (row < 0 ? 0 : p.pairs_per_row.quotient(int(row))) * p.a_stride + chunk * 8;
    }
    const int rows = tile.height - row0 / 8 * 8;  // from row0 on, in eights: wgmma reads eight rows at a time
    for (int kt = 0; kt < k_tiles; kt++) {
      stage.wait(at.empty);
      const uint32_t w = at.ring + stage.s * S::stage_bytes, barrier = at.full + 8 * stage.s;
      if (thread == 0) {
        mbarrier_arrive_expect(barrier, S::w_bytes);
#pragma unroll
        for (int box = 0; box < S::w_rows / S::w_box; box++) {
          const BoxOfW of = box_of_w<S>(tile.n, box, p.gated);
          const uint32_t to = w + box * S::w_box * 128;
          if (S::cluster == 2 && tile.shares_w) {
            if (box % 2 == rank)
              tma_load_multicast(w_map, to, barrier, kt * S::depth, of.row, tile.group, of.half, evict_normal, 3);
          } else {
            tma_load(w_map, to, barrier, kt * S::depth, of.row, tile.group, of.half,
                     S::most <= 32 ? evict_first : evict_normal);
          }
        }
      }
      const int bytes = kt * S::depth + chunk * 8 < p.k ? 16 : 0;
      const uint32_t to = w + S::w_bytes + row0 * 128 + ((chunk ^ (row0 % 8)) << 4);
#pragma unroll
      for (int i = 0; i < per_thread; i++) {
        if (step * i < rows) copy_async_16(to + step * i * 128, from[i], bytes, evict_last);
        from[i] += S::depth;
      }
      mbarrier_arrive_after_copies(barrier);
      stage.advance(p.stages);
    }
    // A stage for each warp group's rows of D: full as soon as the stage is free.
    for (int i = 0; i < S::consumers; i++) {
      stage.wait(at.empty);
      if (thread == 0) mbarrier_arrive(at.full + 8 * stage.s);  // in place of TMA
      mbarrier_arrive(at.full + 8 * stage.s);
      stage.advance(p.stages);
    }
  }
}

// The consumers' side of the ring.
struct Reader {
  Stage stage = Stage::to_read();
  int storing = -1;  // the stage that the warp group's rows of D leave; -1: none
  uint32_t empty_there;
  int lane;
  __device__ Reader(uint32_t empty_there, int lane) : empty_there(empty_there), lane(lane) {}

  template <class S>
  __device__ __forceinline__ void release(int s) {
    release_stage(empty_there, s, lane, S::cluster > 1, S::cluster);
  }
  // Gives the stage back when the copies have read the rows.
  template <class S>
  __device__ __forceinline__ void end_stores() {
    if (storing < 0) return;
    tma_store_wait_read();
    __syncwarp();
    release<S>(storing);
    storing = -1;
  }
};

// Multiplies and stores a tile of up to `width` rows.
template <class S, int width>
__device__ __forceinline__ void consume(Reader& reader, const GroupedPlace& p, const GroupedShared& at,
                                        const GroupedTile& tile, const Places<S>& places, int group, int warp,
                                        int lane) {
  using T = typename S::Element;
  const int k_tiles = (p.k + S::depth - 1) / S::depth;
  float sum[S::m64][width / 2];  // (MMA_M,(2,2,width/8)), of D^T
#pragma unroll
  for (int i = 0; i < S::m64; i++) wgmma_zero(sum[i]);
  Stage& stage = reader.stage;
  int before = -1;
#pragma unroll 1
  for (int kt = 0; kt < k_tiles; kt++) {
    stage.wait(at.full);
    fence_proxy_async();  // A was written by the producers' threads
    const uint32_t w = at.ring + stage.s * S::stage_bytes + group * S::m64 * 64 * 128,
                   a = at.ring + stage.s * S::stage_bytes + S::w_bytes;
#pragma unroll
    for (int i = 0; i < S::m64; i++) wgmma_pin(sum[i]);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < S::depth / 16; j++) {
#pragma unroll
      for (int i = 0; i < S::m64; i++)
        wgmma<T, width>(sum[i], wgmma_descriptor(w + i * 64 * 128 + j * 32), wgmma_descriptor(a + j * 32));
    }
    wgmma_commit_and_wait<1>();
#pragma unroll
    for (int i = 0; i < S::m64; i++) wgmma_pin(sum[i]);
    reader.template end_stores<S>();  // of the tile before
    if (before >= 0) reader.template release<S>(before);
    before = stage.s;
    stage.advance(p.stages);
  }
  wgmma_commit_and_wait();
#pragma unroll
  for (int i = 0; i < S::m64; i++) wgmma_pin(sum[i]);
  reader.template release<S>(before);

  if (p.gated) apply_gate(sum[0], sum[1], p.activation, p.alpha);
  uint32_t rows = 0;
#pragma unroll
  for (int i = 0; i < S::consumers; i++) {
    stage.wait(at.full);
    if (i == group) rows = at.ring + stage.s * S::stage_bytes, reader.storing = stage.s;
    else reader.template release<S>(stage.s);
    stage.advance(p.stages);
  }
  const float alpha = p.gated ? 1.0f : p.alpha, *const scales = p.rows.groups.scales ? places.scales : nullptr;
  write_rows<T, width>(sum[0], rows + warp % 4 * 32, alpha, scales, lane);
  if (!p.gated) write_rows<T, width>(sum[1], rows + 128 + warp % 4 * 32, alpha, scales, lane);
  fence_proxy_async();
  bar_sync(1 + group, 128);
  const int own = p.gated ? 64 : 128, column = (tile.n * S::consumers + group) * own,
            columns = min(own, p.columns - column);
  if (columns > 0) {
    copy_rows(static_cast<T*>(p.d) + column, p.d_stride, rows, columns * int(sizeof(T)), tile.height, places.rows,
              threadIdx.x % 128);
  }
}

// The tile in the least of `widths` that holds the rows. Branches are the same in all threads of a warp, and the
// compiler has to see so (C7519).
template <class S, int first, int... others>
__device__ __forceinline__ void consume_in(Widths<first, others...>, Reader& reader, const GroupedPlace& p,
                                           const GroupedShared& at, const GroupedTile& tile, const Places<S>& places,
                                           int group, int warp, int lane) {
  if constexpr (sizeof...(others) == 0) {
    consume<S, first>(reader, p, at, tile, places, group, warp, lane);
  } else {
    if (!__any_sync(~0u, tile.height > first)) consume<S, first>(reader, p, at, tile, places, group, warp, lane);
    else consume_in<S>(Widths<others...>{}, reader, p, at, tile, places, group, warp, lane);
  }
}

template <class S, class Ws>
__global__ void __launch_bounds__(S::threads, 1)
    sm90_grouped_gemm(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ GroupedPlace p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), barriers = ring + p.stages * S::stage_bytes;
  const GroupedShared at{ring,
                         barriers,
                         barriers + 8 * p.stages,
                         barriers + 16 * p.stages,
                         barriers + 16 * p.stages + 16,
                         reinterpret_cast<float*>(shared + p.stages * S::stage_bytes + S::barriers_bytes)};
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
  const int rank = S::cluster > 1 ? int(cluster_rank()) : 0;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&w_map);
    init_ring(at.full, at.empty, p.stages, 4 * S::consumers * S::cluster, 1 + 128 * S::producers);
    init_ring(at.known, at.used, 2, 4 * S::consumers, 128 * S::producers);
    fence_mbarrier_init();
  }
  griddepcontrol_wait();
  UnitList<S::most, S::cluster> list(reinterpret_cast<uint8_t*>(at.places) + S::places_bytes, p.entries, p.n_tiles,
                                     rank);
  const GroupedSpan of_groups = list.fill(p.rows, reinterpret_cast<int*>(shared), warp, lane);
  zero_rows_of_no_group(p.rows, of_groups, static_cast<uint4*>(p.d), p.d_stride / 8, p.columns / 8, threadIdx.x,
                        S::threads);
  if (S::cluster > 1) cluster_sync();

  if (group >= S::consumers) {
    if constexpr (S::consumers > 1) setmaxnreg_dec<S::producer_registers>();
    produce<S>(&w_map, p, at, list, threadIdx.x - 128 * S::consumers, rank);
    launch_dependents();
  } else {
    if constexpr (S::consumers > 1) setmaxnreg_inc<S::consumer_registers>();
    const uint32_t empty_there = S::cluster > 1 && lane < S::cluster ? map_shared(at.empty, lane) : at.empty;
    Stage places = Stage::to_read();
    Reader reader(empty_there, lane);
    for (int u = blockIdx.x / S::cluster; __any_sync(~0u, u < list.total()); u += gridDim.x / S::cluster) {
      GroupedTile tile = list.tile(u);
      tile.height = __shfl_sync(~0u, tile.height, 0);
      places.wait(at.known);
      consume_in<S>(Ws{}, reader, p, at, tile, Places<S>(at, places.s), group, warp, lane);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(at.used + 8 * places.s);
      places.advance(2);
    }
    tma_store_wait_read();  // shared memory ends with the block
  }
  if (S::cluster > 1) cluster_sync();  // no block ends while the other block signals its barriers
}

}  // namespace
}  // namespace tilegemm
