// The shape of a block, and what the kernel knows of a problem beside the call's arguments.
#pragma once
#include "experts/unit_list.hpp"
#include "fp8/factors.hpp"

namespace tilegemm {
namespace {

// src/family/sm90_fp8_grouped_gemm.rs has the same numbers.
constexpr int most_groups = 4096, most_entries = 512;
constexpr int64_t most_bytes_of_a = int64_t(UINT32_MAX) + 1;

// A tile: for each row its place in D, in bytes, and the row of D, -1: none; the factor of this row of D, and that of
// the row of A over all of K.
template <int ROWS>
struct alignas(16) Places {
  int64_t places[ROWS];
  int rows[ROWS];
  float scales[ROWS], factors[ROWS];
  int group, n, height, none;  // a height of 0: no tile is left
};

// A tile has 128 rows of W on wgmma's M side, and up to `WIDTH` rows of A on its N side. Two warp groups multiply 64
// rows of W each. Of the four other warps the first loads W, the second lists rows and loads factors, and two copy rows
// of A. `WIDTHS`: of wgmma; a tile is multiplied in the least that holds its rows.
template <int WIDTH, Sums SUMS, class WIDTHS>
struct GroupedShape {
  using Widths = WIDTHS;
  using List = UnitList<WIDTH, 1>;
  using Places = tilegemm::Places<WIDTH>;
  static constexpr bool blocks = SUMS == Sums::blocks;
  static constexpr int width = WIDTH, height = 128, depth = 128, warps = 8, of_gather = 64, threads = 32 * (warps + 4);
  static_assert(height == factor_n && depth == factor_k, "a tile has one factor of W in each stage");

  // A stage of K, and its factors: those of A times that of W. A lane of the warps that multiply has columns 8 j + 2 q
  // and 8 j + 2 q + 1 of wgmma for every j. Those of each q are neighbours, and a gap behind them keeps the four q in
  // different banks.
  static constexpr int w_bytes = height * depth, a_bytes = width * depth, stage_bytes = w_bytes + a_bytes;
  static constexpr int factor_line = width + 16, factor_bytes = blocks ? 4 * factor_line : 0;
  static constexpr int place_slots = width <= 32 ? 4 : 2;  // tiles whose places are known ahead of their products
  static constexpr int parked_bytes = warps * 512;         // a fragment of each warp on its way through the epilogue
  static constexpr int most_stages = 16, barriers_bytes = 16 * (most_stages + place_slots);

  static constexpr int limit = 227 * 1024;
  static constexpr int beside =
      parked_bytes + barriers_bytes + place_slots * int(sizeof(Places)) + List::bytes(most_entries);
  static constexpr int fit = (limit - beside) / (stage_bytes + factor_bytes),
                       stages = fit < most_stages ? fit : most_stages;
  static constexpr int factors_at = stages * stage_bytes, parked_at = factors_at + stages * factor_bytes,
                       barriers_at = parked_at + parked_bytes, places_at = barriers_at + barriers_bytes,
                       list_at = places_at + place_slots * int(sizeof(Places)),
                       most_bytes = list_at + List::bytes(most_entries);
  static_assert(width % 16 == 0 && stage_bytes % 1024 == 0 && stages >= 4 && most_bytes <= limit);
  static_assert((most_groups + 1) * 4 <= stages * stage_bytes, "the first row of each group passes through the ring");

  // Registers of a thread that loads, and of one that multiplies; all start with 65536 / threads.
  static constexpr int of_loads = width <= 64 ? 40 : 56, of_products = width <= 64 ? 232 : 224;
};

// The factor of rows of W n to n + 127 and K of stage s, in group g: w[g * w_group + n / 128 * w_n + s * w_k]; of
// factors for each row of W, that of row n: w[g * w_group + n * w_n].
struct Problem {
  tg_gemm_args args;
  GroupedRows rows;
  Divisor pairs_per_row;
  Factors factors;
  int64_t w_group;
  uint32_t a_stride;             // bytes from row to row of A
  int n_tiles, entries, stages;  // tiles of W along N, groups that may have rows, stages of K
  float alpha;
  bool neighbours;  // of each 16 rows of W, those with even numbers lie before the others in shared memory
  bool plain;  // the same, D is the product times alpha and the rows' factors, and pairs of its columns are aligned
};

// Addresses in shared memory. `full`, `empty`: barriers of the ring; `known`, `used`: those of places.
struct Shared {
  uint32_t ring, factors, full, empty, known, used;

  template <class S>
  __device__ static Shared of(uint8_t* shared, S) {
    const uint32_t at = uint32_t(__cvta_generic_to_shared(shared)), barriers = at + S::barriers_at;
    constexpr int step = 8 * S::most_stages, places = 2 * step;
    return {
        at, at + S::factors_at, barriers, barriers + step, barriers + places, barriers + places + 8 * S::place_slots};
  }
};

// Calls use(tile) for each tile of the block.
template <class S, class Use>
__device__ __forceinline__ void each_tile(typename S::List& list, const Use& use) {
  for (int u = blockIdx.x; u < list.total(); u += gridDim.x) use(list.tile(u));
}

}  // namespace
}  // namespace tilegemm
