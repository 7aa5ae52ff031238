// Nine to sixteen rows of A in f32: D = A @ B on the CUDA cores with K contiguous in A and B, in single chains of FMAs.
//
// As in gemv.cu, weights go from memory straight into registers. If A came from L1 for every two rows of W, the reads
// of A would be eight times the bytes of W, which is more than L1 delivers. So a warp computes eight rows of W, whose
// sums fill the registers, and A passes through shared memory in chunks that all warps of a block multiply at the same
// time. Part of gemv.cu.
#pragma once
#include <algorithm>

#include "common/cuda_cores.hpp"
#include "common/epilogue.hpp"
#include "common/launch.hpp"
#include "gemv/sums.hpp"

namespace tilegemm {
namespace {

template <int M>
struct WideChunk {
  static constexpr int warps_per_sm = 8, rows = 8, step = lanes * width<float>, steps = 2, k = steps * step, stages = 3;
  static constexpr int values = power_of_two_from(M * rows);  // sums (m, row), padded
  using Sums = LaneSums<values>;
  static constexpr int a_floats = M * k;                     // numbers of A in a chunk, for one part of K
  static constexpr int sums_floats = warps_per_sm * values;  // sums of a tile
  static constexpr int bytes(int split) { return 4 * (stages * split * a_floats + 2 * sums_floats); }
  static_assert(M % 4 == 0);
};

__device__ inline void copy_async(float* to, const float* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(uint32_t(__cvta_generic_to_shared(to))), "l"(from)
               : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

// A block is (lanes, split, teams).
template <int M>
__global__ void __launch_bounds__(WideChunk<M>::warps_per_sm* lanes, 1)
    gemv_wide(const __grid_constant__ GemvProblem<float> p, const __grid_constant__ Epilogue<float, float> epilogue) {
  using C = WideChunk<M>;
  extern __shared__ __align__(16) float shared[];  // A: [stages][split][M][k]; sums: [2][warps][values]
  const int lane = threadIdx.x, part = threadIdx.y, split = blockDim.y, team = threadIdx.z, teams = blockDim.z;
  const int warp = team * split + part, tile_rows = teams * C::rows, row_step = int(gridDim.x) * tile_rows;
  launch_dependents();

  TeamSums<C::rows, C::values, C::rows, M, 1, float> sums(p);
  const Batch batch(p.inner_batch);
  const int64_t w_stride = p.b.col_stride;
  const float* const w = batch.of<const float>(p.b) + lane * width<float>;
  const float* row;  // the first row of W of the warp
  int last_row;      // the offset from `row` to the last row of W that exists
  const auto point = [&](int first) {
    first = min(first + team * C::rows, p.n - 1);
    row = w + first * w_stride;
    last_row = p.n - 1 - first;
  };

  // Lanes beyond K have no weights and no activations. Rows beyond M and N repeat the last row and are never stored.
  const auto exists = [&](int k, int step) { return k + step * C::step + lane * width<float> < p.k; };
  uint4 weights[C::steps][C::rows];  // (STEP,N), a vector along K each
  const auto load = [&](int k, int step) {
    const float* from = row + (k + step * C::step);
#pragma unroll
    for (int r = 0; r < C::rows; r++) {
      weights[step][r] = load_weights(from);
      if (r < last_row) from += w_stride;
    }
  };

  const int k_first = part * C::k, k_step = split * C::k;
  int first_row = int(blockIdx.x) * tile_rows, k = k_first;
  point(first_row);
  if (lane <= min(last_row, C::rows - 1) && k < p.k) {
    prefetch_l2(row - lane * width<float> + lane * w_stride + k, min(C::k, p.k - k) * 4, evict_first);
  }
  griddepcontrol_wait();
#pragma unroll
  for (int step = 0; step < C::steps; step++) {
    if (exists(k, step)) load(k, step);
  }

  // A passes through the ring again for every tile. A thread copies 16 bytes of every fourth row.
  const int column = (warp * lanes + lane) % (C::k / 4) * 4, first_m = (warp * lanes + lane) / (C::k / 4);
  int copy_k = 0, copy_row = first_row;  // the place of the next copy
  const auto copy = [&](int stage) {
    for (int i = 0; i < split; i++) {
      const int k = copy_k + i * C::k + column;
      if (k >= p.k) break;
      float* const to = shared + ((stage * split + i) * M + first_m) * C::k + column;
#pragma unroll
      for (int j = 0; j < M / 4; j++) {
        copy_async(to + 4 * j * C::k, batch.of<const float>(p.a) + min(first_m + 4 * j, p.m - 1) * p.a.row_stride + k);
      }
    }
    copy_async_commit();
    copy_k += k_step;
    if (copy_k >= p.k && (copy_row += row_step) < p.n) copy_k = 0;
  };
#pragma unroll
  for (int stage = 0; stage < C::stages - 1; stage++) copy(stage);
  sums.load(first_row, p, epilogue);

  float sum[C::values] = {};  // (M,N), padded
  int stage = 0, buffer = 0;
  const auto multiply = [&](int step) {
    const float* const from = shared + (stage * split + part) * C::a_floats + step * C::step + lane * width<float>;
#pragma unroll
    for (int m = 0; m < M; m++) {
      const float4 x = *reinterpret_cast<const float4*>(from + m * C::k);
#pragma unroll
      for (int r = 0; r < C::rows; r++) {
        const uint4& u = weights[step][r];
        float& s = sum[m * C::rows + r];
        s = fmaf(__uint_as_float(u.x), x.x, s);
        s = fmaf(__uint_as_float(u.y), x.y, s);
        s = fmaf(__uint_as_float(u.z), x.z, s);
        s = fmaf(__uint_as_float(u.w), x.w, s);
      }
    }
  };

  for (;;) {
    const int this_row = first_row;
    const bool tile_done = k - k_first + k_step >= p.k;
    int next = k + k_step;
    if (tile_done) {
      next = k_first;
      first_row += row_step;
      if (first_row < p.n) point(first_row);
    }
    const bool more = first_row < p.n;
    copy_async_wait<C::stages - 2>();
    __syncthreads();
    copy(stage == 0 ? C::stages - 1 : stage - 1);  // the stage that all warps have left
    if (more && k + C::k <= p.k && next + C::k <= p.k) {
#pragma unroll
      for (int step = 0; step < C::steps; step++) {
        multiply(step);
        load(next, step);
      }
    } else {
#pragma unroll
      for (int step = 0; step < C::steps; step++) {
        if (exists(k, step)) multiply(step);
        if (more && exists(next, step)) load(next, step);
      }
    }
    k = next;
    stage = stage == C::stages - 1 ? 0 : stage + 1;
    if (!tile_done) continue;

    // Buffers alternate, as in gemv.cu.
    float* const partial = shared + C::stages * split * C::a_floats + buffer * C::sums_floats;
    buffer ^= 1;
    C::Sums::add(sum, lane);
#pragma unroll
    for (int i = 0; i < C::Sums::left; i++) partial[warp * C::values + C::Sums::first(lane) + i] = sum[i];
#pragma unroll
    for (float& s : sum) s = 0;
    __syncthreads();
    sums.store(partial, this_row, p, epilogue);
    if (!more) return;
    sums.load(first_row, p, epilogue);
  }
}

// For problems with at most M rows.
template <int M, int ARCH>
tg_status launch_wide(const tg_gemm_args& args) {
  using C = WideChunk<M>;
  // The most shared memory of a block; code for 8.0 also runs on 8.6. src/family/gemv.rs has the same numbers.
  constexpr int most_bytes = (ARCH >= 90 && ARCH < 120 ? 227 : 99) * 1024;
  static_assert(C::bytes(1) <= most_bytes);
  const int split = args.config.split;
  if (split < 1 || split > C::warps_per_sm || C::bytes(split) > most_bytes) return TG_UNSUPPORTED;
  if (const cudaError_t error = allow_shared_memory<C>(gemv_wide<M>, most_bytes)) return cuda_status(error);
  return launch_teams<C>(args, gemv_wide<M>, C::bytes(split));
}

}  // namespace
}  // namespace tilegemm
