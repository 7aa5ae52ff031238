// What sm90_sgemm and sm90_dgemm have in common: how products are cut into tiles, and how TMA sees their operands.
#pragma once
#include <algorithm>
#include <climits>
#include <optional>

#include "common/epilogue.hpp"
#include "common/tensor_map.hpp"
#include "common/tile_order.hpp"

namespace tilegemm {

// A product as blocks see it.
struct Tiles {
  tg_matrix d;
  int m, n, k;
  TileOrder order;

  template <class T>
  __device__ __forceinline__ T* d_of(const Tile& tile) const {
    return static_cast<T*>(d.ptr) + tile.batch0 * d.batch_stride[0] + tile.batch1 * d.batch_stride[1];
  }
};

// Nothing: there are too many of something for 32 bits; src/kernel/limits.rs has the same numbers.
inline std::optional<Tiles> cut_into_tiles(const tg_gemm_args& args, int tile_m, int tile_n) {
  constexpr int64_t most = INT_MAX / 4;
  const int64_t batches = args.batch[0] * args.batch[1];
  if (args.m > most || args.n > most || args.k > most || batches > most) return {};
  const int64_t along_m = ceil_div(args.m, tile_m), along_n = ceil_div(args.n, tile_n);
  if (along_m * along_n > most / batches) return {};
  // Eight rows of tiles are the best or within 1 % of it for all that was measured (H100: 4, 8 and 16).
  const TileOrder order(along_m, along_n, args.batch, false, 8);
  return Tiles{args.d, int(args.m), int(args.n), int(args.k), order};
}

// D^T = B^T @ A^T
inline tg_gemm_args exchanged(const tg_gemm_args& args) {
  tg_gemm_args other = args;
  std::swap(other.m, other.n);
  std::swap(other.a, other.b);
  std::swap(other.config.tile_m, other.config.tile_n);
  for (tg_matrix* matrix : {&other.a, &other.b, &other.c, &other.d, &other.bias}) {
    std::swap(matrix->row_stride, matrix->col_stride);
  }
  return other;
}

// In boxes of `box_length` elements of `box_lines` lines. False: TMA cannot address it.
template <class T>
bool tensor_map(CUtensorMap* map, const Lines& of, int box_length, int box_lines, CUtensorMapSwizzle swizzle) {
  constexpr int64_t size = sizeof(T), unit = 16 / size;
  // The stride of a single line or matrix means nothing, and may be anything.
  const auto stride = [&](int64_t count, int64_t stride) { return count == 1 ? ceil_div(of.length, unit) * unit : stride; };
  const int64_t line = stride(of.lines, of.stride), inner = stride(of.batch[1], of.batch_stride[1]);
  const int64_t outer = stride(of.batch[0], of.batch_stride[0]);
  if (line < of.length || line % unit || inner < 0 || inner % unit || outer < 0 || outer % unit) return false;
  const cuuint64_t extents[] = {cuuint64_t(of.length), cuuint64_t(of.lines), cuuint64_t(of.batch[1]), cuuint64_t(of.batch[0])};
  const cuuint64_t strides[] = {cuuint64_t(line * size), cuuint64_t(inner * size), cuuint64_t(outer * size)};
  const cuuint32_t box[] = {cuuint32_t(box_length), cuuint32_t(box_lines), 1, 1}, steps[] = {1, 1, 1, 1};
  constexpr auto type = size == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT64;
  const auto encode = driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  return encode && encode(map, type, 4, of.ptr, extents, strides, box, steps,
                          CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                          CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace tilegemm
