#include "sm90_fp8_gemm/device.hpp"

#include "draft.h"

namespace tilegemm {
namespace {

template <class C>
tg_status run(const Problem& p, const Choice& c) {
  const tg_gemm_args args = args_of(p);
  using Out = typename C::Out;
  const int64_t m_tiles = ceil_div(p.m, C::tile_m * C::sharing) * C::sharing, n_tiles = ceil_div(p.n, c.w_box);
  // Rows of a tile of X, as even as possible: TMA takes as long for rows outside of X as for rows inside.
  const int x_box = m_tiles == 1 ? int(p.m) : int(ceil_div(ceil_div(p.m, m_tiles), 16) * 16);
  // Factors of blocks: blocks begin at multiples of 16 columns of a tile; those of wide tiles the compiler knows.
  const int unit = !C::blocks ? 8 : C::width % factor_n == 0 ? factor_n : C::width > 128 ? 32 : 16;
  if (c.w_box > C::width || c.w_box % unit || c.w_box % (8 * C::sharing) ||
      (C::splits && (p.k <= C::depth || m_tiles * n_tiles * 2 > args.sm_count)))
    return TG_UNSUPPORTED;
  CUtensorMap w_map, x_map, d_map;
  if (!tensor_map_8(&w_map, p.w, p.w_stride, p.n, p.k, c.w_box / C::sharing) ||
      !tensor_map_8(&x_map, p.x, p.x_stride, p.m, p.k, x_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
    return TG_UNSUPPORTED;
  const Epilogue<Out, float> epilogue(args);
  const bool wide = rows_at_multiples<Out>(16 / sizeof(Out), args.d, p.m, args.batch);
  constexpr int chunk = chunk_of<C::width>;
  bool by_tma = sizeof(Out) == 2 && wide && epilogue.is_plain() && p.n % 8 == 0 && c.w_box % chunk == 0 &&
                (x_box % 16 == 0 || m_tiles == 1);
  by_tma = by_tma && tensor_map<2>(&d_map, CU_TENSOR_MAP_DATA_TYPE_UINT16, p.d, {cuuint64_t(p.n), cuuint64_t(p.m)},
                                   {cuuint64_t(p.d_stride) * sizeof(Out)}, {chunk, 16},
                                   chunk == 64   ? CU_TENSOR_MAP_SWIZZLE_128B
                                   : chunk == 32 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                 : CU_TENSOR_MAP_SWIZZLE_32B);
  if (!by_tma) d_map = x_map;
  const int64_t batch[2] = {1, 1};
  const TileOrder order(m_tiles / C::sharing, n_tiles, batch, false, std::max(1, c.strip / (C::tile_m * C::sharing)));
  const Fp8GemmPlace place{args.d,
                           int(p.m),
                           int(p.n),
                           int(p.k),
                           int(ceil_div(p.n, factor_n)),
                           x_box,
                           c.w_box,
                           p.overlap ? p.prefetch : 0,
                           order,
                           epilogue.is_plain(),
                           wide,
                           by_tma};
  if (const cudaError_t error = allow_shared_memory<C>(sm90_fp8_gemm<C>, C::shared_per_block))
    return cuda_status(error);
  const int clusters = std::min(order.total, args.sm_count / C::cluster);
  return Launch(args, dim3(unsigned(clusters * C::cluster)), dim3(C::threads), C::shared_bytes, dim3(C::cluster))(
      sm90_fp8_gemm<C>, w_map, x_map, d_map, place, p.factors, epilogue);
}

template <class T, class Out, int width, Sums sums>
tg_status of_pair(const Problem& p, const Choice& c) {
  switch (c.pair) {
    case 0: return run<Fp8Gemm<T, Out, width, sums, Pair::none>>(p, c);
    case 1:
      if constexpr (width >= 96) {
        return run<Fp8Gemm<T, Out, width, sums, Pair::shares_w>>(p, c);
      }
      return TG_UNSUPPORTED;
    default: return run<Fp8Gemm<T, Out, width, sums, Pair::splits_k>>(p, c);
  }
}

template <class T, class Out, int width>
tg_status of_sums(const Problem& p, const Choice& c) {
  if (c.sums == 0) return of_pair<T, Out, width, Sums::whole>(p, c);
  if constexpr (!std::is_same_v<T, int8_t>) {
    if (c.sums == 1) return of_pair<T, Out, width, Sums::promoted>(p, c);
    if (c.sums == 2) return of_pair<T, Out, width, Sums::blocks>(p, c);
  }
  return TG_UNSUPPORTED;
}

template <class T, class Out, int... widths>
tg_status of_width(const Problem& p, const Choice& c) {
  tg_status status = TG_UNSUPPORTED;
  ((c.width == widths && (status = of_sums<T, Out, widths>(p, c), true)) || ...);
  return status;
}

}  // namespace
}  // namespace tilegemm

extern "C" int w8a8_gemm(const Problem* p, int int8, int out, const Choice* choice) {
  using namespace tilegemm;
  using F8 = __nv_fp8_e4m3;
  const Choice& c = *choice;
  if (int8) return of_width<int8_t, __nv_bfloat16, 128, 256>(*p, c);
  if (out == TG_BF16) return of_width<F8, __nv_bfloat16, 64, 96, 112, 128, 192, 224, 256>(*p, c);
  if (out == TG_F16) return of_width<F8, __half, 128>(*p, c);
  return of_width<F8, float, 256>(*p, c);
}
