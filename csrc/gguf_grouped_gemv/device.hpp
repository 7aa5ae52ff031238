// The kernel: each warp of a block has a span of K, and the block takes tiles of rows of a group, each times some rows
// of W.
#pragma once
#include "common/epilogue.hpp"
#include "experts/unit_list.hpp"
#include "gguf/few_rows.hpp"

namespace tilegemm {
namespace {

// src/family/gguf_grouped_gemv.rs has the same numbers.
constexpr int most_groups = 4096, most_entries = 511;
// Units of 16 rows of W of an item whose K is longer than the spans of a block's warps: their sums stay in shared
// memory.
constexpr int most_units_in_parts = 8;

// Rows of A of a tile.
constexpr int rows_of_tile = 8;
using List = UnitList<rows_of_tile, 1>;

// Of a tile: the group, the row of D of each row, -1: none, and its factor.
struct Places {
  int rows[rows_of_tile];
  float scales[rows_of_tile];
  int group;
};

// Bytes of shared memory beside the pieces of a product: the list of groups, the places of two tiles, and the sums of
// parts of K.
constexpr int beside =
    List::bytes(most_entries) + 2 * int(sizeof(Places)) + most_units_in_parts * rows_of_tile * gguf::rows_of_warp * 4;

template <tg_format F, int WARPS>
struct GroupedShape : gguf::FewRows<F, 1, WARPS, beside> {
  using Base = gguf::FewRows<F, 1, WARPS, beside>;
  static constexpr int places_at(int warps) { return Base::bytes(warps); }
  static constexpr int parts_at(int warps) { return places_at(warps) + 2 * int(sizeof(Places)); }
  // The first row of each group passes through the memory before the list.
  static constexpr int list_at(int warps, int parts, int groups) {
    const int at = parts_at(warps) + (parts > 1 ? most_units_in_parts * Base::sums * 4 : 0),
              first_rows = (groups + 4) / 4 * 16;
    return at > first_rows ? at : first_rows;
  }
  static constexpr int bytes(int warps, int parts, int groups, int entries) {
    return list_at(warps, parts, groups) + List::bytes(entries);
  }
};

struct GroupedPlace {
  GroupedRows rows;
  Divisor pairs_per_row;
  int parts, entries, list_at;
};

// The units of 16 rows of W of an item, 1 to `most`: the number with the least work of the busiest block. An item
// begins with its activations and the first rows of W, which take the time of a unit.
__device__ __forceinline__ int units_of_item(int tiles, int units, int most, int lane) {
  unsigned own = ~0u, best = 1;
  for (int u = 1 + lane; u <= most; u += 32) {
    const int items = tiles * ((units + u - 1) / u), rounds = (items + int(gridDim.x) - 1) / int(gridDim.x);
    const unsigned work = unsigned(rounds) * unsigned(u + 1);
    if (work < own) own = work, best = u;
  }
  const unsigned least = __reduce_min_sync(~0u, own);
  return int(__reduce_min_sync(~0u, own == least ? best : ~0u));
}

__device__ __forceinline__ void store_result(const tg_gemm_args& args, const Epilogue<float, float>& epilogue,
                                             const Places& places, int i, int j, float sum) {
  const int row = places.rows[i];
  static_cast<float*>(args.d.ptr)[row * args.d.row_stride + j] =
      places.scales[i] * epilogue.unrounded(sum, row, j, 0, places.group);
}

template <class S, class T>
__global__ void __launch_bounds__(32 * S::warps, 1)
    gguf_grouped_gemv(const __grid_constant__ tg_gemm_args args, const __grid_constant__ GroupedPlace p,
                      const __grid_constant__ Epilogue<float, float> epilogue) {
  using Row = typename S::Row;
  extern __shared__ __align__(16) uint8_t shared[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  griddepcontrol_wait();
  launch_dependents();
  List list(shared + p.list_at, p.entries, 1, 0);
  const GroupedSpan of_groups = list.fill(p.rows, reinterpret_cast<int*>(shared), warp, lane);
  zero_rows_of_no_group(p.rows, of_groups, static_cast<float*>(args.d.ptr), args.d.row_stride, int(args.n), threadIdx.x,
                        blockDim.x);

  const int units = int(ceil_div(args.n, gguf::rows_of_warp));
  const int of_item = units_of_item(list.total(), units, min(units, p.parts > 1 ? most_units_in_parts : 128), lane);
  const int items_of_tile = (units + of_item - 1) / of_item, items = list.total() * items_of_tile;
  uint8_t* const ring = shared + warp * S::ring_bytes;
  gguf::Span<S> of_x(shared, warp, warps);
  const gguf::Sums<S> all(shared, warps);
  int parity = 0, turn = 0;
  for (int item = blockIdx.x; item < items; item += gridDim.x, turn ^= 1) {
    const int place = item / items_of_tile, first = (item - place * items_of_tile) * of_item,
              last = min(first + of_item, units);
    // A warp may begin an item while others still store the item before, whose places are the others.
    Places& places = reinterpret_cast<Places*>(shared + S::places_at(warps))[turn];
    for (int part = 0; part < p.parts; part++) {
      const GroupedTile tile = list.tile(place);
      const auto row_of_d = [&](int i) { return i < tile.height ? int(p.rows.row_of_d(tile.first + i)) : -1; };
      const int first_span = part * warps, span = first_span + warp;
      // The last warps of the last part may have no span: they multiply the first span by zeros.
      const bool has_span = span * gguf::span < args.k;
      __syncwarp();  // all lanes have read the ring and the sums of activations
      gguf::Loader<S> loader(args, tile.group, first * gguf::rows_of_warp, has_span ? span : 0, ring);
      const int row_of_lane = row_of_d(g), row_of_a = row_of_lane < 0 ? 0 : p.pairs_per_row.quotient(row_of_lane);
      const T* const from =
          static_cast<const T*>(args.a.ptr) + row_of_a * args.a.row_stride + span * gguf::span + 4 * t;
      // Loads of activations behind the loads of W would arrive after W.
      const gguf::Activations<S, T> activations(from, row_of_lane < 0 ? 0 : int(args.k) - span * gguf::span);
#pragma unroll
      for (int i = 0; i < S::stages - 1; i++) {
        if (first + i < last) loader.load(i * S::stage_bytes);
        copy_async_commit();
      }
      of_x.take(0, activations, g, t);
      if (part == 0 && threadIdx.x < rows_of_tile) {
        const int row = row_of_d(threadIdx.x);
        places.rows[threadIdx.x] = row;
        places.scales[threadIdx.x] = row < 0 ? 0.0f : p.rows.scale_of(row);
        places.group = tile.group;
      }
      const int existing = has_span ? min(S::scales, int(args.k - int64_t(span) * gguf::span) / Row::scaled) : 0;
      const int in_ring[2] = {loader.place(g), loader.place(g + 8)}, place_of_factors = loader.place(lane / 2);
      static_assert(S::stages == 2);
      int stage = 0, batch = 0;
      for (int unit = first; unit < last; unit++, stage = S::stage_bytes - stage) {
        __syncwarp();  // all lanes have read the stage that is free
        if (unit + S::stages - 1 < last) loader.load(S::stage_bytes - stage);
        copy_async_commit();
        copy_async_wait<S::stages - 1>();
        __syncwarp();
        float total[S::tiles][4];  // (MMA_N,MMA), of D^T
        of_x.times(ring + stage, in_ring, place_of_factors, existing, total, lane);
        all.put(total, parity, batch, warp, lane);

        if (++batch < S::batch && unit + 1 < last) continue;
        __syncthreads();
        for (int index = threadIdx.x; index < batch * S::sums; index += blockDim.x) {
          const int of_batch = index / S::sums, element = index % S::sums, of_unit = unit + 1 - batch + of_batch;
          const int i = all.m(element), j = of_unit * gguf::rows_of_warp + all.n(element), row = places.rows[i];
          if (row < 0 || j >= args.n) continue;
          float sum = all.add(parity, of_batch, element);
          if (p.parts > 1) {
            // The same thread has the element in every part.
            float* const parts =
                reinterpret_cast<float*>(shared + S::parts_at(warps)) + (of_unit - first) * S::sums + element;
            if (part > 0) sum += *parts;
            *parts = sum;
            if (part + 1 < p.parts) continue;
          }
          store_result(args, epilogue, places, i, j, sum);
        }
        batch = 0, parity ^= 1;
      }
    }
    __syncthreads();
    if (*all.wrong == 0) continue;
    gguf::repair<S::format>(
        args, *all.wrong, places.group, first * gguf::rows_of_warp, min(last * gguf::rows_of_warp, int(args.n)), 0,
        args.k, warps, [&](int r) { return p.pairs_per_row.quotient(places.rows[r]); },
        [&](int r, int n, float sum) { store_result(args, epilogue, places, r, n, sum); });
    __syncthreads();
    if (threadIdx.x == 0) *all.wrong = 0;
  }
}

}  // namespace
}  // namespace tilegemm
