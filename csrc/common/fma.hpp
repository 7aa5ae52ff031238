// Common to kernels whose sums are chains of fused multiply-adds along K: the division of a product into tiles, and the
// swap of operands.
#pragma once
#include <algorithm>
#include <climits>
#include <optional>

#include "common/epilogue.hpp"
#include "common/tensor_map.hpp"
#include "common/tile_order.hpp"

namespace tilegemm {

// A product, and the order in which blocks take the product's tiles.
struct Tiles {
  tg_matrix d;
  int m, n, k;
  TileOrder order;
};

// Empty where the tiles of the batch are too many. src/family/sm90_sgemm.rs has the same number; sm90_dgemm has it in
// its limits.
inline std::optional<Tiles> cut_into_tiles(const tg_gemm_args& args, int tile_m, int tile_n) {
  constexpr int64_t most = INT_MAX / 4;
  const int64_t batches = args.batch[0] * args.batch[1];
  const int64_t along_m = ceil_div(args.m, tile_m), along_n = ceil_div(args.n, tile_n);
  if (along_m * along_n > most / batches) return {};
  // Strips of eight rows of tiles were the best or within 1 % of the best in all measurements (H100: 4, 8 and 16).
  const TileOrder order(along_m, along_n, args.batch, false, 8);
  return Tiles{args.d, int(args.m), int(args.n), int(args.k), order};
}

// D^T = B^T @ A^T
inline tg_gemm_args swapped(const tg_gemm_args& args) {
  tg_gemm_args other = args;
  std::swap(other.m, other.n);
  std::swap(other.a, other.b);
  std::swap(other.config.tile_m, other.config.tile_n);
  for (tg_matrix* matrix : {&other.a, &other.b, &other.c, &other.d, &other.bias}) {
    std::swap(matrix->row_stride, matrix->col_stride);
  }
  return other;
}

}  // namespace tilegemm
