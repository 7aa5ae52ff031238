// The shape of a block, and what the kernel knows of a problem beside the call's arguments.
#pragma once
#include "experts/unit_list.hpp"
#include "narrow/wgmma_shape.hpp"

namespace tilegemm {
namespace {

// src/family/sm90_narrow_grouped_gemm.rs has the same numbers.
constexpr int most_groups = 4096, most_entries = 480;
constexpr int of_gather = 64, gather_barrier = 3;  // threads that copy rows of A, and the number of their barrier

// A tile: the row of D of each row, -1: none; the row of A, in 16 bytes from A's first, those of a thread that copies
// one behind the other; and the factor of the row of D.
template <int ROWS>
struct Places {
  int rows[ROWS];
  uint32_t from[of_gather / 8][ROWS * 8 / of_gather];
  float scales[ROWS];
  int group, n, height, none;  // a height of 0: no tile is left
};

// Shared memory behind the rings has the barriers of the places of two tiles, the places, and the list of groups.
constexpr int place_barriers = 8 * 4;
template <int ROWS>
constexpr int beside = place_barriers + 2 * int(sizeof(Places<ROWS>)) + UnitList<ROWS, 1>::bytes(most_entries);

template <tg_format CODE, class T, int WIDTH, int UNIT>
struct GroupedShape : narrow::WgmmaShape<CODE, T, WIDTH, UNIT, beside<WIDTH>, true> {
  using Base = narrow::WgmmaShape<CODE, T, WIDTH, UNIT, beside<WIDTH>, true>;
  using List = UnitList<WIDTH, 1>;
  using Places = tilegemm::Places<WIDTH>;
  // Widths of wgmma: a tile is multiplied in the least that holds its rows.
  using Widths =
      std::conditional_t<WIDTH <= 64, tilegemm::Widths<WIDTH>,
                         std::conditional_t<WIDTH == 128, tilegemm::Widths<64, 128>, tilegemm::Widths<64, 128, 192>>>;
  static constexpr int known_at = Base::shared_bytes, places_at = known_at + place_barriers,
                       list_at = places_at + 2 * int(sizeof(Places));
  static_assert((most_groups + 1) * 4 <= Base::x_stages * Base::x_bytes,
                "the first row of each group passes through the rings");
};

struct Problem {
  tg_gemm_args args;
  GroupedRows rows;
  Divisor pairs_per_row;
  const uint8_t* a;  // 16 bits a number; `a_stride`: bytes from row to row
  int64_t a_stride;
  int n_tiles, entries, batches;  // tiles of W along N, groups that may have rows, batches of K
  tg_format factor_format;
  int factor_bytes;         // of a factor
  uint32_t factor_one;      // its bits where there are no factors
  Divisor group, of_block;  // numbers of K, and rows of W, with one factor
  bool vectors;             // lines of factors and of zeros are at multiples of 16 bytes
  bool plain;               // D is the product times alpha, in f32
};

// Addresses of the barriers of the places of two tiles: a tile's are known, and they may be used again.
struct PlaceBarriers {
  uint32_t known, used;

  template <class S>
  __device__ static PlaceBarriers of(uint8_t* shared, S) {
    const uint32_t at = uint32_t(__cvta_generic_to_shared(shared)) + S::known_at;
    return {at, at + 16};
  }
};

}  // namespace
}  // namespace tilegemm
