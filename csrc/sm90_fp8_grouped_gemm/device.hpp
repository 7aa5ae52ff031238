// The kernel: two warp groups multiply and store, tile after tile; four warps load.
#pragma once
#include "fp8/wgmma.hpp"
#include "sm90_fp8_grouped_gemm/load.hpp"
#include "sm90_fp8_grouped_gemm/store.hpp"

namespace tilegemm {
namespace {

// A warp that multiplies: 16 of the 64 rows of W of its warp group.
template <class S>
struct Consumer {
  const Problem& p;
  const Results& results;
  const Shared& shared;
  float4* parked;
  int warp, lane;
  Stage at = Stage::to_read();

  // All of K, which the tensor cores add up 128 at a time. While a warp group adds these products to its sums, the
  // tensor cores have those of the other warp group. Factors are loaded ahead of the products: a load would wait
  // behind those of both warp groups.
  template <int width>
  __device__ __forceinline__ void multiply(float (&sum)[width / 2]) {
    float part[width / 2];  // ((2,2,width/8)), of D^T
    wgmma_zero(sum);
    wgmma_zero(part);
    const uint32_t own_factors = shared.factors + lane % 4 * S::factor_line;
#pragma unroll 1
    for (int left = p.stages; left > 0; left--) {
      at.wait(shared.full);
      fence_proxy_async();  // A was written by threads
      const uint32_t w = shared.ring + at.s * S::stage_bytes;
      float4 by[S::blocks ? width / 16 : 1];  // of columns 2 q and 2 q + 1 of 16
      if constexpr (S::blocks) {
#pragma unroll
        for (int i = 0; i < width / 16; i++) by[i] = load_shared_4(own_factors + at.s * S::factor_bytes + 16 * i);
      }
      pin_all(part);
      wgmma_fence();
      multiply_box<__nv_fp8_e4m3, width>(part, w + warp / 4 * (64 * S::depth), w + S::w_bytes, 0);
      wgmma_commit();
      wgmma_wait();
      pin_all(part);
      // The factors have left the stage, too: shared memory serves a warp in order.
      release_stage(shared.empty, at.s, lane, false, 1);
#pragma unroll
      for (int i = 0; i < width / 2; i++) {
        if constexpr (S::blocks) {
          const float4& four = by[i / 8];
          sum[i] = fmaf(part[i], i % 8 < 4 ? (i % 2 ? four.y : four.x) : (i % 2 ? four.w : four.z), sum[i]);
        } else {
          sum[i] += part[i];
        }
      }
      at.advance(S::stages);
    }
  }

  // The factors of the lane's two rows of W.
  __device__ __forceinline__ void load_late(float (&late)[2], int group, int n) const {
    const Factors& factors = p.factors;
    const Columns columns(p, n, lane);
    if (!factors.w) return;
#pragma unroll
    for (int r = 0; r < 2; r++)
      late[r] = factors.w[group * p.w_group + min(columns.first + r * columns.step, int(p.args.n) - 1) * factors.w_n];
  }

  // Multiplies and stores a tile in the least of the widths that holds the rows. Branches are the same in all threads
  // of a warp, and the compiler has to see so (C7519).
  template <int first, int... others>
  __device__ __forceinline__ void consume(Widths<first, others...>, const typename S::Places& tile) {
    if constexpr (sizeof...(others) > 0) {
      if (__any_sync(~0u, tile.height > first)) return consume(Widths<others...>{}, tile);
    }
    const int n = tile.n * S::height + warp * 16;
    float sum[first / 2];  // ((2,2,width/8)), of D^T
    [[maybe_unused]] float late[2] = {1.0f, 1.0f};
    if constexpr (!S::blocks) load_late(late, tile.group, n);
    multiply<first>(sum);
    if constexpr (!S::blocks) {
#pragma unroll
      for (int j = 0; j < first / 8; j++) {
        const float2 of_a = *reinterpret_cast<const float2*>(tile.factors + 8 * j + 2 * (lane % 4));
#pragma unroll
        for (int e = 0; e < 4; e++) sum[4 * j + e] *= late[e / 2] * (e % 2 ? of_a.y : of_a.x);
      }
    }
    // The compiler would load what only the epilogue needs ahead of the products.
    const Results* of_results = &results;
    const Problem* of_problem = &p;
    asm volatile("" : "+l"(of_results), "+l"(of_problem));
    if (of_problem->plain) put<S, first>(sum, *of_problem, tile, n, lane);
    else finish<S, first>(sum, parked, *of_problem, *of_results, tile, n, lane);
  }
};

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    sm90_fp8_grouped_gemm(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ Problem p,
                          const __grid_constant__ Results results) {
  extern __shared__ __align__(1024) uint8_t shared_memory[];
  const Shared shared = Shared::of(shared_memory, S{});
  auto* const places = reinterpret_cast<typename S::Places*>(shared_memory + S::places_at);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&w_map);
    init_ring(shared.full, shared.empty, S::stages, S::warps, 1 + S::of_gather + (S::blocks ? 32 : 0));
    init_ring(shared.known, shared.used, S::place_slots, S::warps, 32);
    fence_mbarrier_init();
  }
  griddepcontrol_wait();
  typename S::List list(shared_memory + S::list_at, p.entries, p.n_tiles, 0);
  const GroupedSpan of_groups = list.fill(p.rows, reinterpret_cast<int*>(shared_memory), warp, lane);
  const auto zero_rows = [&](auto* d) {
    zero_rows_of_no_group(p.rows, of_groups, d, p.args.d.row_stride, int(p.args.n), threadIdx.x, S::threads);
  };
  if (p.args.types.d == TG_F32) zero_rows(static_cast<float*>(p.args.d.ptr));
  else zero_rows(static_cast<uint16_t*>(p.args.d.ptr));

  if (warp >= S::warps) {
    setmaxnreg_dec<S::of_loads>();
    if (warp == S::warps && lane == 0) load_weights<S>(w_map, p, shared, list);
    if (warp == S::warps + 1) load_places<S>(p, shared, places, list, lane);
    if (warp >= S::warps + 2) load_rows<S>(p, shared, list, threadIdx.x - 32 * (S::warps + 2));
    __syncwarp();
  } else {
    setmaxnreg_inc<S::of_products>();
    float4* const parked = reinterpret_cast<float4*>(shared_memory + S::parked_at) + warp * 32;
    Consumer<S> own{p, results, shared, parked, warp, lane};
    Stage place = Stage::to_read();
    while (true) {
      place.wait_warp(shared.known);
      if (__any_sync(~0u, places[place.s].height == 0)) break;
      own.consume(typename S::Widths{}, places[place.s]);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(shared.used + 8 * place.s);
      place.advance(S::place_slots);
    }
  }
}

}  // namespace
}  // namespace tilegemm
