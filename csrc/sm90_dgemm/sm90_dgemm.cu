// Hopper: f64 on the tensor cores, in all four layouts; the host side of device.hpp.
#include "common/launch.hpp"
#include "sm90_dgemm/device.hpp"

namespace tilegemm {
namespace {

template <class C>
tg_status run(const tg_gemm_args& args) {
  const auto map = [&](CUtensorMap* map, const tg_matrix& matrix, bool k_major, int64_t extent, int64_t stride, int tile) {
    const Lines lines = lines_of(matrix, k_major ? extent : args.k, k_major ? args.k : extent, stride, args.batch);
    return tensor_map<double>(map, lines, 16, k_major ? tile : 16, CU_TENSOR_MAP_SWIZZLE_128B);
  };
  const int64_t a_stride = C::a_k_major ? args.a.row_stride : args.a.col_stride;
  const int64_t b_stride = C::b_k_major ? args.b.col_stride : args.b.row_stride;
  CUtensorMap a_map, b_map;
  const std::optional<Tiles> tiles = cut_into_tiles(args, C::tile_m, C::tile_n);
  if (!tiles || !map(&a_map, args.a, C::a_k_major, args.m, a_stride, C::tile_m) ||
      !map(&b_map, args.b, C::b_k_major, args.n, b_stride, C::tile_n)) {
    return TG_UNSUPPORTED;
  }
  const auto even = [](int64_t stride) { return stride % 2 == 0; };
  const Epilogue<double, double> epilogue(args);
  const bool in_pairs = reinterpret_cast<uintptr_t>(args.d.ptr) % 16 == 0 && even(args.d.row_stride) &&
                        even(args.d.batch_stride[0]) && even(args.d.batch_stride[1]);
  const Work work{*tiles, in_pairs, epilogue.is_scaling()};
  return launch_configured<C>(args, std::min(work.order.total, args.sm_count), 1, dgemm<C>, a_map, b_map, work, epilogue);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::dtype == TG_F64 && Row::tile_k == 16 && Row::cluster_m == 1 && Row::cluster_n == 1);
  constexpr bool a_k_major = a_is_k_major(Row::layout), b_k_major = b_is_k_major(Row::layout);
  const tg_gemm_args& args = *problem;
  const int64_t batches = args.batch[0] * args.batch[1];
  if (args.m == 0 || args.n == 0 || batches == 0) return TG_OK;
  const bool contiguous = (a_k_major ? args.a.col_stride : args.a.row_stride) == 1 &&
                          (b_k_major ? args.b.row_stride : args.b.col_stride) == 1;
  if (args.k == 0 || !contiguous || (args.d.col_stride != 1 && args.n > 1)) return TG_UNSUPPORTED;
  // Where both operands are K-major, an mma of 16 K is 1 to 2 % faster than two of 8 (H100).
  constexpr int step = a_k_major && b_k_major ? 16 : 8;
  return run<Config<Row::tile_m, Row::tile_n, 2, 4, step, a_k_major, b_k_major>>(args);
}

}  // namespace tilegemm

#include TG_ROWS
