// How the warps of a block share a tile of products by mma.sync.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm {
namespace {

// Warps along M: tiles of warps as square as possible.
constexpr int warps_along_m(int tile_m, int tile_n, int warps) {
  int along_m = 1;
  while (along_m * 2 <= warps && tile_m / along_m > 2 * (tile_n / (warps / along_m))) along_m *= 2;
  return along_m;
}

template <class Row>
struct Warps {
  static constexpr int warps = Row::warps, threads = 32 * warps;
  static constexpr int warps_m = warps_along_m(Row::tile_m, Row::tile_n, warps), warps_n = warps / warps_m;
  static constexpr int warp_m = Row::tile_m / warps_m, warp_n = Row::tile_n / warps_n;
  static constexpr int fragments_m = warp_m / 16, fragments_n = warp_n / 16;  // of 16 rows, and of 16 columns
  static_assert(warp_m % 16 == 0 && warp_n % 16 == 0);
};

}  // namespace
}  // namespace tilegemm
