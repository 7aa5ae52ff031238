// One to four rows of A: D = A @ B on the CUDA cores with N contiguous in B, as attention has in decoding.
//
// As in gemv.cu, the time of such a product is the time of reading B. Here, a row of B belongs to one k. Eight lanes
// read 128 bytes of the row, 16 bytes each, and keep the sums of their columns. The other lanes of a warp, the warps of
// a block and, where there are few columns, the blocks of a cluster split K. A lane loads groups of four rows of B,
// with the numbers of A that the rows multiply, and has two groups in flight. In the end, sums are added over lanes,
// over warps in shared memory, and over the blocks of the cluster. Each block of a cluster owns some columns, and the
// other blocks push their sums of these columns to the owner. The order of all additions is fixed, and there is no
// workspace.
//
// A plan names the tile of D, whose rows are the rows that an instance is compiled for, the blocks of a cluster
// (`split`) and the warps of a block; src/family/gevm.rs chooses them. Blocks of 4 warps are those of wide.hpp, for a
// short K and many columns.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp), and then prefetches the first rows of B
// into L2.
#include <algorithm>
#include <climits>

#include "common/cuda_cores.hpp"
#include "common/epilogue.hpp"
#include "common/launch.hpp"
#include "gevm/wide.hpp"

namespace tilegemm {
namespace {

constexpr int most_split = 8;

// MANY: for more blocks than multiprocessors. Two blocks of 8 warps share a multiprocessor, and a block computes
// several matrices of the batch one after the other. While one block adds up, the other block loads, and the loads for
// the next matrix are in flight. K is not split.
template <class Row, int M, bool MANY>
struct Tile {
  using T = typename scalar<Row::dtype>::type;
  static constexpr int n = Row::tile_n, n_lanes = n / width<T>;  // columns of a tile, and neighbouring lanes along N
  static constexpr int rows = 4, groups = 2;                     // rows of a lane in a group; groups in flight
  static constexpr int k = lanes / n_lanes * rows;               // rows that a warp reads as one group
  static constexpr int outputs = M * n;
  static constexpr int sums = M * width<T>;                              // sums of a lane, (m, column)
  static constexpr int warps = MANY ? 8 : 16, residents = MANY ? 2 : 1;  // warps of a block; blocks of a multiprocessor
  static constexpr bool several =
      MANY && M < 4;  // whether a block computes several matrices; for four rows of A, registers do not suffice
  static constexpr bool splits = !MANY && Row::arch >= 90;  // whether the blocks of a cluster may split K
  using Sums = LaneSums<sums, lanes / 2, n_lanes>;
  static_assert(n_lanes == 8 && Row::tile_k == groups * k);
};

struct Cut {
  int cluster_log2;   // blocks that split K
  int matrices;       // matrices of the batch; a block computes every gridDim.y-th
  bool vectors_of_a;  // whether four numbers of a row of A may be read at once
};

// Four numbers of a row of A, packed in the order of memory; zeros beyond K.
template <class T>
struct Four {
  uint32_t words[sizeof(T)];

  __device__ void load_vector(const T* from) {
    if constexpr (sizeof(T) == 4) {
      asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                   : "l"(from)
                   : "memory");
    } else {
      asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from) : "memory");
    }
  }

  __device__ void load_each(const T* from, int count) {
    uint32_t bits[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i >= count) continue;
      if constexpr (sizeof(T) == 4) asm volatile("ld.global.u32 %0, [%1];" : "=r"(bits[i]) : "l"(from + i) : "memory");
      else asm volatile("ld.global.u16 %0, [%1];" : "=r"(bits[i]) : "l"(from + i) : "memory");
    }
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int i = 0; i < 4; i++) words[i] = bits[i];
    } else {
      words[0] = bits[0] | bits[1] << 16, words[1] = bits[2] | bits[3] << 16;
    }
  }

  __device__ float number(int i) const {
    constexpr int numbers = 4 / sizeof(T);
    float all[numbers];
    unpack<T>(words[i / numbers], all);
    return all[i % numbers];
  }
};

// Numbers of B, which displace nothing in L1 or L2. The load is not `.nc`: the kernel before may have written B, and
// the compiler moved such loads above griddepcontrol.wait.
__device__ inline uint4 load_once(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(evict_first)
               : "memory");
  return v;
}

// The blocks of a cluster are neighbours along x.
template <class Row, int M, bool MANY>
__global__ void __launch_bounds__(Tile<Row, M, MANY>::warps* lanes, Tile<Row, M, MANY>::residents)
    gevm(const __grid_constant__ GemvProblem<typename Tile<Row, M, MANY>::T> p, const __grid_constant__ Cut cut,
         const __grid_constant__ Epilogue<typename Tile<Row, M, MANY>::T, float> epilogue) {
  using C = Tile<Row, M, MANY>;
  using T = typename C::T;
  constexpr int warps = C::warps;
  __shared__ float partials[C::several ? 2 : 1][warps][C::outputs], inbox[C::outputs];
  __shared__ uint64_t barrier;
  const int lane = threadIdx.x % lanes, warp = threadIdx.x / lanes;
  const int cluster_log2 = C::splits ? cut.cluster_log2 : 0, rank = int(blockIdx.x) & ((1 << cluster_log2) - 1);
  const int first_n = (int(blockIdx.x) >> cluster_log2) * C::n;
  const uint32_t arrived = uint32_t(__cvta_generic_to_shared(&barrier));
  launch_dependents();
  if (cluster_log2 > 0) {
    if (threadIdx.x == 0) {
      mbarrier_init(arrived, 1);
      mbarrier_arrive_expect(arrived, sizeof inbox);
      fence_mbarrier_init();
    }
    __syncwarp();
    cluster_arrive_relaxed();
  }

  // The warps of all blocks take groups of rows in turns.
  Batch batch(p.inner_batch);
  const int warp_k = (rank * warps + warp) * C::k, group_step = (warps << cluster_log2) * C::k;
  const T* a = batch.of<const T>(p.a);
  const T* b = batch.of<const T>(p.b) + first_n;
  const int64_t b_stride = p.b.row_stride;
  {
    const int k = warp_k + lane / C::k * group_step + lane % C::k, bytes = min(C::n, p.n - first_n) * int(sizeof(T));
    static_assert(C::groups * C::k == lanes);
    if (k < p.k) prefetch_l2(b + k * b_stride, bytes, evict_first);
  }
  const int n = lane % C::n_lanes * width<T>;
  const bool exists = first_n + n < p.n;
  b += n;
  const int lane_k = warp_k + lane / C::n_lanes * C::rows;
  griddepcontrol_wait();

  uint4 weights[C::groups][C::rows];  // (PIPE,K), a vector along N each
  Four<T> x[C::groups][M];            // (PIPE,M), four along K each
  // The opaque k keeps the compiler from holding a pointer for every load: registers do not suffice for the pointers.
  const auto load_b = [&](int group, int k) {
    asm volatile("" : "+r"(k));
    const T* row = b + k * b_stride;
#pragma unroll
    for (int r = 0; r < C::rows; r++) {
      weights[group][r] = make_uint4(0, 0, 0, 0);
      if (exists && k + r < p.k) weights[group][r] = load_once(row);
      row += b_stride;
    }
  };
  const auto load_a = [&](int group, int k) {  // rows beyond M repeat the last row and are never stored
    asm volatile("" : "+r"(k));
    const T* row = a + k;
#pragma unroll
    for (int m = 0; m < M; m++) x[group][m] = {};
    if (cut.vectors_of_a) {
      if (k >= p.k) return;
#pragma unroll
      for (int m = 0; m < M; m++) {
        x[group][m].load_vector(row);
        if (m + 1 < p.m) row += p.a.row_stride;
      }
    } else {
#pragma unroll
      for (int m = 0; m < M; m++) {
        x[group][m].load_each(row, p.k - k);
        if (m + 1 < p.m) row += p.a.row_stride;
      }
    }
  };
  const auto load_first = [&] {
#pragma unroll
    for (int group = 0; group < C::groups; group++) load_b(group, lane_k + group * group_step);
#pragma unroll
    for (int group = 0; group < C::groups; group++) load_a(group, lane_k + group * group_step);
  };
  float sum[C::sums];  // (M,N)
  const auto multiply = [&](int group) {
#pragma unroll
    for (int r = 0; r < C::rows; r++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        constexpr int numbers = 4 / sizeof(T);
        float u[numbers];
        unpack<T>(word(weights[group][r], i), u);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
          for (int j = 0; j < numbers; j++) {
            float& s = sum[m * width<T> + i * numbers + j];
            s = fmaf(u[j], x[group][m].number(r), s);
          }
        }
      }
    }
  };

  load_first();
  for (int matrix = int(blockIdx.y), turn = 0;; turn ^= 1) {
#pragma unroll
    for (int i = 0; i < C::sums; i++) sum[i] = 0;
    for (int k = lane_k; k < p.k;) {
      const int next = k + C::groups * group_step;
#pragma unroll
      for (int group = 0; group < C::groups; group++) {
        multiply(group);
        if (next < p.k) load_b(group, next + group * group_step), load_a(group, next + group * group_step);
      }
      k = next;
    }
    __syncwarp();

    // The loads of the next matrix are under way while the sums of this matrix meet.
    const Batch of_sums = batch;
    matrix += int(gridDim.y);
    const bool more = C::several && matrix < cut.matrices;
    if (more) {
      batch = Batch(p.inner_batch, matrix);
      a = batch.of<const T>(p.a), b = batch.of<const T>(p.b) + first_n + n;
      load_first();
    }

    float (&partial)[warps][C::outputs] = partials[C::several ? turn : 0];
    C::Sums::add(sum, lane);
#pragma unroll
    for (int i = 0; i < C::Sums::left; i++) {
      const int value = C::Sums::first(lane) + i;
      partial[warp][value / width<T> * C::n + n + value % width<T>] = sum[i];
    }
    __syncthreads();
    if (cluster_log2 > 0) cluster_wait();
    const auto store = [&](int output, float total) {
      const int m = output / C::n, j = first_n + output % C::n;
      if (m < p.m && j < p.n) p.store(total, m, j, of_sums, epilogue);
    };
    const int slice = C::outputs >> cluster_log2;  // the outputs that a block of the cluster owns
    for (int output = threadIdx.x; output < C::outputs; output += warps * lanes) {
      float total = partial[0][output];
#pragma unroll
      for (int i = 1; i < warps; i++) total += partial[i][output];
      if (cluster_log2 == 0) {
        store(output, total);
      } else {
        const int owner = output / slice;
        const uint32_t to = uint32_t(__cvta_generic_to_shared(&inbox[rank * slice + output - owner * slice]));
        store_async(map_shared(to, owner), map_shared(arrived, owner), total);
      }
    }
    if (more) continue;
    if (cluster_log2 == 0) return;
    mbarrier_wait(arrived, 0);
    for (int i = threadIdx.x; i < slice; i += warps * lanes) {
      float total = inbox[i];
      for (int from = 1; from < 1 << cluster_log2; from++) total += inbox[from * slice + i];
      store(rank * slice + i, total);
    }
    return;
  }
}

template <class Row, int M, bool MANY>
tg_status launch_blocks(const tg_gemm_args& args) {
  using C = Tile<Row, M, MANY>;
  using T = typename C::T;
  const int split = args.config.split, cluster_log2 = log2_of(split, C::splits ? most_split : 1);
  if (args.m > M || cluster_log2 < 0) return TG_UNSUPPORTED;
  const int64_t tiles = ceil_div(args.n, C::n), batches = args.batch[0] * args.batch[1];
  const int64_t at_once = C::several ? std::max<int64_t>(C::residents * args.sm_count / tiles, 1) : batches;
  const Cut cut{cluster_log2, int(batches), args.k % 4 == 0 && rows_at_multiples<T>(4, args.a, args.m, args.batch)};
  const GemvProblem<T> p(args);
  const Epilogue<T, float> epilogue(args);
  const dim3 grid(unsigned(tiles * split), unsigned(std::min(batches, at_once)));
  return Launch(args, grid, dim3(C::warps * lanes), 0, dim3(split))(gevm<Row, M, MANY>, p, cut, epilogue);
}

template <class Row, int M>
tg_status launch_rows(const tg_gemm_args& args) {
  switch (args.config.warps) {
    case Tile<Row, M, true>::warps: return launch_blocks<Row, M, true>(args);
    case Tile<Row, M, false>::warps: return launch_blocks<Row, M, false>(args);
    case Wide<Row, M>::warps: return launch_wide<Row, M>(args);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_NN && Row::tile_m == 4);
  const tg_gemm_args& args = *problem;
  if (args.config.tile_n != Row::tile_n) return TG_UNSUPPORTED;
  switch (args.config.tile_m) {
    case 1: return launch_rows<Row, 1>(args);
    case 2: return launch_rows<Row, 2>(args);
    case 4: return launch_rows<Row, 4>(args);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace tilegemm

#include TG_ROWS
