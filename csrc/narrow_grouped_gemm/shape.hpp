// How a block of narrow_grouped_gemm is laid out. B^T is called W: N rows of K codes. K is counted in slots of 128
// bytes of a row of W, and a slot in units of 32 numbers, of which groups with a factor each are multiples.
#pragma once
#include <algorithm>

#include "experts/unit_list.hpp"
#include "narrow/codes.hpp"
#include "narrow/half.hpp"

namespace tilegemm {
namespace {

// src/family/narrow_grouped_gemm.rs has the same numbers.
constexpr int most_groups = 2000, most_entries = 1023;
constexpr int unit_k = 32, long_group = 4;            // numbers; units
constexpr int rows_of_warp = 16, row_bytes = 128;     // of a slot
constexpr int slot_bytes = rows_of_warp * row_bytes;  // of a warp
constexpr int most_warps = 8;                         // of a block

// narrow::Half as narrow::Codes are.
template <tg_format CODES>
struct HalfCodes {
  static constexpr float factor = narrow::Half<CODES>::factor;
  __device__ explicit HalfCodes(uint32_t) {}
  __device__ static uint32_t zero_of(uint32_t) { return 0; }
  __device__ __forceinline__ void convert(uint32_t word, uint32_t zero, uint32_t (&to)[4]) const {
    narrow::Half<CODES>::from(word, zero, to);
  }
};
template <tg_format CODES>
struct PlainCodes : narrow::Codes<CODES, __half> {
  static constexpr float factor = 1.0f;
  using narrow::Codes<CODES, __half>::Codes;
};

// What the kernel knows when it is compiled. `TILES`: of eight rows of A; `BLOCKS`: of a multiprocessor, at most.
//
// few, a single tile: all of A's rows lie in shared memory, and a team of warps shares K of 16 rows of W. Otherwise
// each warp has 16 rows of W and all of K, and A comes in chunks.
template <tg_format CODES, int TILES, int BLOCKS>
struct NarrowShape {
  // Numbers in f16 are those of the codes times `Codes::factor`.
  using Codes = std::conditional_t<CODES == TG_F4E2M1, HalfCodes<CODES>, PlainCodes<CODES>>;
  static constexpr tg_format codes = CODES;
  static constexpr int tiles = TILES, tile_m = 8 * TILES, most_blocks = BLOCKS;
  static constexpr bool few = TILES == 1, packed = narrow::is_packed(CODES);
  static constexpr bool has_zeros = CODES == TG_U4 || CODES == TG_U8;
  static constexpr int slot_k = packed ? 256 : 128, units = slot_k / unit_k;
  static constexpr int warps_n = few ? 1 : most_warps, tile_n = rows_of_warp * warps_n;
  static constexpr int stages = 3;  // of a warp's ring
  // Numbers of K of a chunk of A, which have a power of two for each row. Many rows: there are two chunks.
  static constexpr int chunk_k = few ? slot_k : 128, chunk_pitch = chunk_k * 2, chunk_bytes = tile_m * chunk_pitch;
  static constexpr int units_of_chunk = chunk_k / unit_k, chunks_of_slot = units / units_of_chunk;
  // Factors and zeros of a warp's slot, a word for each row and group.
  static constexpr int factors_bytes = units * rows_of_warp * 4, beside_bytes = factors_bytes * (has_zeros ? 2 : 1);
  // Sums of a warp, or of a block: (M,N), rows in other banks.
  static constexpr int sums_pitch = tile_n + 4, sums_bytes = tile_m * sums_pitch * 4;
  using List = UnitList<tile_m, 1>;
};

// Of a tile: the row of D of each row, -1: none, and its factor.
template <class S>
struct Places {
  int rows[S::tile_m];
  float scales[S::tile_m];
};

// Where everything lies in shared memory: a ring for each warp, A, its powers, factors, sums, the places of two tiles,
// and the list of groups.
struct NarrowLayout {
  int slots, x_pitch;
  int x_at, powers_at, beside_at, sums_at, places_at, list_at, bytes;
};

template <class S>
NarrowLayout layout_of(int64_t k, int64_t entries) {
  const int64_t slots = ceil_div(k, S::slot_k), warps = most_warps;
  const int64_t x_pitch = S::few ? slots * S::slot_k * 2 : S::chunk_pitch, chunks = S::few ? slots : 2;
  const int64_t x_at = warps * S::stages * slot_bytes,
                x_bytes = S::few ? S::tile_m * x_pitch : std::max(2 * S::chunk_bytes, S::sums_bytes),
                powers_at = x_at + x_bytes, beside_at = powers_at + chunks * S::tile_m * 4,
                behind = beside_at + warps * S::beside_bytes, sums_at = S::few ? behind : x_at,
                places_at = S::few ? sums_at + 2 * warps * S::sums_bytes : behind,
                list_at = places_at + 2 * int64_t(sizeof(Places<S>)), bytes = list_at + S::List::bytes(int(entries));
  const auto small = [](int64_t x) { return int(x < INT_MAX ? x : INT_MAX); };
  return {small(slots),   small(x_pitch),   int(x_at),      small(powers_at), small(beside_at),
          small(sums_at), small(places_at), small(list_at), small(bytes)};
}

// What a launch knows.
struct NarrowPlace {
  GroupedRows rows;
  NarrowLayout at;
  Divisor pairs_per_row;
  Divisor by_n;             // tiles of W along N
  Divisor by_columns;       // columns that share a factor
  Divisor by_group;         // units that share a factor
  Divisor by_pieces;        // pieces of 16 numbers of a row of A, in shared memory
  int64_t w_row, w_matrix;  // bytes
  int n_tiles, entries, bytes_of_k;
  int log_team;                         // of the warps that share K, few rows
  int units_of_k, shared;               // units of K, and how many share a factor: one or four
  int factor_bytes;                     // of a factor
  int64_t group_bytes, group_of_zeros;  // from a group's factors to the next one's, and from its zeros
};

}  // namespace
}  // namespace tilegemm
