// The kernel: blocks go through tiles of rows of a group times rows of W.
#pragma once
#include "narrow/groups.hpp"
#include "narrow/results.hpp"
#include "narrow_grouped_gemm/product.hpp"
#include "narrow_grouped_gemm/rows.hpp"

namespace tilegemm {
namespace {

// Results of a tile from its sums, of which there are `parts`, by some threads of whole warps.
template <class S>
__device__ __forceinline__ void finish(const tg_gemm_args& args, const NarrowPlace& p, const Results& results,
                                       const Places<S>& places, const GroupedTile& tile, int n0, const float* sums,
                                       int parts, int thread, int threads) {
  // Whole warps.
  const int count = (tile.height * S::tile_n + 31) / 32 * 32;
#pragma unroll 1
  for (int at = thread; at < count; at += threads) {
    const int i = at / S::tile_n, n = n0 + at % S::tile_n, row = places.rows[i];
    const bool exists = row >= 0 && n < args.n;
    const float* const from = sums + i * S::sums_pitch + at % S::tile_n;
    float sum = 0;
#pragma unroll 4
    for (int part = 0; part < parts; part++) sum += from[part * (S::sums_bytes / 4)];
    const bool is_wrong = exists && !isfinite(sum);
    if (__any_sync(~0u, is_wrong))
      sum = narrow::repaired<S::codes>(args, p.pairs_per_row, is_wrong, tile.group, row, n, sum);
    if (exists) results.store(sum, row, n, tile.group, places.scales[i]);
  }
}

template <class S>
__device__ __forceinline__ void fill_places(const NarrowPlace& p, const GroupedTile& tile, Places<S>& places) {
  if (threadIdx.x >= S::tile_m) return;
  const int64_t row = int(threadIdx.x) < tile.height ? p.rows.row_of_d(tile.first + threadIdx.x) : -1;
  places.rows[threadIdx.x] = int(row);
  places.scales[threadIdx.x] = row < 0 ? 0.0f : p.rows.scale_of(row);
}

// Few rows. A block goes through the tiles of its items, and its teams through the items of a tile, without waiting for
// each other.
template <class S>
__device__ __forceinline__ void few_rows(const tg_gemm_args& args, const NarrowPlace& p, const Results& results,
                                         const typename S::List& list, uint8_t* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int of_team = 1 << p.log_team, team = warp >> p.log_team, k_part = warp & (of_team - 1), threads = 32 * of_team;
  const int64_t items = min(int64_t(list.total()) * p.n_tiles, int64_t(INT_MAX));
  const int begin = int(items * blockIdx.x / gridDim.x), end = int(items * (blockIdx.x + 1) / gridDim.x);
  const int first = p.at.slots * k_part >> p.log_team, last = p.at.slots * (k_part + 1) >> p.log_team;
  if (begin >= end) return;
  Cursor<S> now(list, p, begin, end, team);
  Ring<S> ring(args, p, now, uint32_t(__cvta_generic_to_shared(shared)), warp, first, last);
  Beside<S> beside(args, p, shared, warp);
  uint8_t* const x = shared + p.at.x_at;
  float* const powers = reinterpret_cast<float*>(shared + p.at.powers_at);
  float* const sums = reinterpret_cast<float*>(shared + p.at.sums_at) + team * of_team * (2 * S::sums_bytes / 4);
  Places<S>& places = *reinterpret_cast<Places<S>*>(shared + p.at.places_at);
  const int word = g * row_bytes + (g << 4) + 4 * t;
  const uint32_t* const factors = beside.of_lane();
  const uint8_t* const x_of_lane = x + lane % 8 * p.at.x_pitch;
  const int first_place = p.by_n.quotient(begin), last_place = p.by_n.quotient(end - 1);
  typename S::List tiles = list;
  int parity = 0;
  Product<S> product;
#pragma unroll 1
  for (int place = first_place; place <= last_place; place++) {
    const GroupedTile tile = tiles.tile(place);
    fill_places(p, tile, places);
    // Loads of A behind the loads of W would arrive after W.
    stage_rows<S>(args, p, tile, x, powers, [&] {
      if (place > first_place || !now.exists()) return;
      beside.begin(now);
      beside.load(first);
#pragma unroll 1
      for (int i = 0; i < S::stages - 1; i++) ring.load();
      beside.store();
    });
    __syncthreads();
#pragma unroll 1
    while (now.exists() && now.place == place) {
      const int n0 = now.first_row(p, 0);
      product.clear();
#pragma unroll 1
      for (int slot = first; slot < last; slot++) {
        int next = slot + 1;
        if (next == last) {
          next = first;
          now.advance(p, warp);
          if (now.exists()) beside.begin(now);
        }
        if (now.exists()) beside.load(next);
        const int at = ring.wait();
        const auto step = [&](auto shared_units) {
          product.template step<decltype(shared_units)::value, 1>(shared, at + word, x_of_lane + slot * (2 * S::slot_k),
                                                                  p.at.x_pitch, powers + slot * S::tile_m + 2 * t,
                                                                  factors);
        };
        if (p.shared == long_group) step(std::integral_constant<int, long_group>());
        else step(std::integral_constant<int, 1>());
        __syncwarp();  // all lanes have read the slot and the factors
        ring.advance();
        ring.load();
        beside.store();
        __syncwarp();
      }
      // The sums of two items, so that a warp may go on before the others have added.
      float* const parts = sums + parity * of_team * (S::sums_bytes / 4);
      product.put(parts + k_part * (S::sums_bytes / 4));
      if (of_team > 1) bar_sync(1 + team, threads);
      else __syncwarp();
      finish<S>(args, p, results, places, tile, n0, parts, of_team, 32 * k_part + lane, threads);
      parity ^= 1;
    }
    __syncthreads();
  }
}

// More rows: each warp has rows of W of its own, and all of K.
template <class S>
__device__ __forceinline__ void many_rows(const tg_gemm_args& args, const NarrowPlace& p, const Results& results,
                                          const typename S::List& list, uint8_t* shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, slots = p.at.slots;
  Cursor<S> now(list);
  Ring<S> ring(args, p, now, uint32_t(__cvta_generic_to_shared(shared)), warp, 0, slots);
  Beside<S> beside(args, p, shared, warp);
  uint8_t* const x = shared + p.at.x_at;
  float* const powers = reinterpret_cast<float*>(shared + p.at.powers_at);
  float* const sums = reinterpret_cast<float*>(shared + p.at.sums_at);
  Places<S>& places = *reinterpret_cast<Places<S>*>(shared + p.at.places_at);
  const int word = g * row_bytes + (g << 4) + 4 * t, x_of_lane = lane % 8 * S::chunk_pitch;
  const int chunks = int(ceil_div(args.k, S::chunk_k));
  const uint32_t* const factors = beside.of_lane();
  bool begins = true;
  Product<S> product;
#pragma unroll 1
  while (now.exists()) {
    const GroupedTile tile = now.tile;
    const int n0 = now.first_row(p, 0);
    Chunks<S> rows(args, p, tile);
    fill_places(p, tile, places);
    rows.load(0);
    if (begins) {
      beside.begin(now);
      beside.load(0);
#pragma unroll 1
      for (int i = 0; i < S::stages - 1; i++) ring.load();
      beside.store();
      begins = false;
    }
    rows.store(x, powers);
    __syncthreads();
    product.clear();
    int chunk = 0;
#pragma unroll 1
    for (int slot = 0; slot < slots; slot++) {
      int next = slot + 1;
      if (next == slots) {
        next = 0;
        now.advance(p, warp);
        if (now.exists()) beside.begin(now);
      }
      if (now.exists()) beside.load(next);
      const int at = ring.wait() + word;
      // Multiplies a chunk of a slot while the next one is on its way.
#pragma unroll 1
      for (int part = 0; part < S::chunks_of_slot && chunk < chunks; part++) {
        if (chunk + 1 < chunks) rows.load(chunk + 1);
        const int here = chunk % 2, there = 1 - here;
        const auto step = [&](auto shared_units, auto used) {
          constexpr int units = decltype(shared_units)::value;
          product.template step<units, decltype(used)::value>(
              shared, at ^ part << 6, x + here * S::chunk_bytes + x_of_lane, S::chunk_pitch,
              powers + here * S::tile_m + 2 * t, factors + part * (S::units_of_chunk / units) * rows_of_warp);
        };
        const auto step_of = [&](auto shared_units) {
          if (tile.height <= S::tile_m / 2) step(shared_units, std::integral_constant<int, S::tiles / 2>());
          else step(shared_units, std::integral_constant<int, S::tiles>());
        };
        if (p.shared == long_group) step_of(std::integral_constant<int, long_group>());
        else step_of(std::integral_constant<int, 1>());
        if (++chunk < chunks) rows.store(x + there * S::chunk_bytes, powers + there * S::tile_m);
        __syncthreads();
      }
      ring.advance();
      ring.load();
      beside.store();
      __syncwarp();
    }
    product.put(sums + rows_of_warp * warp);
    __syncthreads();
    finish<S>(args, p, results, places, tile, n0, sums, 1, threadIdx.x, blockDim.x);
    __syncthreads();
  }
}

template <class S>
__global__ void __launch_bounds__(32 * most_warps, S::most_blocks)
    narrow_grouped_gemm(const __grid_constant__ tg_gemm_args args, const __grid_constant__ NarrowPlace p,
                        const __grid_constant__ Results results) {
  extern __shared__ __align__(1024) uint8_t shared[];
  griddepcontrol_wait();
  launch_dependents();
  typename S::List list(shared + p.at.list_at, p.entries, S::few ? 1 : p.n_tiles, 0);
  const GroupedSpan of_groups = list.fill(p.rows, reinterpret_cast<int*>(shared), threadIdx.x / 32, threadIdx.x % 32);
  const auto zero_rows = [&](auto* d) {
    zero_rows_of_no_group(p.rows, of_groups, d, args.d.row_stride, int(args.n), threadIdx.x, blockDim.x);
  };
  if (args.types.d == TG_F32) zero_rows(static_cast<float*>(args.d.ptr));
  else zero_rows(static_cast<uint16_t*>(args.d.ptr));
  if constexpr (S::few) few_rows<S>(args, p, results, list, shared);
  else many_rows<S>(args, p, results, list, shared);
}

}  // namespace
}  // namespace tilegemm
