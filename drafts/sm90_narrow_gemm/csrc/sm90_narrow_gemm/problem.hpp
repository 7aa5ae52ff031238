// What the kernel knows of a problem beside the call's arguments.
#pragma once
#include "common/epilogue.hpp"
#include "narrow/weights.hpp"
#include "sm90_narrow_gemm/shape.hpp"

namespace tilegemm {
namespace {

struct Problem {
  tg_gemm_args args;
  narrow::Weights w;
  int x_box;                // rows of X of a tile
  int m_tiles, n_tiles, tiles;  // tiles: clusters of blocks that share X, for all of D
  int share, split;         // blocks of a cluster that share X; parts of K
  bool in_cluster;          // whether the parts of K are blocks of a cluster; otherwise they are in the workspace
  int batches_of_part;      // of K
  Divisor m_divisor, group;
  bool vectors;             // lines of factors and of zero points are at multiples of 16 bytes
  bool is_f32, wide, plain;  // D is in f32; its rows are aligned to 16 bytes; the epilogue is the product times alpha
};

// A tile of a block: its first rows of W and of X, and the first row of W whose results it stores.
struct Place {
  int n0, m0, n_from;
};

// The tile `tile` of the cluster, for the block at place `at` of those that share X. Unless W has a single tile, the
// last tile ends with N or up to 15 rows later.
template <class S>
__device__ __forceinline__ Place place_of(const Problem& p, int tile, int at) {
  const int along_n = p.m_divisor.quotient(tile), m = tile - along_n * int(p.m_divisor.value);
  const int from = (along_n * p.share + at) * S::height, last = (max(int(p.args.n) - S::height, 0) + 15) / 16 * 16;
  return {min(from, last), m * p.x_box, from};
}

}  // namespace
}  // namespace tilegemm
