// Hopper: D = A @ B of numbers of 8 bits, e4m3 or s8, with factors of both; K is contiguous in A and B.
//
// The rows of A are called the rows of X here, and the columns of B the rows of W. A row of the table stands for tiles
// of several widths. A plan names the rows of W of a tile, which has the lowest width with so much room, the parts of K
// (`split`) and the stages of the ring; src/family/sm90_fp8_gemm.rs chooses them. The two parts of a split K meet in
// distributed shared memory: there is no workspace, and a product has the same bits every time.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp). Meanwhile it prefetches two stages of W
// into L2; more stages displace each other.
#include "sm90_fp8_gemm/device.hpp"

namespace tilegemm {
namespace {

template <class C>
tg_status run(const tg_gemm_args& args, const Factors& factors) {
  using Out = typename C::Out;
  const int w_box = args.config.tile_n;
  // Factors of blocks: blocks begin at multiples of 16 columns of a tile; those of wide tiles the compiler knows.
  const int unit = !C::blocks ? 8 : C::width % factor_n == 0 ? factor_n : C::width > 128 ? 32 : 16;
  const int64_t m_tiles = ceil_div(args.m, C::tile_m), n_tiles = ceil_div(args.n, w_box), tiles = m_tiles * n_tiles;
  if (args.config.stages != C::stages || w_box % unit ||
      (C::splits && (args.k <= C::depth || tiles * C::cluster > args.sm_count))) {
    return TG_UNSUPPORTED;
  }
  // Rows of a tile of X, as even as possible: TMA takes as long for rows outside of X as for rows inside.
  const int x_box = m_tiles == 1 ? int(args.m) : int(ceil_div(ceil_div(args.m, m_tiles), 16) * 16);
  CUtensorMap w_map, x_map, d_map;
  if (!tensor_map_8(&w_map, args.b.ptr, args.b.col_stride, args.n, args.k, w_box) ||
      !tensor_map_8(&x_map, args.a.ptr, args.a.row_stride, args.m, args.k, x_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B)) {
    return TG_UNSUPPORTED;
  }
  const Epilogue<Out, float> epilogue(args);
  const bool wide = rows_at_multiples<Out>(16 / sizeof(Out), args.d, args.m, args.batch);
  constexpr int chunk = chunk_of<C::width>;
  // A box of D lies inside of its tile, or outside of D.
  bool by_tma = sizeof(Out) == 2 && wide && epilogue.is_plain() && args.n % 8 == 0 && w_box % chunk == 0;
  if (by_tma) {
    const int64_t stride = args.m == 1 ? (args.n + 7) / 8 * 8 : args.d.row_stride;
    by_tma = stride >= args.n &&
             tensor_map<2>(&d_map, CU_TENSOR_MAP_DATA_TYPE_UINT16, args.d.ptr, {cuuint64_t(args.n), cuuint64_t(args.m)},
                           {cuuint64_t(stride) * sizeof(Out)}, {chunk, 16},
                           chunk == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                           : chunk == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                         : CU_TENSOR_MAP_SWIZZLE_32B);
  }
  if (!by_tma) d_map = x_map;
  constexpr int64_t batch[2] = {1, 1};
  constexpr int strip = 2048 / C::tile_m;  // tiles of X that share a strip of W in L2
  const TileOrder order(m_tiles, n_tiles, batch, false, strip);
  const Fp8GemmPlace place{args.d, int(args.m), int(args.n),          int(args.k), int(ceil_div(args.n, factor_n)),
                           x_box,  w_box,       args.overlap ? 2 : 0, order,       epilogue.is_plain(),
                           wide,   by_tma};
  if (const cudaError_t error = allow_shared_memory<C>(sm90_fp8_gemm<C>, C::shared_per_block))
    return cuda_status(error);
  const int clusters = std::min(order.total, args.sm_count / C::cluster);
  return Launch(args, dim3(unsigned(clusters * C::cluster)), dim3(C::threads), C::shared_bytes, dim3(C::cluster))(
      sm90_fp8_gemm<C>, w_map, x_map, d_map, place, factors, epilogue);
}

// The widest tiles need no parts of K: they are for products with many.
template <class Row, int width, Sums sums>
tg_status run_width(const tg_gemm_args& args, const Factors& factors) {
  if (args.config.split == 1) return run<Fp8Gemm<Row, width, sums, false>>(args, factors);
  if constexpr (width <= 128) {
    return run<Fp8Gemm<Row, width, sums, true>>(args, factors);
  }
  return TG_UNSUPPORTED;
}

template <class Row, Sums sums, int... widths>
tg_status run_sums(const tg_gemm_args& args, const Factors& factors, Widths<widths...>) {
  tg_status status = TG_UNSUPPORTED;
  ((args.config.tile_n <= widths && (status = run_width<Row, widths, sums>(args, factors), true)) || ...);
  return status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  const tg_gemm_args& args = *problem;
  const tg_config& config = args.config;
  Factors factors;
  bool blocks;
  if (config.tile_m != Row::tile_m || config.tile_n < 8 || config.cluster_m != 1 || config.cluster_n != 1 ||
      config.split < 1 || config.split > Row::split || config.swap_ab || !factors_of(args, &factors, &blocks)) {
    return TG_UNSUPPORTED;
  }
  constexpr bool exact = Row::dtype == TG_I8, fast = Row::math == TG_FAST_ACCUM;
  if constexpr (exact || fast) {
    return blocks ? TG_UNSUPPORTED : run_sums<Row, Sums::whole>(args, factors, typename Row::widths{});
  } else {
    return blocks ? run_sums<Row, Sums::blocks>(args, factors, typename Row::widths{})
                  : run_sums<Row, Sums::promoted>(args, factors, typename Row::widths{});
  }
}

}  // namespace tilegemm

#include TG_ROWS
