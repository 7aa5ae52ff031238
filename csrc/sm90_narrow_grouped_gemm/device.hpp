// The kernel: warp groups multiply 64 rows of W each, or two share rows and have a part of K each; the others load.
#pragma once
#include "sm90_narrow_grouped_gemm/load.hpp"
#include "sm90_narrow_grouped_gemm/store.hpp"

namespace tilegemm {
namespace {

// A warp that multiplies.
template <class S>
struct Consumer {
  const Problem& p;
  const Results& results;
  const narrow::Rings& rings;
  uint8_t* parked;
  int row_warp, k_part, lane;
  Stage at[2] = {Stage::to_read(), Stage::to_read()};  // of rows of A, and of codes
  bool is_first = true;                                // of the tiles

  // The warp's first row of W.
  __device__ __forceinline__ int first_row(const typename S::Places& tile) const {
    return first_row_of_w<S>(p, tile.n) + row_warp * 16;
  }

  // The factors of rows g and g + 8 of W.
  __device__ __forceinline__ void load_late(float (&late)[2], int group, int n0) const {
    const tg_scale& scale = p.args.b_scale;
    if (!scale.ptr) return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = min(n0 + lane / 4 + 8 * r, int(p.args.n) - 1);
      const int64_t place = group * scale.batch_stride[1] + narrow::place_of_factor(p, 0, n);
      late[r] = narrow::factor_at(scale.format, scale.ptr, place);
    }
  }

  // The sums of the second part of K come to those of the first, which goes on with them: whether the warp does.
  template <int width>
  __device__ __forceinline__ bool add_parts(float (&sum)[width / 2]) const {
    float4* const slots = reinterpret_cast<float4*>(parked) + row_warp * (width / 8) * 32 + lane;
    if (!is_first) bar_sync(narrow::parts_barrier, 32 * S::warps);  // the slots are free
    if (k_part > 0) {
#pragma unroll
      for (int j = 0; j < width / 8; j++) slots[j * 32] = fragment(sum, j);
    }
    bar_sync(narrow::parts_barrier, 32 * S::warps);
    if (k_part > 0) return false;
#pragma unroll
    for (int j = 0; j < width / 8; j++) {
      const float4 v = slots[j * 32];
      sum[4 * j] += v.x, sum[4 * j + 1] += v.y, sum[4 * j + 2] += v.z, sum[4 * j + 3] += v.w;
    }
    __syncwarp();
    return true;
  }

  // Multiplies and stores a tile in the least of the widths that holds the rows. Branches are the same in all threads
  // of a warp, and the compiler has to see so (C7519).
  template <int first, int... others>
  __device__ __forceinline__ void consume(Widths<first, others...>, const typename S::Places& tile, int turn) {
    if constexpr (sizeof...(others) > 0) {
      if (__any_sync(~0u, tile.height > first)) return consume(Widths<others...>{}, tile, turn);
    }
    using Own = narrow::OfWidth<S, first>;
    float late[2] = {1.0f, 1.0f};
    if constexpr (S::is_late) load_late(late, tile.group, first_row(tile));
    // No stride of B is odd.
    narrow::Multiplier<Own> own(p, rings, row_warp, k_part, lane, uint32_t(p.args.b.col_stride) & 1);
    own.go_on(at, turn);
    own.multiply(0, p.batches);
    own.tell(at);
    if constexpr (S::k_parts > 1) {
      if (!add_parts<first>(own.sum)) return;
    }
    if constexpr (S::is_late) own.scale(late[0], late[1]);
    // The compiler would load what only the epilogue needs ahead of the products.
    const Results* of_results = &results;
    const Problem* of_problem = &p;
    asm volatile("" : "+l"(of_results), "+l"(of_problem));
    const Target<Own> target{tile, first_row(tile), tile.n * S::height};
    if (of_problem->plain && are_finite<Own>(own.sum, tile.height)) {
      put<Own>(own.sum, *of_problem, target);
    } else {
      float4* const slots = reinterpret_cast<float4*>(parked) + row_warp * S::parked * 32;
      narrow::each_parked<Own>(slots, own.sum, [&](const float4* pair, int i) {
        if (16 * i < tile.height) finish<Own>(pair, 16 * i, *of_problem, *of_results, target);
      });
    }
  }
};

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    sm90_narrow_grouped_gemm(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ Problem p,
                             const __grid_constant__ Results results) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const narrow::Rings rings = narrow::Rings::of(shared, S{});
  const auto barriers = PlaceBarriers::of(shared, S{});
  auto* const places = reinterpret_cast<typename S::Places*>(shared + S::places_at);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&w_map);
    init_ring(rings.x_full, rings.x_empty, S::x_stages, S::warps, of_gather);
    init_ring(rings.w_full, rings.w_empty, S::w_stages, S::warps, S::is_late ? 1 : 1 + 32);
    init_ring(barriers.known, barriers.used, 2, S::warps, of_gather);
    fence_mbarrier_init();
  }
  griddepcontrol_wait();
  typename S::List list(shared + S::list_at, p.entries, p.n_tiles, 0);
  const GroupedSpan of_groups = list.fill(p.rows, reinterpret_cast<int*>(shared), warp, lane);
  const auto zero_rows = [&](auto* d) {
    zero_rows_of_no_group(p.rows, of_groups, d, p.args.d.row_stride, int(p.args.n), threadIdx.x, S::threads);
  };
  if (p.args.types.d == TG_F32) zero_rows(static_cast<float*>(p.args.d.ptr));
  else zero_rows(static_cast<uint16_t*>(p.args.d.ptr));

  if (warp >= S::warps) {
    setmaxnreg_dec<S::loads_registers>();
    if (warp == S::warps && lane == 0) load_codes<S>(w_map, p, rings, list);
    if (warp == S::warps + 1 && !S::is_late) load_factors<S>(p, rings, list, lane);
    if (warp >= S::warps + 2) load_rows<S>(p, rings, barriers, places, list, threadIdx.x - 32 * (S::warps + 2));
    return;
  }
  setmaxnreg_inc<S::registers>();
  Consumer<S> own{p, results, rings, shared + S::parked_at, warp % S::row_warps, warp / S::row_warps, lane};
  Stage at = Stage::to_read();
  while (true) {
    at.wait_warp(barriers.known);
    if (__any_sync(~0u, places[at.s].height == 0)) break;
    own.consume(typename S::Widths{}, places[at.s], at.s);
    own.is_first = false;
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barriers.used + 8 * at.s);
    at.advance(2);
  }
}

}  // namespace
}  // namespace tilegemm
