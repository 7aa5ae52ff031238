// What the kernel knows of a problem beside the call's arguments.
#pragma once
#include "common/epilogue.hpp"
#include "narrow/wgmma_shape.hpp"

namespace tilegemm {
namespace {

struct Problem {
  tg_gemm_args args;
  int x_box;            // rows of X of a tile
  int m_tiles, tiles;   // along M, and of all of D
  int batches_of_part;  // of K
  tg_format factor_format;
  int factor_bytes;                    // of a factor
  uint32_t factor_one;                 // its bits where there are no factors
  Divisor m_divisor, group, of_block;  // tiles along M; numbers of K, and rows of W, with one factor
  bool vectors;                        // lines of factors and of zeros are at multiples of 16 bytes
  bool wide, plain;  // rows of D are at multiples of 16 bytes; the epilogue is the product times alpha
};

// A tile of a block: its first rows of W and of X, and the first row of W whose results it stores.
struct Place {
  int n0, m0, n_from;
};

template <class S>
__device__ __forceinline__ Place place_of(const Problem& p, int tile) {
  const int along_n = p.m_divisor.quotient(tile), m = tile - along_n * int(p.m_divisor.value);
  const int from = along_n * S::height;
  return {narrow::first_row_of_tile<S>(from, int(p.args.n)), m * p.x_box, from};
}

}  // namespace
}  // namespace tilegemm
