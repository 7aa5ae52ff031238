// The warps that load: a thread W, a warp lists rows and loads factors, and two warps copy rows of A. Each goes through
// the list of tiles by itself, as far ahead of the products as the ring has room.
#pragma once
#include <array>

#include "common/pipeline.hpp"
#include "sm90_fp8_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// Loads a box of a five-dimensional tensor to shared memory; the barrier counts the bytes.
__device__ __forceinline__ void tma_load_5(const void* map, uint32_t to, uint32_t barrier, const int (&at)[5],
                                           uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4]), "l"(policy)
      : "memory");
}

// The thread that loads W, with the group as a coordinate.
template <class S>
__device__ __forceinline__ void load_weights(const CUtensorMap& w_map, const Problem& p, const Shared& shared,
                                             typename S::List& list) {
  // Groups of few rows have one tile of them.
  const uint64_t policy = S::width <= 32 ? evict_first : evict_normal;
  Stage at = Stage::to_fill();
  each_tile<S>(list, [&](const GroupedTile& tile) {
    const int row = tile.n * S::height;
#pragma unroll 1
    for (int stage = 0; stage < p.stages; stage++) {
      const uint32_t barrier = at.acquire(shared.full, shared.empty, S::w_bytes);
      const int box[5] = {stage * S::depth, p.neighbours ? 0 : row, 0, p.neighbours ? row / 16 : 0, tile.group};
      tma_load_5(&w_map, shared.ring + at.s * S::stage_bytes, barrier, box, policy);
      at.advance(S::stages);
    }
  });
  launch_dependents();
}

// The rows of D of rows first, first + step ... of a tile; -1: none. All loads begin before the first has ended.
template <int step, int count>
__device__ __forceinline__ void rows_of_d(int (&rows)[count], const Problem& p, const GroupedTile& tile, int first) {
  const uint32_t* const pairs = p.rows.groups.pairs;
#pragma unroll
  for (int i = 0; i < count; i++) rows[i] = tile.first + min(first + step * i, tile.height - 1);
  if (pairs) {
#pragma unroll
    for (int i = 0; i < count; i++) rows[i] = int(pairs[rows[i]]);
  }
#pragma unroll
  for (int i = 0; i < count; i++) {
    if (first + step * i >= tile.height || uint32_t(rows[i]) >= uint32_t(p.args.m)) rows[i] = -1;
  }
}
// The row of A of a row of D; where there is none, A's first one.
__device__ __forceinline__ int row_of_a(const Problem& p, int row) { return p.pairs_per_row.quotient(max(row, 0)); }

// copy_async_16() of 16 bytes, which takes a third of the instructions.
__device__ __forceinline__ void copy_async_whole(uint32_t to, const void* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy)
               : "memory");
}

// The warps that copy rows of A. Eight threads copy a row of a stage to where TMA's 128-byte swizzle would put it:
// piece i of 16 bytes of row r lies at place i ^ r % 8. wgmma reads eight rows at a time, and what it makes of those
// behind the tile's last is not stored.
template <class S>
__device__ __forceinline__ void load_rows(const Problem& p, const Shared& shared, typename S::List& list, int thread) {
  constexpr int at_once = S::of_gather / 8, of_thread = S::width / at_once;
  static_assert(at_once == 8);
  const int piece = thread % 8, row0 = thread / 8;
  const uint32_t to_thread = shared.ring + S::w_bytes + row0 * S::depth + ((piece ^ row0) << 4);
  Stage at = Stage::to_fill();
  each_tile<S>(list, [&](const GroupedTile& tile) {
    int rows[of_thread];
    rows_of_d<at_once>(rows, p, tile, row0);
    uint32_t from[of_thread];  // bytes from A's first one on
#pragma unroll
    for (int i = 0; i < of_thread; i++) from[i] = row_of_a(p, rows[i]) * p.a_stride + piece * 16;
    // Calls copy(the place in the stage, the place in A) for the rows.
    const auto stage = [&](const auto& copy) {
      at.wait(shared.empty);
      const uint32_t to = to_thread + at.s * S::stage_bytes;
#pragma unroll
      for (int i = 0; i < of_thread; i++) {
        if (at_once * i < tile.height) copy(to + i * at_once * S::depth, from[i]);
      }
      mbarrier_arrive_after_copies(shared.full + 8 * at.s);
      at.advance(S::stages);
    };
    const uint8_t* now = static_cast<const uint8_t*>(p.args.a.ptr);
#pragma unroll 1
    for (int left = int(p.args.k) / S::depth; left > 0; left--, now += S::depth)
      stage([&](uint32_t to, uint32_t at) { copy_async_whole(to, now + at, evict_last); });
    if (const int rest = int(p.args.k) % S::depth; rest > 0) {
      const int bytes = max(0, min(rest - piece * 16, 16));
      stage([&](uint32_t to, uint32_t at) { copy_async_16(to, now + at, bytes, evict_last); });
    }
  });
}

// The factors of a tile's columns: of blocks they change with the stage.
template <class S>
class FactorsOfTile {
  static constexpr int of_lane = (S::width + 31) / 32;
  const float *x_[of_lane], *w_;
  float of_x_[of_lane], of_w_;
  uint32_t to_[of_lane];

 public:
  __device__ explicit FactorsOfTile(int lane) {
#pragma unroll
    for (int i = 0; i < of_lane; i++) {
      const int column = lane + 32 * i;
      to_[i] = 4 * (column % 8 / 2 * (S::factor_line / 4) + column / 8 * 2 + column % 2);
    }
  }
  __device__ __forceinline__ void set(const Problem& p, const GroupedTile& tile, const int (&rows)[of_lane]) {
#pragma unroll
    for (int i = 0; i < of_lane; i++) x_[i] = p.factors.x + row_of_a(p, rows[i]) * p.factors.x_m;
    w_ = p.factors.w + tile.group * p.w_group + tile.n * p.factors.w_n;
  }
  // Loads the factors of the next stage, which arrive while the ring has no room for it.
  __device__ __forceinline__ void load(const Problem& p) {
#pragma unroll
    for (int i = 0; i < of_lane; i++) {
      of_x_[i] = *x_[i];
      x_[i] += p.factors.x_k;
    }
    of_w_ = *w_;
    w_ += p.factors.w_k;
  }
  __device__ __forceinline__ void store(uint32_t to, int lane) const {
#pragma unroll
    for (int i = 0; i < of_lane; i++) {
      if (lane + 32 * i < S::width) store_shared(to + to_[i], of_x_[i] * of_w_);
    }
  }
};

// The warp that lists the rows of each tile, and loads their factors.
template <class S>
__device__ __forceinline__ void load_places(const Problem& p, const Shared& shared, typename S::Places* places,
                                            typename S::List& list, int lane) {
  constexpr int of_lane = (S::width + 31) / 32;
  const int64_t row_bytes = p.args.d.row_stride * (p.args.types.d == TG_F32 ? 4 : 2);
  Stage place = Stage::to_fill(), at = Stage::to_fill();
  FactorsOfTile<S> factors(lane);
  each_tile<S>(list, [&](const GroupedTile& tile) {
    int rows[of_lane];
    rows_of_d<32>(rows, p, tile, lane);
    const auto of_rows = [&](const float* from, const auto& place) {
      std::array<float, of_lane> of;
#pragma unroll
      for (int i = 0; i < of_lane; i++) of[i] = from ? from[place(max(rows[i], 0))] : 1.0f;
      return of;
    };
    const auto scales = of_rows(p.rows.groups.scales, [](int row) { return row; });
    std::array<float, of_lane> of_a;
    if constexpr (!S::blocks) of_a = of_rows(p.factors.x, [&](int row) { return row_of_a(p, row) * p.factors.x_m; });
    place.wait_warp(shared.used);
    typename S::Places& to = places[place.s];
    if (lane == 0) to.group = tile.group, to.n = tile.n, to.height = tile.height;
#pragma unroll
    for (int i = 0; i < of_lane; i++) {
      const int column = lane + 32 * i;
      if (column >= S::width) continue;
      to.places[column] = rows[i] < 0 ? -1 : rows[i] * row_bytes;
      to.rows[column] = rows[i], to.scales[column] = scales[i];
      if constexpr (!S::blocks) to.factors[column] = of_a[i];
    }
    mbarrier_arrive(shared.known + 8 * place.s);
    place.advance(S::place_slots);
    if constexpr (S::blocks) {
      factors.set(p, tile, rows);
      factors.load(p);
#pragma unroll 1
      for (int left = p.stages; left > 0; left--) {
        at.wait_warp(shared.empty);
        factors.store(shared.factors + at.s * S::factor_bytes, lane);
        mbarrier_arrive(shared.full + 8 * at.s);
        if (left > 1) factors.load(p);
        at.advance(S::stages);
      }
    }
  });
  place.wait_warp(shared.used);
  if (lane == 0) places[place.s].height = 0;
  mbarrier_arrive(shared.known + 8 * place.s);
}

}  // namespace
}  // namespace tilegemm
