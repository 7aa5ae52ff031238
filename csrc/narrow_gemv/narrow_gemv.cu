// Up to 16 rows of activations times narrow weights, at the speed of memory.
//
// Codes become f16 numbers, exactly, and are multiplied on tensor cores by activations in f16 (activations.hpp).
// Factors multiply sums over the numbers of K that share one, in f32. A sum that is not finite is computed once more,
// number by number (exact.hpp).
//
// A configuration has, in `tile`, the rows of X that an instance is for and the rows of W that a block multiplies at a
// time; in `cluster`, the blocks that share K; in `split`, all parts of K; and in `stages`, slots of a warp's ring.
// There is no workspace.
#include "common/launch.hpp"
#include "common/tensor_map.hpp"
#include "narrow_gemv/device.hpp"

namespace tilegemm {
namespace {

// W in boxes of a slot: 128 bytes of a warp's rows.
inline bool map_of_codes(CUtensorMap* map, const tg_gemm_args& args, const GemvShape& shape) {
  // The stride of a single row has no effect.
  const int64_t row_bytes =
      args.n == 1 ? ceil_div(shape.bytes_of_k, 16) * 16 : narrow::bytes_of(args.types.b, args.b.col_stride);
  return tensor_map<3>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, args.b.ptr,
                       {cuuint64_t(shape.bytes_of_k), cuuint64_t(args.n), 1},
                       {cuuint64_t(row_bytes), cuuint64_t(row_bytes)}, {128, cuuint32_t(shape.rows_of_warp), 1},
                       CU_TENSOR_MAP_SWIZZLE_128B);
}

template <class Row, class S>
tg_status run(const tg_gemm_args& args, const GemvPlan& plan, int64_t teams) {
  constexpr int most_bytes = most_bytes_of_block(Row::arch);
  const GemvShape shape = shape_of<S>(args, plan, teams);
  CUtensorMap map{};
  if (shape.shared_bytes > most_bytes || (Row::arch >= 90 && !map_of_codes(&map, args, shape))) return TG_UNSUPPORTED;
  const auto kernel = narrow_gemv<S>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, most_bytes)) return cuda_status(error);
  const int64_t blocks = ceil_div(args.n, shape.rows) * plan.cluster;
  const Launch launch(args, dim3(unsigned(blocks)), dim3(unsigned(32 * plan.warps_n * plan.warps_k)),
                      shape.shared_bytes, dim3(unsigned(plan.cluster)));
  return launch(kernel, map, args, shape, Results(args));
}

template <class Row, Way WAY, bool ZEROS = false>
tg_status run_sized(const tg_gemm_args& args, const GemvPlan& plan, int64_t teams) {
  if (plan.units == 1)
    return args.m <= 8 ? run<Row, GemvConfig<Row::b, WAY, 1, 1, ZEROS>>(args, plan, teams)
                       : run<Row, GemvConfig<Row::b, WAY, 2, 1, ZEROS>>(args, plan, teams);
  return args.m <= 8 ? run<Row, GemvConfig<Row::b, WAY, 1, 2, ZEROS>>(args, plan, teams)
                     : run<Row, GemvConfig<Row::b, WAY, 2, 2, ZEROS>>(args, plan, teams);
}

// The instances for the factors of the problem.
template <class Row>
tg_status run_by_factors(const tg_gemm_args& args, const GemvPlan& plan, int64_t teams) {
  constexpr int step = narrow::is_packed(Row::b) ? 128 : 64;
  constexpr bool has_zeros = Row::b == TG_U4 || Row::b == TG_U8;
  const tg_scale& scale = args.b_scale;
  const bool of_rows = !scale.ptr || scale.rows >= args.k;
  if constexpr (Row::b == TG_F8E4M3 || Row::b == TG_I8) {
    if (of_rows) return run_sized<Row, Way::whole>(args, plan, teams);
  }
  if (of_rows || scale.rows % step == 0) {
    if constexpr (Row::b == TG_U4) {
      if (scale.zeros) return run_sized<Row, Way::wide, true>(args, plan, teams);
    }
    return run_sized < Row, Way::wide, Row::b == TG_U8 > (args, plan, teams);
  }
  if constexpr (Row::b == TG_F4E2M1) {
    if (scale.rows == 16 && scale.format == TG_F8E4M3) return run_sized<Row, Way::groups_of_16>(args, plan, teams);
  } else {
    if (scale.rows % (step / 2) == 0) return run_sized<Row, Way::fine2, has_zeros>(args, plan, teams);
  }
  if constexpr (narrow::is_packed(Row::b)) {
    if (scale.rows % (step / 4) == 0) return run_sized<Row, Way::fine1, has_zeros>(args, plan, teams);
  }
  return TG_UNSUPPORTED;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  const tg_gemm_args& args = *problem;
  const tg_config& config = args.config;
  const int cluster = config.cluster_n, least_cluster = Row::arch >= 90 ? log2_of(cluster, most_cluster) : cluster - 1;
  if (config.cluster_m != 1 || least_cluster < 0 || (Row::arch < 90 && cluster != 1) || config.split < cluster ||
      config.split % cluster != 0 || config.warps < 1 || config.warps > 16 || config.stages < 2 ||
      config.stages > most_stages || config.tile_m != (args.m <= 8 ? 8 : 16))
    return TG_UNSUPPORTED;
  const int warps_k = config.split / cluster;
  if (warps_k > config.warps || config.warps % warps_k != 0) return TG_UNSUPPORTED;
  const int warps_n = config.warps / warps_k, units = config.tile_n / (16 * warps_n);
  if ((units != 1 && units != 2) || units * 16 * warps_n != config.tile_n) return TG_UNSUPPORTED;
  const tg_scale& scale = args.b_scale;
  // Kernels count bytes of factors in 32 bits.
  const int64_t most_stride = (int64_t(1) << 32) / narrow::bytes_of_factor(scale.format);
  if (scale.ptr && (scale.row_stride < 0 || scale.row_stride >= most_stride)) return TG_UNSUPPORTED;
  // A team for each place of the card, or for each row of W. Of clusters of four some places hold none.
  const int64_t places = cluster == 4 ? int64_t(args.sm_count) * 31 / 33 : args.sm_count, of_card = places / cluster;
  const int64_t teams = of_card < 1 ? 1 : of_card < args.n ? of_card : args.n;
  return run_by_factors<Row>(args, {units, warps_n, warps_k, cluster, config.stages}, teams);
}

}  // namespace tilegemm

#include TG_ROWS
