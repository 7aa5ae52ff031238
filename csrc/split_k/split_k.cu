// Any strides, any alignment and any dtype, with K split over the card: for few outputs with a long K, and for problems
// that no other kernel supports.
//
// A block computes one tile of D over one part of K. With several parts, each block writes its sums to the workspace,
// and a second kernel adds the parts of an element in order and applies the epilogue. Results do not change from run to
// run.
//
// Tiles of up to 4 x 4 need no shared memory (split_k/dot.hpp). Larger tiles pass through shared memory in chunks of
// `depth` k: on tensor cores in 16 bits (split_k/mma.hpp), on the CUDA cores in f32 and f64 (split_k/simt.hpp).
//
// Sums have two levels. A thread adds up to 16 products of neighbouring k in one chain (64 on tensor cores), and adds
// the chain's sum to a total, which is compensated in f32. The error is no more than SGEMM's, however long K is.
#include <climits>

#include "split_k/block.hpp"
#include "split_k/dot.hpp"
#include "split_k/mma.hpp"
#include "split_k/simt.hpp"

namespace tilegemm {
namespace {

template <class Row>
struct Family {
  using T = typename scalar<Row::dtype>::type;
  using Out = typename scalar<Row::out>::type;
  using Acc = typename scalar<Row::dtype>::accumulator;

  // Runs `kernel`, and then the kernel that adds the parts.
  template <class Kernel>
  static tg_status run(const tg_gemm_args& args, Kernel* kernel, const Grid& grid) {
    if (grid.blocks() > INT_MAX) return TG_UNSUPPORTED;
    const Epilogue<Out, Acc> epilogue(args);
    const tg_status status =
        Launch(args, dim3(unsigned(grid.blocks())), dim3(threads), 0)(kernel, args, grid, epilogue);
    return status == TG_OK && grid.split > 1 ? launch_add_parts<Out, Acc>(args) : status;
  }

  // The tiles that have a kernel, each with the number of k that the length of a part is a multiple of.
  static tg_status launch(const tg_gemm_args& args) {
    tg_status status = TG_UNSUPPORTED;
    const auto with = [&](int tile_m, int tile_n, auto* kernel, int multiple) {
      if (args.config.tile_m == tile_m && args.config.tile_n == tile_n)
        status = run(args, kernel, Grid(args, tile_m, tile_n, multiple));
    };
    with(1, 1, split_k_dot<T, Out, Acc, 1, 1>, 1);
    with(1, 4, split_k_dot<T, Out, Acc, 1, 4>, 1);
    with(4, 1, split_k_dot<T, Out, Acc, 4, 1>, 1);
    with(4, 4, split_k_dot<T, Out, Acc, 4, 4>, 1);
    if constexpr (sizeof(T) == 2) {
      with(16, 64, split_k_mma<T, Out, 16, 64>, MmaTile<T, 16, 64>::depth);
      with(64, 16, split_k_mma<T, Out, 64, 16>, MmaTile<T, 64, 16>::depth);
      with(16, 16, split_k_mma<T, Out, 16, 16>, MmaTile<T, 16, 16>::depth);
      with(32, 32, split_k_mma<T, Out, 32, 32>, MmaTile<T, 32, 32>::depth);
      with(64, 64, split_k_mma<T, Out, 64, 64>, MmaTile<T, 64, 64>::depth);
    } else {
      with(4, 64, split_k_tile<T, Out, Acc, 4, 64>, Tile<T, Acc, 4, 64>::depth);
      with(64, 4, split_k_tile<T, Out, Acc, 64, 4>, Tile<T, Acc, 64, 4>::depth);
      with(16, 64, split_k_tile<T, Out, Acc, 16, 64>, Tile<T, Acc, 16, 64>::depth);
      with(64, 16, split_k_tile<T, Out, Acc, 64, 16>, Tile<T, Acc, 64, 16>::depth);
      with(16, 16, split_k_tile<T, Out, Acc, 16, 16>, Tile<T, Acc, 16, 16>::depth);
      with(32, 32, split_k_tile<T, Out, Acc, 32, 32>, Tile<T, Acc, 32, 32>::depth);
      with(64, 64, split_k_tile<T, Out, Acc, 64, 64>, Tile<T, Acc, 64, 64>::depth);
    }
    return status;
  }
};

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using F = Family<Row>;
  const tg_gemm_args& args = *problem;
  const bool needs_parts = args.config.split > 1,
             has_parts = args.workspace && args.workspace_bytes >= parts_bytes<typename F::Acc>(args);
  if (args.config.split < 1 || (needs_parts && !has_parts)) return TG_UNSUPPORTED;
  return F::launch(args);
}

}  // namespace tilegemm

#include TG_ROWS
