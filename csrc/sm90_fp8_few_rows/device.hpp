// The kernel for few rows of X: one tile has all of them.
//
// W is wgmma's M side, 64 rows for each warp group, and X is wgmma's N side: the product is D^T. A warp keeps a ring of
// loads full; with factors of blocks, another warp copies the factors of each stage. Where tiles are few, the blocks of
// a cluster split K. Their sums meet in distributed shared memory and are added in a fixed order.
//
// TMA takes as long for rows outside of a tensor as for rows inside: boxes of X are as high as X, and the last tile of
// W moves back so that it ends with N.
#pragma once
#include <algorithm>

#include "common/epilogue.hpp"
#include "common/launch.hpp"
#include "common/pipeline.hpp"
#include "common/store.hpp"
#include "fp8/factors.hpp"
#include "fp8/wgmma.hpp"

namespace tilegemm {
namespace {

// `Width`: rows of X of a tile.
template <class Row, int Width, Sums SUMS>
struct Fp8FewRows {
  using Element = typename scalar<Row::dtype>::type;
  using Out = typename scalar<Row::out>::type;
  using Acc = wgmma_sum<Element>;
  static constexpr Sums sums = SUMS;
  static constexpr int width = Width, w_rows = Row::tile_n, groups = w_rows / 64;  // groups of warps
  static constexpr int depth = Row::tile_k, boxes = depth / 128;                   // of K, in a stage
  static_assert(w_rows % 64 == 0 && depth % 128 == 0 && Width <= Row::tile_m);
  static constexpr int w_box_bytes = w_rows * 128, x_box_bytes = width * 128, w_bytes = boxes * w_box_bytes,
                       stage_bytes = w_bytes + boxes * x_box_bytes;
  static constexpr bool blocks = SUMS == Sums::blocks;
  static_assert(std::is_same_v<Element, __nv_fp8_e4m3> || SUMS == Sums::whole);
  using Loader = FactorLoader<width, 2, boxes>;  // a tile of W has rows of two blocks at most
  static constexpr int factor_bytes = blocks ? Loader::bytes : 4 * (width + w_rows);  // of a stage, or of the tile

  static constexpr int consumer_warps = 4 * groups, threads = 32 * (consumer_warps + (blocks ? 2 : 1));
  // A fragment is a warp's share of 16 rows of W and 8 rows of X: four sums of each lane.
  static constexpr int columns = width / 8, fragments = consumer_warps * columns, fragment_bytes = 32 * 16;

  // In a cluster of `split` blocks, block f % split sums up and stores fragment f. The inbox of that block has a slot
  // for each block's part of each such fragment. A large inbox takes the place of the ring, at the price of a barrier
  // of the cluster.
  // Products of so many boxes are under way at a time, where registers hold them beside the sums.
  static constexpr int held = width > 64 ? 1 : boxes;
  static_assert(boxes == 1 || boxes == 2);

  static constexpr int most_split = Row::split, least_stages = 2, most_stages = 16;
  static constexpr bool inbox_in_ring = fragments * fragment_bytes > 16384;
  static constexpr int slots(int split) { return (fragments + split - 1) / split; }
  static constexpr int inbox_bytes(int split) {
    return split > 1 && !inbox_in_ring ? split * slots(split) * fragment_bytes : 0;
  }
  static constexpr int shared_per_block = 227 * 1024;
  static constexpr int bytes(int stages, int split) {
    return stages * (stage_bytes + (blocks ? factor_bytes : 0)) + (blocks ? 0 : factor_bytes) + inbox_bytes(split) +
           8 * (2 * stages + 1);
  }
};

struct Fp8FewRowsPlace {
  tg_matrix d;
  int m, n, k, w_blocks;  // w_blocks: blocks of W along N
  int w_box;              // rows of W of a tile, a multiple of 8
  int split_log2;
  int stages, prefetch;  // of the ring; of W, to prefetch into L2 before the previous kernel ends
  bool pairs;            // two 16-bit numbers of a row of D may be stored as one word
  bool plain;            // the epilogue is the product alone
};

// Stores 16 rows and 8 columns of D^T, laid out as wgmma's accumulators. `to`: the lane's first element, in `row` and
// `column` of D; the tile has columns `from` to `end` - 1.
template <class T>
__device__ __forceinline__ void store_fragment(const float (&v)[4], T* to, int row, int column, int from, int end,
                                               const Fp8FewRowsPlace& p) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int at = column + i / 2 * 8;
      if (row + i % 2 < p.m && at >= from && at < end) to[i % 2 * p.d.row_stride + i / 2 * 8] = v[i];
    }
  } else {
    const uint32_t halves[2] = {pack<T>(v[0], v[1]), pack<T>(v[2], v[3])};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t turned = movmatrix(halves[i]);
      const int at = column + 8 * i;
      if (row >= p.m || at + 1 < from || at >= end) continue;
      if (p.pairs && at >= from && at + 1 < end) {
        *reinterpret_cast<uint32_t*>(to + 8 * i) = turned;
      } else {
        const T* const both = reinterpret_cast<const T*>(&turned);
        if (at >= from) to[8 * i] = both[0];
        if (at + 1 < end) to[8 * i + 1] = both[1];
      }
    }
  }
}

// sum += part times the factors of a block: `x` and `w` are the factors of X and of the lane's two rows of W in shared
// memory. `same`: whether all rows of the warp have the same factor.
template <class C>
__device__ __forceinline__ void add_block(float (&sum)[C::width / 2], const float (&part)[C::width / 2], uint32_t x,
                                          const uint32_t (&w)[2], bool same) {
  const float of_w[2] = {load_shared_f(w[0]), load_shared_f(w[1])};
  const auto add = [&](auto one) {
#pragma unroll
    for (int j = 0; j < C::columns; j++) {
      float2 of_x = load_shared_2(x + 32 * j), other = of_x;
      of_x.x *= of_w[0], of_x.y *= of_w[0];
      if constexpr (one) other = of_x;
      else other.x *= of_w[1], other.y *= of_w[1];
      sum[4 * j] = fmaf(part[4 * j], of_x.x, sum[4 * j]);
      sum[4 * j + 1] = fmaf(part[4 * j + 1], of_x.y, sum[4 * j + 1]);
      sum[4 * j + 2] = fmaf(part[4 * j + 2], other.x, sum[4 * j + 2]);
      sum[4 * j + 3] = fmaf(part[4 * j + 3], other.y, sum[4 * j + 3]);
    }
  };
  if constexpr (C::width < 32) add(std::false_type{});
  else if (same) add(std::true_type{});
  else add(std::false_type{});
}

template <class C>
__global__ void __launch_bounds__(C::threads)
    sm90_fp8_few_rows(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ Fp8FewRowsPlace p, const __grid_constant__ Factors factors,
                      const __grid_constant__ Epilogue<typename C::Out, float> epilogue) {
  using Out = typename C::Out;
  using Acc = typename C::Acc;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int stages = p.stages, split_log2 = p.split_log2, split = 1 << split_log2;
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), ring_bytes = stages * C::stage_bytes;
  const int slots = (C::fragments + split - 1) >> split_log2;
  const uint32_t own_inbox = ring + ring_bytes, inbox = C::inbox_in_ring ? ring : own_inbox;
  const uint32_t stage_factors =
      own_inbox + (split > 1 && !C::inbox_in_ring ? (slots << split_log2) * C::fragment_bytes : 0);
  const uint32_t full = stage_factors + (C::blocks ? stages : 1) * C::factor_bytes, empty = full + 8 * stages;
  const uint32_t arrived = empty + 8 * stages;  // barrier: the partial sums of this block's fragments

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int part = split > 1 ? int(cluster_rank()) : 0, from_n = (int(blockIdx.x) >> split_log2) * p.w_box;
  // In 16 bits, the last tile begins at a multiple of 16 bytes of D.
  const int n0 = min(from_n, (max(p.n - p.w_box, 0) + 7) / 8 * 8), end_n = min(n0 + p.w_box, p.n);
  const int k_tiles = (p.k + C::depth - 1) / C::depth;
  const int first = (k_tiles * part) >> split_log2, count = ((k_tiles * (part + 1)) >> split_log2) - first;

  if (warp == C::consumer_warps && lane == 0) {
    prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&x_map);
    init_ring(full, empty, stages, C::consumer_warps, C::blocks ? 33 : 1);
    mbarrier_init(arrived, 1);
    const int fragments = (C::fragments - part + split - 1) >> split_log2;  // that this block adds up
    if (split > 1) mbarrier_arrive_expect(arrived, (fragments << split_log2) * C::fragment_bytes);
    fence_mbarrier_init();
  }
  __syncwarp();
  // Without a cluster, the cluster barrier is the block's own, and every arrival needs a wait. In a cluster, only the
  // warp that loads factors uses the block's barriers before its wait.
  if (split > 1) cluster_arrive_relaxed();
  if (split == 1 || C::blocks) __syncthreads();

  if (warp >= C::consumer_warps) {
    if (warp == C::consumer_warps && lane == 0) {
      for (int i = 0; i < min(count, p.prefetch); i++) {
#pragma unroll
        for (int b = 0; b < C::boxes; b++) tma_prefetch_2(&w_map, (first + i) * C::depth + b * 128, n0);
      }
      griddepcontrol_wait();
      const uint32_t bytes = C::boxes * (p.w_box + p.m) * 128;
      Stage at = Stage::to_fill();
      for (int i = 0; i < count; i++) {
        const uint32_t to = ring + at.s * C::stage_bytes, barrier = at.acquire(full, empty, bytes);
#pragma unroll
        for (int b = 0; b < C::boxes; b++) {
          const int k = (first + i) * C::depth + b * 128;
          tma_load_2(&w_map, to + b * C::w_box_bytes, barrier, k, n0, evict_first);
          tma_load_2(&x_map, to + C::w_bytes + b * C::x_box_bytes, barrier, k, 0, evict_last);
        }
        at.advance(stages);
      }
      launch_dependents();  // earlier, the next kernel would take a share of the multiprocessors from this kernel
    }
    if (C::blocks && warp == C::consumer_warps + 1) {
      const int k_blocks = (p.k + factor_k - 1) / factor_k, block = n0 / factor_n;
      typename C::Loader loader(factors, 0, block, p.m, p.w_blocks - block, first * C::boxes, lane);
      griddepcontrol_wait();
      Stage at = Stage::to_fill();
      for (int i = 0; i < count; i++) {
        at.wait_warp(empty);
        loader.load(stage_factors + at.s * C::factor_bytes, k_blocks - (first + i) * C::boxes, lane);
        mbarrier_arrive_after_copies(full + 8 * at.s);
        at.advance(stages);
      }
      if (lane == 0) launch_dependents();
    }
    __syncwarp();
    if (split > 1) {
      cluster_wait();
      if (C::inbox_in_ring) cluster_sync();
    }
    return;
  }

  if (split > 1) cluster_wait();
  griddepcontrol_wait();  // in the threads that read factors, C and the bias, and write D
  const int g = lane / 4, q = lane % 4;
  if constexpr (!C::blocks) {  // the factors of the tile: of X, then of W
    for (int i = threadIdx.x; i < C::width + C::w_rows; i += 32 * C::consumer_warps) {
      const bool of_x = i < C::width;
      const int at = of_x ? i : n0 + i - C::width;
      copy_factor(stage_factors + 4 * i, of_x ? factors.x : factors.w, at * (of_x ? factors.x_m : factors.w_n),
                  at < (of_x ? p.m : end_n));
    }
    copy_async_commit();
  }

  Acc sum[C::width / 2] = {};  // ((2,2,width/8)), of D^T
  const uint32_t own_w = warp / 4 * (64 * 128);
  Stage at = Stage::to_read();
  if constexpr (C::sums == Sums::whole) {
    for (int i = 0, before = 0; i < count; i++) {
      at.wait(full);
      const uint32_t w = ring + at.s * C::stage_bytes + own_w, x = ring + at.s * C::stage_bytes + C::w_bytes;
      pin_all(sum);
      wgmma_fence();
#pragma unroll
      for (int b = 0; b < C::boxes; b++) {
        multiply_box<typename C::Element, C::width>(sum, w + b * C::w_box_bytes, x + b * C::x_box_bytes, 1);
      }
      wgmma_commit_and_wait<1>();
      pin_all(sum);
      if (i > 0) release_stage(empty, before, lane, false, 1);
      before = at.s;
      at.advance(stages);
    }
    wgmma_commit_and_wait();
    pin_all(sum);
  } else {
    // The lane's factors in a stage: of X, rows 2 q and 2 q + 1 of each eight; of W, the blocks of the rows.
    const int row = warp * 16 + g;
    const uint32_t of_x = 8 * q, of_w[2] = {4u * (C::width + (n0 + row) / factor_n - n0 / factor_n),
                                            4u * (C::width + (n0 + row + 8) / factor_n - n0 / factor_n)};
    const int slab = n0 + warp * 16;  // the warp's first row of W
    [[maybe_unused]] const bool same = slab / factor_n == (slab + 15) / factor_n;
    float parts[C::held][C::width / 2] = {};  // (((2,2,width/8)),boxes)
    for (int i = 0; i < count; i++) {
      at.wait(full);
      const uint32_t w = ring + at.s * C::stage_bytes + own_w, x = ring + at.s * C::stage_bytes + C::w_bytes;
      const auto start = [&](int b) {
        pin_all(parts[b % C::held]);
        wgmma_fence();
        multiply_box<typename C::Element, C::width>(parts[b % C::held], w + b * C::w_box_bytes, x + b * C::x_box_bytes,
                                                    0);
        wgmma_commit();
      };
      const auto add = [&](int b) {
        if constexpr (C::blocks) {
          const uint32_t f = stage_factors + at.s * C::factor_bytes + b * (C::Loader::in_box * 4);
          const uint32_t in_w[2] = {f + of_w[0], f + of_w[1]};
          add_block<C>(sum, parts[b % C::held], f + of_x, in_w, same);
        } else {
#pragma unroll
          for (int e = 0; e < C::width / 2; e++) sum[e] += parts[b % C::held][e];
        }
      };
      if constexpr (C::held == 2) {
        start(0), start(1);
        wgmma_wait_for<1>();
        pin_all(parts[0]);
        add(0);
        wgmma_wait_for<0>();
        pin_all(parts[1]);
        add(1);
      } else {
#pragma unroll
        for (int b = 0; b < C::boxes; b++) {
          start(b);
          wgmma_wait_for<0>();
          pin_all(parts[0]);
          add(b);
        }
      }
      release_stage(empty, at.s, lane, false, 1);
      at.advance(stages);
    }
  }
  if constexpr (!C::blocks) {
    copy_async_wait<0>();
    bar_sync(1, 32 * C::consumer_warps);
  }

  Out* const d = static_cast<Out*>(p.d.ptr);
  // The lane's first element of the first fragment in D: a store of 16 bits turns a fragment.
  constexpr bool turns = sizeof(Out) == 2;
  const int row = turns ? g : 2 * q, column = n0 + (turns ? 2 * q : g);
  Out* const lane_d = d + row * p.d.row_stride + column;
  // Finishes fragment f: eight rows of D from 8 * (f % columns) on, and 16 columns.
  const auto finish = [&](const Acc(&sums)[4], int f, bool plain) {
    const int m0 = f % C::columns * 8, n = f / C::columns * 16;
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; i++) v[i] = float(sums[i]);
    if constexpr (!C::blocks) {
      const float2 of_x = load_shared_2(stage_factors + 4 * (m0 + 2 * q));
      const uint32_t of_w = stage_factors + 4 * (C::width + n + g);
      const float w[2] = {load_shared_f(of_w), load_shared_f(of_w + 32)};
#pragma unroll
      for (int i = 0; i < 4; i++) v[i] *= w[i / 2] * (i % 2 ? of_x.y : of_x.x);
    }
    if (!plain) {
      int rows[4], columns[4];
      bool inside[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        rows[i] = m0 + 2 * q + i % 2, columns[i] = n0 + n + g + i / 2 * 8;
        inside[i] = rows[i] < p.m && columns[i] >= from_n && columns[i] < end_n;
      }
      epilogue.each(v, rows, columns, inside, 0, 0);
    }
    store_fragment(v, lane_d + m0 * p.d.row_stride + n, row + m0, column + n, from_n, end_n, p);
  };

  if (split == 1 && p.plain) {
#pragma unroll
    for (int j = 0; j < C::columns; j++) {
      const Acc v[4] = {sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]};
      if (8 * j < p.m) finish(v, warp * C::columns + j, true);
    }
    return;
  }

  // If K is not split, fragments go to the epilogue through the ring, which is free by now.
  if (split == 1) bar_sync(1, 32 * C::consumer_warps);
  else if (C::inbox_in_ring) cluster_sync();
  using Four = std::conditional_t<std::is_same_v<Acc, int>, int4, float4>;
  Four* const parked = reinterpret_cast<Four*>(shared + (split == 1 ? 0 : inbox - ring));
#pragma unroll
  for (int j = 0; j < C::columns; j++) {
    const int f = warp * C::columns + j;
    const Four v = {sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]};
    if (split == 1) {
      parked[f * 32 + lane] = v;
    } else {
      const int owner = f & (split - 1), slot = f >> split_log2;
      float4 bits;
      memcpy(&bits, &v, sizeof bits);
      store_async(map_shared(inbox + (part * slots + slot) * C::fragment_bytes + lane * 16, owner),
                  map_shared(arrived, owner), bits);
    }
  }
  if (split == 1) __syncwarp();
  else mbarrier_wait(arrived, 0);
  const int mine = split == 1 ? warp * C::columns : warp, step = split == 1 ? 1 : C::consumer_warps;
  const int end = split == 1 ? mine + C::columns : slots;
  for (int slot = mine; slot < end; slot += step) {
    const int f = (slot << split_log2) + part;
    if (f >= C::fragments || f % C::columns * 8 >= p.m) continue;
    Four v = parked[slot * 32 + lane];
#pragma unroll
    for (int half = 1; half < C::most_split; half *= 2) {
      if (half == split) break;
#pragma unroll
      for (int i = half; i < 2 * half; i++) {
        const Four x = parked[(i * slots + slot) * 32 + lane];
        v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
      }
    }
    const Acc sums[4] = {v.x, v.y, v.z, v.w};
    finish(sums, f, p.plain);
  }
}

}  // namespace
}  // namespace tilegemm
