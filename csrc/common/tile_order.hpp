// The order in which the blocks of a persistent kernel take tiles.
#pragma once
#include <algorithm>

#include "common/kernel.hpp"

namespace tilegemm {

// A row and a column of tiles, and a matrix of the batch.
struct Tile {
  int m, n, batch0, batch1;
};

// The tiles of all matrices of a batch, one matrix after the other, in strips. A strip is `width` tiles wide, and its
// tiles are taken line by line, so that tiles that are computed at the same time share operands in L2. The last strip
// of a matrix may be narrower. Where the blocks of a cluster compute neighbouring tiles, a cluster counts as one tile
// here.
struct TileOrder {
  Divisor in_matrix, in_strip, width, last_width, inner_batch;
  int total, last_strip;
  bool strips_along_m;  // whether the lines of a strip lie along N; otherwise the lines lie along M

  TileOrder(int64_t tiles_m, int64_t tiles_n, const int64_t (&batch)[2], bool strips_along_m, int64_t wanted_width)
      : TileOrder(strips_along_m ? tiles_m : tiles_n, strips_along_m ? tiles_n : tiles_m, batch, wanted_width) {
    this->strips_along_m = strips_along_m;
  }

  __device__ __forceinline__ Tile at(int t) const {
    const int batch = in_matrix.quotient(t), batch0 = inner_batch.quotient(batch);
    t -= batch * int(in_matrix.value);
    const int strip = in_strip.quotient(t);
    t -= strip * int(in_strip.value);
    const Divisor& own_width = strip == last_strip ? last_width : width;
    const int line = own_width.quotient(t), across = strip * int(width.value) + t - line * int(own_width.value);
    return {strips_along_m ? line : across, strips_along_m ? across : line, batch0,
            batch - batch0 * int(inner_batch.value)};
  }

 private:
  // `length`: the length of a strip.
  TileOrder(int64_t length, int64_t across, const int64_t (&batch)[2], int64_t wanted_width)
      : TileOrder(length, across, batch, std::min(wanted_width, across),
                  (across - 1) / std::min(wanted_width, across)) {}
  TileOrder(int64_t length, int64_t across, const int64_t (&batch)[2], int64_t width, int64_t last)
      : in_matrix(length * across), in_strip(length * width), width(width), last_width(across - last * width),
        inner_batch(batch[1]), total(int(length * across * batch[0] * batch[1])), last_strip(int(last)) {}
};

}  // namespace tilegemm
