// Hopper, up to 128 rows of A: D = A @ B on the tensor cores, with K contiguous in A and B. raw.hpp also takes a B
// whose N is contiguous.
//
// The columns of B are called the rows of W here. W is wgmma's M side and A is wgmma's N side, and the product is D^T.
// A producer keeps a ring of loads full, and a warp group multiplies (few_rows.hpp).
//
// A row of the table stands for tiles of several widths. A plan names the tile of D, the parts of K (`split`), which
// the blocks of a cluster take, and the stages of the ring; src/family/sm90_few_rows.rs chooses them. There is no
// workspace, and a product has the same bits every time.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp). Meanwhile the kernel prefetches two stages
// of W into L2; more stages displace each other.
#include "sm90_few_rows/few_rows.hpp"

namespace tilegemm {
namespace {

template <class Row, int Width>
tg_status run(const tg_gemm_args& args, FewRows<Row, Width>) {
  using C = FewRows<Row, Width>;
  using T = typename C::Element;
  const int split = args.config.split, split_log2 = log2_of(split, C::most_split), stages = args.config.stages;
  if (args.m > C::a_rows || split_log2 < 0 || args.k <= C::depth * (split - 1) || stages < C::least_stages ||
      stages > C::stages(split)) {
    return TG_UNSUPPORTED;
  }
  CUtensorMap w_map{}, a_map;
  // TMA takes as long for rows outside of A as for rows inside.
  if ((!C::raw && !tensor_map<T>(&w_map, args.b, args.b.col_stride, args.n, args.k, args.batch, C::w_rows)) ||
      !tensor_map<T>(&a_map, args.a, args.a.row_stride, args.m, args.k, args.batch, int(args.m))) {
    return TG_UNSUPPORTED;
  }
  const int64_t tiles = ceil_div(args.n, C::w_rows), batches = args.batch[0] * args.batch[1];
  const bool pairs = rows_at_multiples<T>(2, args.d, args.m, args.batch);
  const Epilogue<typename C::Out, float> epilogue(args);
  // The numbers of a row of C, and of the bias, are contiguous; all rows have the same bias.
  const bool c_fits = args.beta == 0 || args.c.col_stride == 1,
             bias_fits = !args.bias.ptr || (args.bias.row_stride == 0 && args.bias.col_stride == 1);
  const FewRowsPlace place{{args.d, int(args.m), int(args.n), int(args.k), int(args.batch[1])},
                           args.b,
                           split_log2,
                           stages,
                           args.overlap ? 2 : 0,
                           pairs,
                           epilogue.is_plain(),
                           !epilogue.is_plain() && c_fits && bias_fits,
                           rows_at_multiples<T>(2, args.c, args.m, args.batch)};

  if (const cudaError_t error = allow_shared_memory<C>(sm90_few_rows<C>, C::shared_per_block))
    return cuda_status(error);
  const int bytes = stages * C::stage_bytes + C::inbox_bytes(split) + C::barriers_bytes;
  const dim3 grid(unsigned(tiles * split), unsigned(batches));
  return Launch(args, grid, dim3(C::threads), bytes, dim3(split))(sm90_few_rows<C>, w_map, a_map, place, epilogue);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* args) {
  return run_width<FewRows, Row>(*args, typename Row::widths{});
}

}  // namespace tilegemm

#include TG_ROWS
