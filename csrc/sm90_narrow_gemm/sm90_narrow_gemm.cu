// Hopper: rows of activations times narrow weights with their factors and zeros, from 9 rows to any number.
//
// W is on wgmma's M side (swap AB), from registers: a warp group has 64 rows of W. Codes arrive by TMA, factors and
// zeros by cp.async as they lie, and become numbers of 16 bits in registers on their way to wgmma. Activations arrive
// by TMA. Sums are in f32. Codes less their zeros are exact in 16 bits. A tile's K is the unit of its factors:
//
//   256: a row of W has one factor, which multiplies the sums in the end.
//   128: groups of 128 along K and multiples, and blocks. Up to 128 rows of A factors multiply the sums of a unit; wider
//        tiles multiply codes, and round.
//   32, 16: factors multiply codes, and the product is rounded to 16 bits; of f4e2m1 it is exact.
//
// Where tiles are few, K is split; the sums of the parts meet in the workspace, and another kernel adds them up in the
// order of K. Results that are not finite are computed once more, number by number (narrow/exact.hpp).
#include "common/add_parts.hpp"
#include "common/tensor_map.hpp"
#include "narrow/of_call.hpp"
#include "sm90_narrow_gemm/device.hpp"

namespace tilegemm {
namespace {

template <class S, int UNIT>
tg_status run(const tg_gemm_args& args) {
  using T = typename S::Number;
  const int m = int(args.m), n = int(args.n), k = int(args.k), split = args.config.split;
  const int m_tiles = int(ceil_div(m, S::width)), x_box = int(ceil_div(ceil_div(m, m_tiles), 8) * 8);
  const int tiles = m_tiles * int(ceil_div(n, S::height));
  const int stages = int(ceil_div(ceil_div(k, narrow::batch), S::batches)), of_part = int(ceil_div(stages, split));
  if (int64_t(split - 1) * of_part >= stages) return TG_UNSUPPORTED;
  if (split > 1 && (!args.workspace || args.workspace_bytes < parts_bytes<float>(args))) return TG_UNSUPPORTED;
  CUtensorMap w_map, x_map;
  if (!narrow::codes_map<S>(&w_map, args) ||
      !tensor_map<T>(&x_map, args.a, args.a.row_stride, m, k, args.batch, x_box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
    return TG_UNSUPPORTED;
  const bool wide = rows_at_multiples<T>(8, args.d, args.m, args.batch);
  const auto by = [](uint32_t shared, int64_t extent) { return Divisor(std::min(int64_t(shared), extent)); };
  const narrow::FactorFormat factors = narrow::factor_format<S, UNIT>(args.b_scale);
  const Epilogue<T, float> epilogue(args);
  Problem p{args,
            x_box,
            m_tiles,
            tiles,
            of_part * S::batches,
            factors.format,
            factors.bytes,
            factors.one,
            Divisor(m_tiles),
            by(args.b_scale.ptr ? args.b_scale.rows : UINT32_MAX, args.k),
            by(args.b_scale.ptr ? args.b_scale.columns : UINT32_MAX, args.n),
            narrow::has_vectors(args),
            wide,
            split > 1 || epilogue.is_scaling()};
  Epilogue<T, float> of_sums = epilogue;
  if (split > 1) of_sums.alpha = 1.0f;
  const auto kernel = sm90_narrow_gemm<S>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_bytes)) return cuda_status(error);
  const int blocks = split > 1 ? tiles : std::min(tiles, std::max(int(args.sm_count), 1));
  const Launch launch(args, dim3(unsigned(blocks), unsigned(split)), dim3(S::threads), S::shared_bytes);
  const tg_status status = launch(kernel, w_map, x_map, p, of_sums);
  return status == TG_OK && split > 1 ? launch_add_parts<T, float>(args) : status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  const tg_gemm_args& args = *problem;
  const bool is_tiled = args.config.tile_m == Row::tile_m && args.config.tile_n == Row::tile_n &&
                        args.config.split >= 1 && args.config.split <= 65535;
  using S = narrow::WgmmaShape<Row::b, typename scalar<Row::dtype>::type, Row::tile_m, Row::tile_k>;
  static_assert(Row::tile_n == S::height);
  if (!is_tiled || !narrow::takes_factors<S, Row::tile_k>(args)) return TG_UNSUPPORTED;
  return run<S, Row::tile_k>(args);
}

}  // namespace tilegemm

#include TG_ROWS
