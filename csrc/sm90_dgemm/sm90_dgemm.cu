// Hopper: f64 on the tensor cores, in all four layouts; the host side of device.hpp.
#include "common/launch.hpp"
#include "sm90_dgemm/device.hpp"

namespace tilegemm {
namespace {

template <class C>
tg_status run(const tg_gemm_args& args) {
  const auto map = [](CUtensorMap* map, const Lines& lines, int box_lines) {
    return tensor_map<double>(map, lines, 16, box_lines, CU_TENSOR_MAP_SWIZZLE_128B);
  };
  CUtensorMap a_map, b_map;
  const std::optional<Tiles> tiles = cut_into_tiles(args, C::tile_m, C::tile_n);
  if (!tiles || !map(&a_map, lines_of_a(args, C::a_k_major), C::a_k_major ? C::tile_m : 16) ||
      !map(&b_map, lines_of_b(args, C::b_k_major), C::b_k_major ? C::tile_n : 16)) {
    return TG_UNSUPPORTED;
  }
  const Epilogue<double, double> epilogue(args);
  const Work work{*tiles, rows_at_multiples<double>(2, args.d, args.m, args.batch), epilogue.is_scaling()};
  return launch_configured<C>(args, std::min(work.order.total, args.sm_count), 1, sm90_dgemm<C>, a_map, b_map, work,
                              epilogue);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::dtype == TG_F64 && Row::tile_k == 16 && Row::cluster_m == 1 && Row::cluster_n == 1);
  constexpr bool a_k_major = a_is_k_major(Row::layout), b_k_major = b_is_k_major(Row::layout);
  const tg_gemm_args& args = *problem;
  // Where both operands are K-major, an mma of 16 K is 1 to 2 % faster than two of 8 (H100).
  constexpr int step = a_k_major && b_k_major ? 16 : 8;
  return run<Config<Row::tile_m, Row::tile_n, 2, 4, step, a_k_major, b_k_major>>(args);
}

}  // namespace tilegemm

#include TG_ROWS
