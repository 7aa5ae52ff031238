// Hopper: f32 products on tensor cores by the six products of sm90_bf16x6.cu. This kernel splits both operands itself,
// on their way from memory to the tensor cores: for few rows, a shallow K or few tiles, a kernel that splits B
// beforehand takes as long as the product.
//
//     P (64 or 128 rows)  f32 --TMA--> shared memory --split--> registers                          \
//     Q (up to 64 rows)   f32 --TMA--> shared memory --split by two or three warps--> planes of parts --> wgmma
//
// P and Q are A and B. With swap_ab, P and Q are B and A: where A has few rows, B has more tiles to spread over the
// multiprocessors. Two warp groups multiply. For few tiles the groups take turns along K, and the blocks of a cluster
// split K further; tiles are then 64 x 64, 64 x 32 or 64 x 16. The sums of groups and blocks meet in (distributed)
// shared memory and are added in f64 in a fixed order, so that a product has the same bits every time. For many tiles
// each group has 64 rows of a tile of 128 x 64, and blocks are persistent. There is no workspace, and no kernel before
// the product.
//
// A sum leaves the tensor cores after 32 of K, by an addition whose rounding error starts the next sum (add_exactly).
// Where K is short, SGEMM's errors are small, so large and small products have separate sums. The large products are
// added to a total, exactly. The rounding errors are added to the sums of the small products, which stay in the tensor
// cores: small products are 2^-8 of large products, so the errors of their sums do not count.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp). With swap_ab, B is likely to be weights,
// and the kernel meanwhile prefetches stages of B into L2.
#include <climits>

#include "common/launch.hpp"
#include "common/tensor_map.hpp"
#include "sm90_bf16x6_direct/device.hpp"

namespace tilegemm {
namespace {

// K below which large and small products need separate sums to keep errors within SGEMM's (docs/f32.md). Only tall
// tiles have separate sums.
constexpr int64_t most_apart = 256;

template <class C>
tg_status run(const tg_gemm_args& args) {
  const bool swap_ab = args.config.swap_ab;
  const int split_log2 = log2_of(args.config.split, most_split), stages = args.config.stages;
  if (C::tall ? stages != 0 : stages != C::unit && stages != C::stages) return TG_UNSUPPORTED;
  const int64_t m = args.m, n = args.n, k = args.k, batches = args.batch[0] * args.batch[1];
  const int64_t p_count = swap_ab ? n : m, q_count = swap_ab ? m : n;
  const int64_t p_tiles = ceil_div(p_count, C::height), q_tiles = ceil_div(q_count, C::width);
  const int64_t tiles = p_tiles * q_tiles * batches;
  // With swap_ab, tiles are as even as can be: TMA takes as long for rows outside of A as for rows inside.
  const int64_t q_rows = swap_ab ? ceil_div(q_count, q_tiles) : C::in_rows ? std::min<int64_t>(C::width, n) : C::width;

  const tg_matrix &a = args.a, &b = args.b, &d = args.d;
  const Lines of_a = lines_of_a(args, true), of_b = lines_of_b(args, C::in_rows);
  const Lines &p = swap_ab ? of_b : of_a, &q = swap_ab ? of_a : of_b;
  CUtensorMap p_map, q_map, d_map{};
  if (!tensor_map(&p_map, p, C::height, false) ||
      !(C::in_rows ? tensor_map(&q_map, q, int(q_rows), false)
                   : tensor_map<float>(&q_map, q, C::width, C::depth, CU_TENSOR_MAP_SWIZZLE_NONE))) {
    return TG_UNSUPPORTED;
  }
  const Epilogue<float, float> epilogue(args);
  const bool whole = C::tall && q_rows == C::width && epilogue.is_plain() && n % 4 == 0 &&
                     (d.col_stride == 1 || n == 1) && rows_at_multiples<float>(4, d, m, args.batch) &&
                     tensor_map(&d_map, lines_of_d(args), 16, false);
  const int64_t grid = C::tall ? std::min<int64_t>(tiles, args.sm_count) : tiles << split_log2;
  const int prefetch = args.overlap && swap_ab ? 4 : 0;
  const uint64_t p_policy = swap_ab && q_tiles == 1 ? evict_first : evict_normal;
  const Place place{a,
                    b,
                    d,
                    int(m),
                    int(n),
                    int(k),
                    Divisor(p_tiles),
                    Divisor(q_tiles),
                    Divisor(args.batch[1]),
                    int(tiles),
                    int(q_rows),
                    split_log2,
                    stages,
                    prefetch,
                    p_policy,
                    swap_ab,
                    epilogue.is_plain(),
                    whole};
  return launch_configured<C>(args, grid, 1 << split_log2, sm90_bf16x6_direct<C>, p_map, q_map, d_map, place, epilogue);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::math == TG_BF16X6 && Row::dtype == TG_F32 && Row::cluster_m * Row::cluster_n == 1);
  static_assert(Row::tile_m == 64 && Row::tile_n == 64 && Row::tile_k == 32 && a_is_k_major(Row::layout));
  constexpr bool in_rows = b_is_k_major(Row::layout);
  const tg_gemm_args& args = *problem;
  const int64_t k = args.k;
  // `src/family/sm90_bf16x6_direct.rs` lists the same configurations.
  const tg_config& config = args.config;
  const bool swap_ab = config.swap_ab;
  const int height = swap_ab ? config.tile_n : config.tile_m, width = swap_ab ? config.tile_m : config.tile_n;
  if (config != tg_config{config.tile_m, config.tile_n, 0, 0, config.split, config.stages, 0, swap_ab})
    return TG_UNSUPPORTED;
  if (height == 128 && width == 64 && config.split == 1 && !swap_ab) {
    return k < most_apart ? run<Config<64, in_rows, true, true>>(args) : run<Config<64, in_rows, true, false>>(args);
  }
  if constexpr (in_rows) {
    // Each part of K is two stages at least.
    const bool splits = log2_of(config.split, most_split) >= 0 && ceil_div(k, 32) >= 2 * config.split;
    if (height != 64 || k < most_apart || !splits) return TG_UNSUPPORTED;
    if (width == 16) return run<Config<16, true, false, false>>(args);
    if (width == 32) return run<Config<32, true, false, false>>(args);
    if (width == 64) return run<Config<64, true, false, false>>(args);
  }
  return TG_UNSUPPORTED;
}

}  // namespace tilegemm

#include TG_ROWS
