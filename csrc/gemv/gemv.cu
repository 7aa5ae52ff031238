// A few rows of A: D = A @ B with K contiguous in both. The kernel of this file runs on the CUDA cores.
//
// Such a product takes the time of reading B. The columns of B are called the rows of W here. Numbers of W go from
// memory straight into the registers of the thread that multiplies the numbers, in loads of 16 bytes. A thread has four
// or eight loads in flight. A warp takes two rows of W at a time; `split` warps of a block share two rows and split K.
// Partial sums meet in shared memory and are added in a fixed order: there is no workspace, and results do not change
// from run to run. The grid is persistent: the loads of the next rows are in flight while sums are added up.
//
// Three relatives have files of their own: gemv/short.hpp, for a K that would leave most of a warp idle; gemv/mma.hpp,
// on tensor cores, for up to eight rows of A in 16 bits; and gemv/wide.hpp, for more than eight rows in f32.
//
// A plan names the rows of A of an instance and the rows of W that a warp takes at a time (`tile_m`, `tile_n`), the
// warps that split K (`split`) and the warps of a block; src/family/gemv.rs chooses them. The tile tells the loops
// apart:
//
//     this file          1, 2, 3, 4, in f32 also 6 or 8   x  2
//     gemv/short.hpp     1, 2 or 4                        x  2, 4 or 8    up to four rows of A, a K of up to 512 bytes
//     gemv/mma.hpp       8                                x  16           16 bits
//     gemv/wide.hpp      12 or 16                         x  8            f32
//
// This file and gemv/short.hpp have tiles in common, but no problem: a K of up to 512 bytes with up to four rows of A
// is for gemv/short.hpp alone.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp). Meanwhile the kernel prefetches the first
// weights into L2.
#include <algorithm>
#include <climits>

#include "common/cuda_cores.hpp"
#include "common/epilogue.hpp"
#include "gemv/mma.hpp"
#include "gemv/short.hpp"
#include "gemv/sums.hpp"
#include "gemv/wide.hpp"

namespace tilegemm {
namespace {

// A warp's unit of work: `steps` loads of each lane from each of `rows` rows of W.
template <class Row, int M>
struct Chunk {
  using T = typename scalar<Row::dtype>::type;
  using Out = typename scalar<Row::out>::type;
  static constexpr int warps_per_sm = 16, registers = 65536 / (warps_per_sm * lanes);
  static constexpr int rows = Row::tile_n;
  static constexpr bool exact = M <= 4;  // an instance for each number of rows of A, which reads exactly these rows
  static constexpr int step = lanes * width<T>;  // of K, that the lanes load side by side
  // Sums of few rows in f32 take so few registers that a third block of eight warps would find room on a
  // multiprocessor. Blocks of the next kernel would then crowd some multiprocessors while other multiprocessors idle.
  // So the registers hold more loads in flight.
  static constexpr int steps = Row::tile_k / step * (sizeof(T) == 4 && M <= 3 ? 2 : 1);
  static constexpr int k = steps * step;
  static constexpr int values = power_of_two_from(M * rows);  // sums (m, row), padded
  static_assert(Row::tile_k % step == 0);
};

// A warp's rows of W, the chunk of these rows that is being loaded, and the warp's sums. Rows beyond M and N repeat the
// last row and are never stored.
template <class Row, int M>
struct Warp {
  using C = Chunk<Row, M>;
  using T = typename C::T;
  using Sums = LaneSums<C::values>;

  const T *a, *w;  // the lane's first numbers of the batch's matrices
  int64_t a_stride, w_stride;
  int m_last, n, k_end, lane;
  const T* row[C::rows];
  uint4 weights[C::steps][C::rows];  // (STEP,N), a vector along K each
  float sum[C::values] = {};         // (M,N), padded

  __device__ Warp(const GemvProblem<typename C::Out>& p, int lane)
      : a_stride(p.a.row_stride), w_stride(p.b.col_stride), m_last(p.m - 1), n(p.n), k_end(p.k), lane(lane) {
    const Batch batch(p.inner_batch);
    a = batch.of<const T>(p.a) + lane * width<T>;
    w = batch.of<const T>(p.b) + lane * width<T>;
  }

  __device__ void point(int first_row) {
#pragma unroll
    for (int r = 0; r < C::rows; r++) row[r] = w + min(first_row + r, n - 1) * w_stride;
  }

  __device__ void prefetch(int k) const {
#pragma unroll
    for (int r = 0; r < C::rows; r++) {
      if (lane == 0 && k < k_end) prefetch_l2(row[r] + k, min(C::k, k_end - k) * int(sizeof(T)), evict_first);
    }
  }

  __device__ bool exists(int k, int step) const { return k + step * C::step + lane * width<T> < k_end; }

  __device__ void load_step(int k, int step) {
#pragma unroll
    for (int r = 0; r < C::rows; r++) weights[step][r] = load_weights(row[r] + (k + step * C::step));
  }

  __device__ void multiply_step(int k, int step) {
    constexpr int group = C::exact ? M : M / ((M + 3) / 4);  // rows of A at a time
#pragma unroll
    for (int m0 = 0; m0 < M; m0 += group) {
      uint4 x[group];
#pragma unroll
      for (int m = 0; m < group; m++) {
        x[m] = load_activations(a + (C::exact ? m : min(m0 + m, m_last)) * a_stride + (k + step * C::step));
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        constexpr int numbers = 4 / sizeof(T);
        float u[C::rows][numbers];
#pragma unroll
        for (int r = 0; r < C::rows; r++) unpack<T>(word(weights[step][r], i), u[r]);
#pragma unroll
        for (int m = 0; m < group; m++) {
          float v[numbers];
          unpack<T>(word(x[m], i), v);
#pragma unroll
          for (int r = 0; r < C::rows; r++) {
            float& s = sum[(m0 + m) * C::rows + r];
#pragma unroll
            for (int j = 0; j < numbers; j++) s = fmaf(u[r][j], v[j], s);
          }
        }
      }
    }
  }

  // Loads the first chunk. Lanes beyond K neither load nor multiply.
  __device__ void load(int k) {
#pragma unroll
    for (int step = 0; step < C::steps; step++) {
      if (exists(k, step)) load_step(k, step);
    }
  }

  // Multiplies one chunk and, if there is `more`, loads the next chunk step by step: more loads are then in flight.
  __device__ void turn(int k, int next, bool more) {
    if (more && k + C::k <= k_end && next + C::k <= k_end) {
#pragma unroll
      for (int step = 0; step < C::steps; step++) {
        multiply_step(k, step);
        load_step(next, step);
      }
    } else {
#pragma unroll
      for (int step = 0; step < C::steps; step++) {
        if (exists(k, step)) multiply_step(k, step);
        if (more && exists(next, step)) load_step(next, step);
      }
    }
  }

  // Writes the sums to `partial` and starts anew.
  __device__ void flush(float* partial) {
    Sums::add(sum, lane);
    if (lane % Sums::twins == 0) {
#pragma unroll
      for (int i = 0; i < Sums::left; i++) partial[Sums::first(lane) + i] = sum[i];
    }
#pragma unroll
    for (float& s : sum) s = 0;
  }
};

// A block is (lanes, split, teams). The rows of W are dealt out to the teams of all blocks in turns.
template <class Row, int M>
__global__ void __maxnreg__((Chunk<Row, M>::registers))
    gemv(const __grid_constant__ GemvProblem<typename Chunk<Row, M>::Out> problem,
         const __grid_constant__ Epilogue<typename Chunk<Row, M>::Out, float> epilogue) {
  using C = Chunk<Row, M>;
  __shared__ float shared[2][C::warps_per_sm * C::values];  // sums of a block's warps, for two tiles in turns
  const int lane = threadIdx.x, split = blockDim.y, teams = blockDim.z, team = threadIdx.z;
  const int warp_index = team * split + threadIdx.y;
  launch_dependents();

  Warp<Row, M> warp(problem, lane);
  const int tile_rows = teams * C::rows;
  const int k_first = threadIdx.y * C::k, k_step = split * C::k;
  int row = int(blockIdx.x) * tile_rows, k = k_first, buffer = 0;
  warp.point(row + team * C::rows);
  warp.prefetch(k);
  griddepcontrol_wait();
  warp.load(k);
  TeamSums<C::rows, C::values, C::rows, M, 1, typename C::Out> sums(problem);
  sums.load(row, problem, epilogue);

  for (;;) {
    const int this_row = row;
    const bool tile_done = k + k_step >= problem.k;
    int next = k + k_step;
    if (tile_done) {
      next = k_first;
      row += int(gridDim.x) * tile_rows;
      if (row < problem.n) warp.point(row + team * C::rows);
    }
    warp.turn(k, next, row < problem.n);
    k = next;
    if (!tile_done) continue;

    // Two buffers alternate, so that no warp writes a sum for the next tile where another warp still reads: every warp
    // passes this barrier again before any warp reaches the tile after the next.
    float* const partial = shared[buffer];
    buffer ^= 1;
    warp.flush(partial + warp_index * C::values);
    __syncthreads();
    sums.store(partial, this_row, problem, epilogue);
    if (row >= problem.n) return;
    sums.load(row, problem, epilogue);
  }
}

template <class Row, int M>
tg_status launch_rows(const tg_gemm_args& args) {
  using C = Chunk<Row, M>;
  if (C::exact && args.m != M) return TG_UNSUPPORTED;
  return launch_teams<C>(args, gemv<Row, M>);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using T = typename scalar<Row::dtype>::type;
  using Out = typename scalar<Row::out>::type;
  static_assert(Row::layout == TG_NT && Row::tile_m == (sizeof(T) == 4 ? 16 : 8));
  const tg_gemm_args& args = *problem;
  if (args.m <= 4 && args.k * int64_t(sizeof(T)) <= most_short_bytes) return launch_short<T, Out>(args);
  const auto is_tile = [&](int m, int n) { return args.m <= m && args.config.tile_m == m && args.config.tile_n == n; };
  if constexpr (sizeof(T) == 2) {
    if (is_tile(8, MmaChunk::rows)) return launch_mma<T, Out>(args);
  } else {
    if (is_tile(16, WideChunk<16>::rows)) return launch_wide<16, Row::arch>(args);
    if (is_tile(12, WideChunk<12>::rows)) return launch_wide<12, Row::arch>(args);
    if (is_tile(8, Row::tile_n)) return launch_rows<Row, 8>(args);
    if (is_tile(6, Row::tile_n)) return launch_rows<Row, 6>(args);
  }
  if (is_tile(1, Row::tile_n)) return launch_rows<Row, 1>(args);
  if (is_tile(2, Row::tile_n)) return launch_rows<Row, 2>(args);
  if (is_tile(3, Row::tile_n)) return launch_rows<Row, 3>(args);
  if (is_tile(4, Row::tile_n)) return launch_rows<Row, 4>(args);
  return TG_UNSUPPORTED;
}

}  // namespace tilegemm

#include TG_ROWS
