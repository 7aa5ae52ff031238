// What the kernel knows of a problem beside the call's arguments.
#pragma once
#include "common/epilogue.hpp"
#include "sm90_narrow_gemm/shape.hpp"

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

// Unless W has a single tile, the last tile ends with N or up to 15 rows later.
template <class S>
__device__ __forceinline__ Place place_of(const Problem& p, int tile) {
  const int along_n = p.m_divisor.quotient(tile), m = tile - along_n * int(p.m_divisor.value);
  const int from = along_n * S::height, last = (max(int(p.args.n) - S::height, 0) + 15) / 16 * 16;
  return {min(from, last), m * p.x_box, from};
}

// The factor of row n of W and of a group along K.
__device__ __forceinline__ int64_t place_of_factor(const Problem& p, int group, int n) {
  return group * p.args.b_scale.row_stride + p.of_block.quotient(n) * p.args.b_scale.col_stride;
}

__device__ __forceinline__ uint32_t factor_bits(const void* factors, int bytes, int64_t at) {
  if (bytes == 4) return static_cast<const uint32_t*>(factors)[at];
  if (bytes == 2) return static_cast<const uint16_t*>(factors)[at];
  return static_cast<const uint8_t*>(factors)[at];
}

}  // namespace
}  // namespace tilegemm
