// Any strides, any alignment and any dtype, with K split over the card: for few outputs with a long K, and for problems that no other
// kernel supports.
//
// A block computes one tile of D over one part of K. With several parts, each block writes its sums to the workspace, and a second
// kernel adds the parts of an element in order and applies the epilogue. Results do not change from run to run.
//
// Tiles of up to 4 x 4 need no shared memory (split_k/dot.hpp). Larger tiles pass through shared memory in chunks of `depth` k: on
// tensor cores in 16 bits (split_k/mma.hpp), on the CUDA cores in f32 and f64 (split_k/simt.hpp).
//
// Sums have two levels. A thread adds up to 16 products of neighbouring k in one chain (64 on tensor cores), and adds the chain's sum
// to a total, which is compensated in f32. The error is no more than SGEMM's, however long K is.
#include <climits>

#include "common/launch.hpp"
#include "split_k/block.hpp"
#include "split_k/dot.hpp"
#include "split_k/mma.hpp"
#include "split_k/simt.hpp"

namespace tilegemm {
namespace {

// Adds the parts of each element of D, `LANES` threads to an element, and applies the epilogue.
template <int ARCH, class Out, class Acc, int LANES>
__global__ void __launch_bounds__(threads) add_parts(const __grid_constant__ tg_gemm_args args,
                                                     const __grid_constant__ Epilogue<Out, Acc> epilogue) {
  let_the_next_kernel_start<ARCH>();
  wait_for_the_kernel_before<ARCH>();
  const int64_t matrix = args.m * args.n, count = args.batch[0] * args.batch[1] * matrix;
  const int64_t index = (int64_t(blockIdx.x) * threads + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  Total<Acc> total;
  if (index < count) {
    const Acc* const parts = static_cast<const Acc*>(args.workspace) + index;
#pragma unroll 8
    for (int part = lane; part < args.config.split; part += LANES) total.add(parts[part * count]);
  }
  Acc sum = total.value();
#pragma unroll
  for (int bit = LANES / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
  if (index >= count || lane != 0) return;
  const int64_t j = index % args.n, i = index / args.n % args.m, batch = index / matrix;
  const int64_t batch0 = batch / args.batch[1], batch1 = batch % args.batch[1];
  static_cast<Out*>(args.d.ptr)[i * args.d.row_stride + j * args.d.col_stride + batch0 * args.d.batch_stride[0] +
                                batch1 * args.d.batch_stride[1]] = epilogue(sum, i, j, batch0, batch1);
}

template <class Row>
struct Family {
  using T = typename scalar<Row::dtype>::type;
  using Out = typename scalar<Row::out>::type;
  using Acc = typename scalar<Row::dtype>::accumulator;
  static constexpr int arch = Row::arch;

  // Runs `kernel`, and then the kernel that adds the parts.
  template <class Kernel>
  static tg_status run(tg_gemm_args args, Kernel* kernel, const Grid& grid) {
    if (grid.blocks() > INT_MAX) return TG_UNSUPPORTED;
    args.overlap = args.overlap && arch >= 90;
    const Epilogue<Out, Acc> epilogue(args);
    const tg_status status = Launch(args, dim3(unsigned(grid.blocks())), dim3(threads), 0)(kernel, args, grid, epilogue);
    return status == TG_OK && grid.split > 1 ? add(args) : status;
  }

  static tg_status add(const tg_gemm_args& args) {
    // As many threads for an element as fit on the card at the same time, but no more than there are parts to add.
    const int64_t count = args.m * args.n * args.batch[0] * args.batch[1], room = int64_t(args.sm_count) * threads_of_sm / count;
    const int lanes = args.config.split >= 32 && room >= 32 ? 32 : args.config.split >= 8 && room >= 8 ? 8 : 1;
    const int64_t blocks = ceil_div(count * lanes, threads);
    if (blocks > INT_MAX) return TG_UNSUPPORTED;
    const auto kernel = lanes == 32  ? add_parts<arch, Out, Acc, 32>
                        : lanes == 8 ? add_parts<arch, Out, Acc, 8>
                                     : add_parts<arch, Out, Acc, 1>;
    return Launch(args, dim3(unsigned(blocks)), dim3(threads), 0)(kernel, args, Epilogue<Out, Acc>(args));
  }

  // The tiles that have a kernel, each with the number of k that the length of a part is a multiple of.
  static tg_status launch(const tg_gemm_args& args) {
    tg_status status = TG_UNSUPPORTED;
    const auto with = [&](int tile_m, int tile_n, auto* kernel, int multiple) {
      if (args.config.tile_m == tile_m && args.config.tile_n == tile_n) status = run(args, kernel, Grid(args, tile_m, tile_n, multiple));
    };
    with(1, 1, dot<arch, T, Out, Acc, 1, 1>, 1);
    with(1, 4, dot<arch, T, Out, Acc, 1, 4>, 1);
    with(4, 1, dot<arch, T, Out, Acc, 4, 1>, 1);
    with(4, 4, dot<arch, T, Out, Acc, 4, 4>, 1);
    if constexpr (sizeof(T) == 2) {
      with(16, 64, mma_tile<arch, T, Out, 16, 64>, MmaTile<T, 16, 64>::depth);
      with(64, 16, mma_tile<arch, T, Out, 64, 16>, MmaTile<T, 64, 16>::depth);
      with(16, 16, mma_tile<arch, T, Out, 16, 16>, MmaTile<T, 16, 16>::depth);
      with(32, 32, mma_tile<arch, T, Out, 32, 32>, MmaTile<T, 32, 32>::depth);
      with(64, 64, mma_tile<arch, T, Out, 64, 64>, MmaTile<T, 64, 64>::depth);
    } else {
      with(4, 64, tile<arch, T, Out, Acc, 4, 64>, Tile<T, Acc, 4, 64>::depth);
      with(64, 4, tile<arch, T, Out, Acc, 64, 4>, Tile<T, Acc, 64, 4>::depth);
      with(16, 64, tile<arch, T, Out, Acc, 16, 64>, Tile<T, Acc, 16, 64>::depth);
      with(64, 16, tile<arch, T, Out, Acc, 64, 16>, Tile<T, Acc, 64, 16>::depth);
      with(16, 16, tile<arch, T, Out, Acc, 16, 16>, Tile<T, Acc, 16, 16>::depth);
      with(32, 32, tile<arch, T, Out, Acc, 32, 32>, Tile<T, Acc, 32, 32>::depth);
      with(64, 64, tile<arch, T, Out, Acc, 64, 64>, Tile<T, Acc, 64, 64>::depth);
    }
    return status;
  }
};

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using F = Family<Row>;
  const tg_gemm_args& args = *problem;
  const int64_t count = args.m * args.n * args.batch[0] * args.batch[1];
  if (count == 0) return TG_OK;
  const uint64_t needed = uint64_t(args.config.split) * uint64_t(count) * sizeof(typename F::Acc);
  if (args.k == 0 || args.config.split < 1 || (args.config.split > 1 && (!args.workspace || args.workspace_bytes < needed))) {
    return TG_UNSUPPORTED;
  }
  return F::launch(args);
}

}  // namespace tilegemm

#include TG_ROWS
