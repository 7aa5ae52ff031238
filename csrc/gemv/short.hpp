// One to four rows of A with a short K: D = A @ B on the CUDA cores, with K contiguous in A and B and no longer than
// 512 bytes. The scores of attention in decoding are such products.
//
// If a whole warp shared one row of W, most lanes would idle. Here, a row is shared by one lane for each 16 bytes of
// the row. A warp then computes several rows at a time, and a lane keeps its part of A in registers throughout. Sums
// are added over the lanes of a row; no sum needs shared memory or a barrier. The grid is persistent: the next rows are
// loaded during the sums. Part of gemv.cu.
#pragma once
#include <algorithm>

#include "common/cuda_cores.hpp"
#include "common/epilogue.hpp"
#include "common/launch.hpp"
#include "gemv/sums.hpp"

namespace tilegemm {
namespace {

constexpr int64_t most_short_bytes = lanes * 16;  // the most bytes of K
constexpr int short_threads = 256;

// ROW_LANES lanes read a row of W.
template <int M, int ROW_LANES>
struct ShortTile {
  static constexpr int threads = short_threads, groups = lanes / ROW_LANES, turns = 2, rows = groups * turns;
  using Sums = LaneSums<M * turns, ROW_LANES / 2>;
};

template <class T, class Out, int M, int ROW_LANES>
__global__ void __launch_bounds__(ShortTile<M, ROW_LANES>::threads, 3)
    gemv_short(const __grid_constant__ GemvProblem<Out> p, const __grid_constant__ Epilogue<Out, float> epilogue) {
  using C = ShortTile<M, ROW_LANES>;
  const int lane = threadIdx.x % lanes, group = lane / ROW_LANES, k = lane % ROW_LANES * width<T>;
  constexpr int warps = C::threads / lanes;
  int tile = int(blockIdx.x) * warps + threadIdx.x / lanes;
  const int tiles = (p.n + C::rows - 1) / C::rows;
  launch_dependents();

  const Batch batch(p.inner_batch);
  const T* const a = batch.of<const T>(p.a) + k;
  const T* const w = batch.of<const T>(p.b) + k;
  if (tile < tiles) {
    const T* const first = batch.of<const T>(p.b) + int64_t(tile) * C::rows * p.b.col_stride;
    const int count = min(C::rows, p.n - tile * C::rows), bytes = p.k * int(sizeof(T));
    if (p.b.col_stride == p.k) {
      if (lane == 0) prefetch_l2(first, count * bytes, evict_first);
    } else if (lane < count) {
      prefetch_l2(first + lane * p.b.col_stride, bytes, evict_first);
    }
  }
  griddepcontrol_wait();
  if (tile >= tiles) return;

  // Numbers beyond K are zeros. Rows beyond M and N repeat the last row and are never stored.
  const bool exists = k < p.k;
  uint4 weights[C::turns];  // (N), a vector along K each
  const auto row = [&](int tile, int turn) { return tile * C::rows + turn * C::groups + group; };
  const auto load = [&](int tile, int turn) {
    weights[turn] = make_uint4(0, 0, 0, 0);
    if (exists) weights[turn] = load_weights(w + min(row(tile, turn), p.n - 1) * p.b.col_stride);
  };
#pragma unroll
  for (int turn = 0; turn < C::turns; turn++) load(tile, turn);
  float y[M][width<T>];  // (M,K)
#pragma unroll
  for (int m = 0; m < M; m++) {
    uint4 x = make_uint4(0, 0, 0, 0);
    if (exists) x = load_activations(a + min(m, p.m - 1) * p.a.row_stride);
    constexpr int numbers = 4 / sizeof(T);
#pragma unroll
    for (int i = 0; i < 4; i++) unpack<T>(word(x, i), reinterpret_cast<float (&)[numbers]>(y[m][i * numbers]));
  }

  // The element of D that the lane stores, of each tile.
  static_assert(C::Sums::left == 1);
  const int value = C::Sums::first(lane), d_m = value / C::turns;
  const auto n_of = [&](int tile) { return row(tile, value % C::turns); };
  const auto stores = [&](int tile) { return lane % C::Sums::twins == 0 && d_m < p.m && n_of(tile) < p.n; };
  Added<Out> added;
  if (!p.plain && stores(tile)) added.load(epilogue, d_m, n_of(tile), batch);

  for (;;) {
    const int this_tile = tile;
    tile += int(gridDim.x) * warps;
    const bool more = tile < tiles;
    float sum[M * C::turns] = {};  // (m, turn)
#pragma unroll
    for (int turn = 0; turn < C::turns; turn++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        constexpr int numbers = 4 / sizeof(T);
        float u[numbers];
        unpack<T>(word(weights[turn], i), u);
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
          for (int j = 0; j < numbers; j++) {
            sum[m * C::turns + turn] = fmaf(u[j], y[m][i * numbers + j], sum[m * C::turns + turn]);
          }
        }
      }
      if (more) load(tile, turn);
    }
    C::Sums::add(sum, lane);
    if (stores(this_tile)) {
      Out* const to = batch.of<Out>(p.d) + d_m * p.d.row_stride + n_of(this_tile) * p.d.col_stride;
      *to = p.plain ? Out(sum[0]) : added.finish(sum[0], epilogue);
    }
    if (!more) return;
    if (!p.plain && stores(tile)) added.load(epilogue, d_m, n_of(tile), batch);
  }
}

template <class T, class Out, int M, int ROW_LANES>
tg_status launch_short_rows(const tg_gemm_args& args) {
  using C = ShortTile<M, ROW_LANES>;
  if (args.m > M || args.k > ROW_LANES * width<T>) return TG_UNSUPPORTED;
  const int64_t batches = args.batch[0] * args.batch[1];
  const int64_t tiles = ceil_div(args.n, C::rows), blocks = ceil_div(tiles, C::threads / lanes);
  if (Rehearsal::is_on()) return TG_OK;  // the number of blocks depends on the device
  // Exactly as many blocks as run at a time: with fewer or more blocks, some multiprocessors get twice as many blocks
  // as others.
  const auto kernel = gemv_short<T, Out, M, ROW_LANES>;
  static const int blocks_per_sm = [kernel] {
    int blocks = 0;
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, C::threads, 0) == cudaSuccess ? blocks : 1;
  }();
  const int64_t most = std::max<int64_t>(1, int64_t(args.sm_count) * blocks_per_sm / batches);
  const GemvProblem<Out> p(args);
  const Epilogue<Out, float> epilogue(args);
  const dim3 grid(unsigned(std::min(blocks, most)), unsigned(batches));
  return Launch(args, grid, dim3(C::threads), 0)(kernel, p, epilogue);
}

template <class T, class Out, int M>
tg_status launch_short_lanes(const tg_gemm_args& args) {
  switch (args.config.tile_n) {
    case ShortTile<M, 8>::rows: return launch_short_rows<T, Out, M, 8>(args);
    case ShortTile<M, 16>::rows: return launch_short_rows<T, Out, M, 16>(args);
    case ShortTile<M, 32>::rows: return launch_short_rows<T, Out, M, 32>(args);
    default: return TG_UNSUPPORTED;
  }
}

// For problems with at most four rows.
template <class T, class Out>
tg_status launch_short(const tg_gemm_args& args) {
  if (args.config.split != 1 || args.config.warps != short_threads / lanes) return TG_UNSUPPORTED;
  switch (args.config.tile_m) {
    case 1: return launch_short_lanes<T, Out, 1>(args);
    case 2: return launch_short_lanes<T, Out, 2>(args);
    case 4: return launch_short_lanes<T, Out, 4>(args);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace
}  // namespace tilegemm
