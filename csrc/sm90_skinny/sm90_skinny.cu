// Hopper, up to 128 rows of A: D = A @ B with K contiguous in both, on the tensor cores.
//
// Reading B is the cost of such a product. The columns of B are called the rows of W here. The operands are exchanged: 64 rows of
// W are wgmma's M side; the rows of A, rounded up to an N of wgmma, are its N side; the product is a tile of D^T. One producer
// thread keeps a ring of TMA loads full, a warp group multiplies. Two blocks share a multiprocessor where their rings fit, so
// that one loads while the other stores. Where tiles are few, the blocks of a cluster split K. Their sums meet in distributed
// shared memory and are added in a fixed order: no workspace, the same bits every time.
//
// A plan names the tile of D, whose height is the instance's, the blocks that split K (`split`) and the stages of the ring;
// src/family/sm90_skinny.rs chooses them.
//
// The kernel may start while the kernel before it still runs (common/ptx.hpp). Meanwhile it prefetches two stages of weights into
// L2; more stages displace each other.
#include <algorithm>
#include <climits>
#include <cstring>

#include "common/epilogue.hpp"
#include "common/kernel.hpp"
#include "common/launch.hpp"
#include "common/ptx.hpp"
#include "common/tensor_map.hpp"
#include "common/wgmma.hpp"

namespace tilegemm {
namespace {

constexpr int shared_per_block = 227 * 1024;
constexpr int consumer_warps = 4, threads = 32 * (consumer_warps + 1);
constexpr int least_stages = 3, most_stages = 16, most_split = 8;

template <class Row, int A_ROWS>
struct Config {
  using Element = typename scalar<Row::dtype>::type;
  static constexpr int w_rows = Row::tile_n, a_rows = A_ROWS, depth = Row::tile_k;
  static constexpr int box = 128 / int(sizeof(Element));  // of K, in one swizzled row
  static constexpr int boxes = depth / box;
  static constexpr int w_box_bytes = w_rows * 128, a_box_bytes = a_rows * 128;
  static constexpr int w_bytes = boxes * w_box_bytes, stage_bytes = w_bytes + boxes * a_box_bytes;
  static_assert(sizeof(Element) == 2 && w_rows == 16 * consumer_warps && depth % box == 0 && a_rows <= Row::tile_m);

  // A fragment is a warp's share of 16 rows of W and 8 rows of A: a float4 per lane. In a cluster of `split` blocks, block
  // f % split sums up and stores fragment f. The block's inbox has a slot for each of its fragments from each block.
  static constexpr int columns = a_rows / 8, fragments = consumer_warps * columns, fragment_bytes = 32 * 16;
  static constexpr int slots(int split) { return (fragments + split - 1) / split; }
  static constexpr int inbox_bytes(int split) { return split > 1 ? split * slots(split) * fragment_bytes : 0; }

  static constexpr int barriers_bytes = 8 * (2 * most_stages + 1);
  // Stages that shared memory holds beside the inbox.
  static constexpr int stages(int split) {
    return std::min(most_stages, (shared_per_block - barriers_bytes - inbox_bytes(split)) / stage_bytes);
  }
  static_assert(stages(most_split) >= least_stages && least_stages * stage_bytes >= fragments * fragment_bytes);
};

struct Place {
  tg_matrix d;
  int m, n, k, batch1;
  int split_log2;  // blocks that split K; divisions would delay the first load
  int stages, prefetch;  // of the ring; of W, to prefetch into L2 before the previous kernel ends
  bool pairs;  // two numbers of a row of D may be stored as one word
  bool plain;  // the epilogue is the product alone
};

template <class T>
__device__ inline uint32_t pack(T x, T y) {
  const T both[2] = {x, y};
  uint32_t word;
  memcpy(&word, both, 4);
  return word;
}

// Stores 16 rows and 8 columns of D^T, laid out as wgmma's accumulators. `to`: the lane's first element, in `row` and `column`
// of D.
template <class T>
__device__ inline void store_fragment(const float4& v, T* to, int row, int column, const Place& p) {
  const uint32_t halves[2] = {pack(T(v.x), T(v.y)), pack(T(v.z), T(v.w))};
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

template <class Row, int A_ROWS>
__global__ void __launch_bounds__(threads)
    skinny(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap a_map,
           const __grid_constant__ Place p,
           const __grid_constant__ Epilogue<typename Config<Row, A_ROWS>::Element, float> epilogue) {
  using C = Config<Row, A_ROWS>;
  using T = typename C::Element;
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

  if (warp == consumer_warps) {
    if (lane == 0) {
      prefetch_tensor_map(&w_map);
      prefetch_tensor_map(&a_map);
      for (int s = 0; s < stages; s++) {
        mbarrier_init(full + 8 * s, 1);
        mbarrier_init(empty + 8 * s, consumer_warps);
      }
      mbarrier_init(arrived, 1);
      const int fragments = (C::fragments - part + split - 1) >> split_log2;  // that this block adds up
      if (split > 1) mbarrier_arrive_expect(arrived, (fragments << split_log2) * C::fragment_bytes);
      fence_mbarrier_init();
    }
    __syncwarp();
    // Without a cluster, the cluster barrier is the block's own, and every arrival needs a wait.
    if (split > 1) cluster_arrive_relaxed();
    else __syncthreads();
    if (lane == 0) {
      const uint32_t bytes = C::w_bytes + C::boxes * p.m * 128;
      for (int i = 0; i < min(count, p.prefetch); i++) {
#pragma unroll
        for (int j = 0; j < C::boxes; j++) tma_prefetch(&w_map, (first + i) * C::depth + j * C::box, row0, batch);
      }
      griddepcontrol_wait();
      for (int i = 0, s = 0, parity = 1; i < count; i++) {
        mbarrier_wait(empty + 8 * s, parity);
        const uint32_t to = ring + s * C::stage_bytes, barrier = full + 8 * s;
        mbarrier_arrive_expect(barrier, bytes);
#pragma unroll
        for (int j = 0; j < C::boxes; j++) {
          const int k = (first + i) * C::depth + j * C::box;
          tma_load(&w_map, to + j * C::w_box_bytes, barrier, k, row0, batch, evict_first);
          tma_load(&a_map, to + C::w_bytes + j * C::a_box_bytes, barrier, k, 0, batch, evict_last);
        }
        if (++s == stages) s = 0, parity ^= 1;
      }
      launch_dependents();  // earlier, the next kernel would take a share of the multiprocessors from this one
    }
    __syncwarp();
    if (split > 1) cluster_wait();
    return;
  }

  if (split > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }
  // Computed before the products: nothing hides the latency of code behind the last product.
  griddepcontrol_wait();  // in the threads that read C and the bias and write D
  T* const d = static_cast<T*>(p.d.ptr) + batch0 * p.d.batch_stride[0] + batch1 * p.d.batch_stride[1];
  const int row = lane / 4, column = row0 + lane % 4 * 2;  // of D, in the first fragment
  T* const lane_d = d + row * p.d.row_stride + column;
  const auto store = [&](const float4& v, int m0, int n0) {
    store_fragment(v, lane_d + m0 * p.d.row_stride + n0, row + m0, column + n0, p);
  };

  float sum[A_ROWS / 2] = {};
  for (int i = 0, s = 0, before = 0, parity = 0; i < count; i++) {
    mbarrier_wait(full + 8 * s, parity);
    const uint32_t w = ring + s * C::stage_bytes, a = w + C::w_bytes;
    wgmma_pin(sum);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < C::depth / 16; j++) {
      constexpr int per_box = C::box / 16;
      wgmma<T, A_ROWS>(sum, wgmma_descriptor(w + j / per_box * C::w_box_bytes + j % per_box * 32),
                       wgmma_descriptor(a + j / per_box * C::a_box_bytes + j % per_box * 32));
    }
    wgmma_commit_and_wait<1>();
    wgmma_pin(sum);
    if (i > 0 && lane == 0) mbarrier_arrive(empty + 8 * before);
    before = s;
    if (++s == stages) s = 0, parity ^= 1;
  }
  wgmma_commit_and_wait();
  wgmma_pin(sum);

  if (split == 1 && p.plain) {
#pragma unroll
    for (int j = 0; j < C::columns; j++) {
      const float4 v = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
      if (8 * j < p.m) store(v, 8 * j, 16 * warp);
    }
    return;
  }

  // If K is not split, fragments go to the epilogue through the ring, which is free by now. The epilogue is then a loop; unrolled
  // over registers it would be too large.
  if (split == 1) asm volatile("bar.sync 1, %0;" ::"n"(32 * consumer_warps) : "memory");
#pragma unroll
  for (int j = 0; j < C::columns; j++) {
    const float4 v = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
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
  const int mine = split == 1 ? warp * C::columns : warp, step = split == 1 ? 1 : consumer_warps;
  const int end = split == 1 ? mine + C::columns : slots;
  for (int slot = mine; slot < end; slot += step) {
    const int f = (slot << split_log2) + part, m0 = f % C::columns * 8, n0 = f / C::columns * 16;
    if (f >= C::fragments || m0 >= p.m) continue;
    float4 v = parts[slot * 32 + lane];
#pragma unroll
    for (int half = 1; half < most_split; half *= 2) {
      if (half == split) break;
#pragma unroll
      for (int i = half; i < 2 * half; i++) {
        const float4 x = parts[(i * slots + slot) * 32 + lane];
        v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
      }
    }
    if (!p.plain) {
      const int m = m0 + lane % 4 * 2, n = row0 + n0 + lane / 4;
      const auto finish = [&](float& x, int m, int n) {
        if (m < p.m && n < p.n) x = epilogue.unrounded(x, m, n, batch0, batch1);
      };
      finish(v.x, m, n), finish(v.y, m + 1, n), finish(v.z, m, n + 8), finish(v.w, m + 1, n + 8);
    }
    store(v, m0, n0);
  }
}

template <class Row, int A_ROWS>
tg_status run(const tg_gemm_args& args) {
  using C = Config<Row, A_ROWS>;
  using T = typename C::Element;
  const int split = args.config.split, split_log2 = log2_of(split, most_split), stages = args.config.stages;
  if (args.m > A_ROWS || split_log2 < 0 || args.k <= C::depth * (split - 1) || stages < least_stages || stages > C::stages(split)) {
    return TG_UNSUPPORTED;
  }
  CUtensorMap w_map, a_map;
  // TMA takes as long for rows outside of A as for rows inside.
  if (!tensor_map<T>(&w_map, args.b, args.b.col_stride, args.n, args.k, args.batch, C::w_rows) ||
      !tensor_map<T>(&a_map, args.a, args.a.row_stride, args.m, args.k, args.batch, int(args.m))) {
    return TG_UNSUPPORTED;
  }
  const int64_t tiles = ceil_div(args.n, C::w_rows), batches = args.batch[0] * args.batch[1];
  const tg_matrix& d = args.d;
  const bool pairs = reinterpret_cast<uintptr_t>(d.ptr) % 4 == 0 && d.batch_stride[0] % 2 == 0 &&
                     d.batch_stride[1] % 2 == 0 && (args.m == 1 || d.row_stride % 2 == 0);
  Epilogue<T, float> epilogue(args);
  Place place{d, int(args.m), int(args.n), int(args.k), int(args.batch[1]), split_log2, stages,
              args.overlap ? 2 : 0, pairs, epilogue.is_plain()};

  const void* kernel = reinterpret_cast<const void*>(skinny<Row, A_ROWS>);
  if (const cudaError_t error = allow_shared_memory<C>(kernel, shared_per_block)) return cuda_status(error);
  const int bytes = stages * C::stage_bytes + C::inbox_bytes(split) + C::barriers_bytes;
  void* parameters[] = {&w_map, &a_map, &place, &epilogue};
  const dim3 grid(unsigned(tiles * split), unsigned(batches));
  return Launch(args, grid, dim3(threads), bytes, dim3(split))(kernel, parameters);
}

template <class Row, int... rows>
tg_status run_rows(const tg_gemm_args& args, Widths<rows...>) {
  tg_status status = TG_UNSUPPORTED;
  ((args.config.tile_m == rows && (status = run<Row, rows>(args), true)) || ...);
  return status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_NT && Row::tile_m == 128);
  const tg_gemm_args& args = *problem;
  const int64_t batches = args.batch[0] * args.batch[1];
  if (args.m == 0 || args.n == 0 || batches == 0) return TG_OK;
  // src/family/sm90_skinny.rs has the same limits.
  if (args.m > Row::tile_m || args.n > INT_MAX / 2 || args.k == 0 || args.k > INT_MAX / 2 || batches > 65535 ||
      args.a.col_stride != 1 || args.b.row_stride != 1 || (args.d.col_stride != 1 && args.n > 1) ||
      args.config.tile_n != Row::tile_n) {
    return TG_UNSUPPORTED;
  }
  return run_rows<Row>(args, Widths<8, 16, 24, 32, 48, 64, 80, 96, 128>{});
}

}  // namespace tilegemm

#include TG_ROWS
