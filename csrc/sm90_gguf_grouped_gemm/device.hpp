// The kernel: two warp groups multiply 64 rows of W each, a thread loads the activations, and a warp finds tiles and
// the rows of D.
#pragma once
#include "experts/unit_list.hpp"
#include "gguf/half.hpp"
#include "gguf/results.hpp"

namespace tilegemm {
namespace {

// src/family/sm90_gguf_grouped_gemm.rs has the same numbers.
constexpr int most_groups = 4096, most_entries = 480;
// Elements of D from row to row: bytes are a number of 32 bits.
constexpr int64_t most_stride = UINT32_MAX / 4;
constexpr int rows_of_load = 64;  // by TMA

// A tile of up to ROWS rows of A, and where its rows go: the row of D of each row, -1: none, and its factor: alpha, the
// pair's, and that of its numbers in f16.
template <int ROWS>
struct Places {
  int rows[ROWS];
  float factors[ROWS];
  int group, n, height, none;  // a height of 0: no tile is left
};

// Shared memory has the barriers of the places of two tiles, the places, and the list of groups behind the pieces of a
// product.
constexpr int place_barriers = 8 * 8;
template <int ROWS>
constexpr int beside = place_barriers + 2 * int(sizeof(Places<ROWS>)) + UnitList<ROWS, 1>::bytes(most_entries);

template <tg_format F, int ROWS>
struct GroupedShape : gguf::WgmmaShape<F, ROWS, beside<ROWS>> {
  using Base = gguf::WgmmaShape<F, ROWS, beside<ROWS>>;
  using Multiplier = gguf::Multiplier<Base, gguf::HalfWeights>;
  using List = UnitList<ROWS, 1>;
  using Places = tilegemm::Places<ROWS>;
  static constexpr int known_at = Base::shared_bytes, places_at = known_at + place_barriers,
                       list_at = places_at + 2 * int(sizeof(Places));
  static constexpr int producer_registers = Base::blocks > 1 ? 32 : 40;
  static constexpr int consumer_registers = Base::registers_beside(producer_registers);
  static_assert((most_groups + 1) * 4 <= Base::x_stages * Base::x_bytes + Base::w_bytes,
                "the first row of each group passes through the rings");
};

// Barriers of the places of two tiles: a tile is known, its factors are, and the places may be used again.
struct PlaceBarriers {
  uint32_t known, scaled, used;

  template <class S>
  __device__ static PlaceBarriers of(uint8_t* shared, S) {
    const uint32_t at = uint32_t(__cvta_generic_to_shared(shared)) + S::known_at;
    return {at, at + 16, at + 32};
  }
};

// Rows `first` to `end` - 1 of the product are prepared, and lie in the workspace; `factors`: of their numbers in f16.
struct GroupedPlace {
  GroupedRows rows;
  const float* factors;
  int first, end, n_tiles, entries;

  // The part of a tile whose rows are prepared; there may be none.
  __device__ GroupedTile prepared(GroupedTile tile) const {
    const int behind = min(tile.first + tile.height, end);
    tile.first = max(tile.first, first);
    tile.height = behind - tile.first;
    return tile;
  }
};

// Multiplies and stores a tile in the least of `widths` that holds the rows. Branches are the same in all threads of a
// warp, and the compiler has to see so (C7519).
template <class S, int first, int... others>
__device__ __forceinline__ void consume(Widths<first, others...>, typename S::Multiplier& own, const tg_gemm_args& args,
                                        const typename S::Places* places, uint32_t scaled, unsigned turn) {
  if constexpr (sizeof...(others) > 0) {
    if (__any_sync(~0u, places[turn % 2].height > first))
      return consume<S>(Widths<others...>{}, own, args, places, scaled, turn);
  }
  const int spans = int(ceil_div(args.k, gguf::span));
  const auto first_row = [&] { return places[turn % 2].n * S::height + own.warp * gguf::rows_of_warp; };
  gguf::Ring<typename S::Ring> ring(args, places[turn % 2].group, first_row(), 0, own.ring_of_warp);
  own.start(ring, 0, spans);
  float sum[first / 2];  // ((2,2,first/8)), of D^T
  own.template multiply<first>(sum, ring, int(args.k), 0, spans);
  own.release();
  mbarrier_wait_warp(scaled + 8 * (turn % 2), turn / 2 % 2);
  const auto& tile = places[turn % 2];
  // A lane's sums: rows 2 g and 2 g + 1 of W, by columns 2 t and 2 t + 1 of each eight. A row of -1 is behind all rows.
  const int g = own.lane / 4, t = own.lane % 4, column = first_row() + 2 * g;
  float* const d = static_cast<float*>(args.d.ptr);
  gguf::Stores stores(args, d, args.d.row_stride, column, INT_MAX);
  stores.put_rows([&](const auto& put) {
    const auto row_of_d = [&](int row) {
      return reinterpret_cast<float*>(reinterpret_cast<char*>(d + column) +
                                      gguf::mul_wide(row, uint32_t(args.d.row_stride) * 4));
    };
#pragma unroll
    for (int j = 0; j < first / 8; j++) {
      const int2 rows = *reinterpret_cast<const int2*>(tile.rows + 8 * j + 2 * t);
      const float2 factors = *reinterpret_cast<const float2*>(tile.factors + 8 * j + 2 * t);
      put(rows.x, row_of_d(rows.x), sum[4 * j], sum[4 * j + 2], factors.x);
      put(rows.y, row_of_d(rows.y), sum[4 * j + 1], sum[4 * j + 3], factors.y);
    }
  });
  if (!__all_sync(~0u, stores.are_finite())) {
    const GroupedRows rows{args.groups, args.m};
    const auto row = [&](int i) {
      const int of_d = tile.rows[i];
      if (of_d < 0) return gguf::ResultRow<float>{};
      return gguf::ResultRow<float>{rows.row_of_a(of_d), d + of_d * args.d.row_stride,
                                    float(args.alpha) * rows.scale_of(of_d)};
    };
    gguf::repair<S::format>(args, tile.group, first_row(), tile.height, 0, args.k, row);
  }
}

// Loads the prepared activations of all tiles.
template <class S>
__device__ __forceinline__ void load_activations(const gguf::XRing& x, const CUtensorMap* x_map,
                                                 const tg_gemm_args& args, const GroupedPlace& p,
                                                 typename S::List& list) {
  prefetch_tensor_map(x_map);
  griddepcontrol_wait();
  Stage at = Stage::to_fill();
  for (int u = blockIdx.x; u < list.total(); u += gridDim.x) {
    const GroupedTile tile = p.prepared(list.tile(u));
    if (tile.height <= 0) continue;
    const int loads = (tile.height + rows_of_load - 1) / rows_of_load;
    constexpr int bytes = rows_of_load * S::depth * 2;
    for (int k = 0; k < ceil_div(args.k, gguf::span) * gguf::span; k += S::depth) {
      const uint32_t barrier = at.acquire(x.full, x.empty, loads * bytes);
      for (int i = 0; i < loads; i++) {
        tma_load(x_map, x.stages + at.s * S::x_bytes + i * bytes, barrier, k, tile.first - p.first + i * rows_of_load,
                 0, evict_normal);
      }
      at.advance(S::x_stages);
    }
  }
  launch_dependents();
}

// Tells the warps that multiply one tile after the other, and where its rows go. A tile is known before the kernel
// before has ended, which its first loads of W do not wait for; the factors come from that kernel.
template <class S>
__device__ __forceinline__ void find_places(const PlaceBarriers& barriers, typename S::Places* places,
                                            const tg_gemm_args& args, const GroupedPlace& p, typename S::List& list,
                                            int lane) {
  Stage at = Stage::to_fill();
  for (int u = blockIdx.x;; u += gridDim.x) {
    const bool is_last = u >= list.total();
    const GroupedTile tile = is_last ? GroupedTile{} : p.prepared(list.tile(u));
    if (!is_last && tile.height <= 0) continue;
    at.wait(barriers.used);
    auto& to = places[at.s];
    const int height = is_last ? 0 : tile.height;
    if (lane == 0) to.group = tile.group, to.n = tile.n, to.height = height;
    for (int i = lane; i < S::width; i += 32) to.rows[i] = i < height ? int(p.rows.row_of_d(tile.first + i)) : -1;
    mbarrier_arrive(barriers.known + 8 * at.s);
    if (is_last) return;
    griddepcontrol_wait();
    for (int i = lane; i < S::width; i += 32) {
      const int row = to.rows[i];
      to.factors[i] = row < 0 ? 0.0f : float(args.alpha) * p.rows.scale_of(row) * p.factors[tile.first - p.first + i];
    }
    mbarrier_arrive(barriers.scaled + 8 * at.s);
    at.advance(2);
  }
}

template <class S, class Widths>
__global__ void __launch_bounds__(S::threads, S::blocks)
    sm90_gguf_grouped_gemm(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ tg_gemm_args args,
                           const __grid_constant__ GroupedPlace p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const gguf::XRing x = gguf::XRing::of(shared, S{});
  const auto barriers = PlaceBarriers::of(shared, S{});
  auto* const places = reinterpret_cast<typename S::Places*>(shared + S::places_at);
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    init_ring(x.full, x.empty, S::x_stages, S::warps);
    init_ring(barriers.known, barriers.used, 2, S::warps, 32);
    for (int i = 0; i < 2; i++) mbarrier_init(barriers.scaled + 8 * i, 32);
    fence_mbarrier_init();
  }
  {
    typename S::List list(shared + S::list_at, p.entries, p.n_tiles, 0);
    const GroupedSpan of_groups = list.fill(p.rows, reinterpret_cast<int*>(shared), warp, lane);
    if (warp >= S::warps) {
      setmaxnreg_dec<S::producer_registers>();
      if (warp == S::warps && lane == 0) load_activations<S>(x, &x_map, args, p, list);
      if (warp == S::warps + 1) find_places<S>(barriers, places, args, p, list, lane);
      // Two warps have nothing to load. The first pair of kernels zeroes all rows of no group: the kernels before have
      // ended when it starts.
      if (warp >= S::warps + 2 && p.first == 0) {
        const int first_thread = 32 * (S::warps + 2);
        zero_rows_of_no_group(p.rows, of_groups, static_cast<float*>(args.d.ptr), args.d.row_stride, int(args.n),
                              threadIdx.x - first_thread, S::threads - first_thread);
      }
      return;
    }
  }
  setmaxnreg_inc<S::consumer_registers>();

  typename S::Multiplier own(shared, warp, lane);
  for (unsigned turn = 0;; turn++) {
    mbarrier_wait_warp(barriers.known + 8 * (turn % 2), turn / 2 % 2);
    if (__any_sync(~0u, places[turn % 2].height == 0)) break;
    consume<S>(Widths{}, own, args, places, barriers.scaled, turn);
    __syncwarp();
    if (lane == 0) mbarrier_arrive(barriers.used + 8 * (turn % 2));
  }
}

}  // namespace
}  // namespace tilegemm
