// The kernel of sm90_few_rows.cu: one tile has all rows of A.
//
// Reading B is the cost of such a product. 64 rows of W are wgmma's M side; the rows of A, rounded up to an N of wgmma,
// are wgmma's N side. One warp group multiplies. Two blocks share a multiprocessor where their rings fit, so that one
// block loads while the other block stores. Where tiles are few, up to eight blocks of a cluster split K. The sums of
// the blocks meet in distributed shared memory and are added in a fixed order.
#pragma once
#include "common/pipeline.hpp"
#include "sm90_few_rows/added.hpp"
#include "sm90_few_rows/raw.hpp"

namespace tilegemm {
namespace {

template <class Row, int Width>
struct FewRows : Tile<Row, Width> {
  using Base = Tile<Row, Width>;
  using Base::box, Base::columns, Base::consumer_warps, Base::fragment_bytes;
  static_assert(Base::swap_ab && Base::w_rows == 64 && Row::cluster_m == 1 && Row::cluster_n == 1);
  static constexpr int depth = Row::tile_k, boxes = depth / box;
  static constexpr int w_box_bytes = Base::w_rows * 128, a_box_bytes = Base::a_rows * 128;
  static_assert(depth % box == 0);
  // Whether W may lie at any address (raw.hpp); each line of W then takes 16 bytes more.
  static constexpr bool raw = Row::align < 16, k_major = b_is_k_major(Row::layout);
  static constexpr int raw_bytes = raw ? 16 * (k_major ? Base::w_rows : depth) : 0;
  static constexpr int producer_warps = raw ? 4 : 1, threads = 32 * (Base::consumer_warps + producer_warps);
  static constexpr int w_bytes = boxes * w_box_bytes + raw_bytes,
                       stage_bytes = Base::bytes_of_a_stage(depth) + raw_bytes;
  static_assert((raw || k_major) && stage_bytes % 1024 == 0);

  // Fragments whose numbers of C are on their way; a raw W leaves no registers for such numbers.
  static constexpr int ahead = 4;
  static constexpr bool loads_ahead = !raw;

  // In a cluster of `split` blocks, block f % split sums up and stores fragment f. The inbox of that block has a slot
  // for each block's part of each such fragment.
  static constexpr int least_stages = 3, most_split = Row::split, fragments = consumer_warps * columns;
  static constexpr int slots(int split) { return (fragments + split - 1) / split; }
  static constexpr int inbox_bytes(int split) { return split > 1 ? split * slots(split) * fragment_bytes : 0; }
  // The most stages; with fewer stages two blocks share a multiprocessor.
  static constexpr int stages(int split) { return Base::stages_in(inbox_bytes(split), stage_bytes); }
  static_assert(stages(most_split) >= least_stages && least_stages * stage_bytes >= fragments * fragment_bytes);
};

struct FewRowsPlace : Product {
  tg_matrix b;           // for a raw W
  int split_log2;        // blocks that split K; divisions would delay the first load
  int stages, prefetch;  // of the ring; of W, to prefetch into L2 before the previous kernel ends
  bool pairs;            // two 16-bit numbers of a row of D may be stored as one word
  bool plain;            // the epilogue is the product alone
  bool ahead, pairs_c;   // rows of C and the bias can be loaded ahead of the sums; the same as `pairs`, of C
};

// Stores 16 rows and 8 columns of D^T, laid out as wgmma's accumulators. `to`: the lane's first element, in `row` and
// `column` of D. In f32 a warp's store fills sectors of 32 bytes in four rows of D, without an exchange of numbers
// between lanes.
template <class T>
__device__ inline void store_fragment(const float4& v, T* to, int row, int column, const FewRowsPlace& p) {
  if constexpr (sizeof(T) == 4) {
    const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (row + i % 2 < p.m && column + i / 2 * 8 < p.n) to[i % 2 * p.d.row_stride + i / 2 * 8] = x[i];
    }
  } else {
    const uint32_t halves[2] = {pack<T>(v.x, v.y), pack<T>(v.z, v.w)};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint32_t turned = movmatrix(halves[i]);
      if (row >= p.m || column + 8 * i >= p.n) continue;
      if (p.pairs && column + 8 * i + 1 < p.n) {
        *reinterpret_cast<uint32_t*>(to + 8 * i) = turned;
      } else {
        const T* const both = reinterpret_cast<const T*>(&turned);
        to[8 * i] = both[0];
        if (column + 8 * i + 1 < p.n) to[8 * i + 1] = both[1];
      }
    }
  }
}

template <class C>
__device__ __forceinline__ auto raw_fragments(const FewRowsPlace& p, int row0, int batch0, int batch1, int warp,
                                              int lane) {
  if constexpr (C::raw) return RawFragments<C>(RawW<C>(p.b, p.n, p.k, row0, batch0, batch1), warp, lane);
  else return 0;
}

template <class C>
__global__ void __launch_bounds__(C::threads)
    sm90_few_rows(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap a_map,
                  const __grid_constant__ FewRowsPlace p,
                  const __grid_constant__ Epilogue<typename C::Out, float> epilogue) {
  using Out = typename C::Out;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int stages = p.stages, split_log2 = p.split_log2, split = 1 << split_log2;
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), ring_bytes = stages * C::stage_bytes;
  const uint32_t inbox = ring + (split > 1 ? ring_bytes : 0);
  const int slots = (C::fragments + split - 1) >> split_log2;
  const uint32_t inbox_bytes = split > 1 ? (slots << split_log2) * C::fragment_bytes : 0;
  const uint32_t full = ring + ring_bytes + inbox_bytes, empty = full + 8 * stages;
  const uint32_t arrived = empty + 8 * stages;  // barrier: the partial sums of this block's fragments

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int part = int(cluster_rank()), row0 = (int(blockIdx.x) >> split_log2) * C::w_rows;
  const int batch = blockIdx.y, batch0 = gridDim.y == 1 ? 0 : batch / p.batch1, batch1 = batch - batch0 * p.batch1;
  const int k_tiles = (p.k + C::depth - 1) / C::depth;
  const int first = (k_tiles * part) >> split_log2, count = ((k_tiles * (part + 1)) >> split_log2) - first;

  if (warp == C::consumer_warps && lane == 0) {
    if (!C::raw) prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&a_map);
    init_ring(full, empty, stages, C::consumer_warps, C::raw ? 32 * C::producer_warps + 1 : 1);
    mbarrier_init(arrived, 1);
    const int fragments = (C::fragments - part + split - 1) >> split_log2;  // that this block adds up
    if (split > 1) mbarrier_arrive_expect(arrived, (fragments << split_log2) * C::fragment_bytes);
    fence_mbarrier_init();
  }
  __syncwarp();
  // Without a cluster, the cluster barrier is the block's own, and every arrival needs a wait.
  if (split > 1) cluster_arrive_relaxed();
  else __syncthreads();

  if (warp >= C::consumer_warps) {
    if constexpr (C::raw) {
      if (split > 1) cluster_wait();  // for the barriers
      const RawW<C> raw(p.b, p.n, p.k, row0, batch0, batch1);
      for (int i = 0; i < min(count, p.prefetch); i++) raw.prefetch((first + i) * C::depth, warp - C::consumer_warps);
      griddepcontrol_wait();
      Stage at = Stage::to_fill();
      for (int i = 0; i < count; i++) {
        const uint32_t to = ring + at.s * C::stage_bytes, barrier = full + 8 * at.s;
        const int k = (first + i) * C::depth;
        at.wait(empty);
        if (warp == C::consumer_warps && lane == 0) {
          mbarrier_arrive_expect(barrier, C::boxes * p.m * 128);
#pragma unroll
          for (int j = 0; j < C::boxes; j++) {
            tma_load(&a_map, to + C::w_bytes + j * C::a_box_bytes, barrier, k + j * C::box, 0, batch, evict_last);
          }
        }
        __syncwarp();
        raw.load(to, k, warp - C::consumer_warps);
        mbarrier_arrive_after_copies(barrier);
        at.advance(stages);
      }
      if (lane == 0) launch_dependents();
    } else if (lane == 0) {
      const uint32_t bytes = C::w_bytes + C::boxes * p.m * 128;
      for (int i = 0; i < min(count, p.prefetch); i++) {
#pragma unroll
        for (int j = 0; j < C::boxes; j++) tma_prefetch(&w_map, (first + i) * C::depth + j * C::box, row0, batch);
      }
      griddepcontrol_wait();
      Stage at = Stage::to_fill();
      for (int i = 0; i < count; i++) {
        const uint32_t to = ring + at.s * C::stage_bytes, barrier = at.acquire(full, empty, bytes);
#pragma unroll
        for (int j = 0; j < C::boxes; j++) {
          const int k = (first + i) * C::depth + j * C::box;
          tma_load(&w_map, to + j * C::w_box_bytes, barrier, k, row0, batch, evict_first);
          tma_load(&a_map, to + C::w_bytes + j * C::a_box_bytes, barrier, k, 0, batch, evict_last);
        }
        at.advance(stages);
      }
      launch_dependents();  // earlier, the next kernel would take a share of the multiprocessors from this kernel
    }
    __syncwarp();
    if (!C::raw && split > 1) cluster_wait();
    return;
  }

  if (split > 1) cluster_wait();
  // Computed before the products: nothing hides the latency of code behind the last product.
  griddepcontrol_wait();  // in the threads that read C and the bias and write D
  Out* const d = matrix_of<Out>(p.d, batch0, batch1);
  // The lane's first element of the first fragment in D: a store of 16 bits turns a fragment.
  constexpr bool turns = sizeof(Out) == 2;
  const int row = turns ? lane / 4 : lane % 4 * 2, column = row0 + (turns ? lane % 4 * 2 : lane / 4);
  Out* const lane_d = d + row * p.d.row_stride + column;
  const auto store = [&](const float4& v, int m0, int n0) {
    store_fragment(v, lane_d + m0 * p.d.row_stride + n0, row + m0, column + n0, p);
  };

  // An epilogue takes fragments out of shared memory: those of the slots `mine`, `mine` + `step` and so on.
  const int mine = split == 1 ? warp * C::columns : warp, step = split == 1 ? 1 : C::consumer_warps;
  const int end = split == 1 ? mine + C::columns : slots;
  const auto fragment_of = [&](int slot) { return (slot << split_log2) + part; };
  // What the epilogue adds, for the next fragments of the warp. The lane's first number of C, and of the bias: null, if
  // nothing is added.
  Added<Out> added[C::ahead];
  const bool ahead = C::loads_ahead && p.ahead;
  const Out *lane_c = nullptr, *lane_bias = nullptr;
  if (ahead && epilogue.beta != 0)
    lane_c = matrix_of<Out>(epilogue.c, batch0, batch1) + row * epilogue.c.row_stride + column;
  if (ahead && epilogue.bias.ptr) lane_bias = matrix_of<Out>(epilogue.bias, batch0, batch1) + row0 + lane / 4;
  const auto load_added = [&](Added<Out>& to, int slot) {
    const int f = fragment_of(slot), m0 = f % C::columns * 8, n0 = f / C::columns * 16;
    if (slot >= end || f >= C::fragments || m0 >= p.m) return;
    if (lane_c) {
      const Out* const c = lane_c + m0 * epilogue.c.row_stride + n0;
      to.load_c(c, epilogue.c.row_stride, row + m0, column + n0, p.m, p.n, p.pairs_c);
    }
    if (lane_bias) to.load_bias(lane_bias + n0, p.n - (row0 + n0 + lane / 4));
  };
  if (ahead) {
#pragma unroll
    for (int i = 0; i < C::ahead; i++) load_added(added[i], mine + i * step);
  }

  float sum[C::width / 2] = {};          // ((2,2,width/8)), of D^T
  [[maybe_unused]] uint32_t f[2][4][4];  // (PIPE,MMA_K,MMA), of W
  [[maybe_unused]] std::conditional_t<C::raw, RawFragments<C>, int> fragments =
      raw_fragments<C>(p, row0, batch0, batch1, warp, lane);
  Stage at = Stage::to_read();
  for (int i = 0, before = 0; i < count; i++) {
    at.wait(full);
    const uint32_t w = ring + at.s * C::stage_bytes, a = w + C::w_bytes;
    if constexpr (C::raw) {
      multiply_raw<C>(sum, f, fragments, w, a);
    } else {
      multiply<C>(sum, w, a);
    }
    if (i > 0) release_stage(empty, before, lane, false, 1);
    before = at.s;
    at.advance(stages);
  }
  wgmma_commit_and_wait();
  wgmma_pin(sum);

  if (split == 1 && p.plain) {
#pragma unroll
    for (int j = 0; j < C::columns; j++) {
      const float4 v = fragment(sum, j);
      if (8 * j < p.m) store(v, 8 * j, 16 * warp);
    }
    return;
  }

  // If K is not split, fragments go to the epilogue through the ring, which is free by now. The epilogue is then a
  // loop; an epilogue unrolled over registers would be too large.
  if (split == 1) asm volatile("bar.sync 1, %0;" ::"n"(32 * C::consumer_warps) : "memory");
#pragma unroll
  for (int j = 0; j < C::columns; j++) {
    const float4 v = fragment(sum, j);
    const int f = warp * C::columns + j;
    if (split == 1) {
      reinterpret_cast<float4*>(shared)[f * 32 + lane] = v;
    } else {
      const int owner = f & (split - 1), slot = f >> split_log2;
      const uint32_t to = inbox + ((part * slots + slot) * 32 + lane) * 16;
      store_async(map_shared(to, owner), map_shared(arrived, owner), v);
    }
  }
  if (split == 1) __syncwarp();
  else mbarrier_wait(arrived, 0);
  const float4* const parts = reinterpret_cast<const float4*>(shared + (inbox - ring));
  for (int slot = mine; slot < end; slot += step) {
    const int f = fragment_of(slot), m0 = f % C::columns * 8, n0 = f / C::columns * 16;
    const Added<Out> of_slot = added[0];
    if (ahead) {
#pragma unroll
      for (int i = 1; i < C::ahead; i++) added[i - 1] = added[i];
      load_added(added[C::ahead - 1], slot + C::ahead * step);
    }
    if (f >= C::fragments || m0 >= p.m) continue;
    float4 v = parts[slot * 32 + lane];
#pragma unroll
    for (int half = 1; half < C::most_split; half *= 2) {
      if (half == split) break;
#pragma unroll
      for (int i = half; i < 2 * half; i++) {
        const float4 x = parts[(i * slots + slot) * 32 + lane];
        v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
      }
    }
    if (!p.plain) {
      const int m = m0 + lane % 4 * 2, n = row0 + n0 + lane / 4;
      float c[4], bias[4];
      if (ahead) {
        of_slot.take(c, bias);
      } else {
        const auto load = [&](float (&y)[4], const tg_matrix& matrix) {
          const Out* const first = matrix_of<Out>(matrix, batch0, batch1);
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int at_m = m + i % 2, at_n = n + i / 2 * 8;
            y[i] = at_m < p.m && at_n < p.n ? float(first[at_m * matrix.row_stride + at_n * matrix.col_stride]) : 0;
          }
        };
        if (epilogue.bias.ptr) load(bias, epilogue.bias);
        if (epilogue.beta != 0) load(c, epilogue.c);
      }
      const auto finish = [&](float& x, int i) {
        x *= epilogue.alpha;
        if (epilogue.bias.ptr) x += bias[i];
        if (epilogue.activation != TG_IDENTITY) x = activate<accuracy_of<Out>>(epilogue.activation, x);
        if (epilogue.beta != 0) x += epilogue.beta * c[i];
      };
      finish(v.x, 0), finish(v.y, 1), finish(v.z, 2), finish(v.w, 3);
    }
    store(v, m0, n0);
  }
}

}  // namespace
}  // namespace tilegemm
