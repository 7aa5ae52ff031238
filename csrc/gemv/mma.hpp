// Up to eight rows of A in 16 bits: D = A @ B with K contiguous in both, on tensor cores. Part of gemv.cu.
//
// As in gemv.cu, weights go from memory straight into the registers of the lane that multiplies them, 16 bytes at a
// time. A is the operand of `mma` with 16 rows, W the operand with 8. The order of K is free as long as both operands
// agree, so a lane's 16 bytes are, in the order of the registers, the lane's part of two products.
//
// A product needs the same part of K from eight rows of W, so a warp's load would be 64 bytes from each of eight rows.
// Instead, two lane groups load 64 neighbouring bytes each of one row, so that a load is 128 bytes from each of four
// rows. The eight rows of A are present twice, once for each segment of K. Half of the sums multiply a segment of A by
// the other segment of W and are dropped.
//
// A's part of a chunk is loaded at the same time as W's part. Beyond the end of K, both parts are zeros.
#pragma once
#include "common/cuda_cores.hpp"
#include "common/epilogue.hpp"
#include "common/mma.hpp"
#include "gemv/sums.hpp"

namespace tilegemm {
namespace {

// The part of K and of W that a warp multiplies at a time: `steps` steps of `loads` loads of W.
struct MmaChunk {
  static constexpr int warps_per_sm = 16, registers = 65536 / (warps_per_sm * lanes);
  static constexpr int segments = 2, load_rows = 8 / segments;
  static constexpr int m = 8, loads = 4, rows = loads * load_rows;
  static constexpr int step = segments * 32, steps = 2, k = steps * step;
  static constexpr int stride = rows + 4;  // between the sums of two m, (m, row): lanes store to different banks
  static constexpr int values = m * stride;
};

// A warp's rows of W, the chunks of W and A that are being loaded, and the warp's sums. Rows beyond M and N repeat the
// last row and are never stored.
template <class T>
struct MmaWarp {
  using C = MmaChunk;

  const T *a, *w;  // the lane's first numbers in the matrices of the batch; for A in the first segment
  int64_t w_stride;
  int n, k_end, group, t, w_k;
  const T* row[C::loads];
  uint4 weights[C::steps][C::loads];  // (STEP,MMA_N), a vector along K each
  uint4 x[C::steps][C::segments];     // (STEP,MMA_M), a vector along K each
  float sum[C::loads][4] = {};        // (MMA_N,MMA)

  template <class Out>
  __device__ MmaWarp(const GemvProblem<Out>& p, int lane)
      : w_stride(p.b.col_stride), n(p.n), k_end(p.k), group(lane / 4), t(lane % 4),
        w_k(group % C::segments * 32 + t * 8) {
    const Batch batch(p.inner_batch);
    a = batch.of<const T>(p.a) + min(group, p.m - 1) * p.a.row_stride + t * 8;
    w = batch.of<const T>(p.b) + w_k;
  }

  __device__ void point(int first_row) {
#pragma unroll
    for (int r = 0; r < C::loads; r++)
      row[r] = w + min(first_row + r * C::load_rows + group / C::segments, n - 1) * w_stride;
  }

  // WHOLE: the chunk lies inside K. Numbers beyond K are zero in both operands, since 0 * NaN is not 0.
  template <bool WHOLE>
  __device__ void load_w(int k, int step, int r) {
    k += step * C::step;
    uint4& to = weights[step][r];
    if (!WHOLE) to = make_uint4(0, 0, 0, 0);
    if (WHOLE || k + w_k < k_end) to = load_weights(row[r] + k);
  }

  template <bool WHOLE>
  __device__ void load_x(int k, int step) {
    k += step * C::step;
    const T* const from = a + k;
#pragma unroll
    for (int s = 0; s < C::segments; s++) {
      uint4& to = x[step][s];
      if (!WHOLE) to = make_uint4(0, 0, 0, 0);
      if (WHOLE || k + s * 32 + t * 8 < k_end) to = load_activations(from + s * 32);
    }
  }

  template <bool WHOLE>
  __device__ void load(int k) {
#pragma unroll
    for (int step = 0; step < C::steps; step++) {
#pragma unroll
      for (int r = 0; r < C::loads; r++) load_w<WHOLE>(k, step, r);
      load_x<WHOLE>(k, step);
    }
  }

  // Multiplies one chunk and, if there is MORE, loads the next chunk piece by piece into the same registers: more loads
  // are then in flight.
  template <bool MORE, bool NEXT_WHOLE>
  __device__ void turn(int next) {
#pragma unroll
    for (int step = 0; step < C::steps; step++) {
      const uint4 u = x[step][0], v = x[step][1];
      uint32_t q[2][4] = {{u.x, v.x, u.y, v.y}, {u.z, v.z, u.w, v.w}};
      // Otherwise the compiler builds the operands again for each product.
#pragma unroll
      for (int j = 0; j < 2; j++) asm volatile("" : "+r"(q[j][0]), "+r"(q[j][1]), "+r"(q[j][2]), "+r"(q[j][3]));
      if (MORE) load_x<NEXT_WHOLE>(next, step);
#pragma unroll
      for (int r = 0; r < C::loads; r++) {
        const uint4& of = weights[step][r];
        mma_16<T>(sum[r], q[0], of.x, of.y);
        mma_16<T>(sum[r], q[1], of.z, of.w);
        if (MORE) load_w<NEXT_WHOLE>(next, step, r);
      }
    }
  }

  // Writes the sums to `partial` and sets them to zero. A lane has columns 2 t and 2 t + 1 of the products, the two
  // segments of row t of each load. The product of the first segments of W and A is in sum[0], the product of the
  // second segments in sum[3].
  __device__ void flush(float* partial) {
#pragma unroll
    for (int r = 0; r < C::loads; r++) {
      partial[group * C::stride + r * C::load_rows + t] = sum[r][0] + sum[r][3];
#pragma unroll
      for (float& s : sum[r]) s = 0;
    }
  }
};

// A block is (lanes, split, teams), as in gemv.cu.
template <class T, class Out>
__global__ void __maxnreg__(MmaChunk::registers)
    gemv_mma(const __grid_constant__ GemvProblem<Out> problem, const __grid_constant__ Epilogue<Out, float> epilogue) {
  using C = MmaChunk;
  __shared__ float
      shared[2][C::warps_per_sm * C::values];  // sums of a block's warps, in two buffers for alternating tiles
  const int lane = threadIdx.x, split = blockDim.y, teams = blockDim.z, team = threadIdx.z;
  const int warp_index = team * split + threadIdx.y, warps = split * teams;
  launch_dependents();

  MmaWarp<T> warp(problem, lane);
  const int tile_rows = teams * C::rows;
  const int k_first = threadIdx.y * C::k, k_step = split * C::k;
  int row = int(blockIdx.x) * tile_rows, k = k_first, buffer = 0;
  warp.point(row + team * C::rows);
  // The first chunks of all warps that share a row are neighbours: one prefetch for each row.
  if (const int r = lane * warps + warp_index; r < min(tile_rows, problem.n - row)) {
    const T* const w = Batch(problem.inner_batch).of<const T>(problem.b);
    prefetch_l2(w + (row + r) * warp.w_stride, min(k_step, problem.k) * int(sizeof(T)), evict_first);
  }
  griddepcontrol_wait();
  if (k + C::k <= problem.k) warp.template load<true>(k);
  else warp.template load<false>(k);
  TeamSums<C::rows, C::values, C::stride, C::m, 2, Out> sums(problem);
  sums.load(row, problem, epilogue);

  for (;;) {
    const int this_row = row;
    const bool tile_done = k + k_step >= problem.k;
    k += k_step;
    if (tile_done) {
      k = k_first;
      row += int(gridDim.x) * tile_rows;
      if (row < problem.n) warp.point(row + team * C::rows);
    }
    if (row >= problem.n) warp.template turn<false, false>(k);
    else if (k + C::k <= problem.k) warp.template turn<true, true>(k);
    else warp.template turn<true, false>(k);
    if (!tile_done) continue;

    // Buffers alternate, as in gemv.cu.
    float* const partial = shared[buffer];
    buffer ^= 1;
    warp.flush(partial + warp_index * C::values);
    __syncthreads();
    sums.store(partial, this_row, problem, epilogue);
    if (row >= problem.n) return;
    sums.load(row, problem, epilogue);
  }
}

// For problems that gemv.cu has checked, with at most eight rows.
template <class T, class Out>
tg_status launch_mma(const tg_gemm_args& args) {
  return launch_teams<MmaChunk>(args, gemv_mma<T, Out>);
}

}  // namespace
}  // namespace tilegemm
