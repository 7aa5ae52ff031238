// Hopper, few rows of A: D = A @ B of numbers of 8 bits, e4m3 or s8, with factors of both; K is contiguous in A and B.
//
// The rows of A are called the rows of X here, and the columns of B the rows of W. A row of the table stands for tiles
// of several widths. A plan names the rows of X and of W of a tile, the parts of K (`split`), which the blocks of a
// cluster take, and the stages of the ring; src/family/sm90_fp8_few_rows.rs chooses them. There is no workspace, and a
// product has the same bits every time.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp). Meanwhile it prefetches two stages of W
// into L2; more stages displace each other.
#include "sm90_fp8_few_rows/device.hpp"

namespace tilegemm {
namespace {

template <class C>
tg_status run(const tg_gemm_args& args, const Factors& factors) {
  const int w_box = args.config.tile_n, split = args.config.split, split_log2 = log2_of(split, C::most_split),
            stages = args.config.stages;
  if (args.m > C::width || w_box < 8 || w_box > C::w_rows || w_box % 8 || split_log2 < 0 ||
      args.k <= C::depth * (split - 1) || stages < C::least_stages || stages > C::most_stages ||
      C::bytes(stages, split) > C::shared_per_block ||
      (split == 1 && C::fragments * C::fragment_bytes > stages * C::stage_bytes) ||
      (C::inbox_in_ring && split * C::slots(split) * C::fragment_bytes > stages * C::stage_bytes)) {
    return TG_UNSUPPORTED;
  }
  CUtensorMap w_map, x_map;
  if (!tensor_map_8(&w_map, args.b.ptr, args.b.col_stride, args.n, args.k, w_box) ||
      !tensor_map_8(&x_map, args.a.ptr, args.a.row_stride, args.m, args.k, int(args.m))) {
    return TG_UNSUPPORTED;
  }
  using Out = typename C::Out;
  const Epilogue<Out, float> epilogue(args);
  const Fp8FewRowsPlace place{args.d,
                              int(args.m),
                              int(args.n),
                              int(args.k),
                              int(ceil_div(args.n, factor_n)),
                              w_box,
                              split_log2,
                              stages,
                              args.overlap ? 2 : 0,
                              rows_at_multiples<Out>(2, args.d, args.m, args.batch),
                              epilogue.is_plain()};
  if (const cudaError_t error = allow_shared_memory<C>(sm90_fp8_few_rows<C>, C::shared_per_block))
    return cuda_status(error);
  const dim3 grid(unsigned(ceil_div(args.n, w_box) * split));
  return Launch(args, grid, dim3(C::threads), C::bytes(stages, split), dim3(split))(sm90_fp8_few_rows<C>, w_map, x_map,
                                                                                    place, factors, epilogue);
}

template <class Row, Sums sums, int... widths>
tg_status run_width(const tg_gemm_args& args, const Factors& factors, Widths<widths...>) {
  tg_status status = TG_UNSUPPORTED;
  ((args.config.tile_m == widths && (status = run<Fp8FewRows<Row, widths, sums>>(args, factors), true)) || ...);
  return status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  const tg_gemm_args& args = *problem;
  const tg_config& config = args.config;
  Factors factors;
  bool blocks;
  if (config.cluster_m != 1 || config.cluster_n != 1 || !config.swap_ab || !factors_of(args, &factors, &blocks)) {
    return TG_UNSUPPORTED;
  }
  constexpr bool exact = Row::dtype == TG_I8, fast = Row::math == TG_FAST_ACCUM;
  if constexpr (exact || fast) {
    return blocks ? TG_UNSUPPORTED : run_width<Row, Sums::whole>(args, factors, typename Row::widths{});
  } else {
    return blocks ? run_width<Row, Sums::blocks>(args, factors, typename Row::widths{})
                  : run_width<Row, Sums::promoted>(args, factors, typename Row::widths{});
  }
}

}  // namespace tilegemm

#include TG_ROWS
