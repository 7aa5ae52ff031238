// Common to the kernels of split_k: the place of a block's work, the destination of its sums, and the way of a part of
// an operand to shared memory.
#pragma once
#include "common/add_parts.hpp"

namespace tilegemm {
namespace {

constexpr int threads = 256, warps = threads / 32;
constexpr int chain = 16;  // products that a thread adds before their sum goes to its total

// A block's work: the tile, its matrix, and the k's.
struct Grid {
  int64_t tiles_m, tiles_n, matrices, split, k_part;

  Grid(const tg_gemm_args& args, int tile_m, int tile_n, int64_t multiple)
      : tiles_m(ceil_div(args.m, tile_m)), tiles_n(ceil_div(args.n, tile_n)), matrices(args.batch[0] * args.batch[1]),
        split(args.config.split), k_part(ceil_div(ceil_div(args.k, split), multiple) * multiple) {}

  int64_t blocks() const { return tiles_m * tiles_n * matrices * split; }
};

// The place of one block. Blocks that run side by side share a part of K, and with that rows of A and columns of B in
// L2.
struct Place {
  int64_t part, matrix, batch0, batch1, m0, n0, k_begin, k_end;

  __device__ Place(const tg_gemm_args& args, const Grid& grid, int tile_m, int tile_n) {
    int64_t index = blockIdx.x;
    m0 = index % grid.tiles_m * tile_m, index /= grid.tiles_m;
    n0 = index % grid.tiles_n * tile_n, index /= grid.tiles_n;
    matrix = index % grid.matrices, part = index / grid.matrices;
    batch0 = matrix / args.batch[1], batch1 = matrix % args.batch[1];
    k_begin = min(part * grid.k_part, args.k), k_end = min(k_begin + grid.k_part, args.k);
  }

  template <class T>
  __device__ T* of(const tg_matrix& matrix) const {
    return matrix_of<T>(matrix, batch0, batch1);
  }

  // One sum of this block: to D if it is whole, else to the workspace.
  template <class Out, class Acc>
  __device__ void emit(Acc sum, int64_t i, int64_t j, const tg_gemm_args& args, const Grid& grid,
                       const Epilogue<Out, Acc>& epilogue) const {
    if (grid.split > 1) {
      *part_at<Acc>(args, part, matrix, i, j) = sum;
    } else {
      of<Out>(args.d)[i * args.d.row_stride + j * args.d.col_stride] = epilogue(sum, i, j, batch0, batch1);
    }
  }
};

// An operand's part of a tile, MN x DEPTH, on its way to shared memory as numbers of type S: K_MAJOR row by row, else k
// by k.
template <class T, class S, int MN, int DEPTH, bool K_MAJOR>
struct Loader {
  // Spreads what a warp reads at the same time over the banks.
  static constexpr int pitch = K_MAJOR ? DEPTH + 8 : MN >= 16 ? MN + 4 : MN;
  static constexpr int size = (K_MAJOR ? MN : DEPTH) * pitch;
  static constexpr int count = (MN * DEPTH + threads - 1) / threads;
  static constexpr bool whole = MN * DEPTH % threads == 0;

  const T* from;
  int64_t each, chunk;  // distance of a thread's numbers, and of chunks
  int mn, mn_step, k, k_step, mn_left;
  T held[count];

  // Adjacent threads read along the dimension with the smaller stride.
  __device__ Loader(const T* matrix, int64_t mn0, int64_t mn_end, int64_t k0, int64_t mn_stride, int64_t k_stride) {
    const bool along_k = llabs(k_stride) < llabs(mn_stride);
    const int thread = int(threadIdx.x);
    mn = along_k ? thread / DEPTH : thread % MN, mn_step = along_k ? threads / DEPTH : 0;
    k = along_k ? thread % DEPTH : thread / MN, k_step = along_k ? 0 : threads / MN;
    mn_left = int(min(mn_end - mn0, int64_t(MN)));
    from = matrix + (mn0 + mn) * mn_stride + (k0 + k) * k_stride;
    each = along_k ? mn_step * mn_stride : k_step * k_stride;
    chunk = DEPTH * k_stride;
  }

  // Numbers beyond the tile and beyond K are not read and count as 0.
  __device__ void load(int64_t k_left) {
#pragma unroll
    for (int e = 0; e < count; e++) {
      const bool exists = mn + e * mn_step < mn_left && k + e * k_step < min(k_left, int64_t(DEPTH));
      held[e] = exists ? from[e * each] : T(0);
    }
    from += chunk;
  }

  __device__ static int at(int mn, int k) { return K_MAJOR ? mn * pitch + k : k * pitch + mn; }

  __device__ void store(S* shared) const {
#pragma unroll
    for (int e = 0; e < count; e++) {
      if (whole || (mn + e * mn_step < MN && k + e * k_step < DEPTH)) {
        shared[at(mn + e * mn_step, k + e * k_step)] = S(held[e]);
      }
    }
  }
};

}  // namespace
}  // namespace tilegemm
