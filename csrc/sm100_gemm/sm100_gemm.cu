// Data-centre Blackwell: tcgen05.mma with the sums in tensor memory, fed by TMA. The rungs of config.hpp lead from a
// plain kernel to the fastest one.
//
// D[M, N] = A[M, K] @ B[K, N]. A stage of a ring in shared memory holds 128 bytes of K of a tile's rows of A and
// columns of B. Operands in 16 bits may be contiguous along either dimension: the descriptor of the product says which.
// TMA fills what lies outside of the matrices with zeros, and the store leaves it out. fp8 has operands that are
// contiguous along K, and results in 16 or 32 bits.
#include <climits>

#include "common/launch.hpp"
#include "sm100_gemm/specialised.hpp"
#include "sm100_gemm/together.hpp"

namespace tilegemm {
namespace {

template <class Row>
__global__ __launch_bounds__(Config<Row>::threads, 1) void sm100_gemm(
    const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
    const __grid_constant__ Work work, const __grid_constant__ Epilogue<typename Config<Row>::Out, float> epilogue) {
  using C = Config<Row>;
  extern __shared__ __align__(1024) char memory[];
  typename C::Shared& shared = *reinterpret_cast<typename C::Shared*>(memory);
  const int warp = __shfl_sync(~0u, int(threadIdx.x) / 32, 0), lane = int(threadIdx.x) % 32;
  const uint32_t tensor_memory = begin<C>(shared, a_map, b_map, warp, lane);
  if constexpr (C::specialised) run_specialised<C>(shared, a_map, b_map, work, epilogue, tensor_memory, warp, lane);
  else run_together<C>(shared, a_map, b_map, work, epilogue, tensor_memory, warp, lane);
  end<C>(tensor_memory, warp);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using C = Config<Row>;
  using Number = typename C::Number;
  const tg_gemm_args& args = *problem;
  if (args.config != tg_config{}) return TG_UNSUPPORTED;
  const int64_t m = args.m, n = args.n, k = args.k;
  const int64_t tiles_m = ceil_div(m, C::tile_m), tiles_n = ceil_div(n, C::tile_n);

  CUtensorMap a_map, b_map;
  const auto describe = [](CUtensorMap* map, const Lines& lines, bool k_major, int rows) {
    return tensor_map<Number>(map, lines, C::line, k_major ? rows : C::tile_k, CU_TENSOR_MAP_SWIZZLE_128B);
  };
  if (!describe(&a_map, lines_of_a(args, C::a_k_major), C::a_k_major, C::a_rows) ||
      !describe(&b_map, lines_of_b(args, C::b_k_major), C::b_k_major, C::b_rows)) {
    return TG_UNSUPPORTED;
  }
  const Epilogue<typename C::Out, float> epilogue(args);
  const TileOrder order(tiles_m, tiles_n, args.batch, false, 2048 / C::tile_m);
  const bool vectors = rows_at_multiples<typename C::Out>(16 / int(sizeof(typename C::Out)), args.d, m, args.batch);
  const Work work{int(m), int(n), int(ceil_div(k, C::tile_k)), order, args.d, epilogue.is_scaling(), vectors};
  const int64_t at_once = args.sm_count / C::ctas, tiles = order.total;
  return launch_configured<C>(args, (C::persistent ? std::min(tiles, at_once) : tiles) * C::ctas, C::ctas,
                              sm100_gemm<Row>, a_map, b_map, work, epilogue);
}

}  // namespace tilegemm

#include TG_ROWS
