// The kernel of sm90_sgemm.cu: D = A @ B in f32 on the FMA units of Hopper.
//
// Eight warps (or two blocks of four warps) multiply; a thread has 8 rows and up to 16 columns of the tile. A producer
// keeps a ring of TMA loads full. Sums run along K in order: one chain of fused multiply-adds from +0 for each element
// of D, unless K is split.
#pragma once
#include "common/fma.hpp"
#include "common/pipeline.hpp"
#include "sm90_sgemm/loops.hpp"

namespace tilegemm {
namespace {

// The unit of a split of K.
constexpr int unit = 32;

// P is the operand with 8 rows in each thread: A or, with swap_ab, B. Q is the other operand. Depth: K of a stage.
// Step: K of the unrolled loop. Parts: groups of warps; each group sums its own K of every stage. Residents: blocks of
// a multiprocessor. Split: K may also be split over a cluster.
template <int TileM, int TileN, int Depth, int Step, int WarpsM, int WarpsN, int Parts, int Residents, bool Split,
          Form P>
struct Config {
  static constexpr int tile_m = TileM, tile_n = TileN, depth = Depth, step = Step, warps_m = WarpsM, parts = Parts;
  static constexpr int residents = Residents;
  static constexpr Form p = P;
  static constexpr bool split = Split, reduces = Split || Parts > 1;
  static constexpr int warp_m = TileM / WarpsM, warp_n = TileN / WarpsN, lanes_m = 8, lanes_n = 4;
  static constexpr int rows = warp_m / lanes_m, columns = warp_n / lanes_n;  // of a thread
  static constexpr int warps_of_part = WarpsM * WarpsN, warps = warps_of_part * Parts, consumers = 32 * warps;
  static constexpr int threads = consumers + 128, steps = Depth / Step / Parts;  // of a stage and a part
  static_assert(rows == 8 && columns % 4 == 0 && columns <= 16 && Step % 4 == 0 && Depth % (Step * Parts) == 0);
  static_assert((Depth == 16 || Depth == unit) && consumers % 128 == 0);
  static_assert(TileM <= 256 && TileN <= 256);  // a box of TMA

  static constexpr int p_bytes = TileM * Depth * 4, q_bytes = TileN * Depth * 4, stage_bytes = p_bytes + q_bytes;
  static constexpr int most_stages = 12, barriers_bytes = 8 * (2 * most_stages + 1);
  static constexpr int room = 228 * 1024 / Residents - 1024 - barriers_bytes;
  static constexpr int stages = room / stage_bytes < most_stages ? room / stage_bytes : most_stages;
  static constexpr int shared_bytes = stages * stage_bytes + barriers_bytes;
  static_assert(p_bytes % 1024 == 0 && q_bytes % 1024 == 0);  // boxes of TMA that are swizzled
  static_assert(stages >= 3);
  static_assert(!reduces ||
                stages * stage_bytes >= Parts * TileM * TileN * 4);  // parts of sums lie where the stages were

  static constexpr int launch_registers = 65536 / Residents / threads / 8 * 8, producer_registers = 24;
  static constexpr int spare = (launch_registers * threads - producer_registers * 128) / consumers / 8 * 8;
  static constexpr int consumer_registers = spare > 240 ? 240 : spare;

  static constexpr int fours = rows * columns / 4;  // of a thread: fours of numbers of a row

  using ColumnsP = Columns<TileM, warp_m, lanes_m>;
  using ColumnsQ = Columns<TileN, warp_n, lanes_n>;
};

struct Work : Tiles {
  int split_log2;  // blocks of a cluster that split K
  float one;       // 1, unknown to the compiler
  bool in_fours;   // four numbers of a row may be stored at once
  bool simple;     // in_fours, and the epilogue is the product times alpha
};

// The tiles of a block, and the block's part of K, in units.
template <class C>
struct Share {
  int tile, step, total, rank, from, end, k;
  __device__ __forceinline__ explicit Share(const Work& w) : total(w.order.total), k(w.k) {
    // The compiler would not know that cluster_rank() is uniform over the block.
    const int units = (w.k + unit - 1) / unit, log2 = C::split ? w.split_log2 : 0;
    rank = C::split ? int(blockIdx.x) & ((1 << log2) - 1) : 0;
    tile = blockIdx.x >> log2, step = gridDim.x >> log2;
    from = (units * rank) >> log2, end = (units * (rank + 1)) >> log2;
  }
  __device__ __forceinline__ int stages() const { return (min(k, end * unit) - from * unit + C::depth - 1) / C::depth; }
};

struct Barriers {
  uint32_t full, empty, arrived;  // the barriers of stages; the barrier of the parts of sums
};

// ---- The producer ---------------------------------------------------------------------------------------------------

template <class C>
__device__ __forceinline__ void produce(const CUtensorMap* p_map, const CUtensorMap* q_map, const Work& w,
                                        const Barriers& b, uint32_t ring) {
  constexpr bool lines = C::p == Form::lines;
  Stage at = Stage::to_fill();
  const Share<C> share(w);
  const int stages = share.stages();
  for (int tile = share.tile; tile < share.total; tile += share.step) {
    const Tile t = w.order.at(tile);
    for (int i = 0; i < stages; i++) {
      const int k = share.from * unit + i * C::depth, m = t.m * C::tile_m;
      const uint32_t to = ring + at.s * C::stage_bytes, barrier = at.acquire(b.full, b.empty, C::stage_bytes);
      tma_load(p_map, to, barrier, lines ? k : m, lines ? m : k, t.batch1, t.batch0, evict_normal);
      tma_load(q_map, to + C::p_bytes, barrier, t.n * C::tile_n, k, t.batch1, t.batch0, evict_normal);
      at.advance(C::stages);
    }
  }
}

// ---- Consumers ------------------------------------------------------------------------------------------------------

// The offset of row `i` and column `j` of a thread from the thread's first row and column.
template <class C>
__device__ __forceinline__ int row_of(int i) {
  return C::p == Form::lines ? 8 * i : i / 4 * 32 + i % 4;
}
template <class C>
__device__ __forceinline__ int first_row(int lane) {
  return C::p == Form::lines ? lane : 4 * lane;
}
__device__ __forceinline__ int column_of(int j) { return j / 4 * 16 + j % 4; }

__device__ __forceinline__ void store_four(const Work& w, float* d, const float (&x)[4], int row, int column,
                                           bool in_fours) {
  if (row >= w.m || column >= w.n) return;
  float* const to = d + row * w.d.row_stride + column * w.d.col_stride;
  if (in_fours && column + 4 <= w.n) {
    *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
  } else {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (column + e < w.n) to[e * w.d.col_stride] = x[e];
    }
  }
}

// Passes `count` numbers of a row, in fours, through the epilogue to D.
template <int count>
__device__ __forceinline__ void finish(const Work& w, const Epilogue<float, float>& epilogue, float* d,
                                       float (&x)[count], int row, int column, const Tile& t) {
  int rows[count], columns[count];
  bool inside[count];
#pragma unroll
  for (int e = 0; e < count; e++) {
    rows[e] = row, columns[e] = column + column_of(e);
    inside[e] = row < w.m && columns[e] < w.n;
  }
  epilogue.each(x, rows, columns, inside, t.batch0, t.batch1);
#pragma unroll
  for (int e = 0; e < count; e += 4) {
    const float four[] = {x[e], x[e + 1], x[e + 2], x[e + 3]};
    store_four(w, d, four, row, columns[e], w.in_fours);
  }
}

// A thread's place: the warp among the warps with the same part of K, and the lane. Lanes that differ only in bit 0
// read the same numbers of P; lanes that differ only in bit 1 read the same numbers of Q. Shared memory then serves
// half a warp at a time.
template <class C>
struct Position {
  int warp, part, warp_m, warp_n, lane, lane_m, lane_n;
  __device__ __forceinline__ Position() {
    int thread;
    // Volatile, so that the epilogue computes the position again; otherwise the position keeps registers through the
    // main loop.
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    warp = thread / 32, lane = thread % 32;
    const int in_part = warp % C::warps_of_part;
    part = warp / C::warps_of_part, warp_m = in_part % C::warps_m, warp_n = in_part / C::warps_m;
    lane_m = lane >> 1 & 7, lane_n = (lane & 1) | (lane >> 3 & 2);
  }
};

// Parts of sums meet in shared memory, where the ring was, and are added in order. Block f % split adds up four number
// f of a thread.
template <class C>
__device__ __forceinline__ void reduce(const Work& w, const Epilogue<float, float>& epilogue, const Barriers& b,
                                       uint32_t ring, const float (&sum)[C::rows][C::columns], int rank,
                                       const Position<C>& here, const Tile& t) {
  constexpr int fours_of_row = C::columns / 4;
  const int split_log2 = C::split ? w.split_log2 : 0, split = 1 << split_log2, slots = C::fours >> split_log2;
  const int parts = split * C::parts, part = rank * C::parts + here.part, in_part = here.warp % C::warps_of_part,
            lane = here.lane;
  const bool in_cluster = C::split && split > 1;             // a block alone has no cluster to store to
  if (in_cluster) cluster_arrive_relaxed(), cluster_wait();  // no warp reads stages any more
  else bar_sync(1, C::consumers);
#pragma unroll
  for (int f = 0; f < C::fours; f++) {
    const int i = f / fours_of_row, j = f % fours_of_row * 4, owner = f & (split - 1), slot = f >> split_log2;
    const float4 v =
        make_float4(sum[i][j] * w.one, sum[i][j + 1] * w.one, sum[i][j + 2] * w.one, sum[i][j + 3] * w.one);
    const uint32_t to = ring + (((part * C::warps_of_part + in_part) * slots + slot) * 32 + lane) * 16;
    if (in_cluster) store_async(map_shared(to, owner), map_shared(b.arrived, owner), v);
    else store_shared_4(to, v);
  }
  if (in_cluster) mbarrier_wait_warp(b.arrived, 0);
  else bar_sync(1, C::consumers);
  griddepcontrol_wait();
  float* const d = matrix_of<float>(w.d, t.batch0, t.batch1);
  for (int at = here.warp; at < C::warps_of_part * slots; at += C::warps) {
    const float4 v = load_shared_4(ring + (at * 32 + lane) * 16);
    float x[] = {v.x, v.y, v.z, v.w};
    for (int other = 1; other < parts; other++) {
      const float4 y = load_shared_4(ring + ((other * C::warps_of_part * slots + at) * 32 + lane) * 16);
      x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
    }
    const int of = at / slots, f = at % slots * split + rank;
    const int row = of % C::warps_m * C::warp_m + first_row<C>(here.lane_m) + row_of<C>(f / fours_of_row);
    const int column = of / C::warps_m * C::warp_n + 4 * here.lane_n + column_of(f % fours_of_row * 4);
    finish(w, epilogue, d, x, t.m * C::tile_m + row, t.n * C::tile_n + column, t);
  }
}

template <class C>
__device__ __forceinline__ void consume(const Work& w, const Epilogue<float, float>& epilogue, const Barriers& b,
                                        uint32_t ring) {
  const Position<C> here;
  const int first = here.part * C::steps * C::step;
  const typename C::ColumnsQ q(ring + C::p_bytes, here.warp_n, here.lane_n, first);
  const typename C::ColumnsP p(ring, here.warp_m, here.lane_m, first);
  const AlongK<C::depth> lines(ring, here.warp_m, here.lane_m, first);
  Walk<C> walk(b.full, b.empty);
  const Share<C> share(w);
  const int stages = share.stages();
  for (int tile = share.tile; tile < share.total; tile += share.step) {
    float sum[C::rows][C::columns];  // (P,Q) of a thread
#pragma unroll
    for (int i = 0; i < C::rows; i++) {
#pragma unroll
      for (int j = 0; j < C::columns; j++) sum[i][j] = 0;
    }
    if (stages > 0) {
      walk.start(stages);
      if constexpr (C::p == Form::lines) sum_lines<C>(walk, lines, q, sum);
      else sum_columns<C>(walk, p, q, sum);
      walk.release();
    }

    const Tile t = w.order.at(tile);
    const Position<C> there;
    if constexpr (C::reduces) {
      reduce<C>(w, epilogue, b, ring, sum, share.rank, there, t);
      return;  // a kernel that reduces has one tile for each block
    } else {
      const int row0 = t.m * C::tile_m + there.warp_m * C::warp_m + first_row<C>(there.lane_m);
      const int column0 = t.n * C::tile_n + there.warp_n * C::warp_n + 4 * there.lane_n;
      griddepcontrol_wait();
      float* const d = matrix_of<float>(w.d, t.batch0, t.batch1);
      if (w.simple) {
#pragma unroll
        for (int i = 0; i < C::rows; i++) {
#pragma unroll
          for (int j = 0; j < C::columns; j += 4) {
            float x[4];
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = sum[i][j + e] * epilogue.alpha;
            store_four(w, d, x, row0 + row_of<C>(i), column0 + column_of(j), true);
          }
        }
      } else {
        // A loop, with the sums moving up row by row: an unrolled loop would have every activation 128 times.
#pragma unroll 1
        for (int i = 0; i < C::rows; i++) {
          float x[C::columns];
#pragma unroll
          for (int j = 0; j < C::columns; j++) x[j] = sum[0][j];
          finish(w, epilogue, d, x, row0 + row_of<C>(i), column0, t);
#pragma unroll
          for (int up = 1; up < C::rows; up++) {
#pragma unroll
            for (int j = 0; j < C::columns; j++) sum[up - 1][j] = sum[up][j];
          }
        }
      }
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::threads, C::residents)
    sm90_sgemm(const __grid_constant__ CUtensorMap p_map, const __grid_constant__ CUtensorMap q_map,
               const __grid_constant__ Work w, const __grid_constant__ Epilogue<float, float> epilogue) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared));
  Barriers b;
  b.full = ring + C::stages * C::stage_bytes, b.empty = b.full + 8 * C::stages, b.arrived = b.empty + 8 * C::stages;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&p_map), prefetch_tensor_map(&q_map);
    init_ring(b.full, b.empty, C::stages, C::warps);
    if (C::split) {
      mbarrier_init(b.arrived, 1);
      mbarrier_arrive_expect(b.arrived, C::parts * C::tile_m * C::tile_n * 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp >= C::warps) {
    setmaxnreg_dec<C::producer_registers>();
    if (warp == C::warps && lane == 0) {
      griddepcontrol_wait();
      produce<C>(&p_map, &q_map, w, b, ring);
      launch_dependents();
    }
  } else {
    setmaxnreg_inc<C::consumer_registers>();
    consume<C>(w, epilogue, b, ring);
  }
}

}  // namespace
}  // namespace tilegemm
