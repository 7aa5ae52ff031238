// The kernel of sm90_wave.cu.
//
// At these sizes reading W still decides the time, and a handful of tiles makes a difference: 132 multiprocessors want
// 132 tiles or a few fewer. So a row of the table has tiles of several widths.
//
//     rows of A  |  tile 0  |  tile 1  |       two tiles of A share each load of W (multicast to a cluster of two),
//        K       |  part 0 : part 1    |       or the blocks of a cluster take half of K each
//
// Tiles of 64 or 128 rows of A come in widths that divide the N of models. With swap_ab, 64 to 192 rows of W are
// wgmma's M side, and A is cut evenly into tiles with a width that is a multiple of 8, so that any M fills the device.
//
// One to three warp groups multiply, and release a stage when the products of the next stage are under way. The sums of
// the parts of K meet in distributed shared memory; each block finishes half of the columns.
//
// TMA takes 2 ns for each row outside of a tensor, so loads avoid such rows: the height of a tile of A is M divided by
// the number of tiles along M, and the last tile of W moves back to end with N.
#pragma once
#include "common/pipeline.hpp"
#include "sm90_wave/added.hpp"

namespace tilegemm {
namespace {

// Tiles whose clusters share W or split K in two, with as many stages as fit: one block to a multiprocessor.
template <class Row, int Width>
struct Wave : Tile<Row, Width> {
  using Base = Tile<Row, Width>;
  using Base::columns, Base::consumer_warps, Base::fragment_bytes, Base::bytes_of_a_stage;
  static constexpr bool may_share = Row::cluster_m > 1, may_split = Row::split > 1;
  static_assert(Base::w_rows % (8 * Row::cluster_m) == 0);
  static_assert(Row::cluster_m <= 2 && Row::cluster_n == 1 && Row::split <= 2);

  // Two blocks have the two parts of K. The first block finishes the fragments before `middle`, the second block the
  // fragments from `middle` on. The inbox of a block receives the sums of the other block.
  static constexpr int middle = columns / 2;
  static constexpr int parts_bytes = may_split ? consumer_warps * (columns - middle) * fragment_bytes : 0;
  // A large inbox takes the place of the ring, at the price of a barrier of the cluster.
  static constexpr bool inbox_in_ring = parts_bytes > 20000;
  // Neighbouring fragments that are stored at a time, 16 bytes by each lane.
  static constexpr int group = Base::swap_ab ? 2 : 4;
  // Whether numbers of C find room in registers beside the sums. A quarter of a multiprocessor has 16384 registers, for
  // a quarter of the warps.
  static constexpr int registers = std::min(255, 16384 / ((consumer_warps + 4) / 4 * 32));
  static constexpr bool loads_early = registers >= Base::width / 2 + (Base::swap_ab ? 64 : 80);

  static constexpr int inbox_bytes(int split) { return split > 1 && !inbox_in_ring ? parts_bytes : 0; }
  static constexpr int stages_of(int depth, int split) {
    return Base::stages_in(inbox_bytes(split), bytes_of_a_stage(depth));
  }
  // The row's depth is for small tiles. Fewer than five stages were slower than twice as many stages of half the depth.
  static constexpr int depth = stages_of(Row::tile_k, Row::split) >= 5 ? Row::tile_k : Base::box;
  static constexpr int boxes = depth / Base::box, w_bytes = boxes * Base::w_rows * 128,
                       stage_bytes = bytes_of_a_stage(depth);
  static constexpr int stages(int split) { return stages_of(depth, split); }
  static_assert(depth % Base::box == 0 && stages(Row::split) >= 3 && parts_bytes <= stages(2) * stage_bytes);
  static_assert(consumer_warps * columns * fragment_bytes <=
                stages(1) * stage_bytes);  // the ring holds an epilogue's fragments
};

struct WavePlace : Product {
  int share, split;      // blocks of a cluster that share W, and parts of K: 1 or 2
  int a_box;             // rows of a tile of A
  Divisor m_groups;      // clusters along M
  int groups;            // clusters in all
  int stages, prefetch;  // of the ring; of W, to prefetch into L2 before the previous kernel ends
  bool wide;             // rows of D in 16 bits are aligned to 16 bytes
  bool plain;            // the epilogue is the product alone
  bool ahead;            // the rows of C and the bias can be loaded ahead of the sums
  bool wide_c, wide_bias;
};

// Where D has more tiles than the device has room for, clusters march over the tiles: the loads of the next tile are
// under way while a tile is stored. Clusters march only for a single matrix, without an epilogue and with an unsplit K.
template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    sm90_wave(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap a_map,
              const __grid_constant__ WavePlace p, const __grid_constant__ Epilogue<typename C::Out, float> epilogue) {
  using Out = typename C::Out;
  extern __shared__ __align__(1024) uint8_t shared[];
  // Sharing and splitting cost nothing in a row that does neither: the values are constants.
  const int stages = p.stages, share = C::may_share ? p.share : 1, split = C::may_split ? p.split : 1;
  const int cluster_log2 = share - 1 + split - 1;  // both are 1 or 2
  const bool clustered = cluster_log2 > 0, inbox_in_ring = C::inbox_in_ring && split > 1;
  const int w_slice = C::w_rows >> (share - 1);  // rows of the shared W that a block loads
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), ring_bytes = stages * C::stage_bytes;
  const uint32_t inbox = ring + (inbox_in_ring ? 0 : ring_bytes);
  const uint32_t full = ring + ring_bytes + C::inbox_bytes(split), empty = full + 8 * stages;
  const uint32_t arrived = empty + 8 * stages;  // barrier: the other part of this block's fragments

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int rank = clustered ? int(cluster_rank()) : 0, a_at = rank & (share - 1), part = rank >> (share - 1);
  const int leader = rank - a_at;  // the first of the blocks that share W
  const int batch = blockIdx.y, batch0 = gridDim.y == 1 ? 0 : batch / p.batch1, batch1 = batch - batch0 * p.batch1;
  const int k_tiles = (p.k + C::depth - 1) / C::depth, half = k_tiles / 2;
  const int first = part * half, count = split == 1 ? k_tiles : part == 0 ? half : k_tiles - half;
  const int group0 = blockIdx.x >> cluster_log2, step = gridDim.x >> cluster_log2;
  // Along M first: tiles with the same rows of W run at the same time.
  const auto m0_of = [&](int group) {
    return ((group - p.m_groups.quotient(group) * int(p.m_groups.value)) * share + a_at) * p.a_box;
  };
  const auto from_of = [&](int group) { return p.m_groups.quotient(group) * C::w_rows; };
  // Unless W has a single tile, the last tile ends with N or up to 7 columns later: in 16 bits, the tile begins at a
  // multiple of 16 bytes of D.
  const int last_n0 = (max(p.n - C::w_rows, 0) + 7) / 8 * 8;
  const auto n0_of = [&](int group) { return min(from_of(group), last_n0); };

  if (warp == C::consumer_warps && lane == 0) {
    prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&a_map);
    init_ring(full, empty, stages, C::consumer_warps * share);
    mbarrier_init(arrived, 1);
    if (split > 1) {
      const int columns = part == 0 ? C::middle : C::columns - C::middle;
      mbarrier_arrive_expect(arrived, C::consumer_warps * columns * C::fragment_bytes);
    }
    fence_mbarrier_init();
  }
  __syncwarp();
  // Without a cluster, the cluster barrier is the block's own, and every arrival needs a wait.
  if (clustered) cluster_arrive_relaxed();
  else __syncthreads();

  if (warp == C::consumer_warps) {
    if (lane == 0) {
      const int row = n0_of(group0) + a_at * w_slice;
      for (int i = 0; i < min(count, p.prefetch); i++) {
#pragma unroll
        for (int j = 0; j < C::boxes; j++) tma_prefetch(&w_map, (first + i) * C::depth + j * C::box, row, batch);
      }
    }
    __syncwarp();
    if (share > 1) cluster_wait();  // the loads of this block also arrive at the barriers of the other block
    if (lane == 0) {
      griddepcontrol_wait();
      const uint16_t sharing = uint16_t(3 << leader);
      const uint32_t bytes = C::w_bytes + C::boxes * p.a_box * 128;
      Stage at = Stage::to_fill();
      for (int group = group0; group < p.groups; group += step) {
        const int m0 = m0_of(group), n0 = n0_of(group) + a_at * w_slice;
        for (int i = 0; i < count; i++) {
          const uint32_t w = ring + at.s * C::stage_bytes, a = w + C::w_bytes, barrier = at.acquire(full, empty, bytes);
#pragma unroll
          for (int j = 0; j < C::boxes; j++) {
            const int k = (first + i) * C::depth + j * C::box;
            const uint32_t to = w + (j * C::w_rows + a_at * w_slice) * 128;
            if (share > 1) tma_load_multicast(&w_map, to, barrier, k, n0, batch, evict_normal, sharing);
            else tma_load(&w_map, to, barrier, k, n0, batch, evict_normal);
            tma_load(&a_map, a + j * C::a_rows * 128, barrier, k, m0, batch, evict_normal);
          }
          at.advance(stages);
        }
      }
      launch_dependents();  // earlier, the next kernel would take a share of the multiprocessors from this kernel
    }
    __syncwarp();
    if (share == 1 && clustered) cluster_wait();
    if (share > 1 || inbox_in_ring) cluster_sync();
    return;
  }

  if (clustered) cluster_wait();
  // Lane t signals a free stage to the t-th of the blocks that share W.
  const uint32_t empty_there = share > 1 && lane < share ? map_shared(empty, leader + lane) : empty;
  const auto release = [&](int s) { release_stage(empty_there, s, lane, share > 1, share); };

  Out* const d = matrix_of<Out>(p.d, batch0, batch1);
  const auto part_of = [&](int group, Out* matrix, int64_t stride, bool wide) {
    const int m0 = m0_of(group), n0 = n0_of(group), p_at = warp / 4 * 64 + warp % 4 * 16;
    return Part<Out>{
        matrix, stride, p_at + (C::swap_ab ? n0 : m0), C::swap_ab ? m0 : n0, min(m0 + p.a_box, p.m), from_of(group),
        p.n,    wide};
  };
  // An epilogue takes the fragments `from` to `end` - 1 out of shared memory.
  const int from = C::may_split && part == 1 ? C::middle : 0, end = split > 1 && part == 0 ? C::middle : C::columns;
  const auto addends = [&](int group) {
    Out* const c = epilogue.beta != 0 ? matrix_of<Out>(epilogue.c, batch0, batch1) : nullptr;
    const Out* const bias = epilogue.bias.ptr ? matrix_of<Out>(epilogue.bias, batch0, batch1) : nullptr;
    return Addends<Out>{part_of(group, c, epilogue.c.row_stride, p.wide_c), bias, p.wide_bias};
  };
  // Stages to release. No producer waits for the last stages, and the other block may have ended.
  int left = (p.groups - group0 + step - 1) / step * count - stages;
  Stage at = Stage::to_read();
  for (int group = group0; group < p.groups; group += step) {
    Added<C> added;
    if (C::loads_early && p.ahead) {
      griddepcontrol_wait();
      added.load(from, end, addends(group));
    }
    float sum[C::width / 2] = {};  // ((2,2,width/8)), of D^T
    int before = 0;
#pragma unroll 1  // in an unrolled loop, ptxas serialises the products of some small tiles (C7519)
    for (int i = 0; i < count; i++) {
      at.wait(full);
      const uint32_t w = ring + at.s * C::stage_bytes, a = w + C::w_bytes;
      multiply<C>(sum, (C::swap_ab ? w : a) + warp / 4 * (64 * 128), C::swap_ab ? a : w);
      if (i > 0 && left-- > 0) release(before);
      before = at.s;
      at.advance(stages);
    }
    wgmma_commit_and_wait();
    wgmma_pin(sum);
    if (count > 0 && left-- > 0) release(before);
    if (share > 1 && !inbox_in_ring && group + step >= p.groups) cluster_arrive();

    griddepcontrol_wait();  // in the threads that read C and the bias and write D
    const auto own = [&](int j) { return fragment(sum, j); };
    const Part<Out> to = part_of(group, d, p.d.row_stride, p.wide);
    float4* parked = reinterpret_cast<float4*>(shared) + warp * C::columns * 32 + lane;
    if (split == 1) {
      if (p.plain) {
        store_all<C, 0, C::columns>(own, to);
        continue;
      }
      asm volatile("bar.sync 1, %0;" ::"n"(32 * C::consumer_warps) : "memory");  // no warp reads the ring any more
#pragma unroll
      for (int j = 0; j < C::columns; j++) parked[j * 32] = own(j);
    } else if constexpr (C::may_split) {
      if (inbox_in_ring) cluster_sync();
      const uint32_t other = (1 - part) * share + a_at;  // the same tile, the other part of K
      const uint32_t slot = warp * (C::columns - C::middle) * C::fragment_bytes + lane * 16;
      parked = reinterpret_cast<float4*>(shared + (inbox - ring) + slot);
      const uint32_t there = map_shared(inbox + slot, other), barrier = map_shared(arrived, other);
      // This block finishes the fragments `mine` to `mine_end` - 1, and the other block the fragments `theirs` to
      // `theirs_end` - 1.
      const auto meet = [&](auto mine, auto mine_end, auto theirs, auto theirs_end) {
#pragma unroll
        for (int j = theirs; j < theirs_end; j++) {
          store_async(there + (j - theirs) * C::fragment_bytes, barrier, own(j));
        }
        mbarrier_wait(arrived, 0);
        const auto both = [&](int j) {
          const float4 x = own(j), y = parked[(j - mine) * 32];
          return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        };
        if (p.plain) {
          store_all<C, mine, mine_end>(both, to);
          return;
        }
#pragma unroll
        for (int j = mine; j < mine_end; j++) parked[(j - mine) * 32] = both(j);
      };
      constexpr std::integral_constant<int, 0> first_one{};
      constexpr std::integral_constant<int, C::middle> middle{};
      constexpr std::integral_constant<int, C::columns> past{};
      if (part == 0) meet(first_one, middle, middle, past);
      else meet(middle, past, first_one, middle);
      if (p.plain) continue;
    }
    if (!C::loads_early && p.ahead) added.load(from, end, addends(group));
    finish_all<C>(parked, from, end, to, epilogue, batch0, batch1, p.ahead, added, addends(group));
  }
  if (share > 1 && !inbox_in_ring) cluster_wait();
}

}  // namespace
}  // namespace tilegemm
