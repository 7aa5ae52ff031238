// The kernel: a team of blocks has rows of W, each of its blocks a part of K, and each warp some of the rows, and a
// part of the block's part. A warp goes through its part of K, and through one group of rows after the other, without
// waiting for the other warps. The block that owns a row of W adds the parts in order.
#pragma once
#include "narrow/results.hpp"
#include "narrow_gemv/activations.hpp"
#include "narrow_gemv/exact.hpp"
#include "narrow_gemv/product.hpp"
#include "narrow_gemv/scales.hpp"

namespace tilegemm {
namespace {

// Slots that a warp requests in L2 before it waits for the kernel before. TMA takes time for each.
constexpr int slots_ahead = 1;

__device__ __forceinline__ bool is_clustered(const GemvShape& shape) {
#if __CUDA_ARCH__ >= 900
  return shape.log_cluster > 0;
#else
  return false;
#endif
}

// The sums of a pass at the blocks that own them: warp n of the warps along N belongs to block n % cluster.
// (WARP_N,PART,M,GROUP,ROW), of two passes where there are more than one.
template <class S>
struct Inbox {
  const GemvShape& shape;
  uint32_t shared;
  int m, rank;

  __device__ int parts() const { return shape.warps_k << shape.log_cluster; }
  __device__ int own() const { return (shape.warps_n - rank + shape.cluster() - 1) >> shape.log_cluster; }
  __device__ int at(int pass, int own_warp, int part) const {
    return shape.inbox_at + pass % 2 * shape.inbox_bytes + (own_warp * parts() + part) * m * S::rows * 4;
  }
  __device__ uint32_t barrier(int pass) const { return shared + shape.barriers_at + pass % 2 * 8; }
  // The sums from other blocks are on their way.
  __device__ void expect(int pass) const {
    if (pass < shape.passes && own() > 0)
      mbarrier_arrive_expect(barrier(pass), own() * (parts() - shape.warps_k) * m * S::rows * 4);
  }

  // A lane's sums of its rows and one row of X.
  __device__ __forceinline__ void put(const float (&sums)[S::rows_of_lane], int pass, int warp_n, int warp_k, int of_m,
                                      int g) const {
    const int owner = warp_n & (shape.cluster() - 1);
    const uint32_t to = shared + at(pass, warp_n >> shape.log_cluster, rank * shape.warps_k + warp_k) +
                        of_m * S::rows * 4 + g * S::rows_of_lane * 4;
    if (owner == rank) {
      if constexpr (S::units == 2) store_shared_4(to, make_float4(sums[0], sums[1], sums[2], sums[3]));
      else store_shared(to, sums[0], sums[1]);
    } else {
#if __CUDA_ARCH__ >= 900
      const uint32_t there = map_shared(to, owner), there_barrier = map_shared(barrier(pass), owner);
      if constexpr (S::units == 2) {
        store_async(there, there_barrier, make_float4(sums[0], sums[1], sums[2], sums[3]));
      } else {
        store_async(there, there_barrier, sums[0]);
        store_async(there + 4, there_barrier, sums[1]);
      }
#endif
    }
  }
};

// The sums of a warp are not finite: those that infinite factors or overflows have made so, once more.
template <class S>
__device__ __noinline__ void repair(const tg_gemm_args& args, const uint32_t* flags, float* sums, int first,
                                    int existing, int64_t begin, int64_t end) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i = 0; i < S::tiles * 2 * S::rows_of_lane; i++) {
    const int row = first_row_of(lane / 4) + 8 * (i % S::rows_of_lane),
              m = i / (2 * S::rows_of_lane) * 8 + lane % 4 * 2 + i / S::rows_of_lane % 2;
    const bool asks = row < existing && m < args.m && !isfinite(sums[i]) && !(flags[m] & has_nan);
#pragma unroll 1
    for (unsigned left = __ballot_sync(~0u, asks); left; left &= left - 1) {
      const int of = __ffs(left) - 1;
      const int64_t n = first + __shfl_sync(~0u, row, of);
      const int of_x = __shfl_sync(~0u, m, of);
      // Infinite activations times finite weights: the sum is right.
      if ((flags[of_x] & has_infinity) && !has_wild_factor(args, n, begin, end)) continue;
      const float sum = exact_sum(args, of_x, n, begin, end);
      if (lane == of) sums[i] = sum;
    }
  }
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    narrow_gemv(const __grid_constant__ CUtensorMap map, const __grid_constant__ tg_gemm_args args,
                const __grid_constant__ GemvShape shape, const __grid_constant__ Results results) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared));
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int warp_k = shape.by_warps_n.quotient(warp), warp_n = warp - warp_k * shape.warps_n;
  const int team = blockIdx.x >> shape.log_cluster, rank = blockIdx.x & (shape.cluster() - 1);
  const int part = rank * shape.warps_k + warp_k;
  const int begin = shape.by_parts.quotient(shape.slots * part),
            end = shape.by_parts.quotient(shape.slots * (part + 1));
  launch_dependents();
  CodeLoader<S> codes(map, args, shape, base, warp);
  PassRows rows(args, shape, team, 0, warp_n), rows_to_load = rows;
  const int early = args.overlap ? slots_ahead : 0;
  for (int slot = begin; slot < min(end, begin + early); slot++) codes.prefetch(rows, slot);
  uint32_t* const flags = reinterpret_cast<uint32_t*>(shared + shape.flags_at);
  const Inbox<S> inbox{shape, base, int(args.m), rank};
  for (int i = threadIdx.x; i < 16 * shape.warps_k; i += blockDim.x) flags[i] = 0;
  if (is_clustered(shape)) {
    if (threadIdx.x == 0) {
      mbarrier_init(inbox.barrier(0), 1), mbarrier_init(inbox.barrier(1), 1);
      fence_mbarrier_init();
      inbox.expect(0), inbox.expect(1);
    }
    __syncwarp();
    // A release would wait for all loads on their way.
    cluster_arrive_relaxed();
  }
  __syncthreads();
  griddepcontrol_wait();

  SlotOf to_load{begin < end ? 0 : shape.passes, begin};
  // Starts the load of the next slot, if there is one.
  const auto load_next = [&](int stage) {
    if (to_load.pass < shape.passes) {
      codes.load(shape, stage, rows_to_load, to_load.slot);
      to_load.advance(begin, end);
      if (to_load.slot == begin && shape.passes > 1) rows_to_load = PassRows(args, shape, team, to_load.pass, warp_n);
    } else {
      codes.load_nothing();
    }
  };
  uint8_t *const scales = shared + shape.beside_at + warp * S::beside_bytes, *const zeros = scales + S::scales_bytes;
  ScaleLoader<S> beside(args, shape);
  const Staged staged{shared + shape.x_at + warp_k * shape.x_pitch,
                      reinterpret_cast<float*>(shared + shape.powers_at + warp_k * shape.powers_pitch),
                      flags + 16 * warp_k};
  // W behind X: else X would arrive last.
  Stager<S>(args, shape, staged, begin, end).take(warp_n, [&] {
#pragma unroll 1
    for (int stage = 0; stage < shape.stages; stage++) load_next(stage);
    beside.begin_pass(rows);
    beside.load(begin);
  });
  beside.store(scales, zeros, begin);
  if (shape.warps_n == 1) __syncwarp();
  else bar_sync(1 + warp_k, 32 * shape.warps_n);

  // X: of lanes without a row, the last row.
  constexpr bool by_matrices = S::is_fine && S::bits == 4;
  constexpr int x_of_lane = S::is_fine ? 8 : 16, m_pitch = by_matrices ? 16 : 4 * x_of_lane;
  const int pitch = m_pitch * int(args.m), x_of_step = int(args.m) * S::step_k * 2;
  const uint8_t* x_begin[S::tiles];
#pragma unroll
  for (int tile = 0; tile < S::tiles; tile++)
    x_begin[tile] = staged.x + min(8 * tile + (by_matrices ? lane % 8 : g), int(args.m) - 1) * m_pitch +
                    (by_matrices ? lane / 8 * pitch : t * x_of_lane);
  const int key = first_row_of(g);
  const int codes_at = warp * shape.stages * shape.slot_pitch + key * S::slot_bytes +
                       (S::is_fine ? (key & 3) * 16 + t * 4 : (t ^ (key & 3)) * 16);
  const int scales_at = g * S::rows_of_lane * S::scale_bytes, zeros_at = g * S::rows_of_lane * 4;

#pragma unroll 1
  for (int pass = 0; pass < shape.passes; pass++) {
    Product<S> product;
    product.clear(product.total);
    const uint8_t* x[S::tiles];
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) x[tile] = x_begin[tile];
    const PassRows here = rows;
    float of_row[S::rows_of_lane];
    if constexpr (S::way == Way::whole) {
#pragma unroll
      for (int r = 0; r < S::rows_of_lane; r++) {
        const int row = key + 8 * r;
        const int64_t at = row < here.existing ? shape.by_rows.quotient(here.first + row) * args.b_scale.col_stride : 0;
        of_row[r] = narrow::factor_at(format_of_factors(args), factors_of(args), at);
      }
    }
#pragma unroll 1
    for (int slot = begin; slot < end; slot++) {
      int next = slot + 1;
      if (next == end && pass + 1 < shape.passes) {
        next = begin;
        rows = PassRows(args, shape, team, pass + 1, warp_n);
        beside.begin_pass(rows);
      }
      if (next < end) beside.load(next);
      product.clear(product.part);
      codes.wait(shape);
#pragma unroll 1
      for (int step = 0; step < 2; step++) {
        const int place = codes_at + codes.stage() * shape.slot_pitch + (step ^ (key >> 2)) * S::step_bytes;
        const uint8_t *const scale = scales + scales_at + step * (S::scales_bytes / 2), *const zero =
                                                                                            zeros + zeros_at +
                                                                                            step * (S::zeros_bytes / 2);
        if constexpr (S::is_fine) product.fine_step(shared, place, x, pitch, scale, zero);
        else product.wide_step(shared + place, x, pitch, scale, zero, t);
#pragma unroll
        for (int tile = 0; tile < S::tiles; tile++) x[tile] += x_of_step;
      }
      product.add_part(staged.powers + (slot - begin) / S::segment_slots * S::most_m, t);
      __syncwarp();  // all lanes have read the slot and the factors
      load_next(codes.stage());
      codes.advance(shape);
      if (next < end) beside.store(scales, zeros, next);
    }
    if (begin == end && pass + 1 < shape.passes) rows = PassRows(args, shape, team, pass + 1, warp_n);

    float sums[S::tiles][2][S::rows_of_lane], zero = 0;
#pragma unroll
    for (int r = 0; r < S::rows_of_lane; r++) {
      const bool exists = key + 8 * r < here.existing;
#pragma unroll
      for (int tile = 0; tile < S::tiles; tile++) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float sum = product.total[r / 2][tile][r % 2 * 2 + e];
          if constexpr (S::way == Way::whole) sum *= of_row[r];
          sums[tile][e][r] = sum;
          if (exists && 8 * tile + 2 * t + e < args.m) zero = fmaf(sum, 0.0f, zero);
        }
      }
    }
    if (!__all_sync(~0u, zero == 0.0f)) {
      float copy[S::tiles * 2 * S::rows_of_lane];  // in memory
#pragma unroll
      for (int i = 0; i < S::tiles * 2 * S::rows_of_lane; i++)
        copy[i] = sums[i / (2 * S::rows_of_lane)][i / S::rows_of_lane % 2][i % S::rows_of_lane];
      repair<S>(args, staged.flags, copy, here.first, here.existing, int64_t(begin) * S::slot_k,
                min(int64_t(end) * S::slot_k, args.k));
#pragma unroll
      for (int i = 0; i < S::tiles * 2 * S::rows_of_lane; i++)
        sums[i / (2 * S::rows_of_lane)][i / S::rows_of_lane % 2][i % S::rows_of_lane] = copy[i];
    }

    // To the blocks that own them, when these have begun.
    if (is_clustered(shape) && pass == 0) cluster_wait();
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int m = 8 * tile + 2 * t + e;
        if (m < args.m) inbox.put(sums[tile][e], pass, warp_n, warp_k, m, g);
      }
    }
    __syncthreads();
    const int own = inbox.own();
    if (is_clustered(shape) && own > 0) mbarrier_wait(inbox.barrier(pass), pass / 2 & 1);
    // A warp adds the sums of a warp's rows and a row of X.
#pragma unroll 1
    for (int i = warp; i < own * int(args.m); i += blockDim.x / 32) {
      const int own_warp = shape.by_m.quotient(i), m = i - own_warp * int(args.m), parts = inbox.parts();
      const PassRows of_warp(args, shape, team, pass, (own_warp << shape.log_cluster) + rank);
      const int row = first_row_of(lane / S::rows_of_lane % 8) + lane % S::rows_of_lane * 8;
      if (lane >= S::rows || row >= of_warp.existing) continue;
      const float* const from =
          reinterpret_cast<const float*>(shared + inbox.at(pass, own_warp, 0)) + m * S::rows + lane;
      float sum = 0;
#pragma unroll 4
      for (int from_part = 0; from_part < parts; from_part++) sum += from[from_part * int(args.m) * S::rows];
      results.store(sum, m, of_warp.first + row);
    }
    if (is_clustered(shape) && shape.passes > 2) {
      // No block sends the sums of the pass after next before all have added those of this pass.
      __syncthreads();
      if (threadIdx.x == 0) inbox.expect(pass + 2);
      if (pass > 0) cluster_wait();
      if (pass + 1 < shape.passes) cluster_arrive();
    }
  }
}

}  // namespace
}  // namespace tilegemm
