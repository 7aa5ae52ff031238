// Hopper: f32 by fused multiply-adds, in all four layouts; the host side of device.hpp.
//
// A kernel has two operands: P is read in lines along K or in columns (lines along M or N); Q is read in columns.
//
//     layout   P               Q
//     nn       A in lines      B
//     tt       B in lines      A; A and B swapped, D stored transposed
//     tn       A in columns    B
//     nt       A in lines      B transposed; or B in lines, A and D transposed: whichever copy is smaller
//
// The tile of 128 x 256 is fastest with both operands in columns, so the row of this tile has every operand along K
// transposed. A kernel before the product transposes into the workspace.
//
// The workspace needs, for each matrix of the batch, with K rounded up to 64, and M and N to 32 (`footprint` in
// src/family/sm90_sgemm.rs):
//
//     the row of 128 x 256     4 * M * K bytes if A is K-major, and 4 * N * K bytes if B is K-major
//     the other rows           nt only: 4 * M * K bytes if M < N, otherwise 4 * N * K bytes
//
// A row of the table has several tiles; the configuration names a tile. A row of 128 x 128 splits K over groups of
// warps and over a cluster: partial sums are then added in a fixed order, but do not form a single chain.
#include "common/launch.hpp"
#include "common/transpose.hpp"
#include "sm90_sgemm/device.hpp"

namespace tilegemm {
namespace {

// The problem with P for A and Q for B, and the operands to transpose beforehand.
struct Product {
  tg_gemm_args args;
  Lines p, q;
  Transpose of_p, of_q;
};

template <class C>
bool tensor_map_of_p(CUtensorMap* map, const Lines& of) {
  if (C::p == Form::columns) return tensor_map<float>(map, of, C::tile_m, C::depth, CU_TENSOR_MAP_SWIZZLE_NONE);
  return tensor_map<float>(map, of, C::depth, C::tile_m,
                           C::depth == 32 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

template <class C>
tg_status run(const Product& product) {
  const tg_gemm_args& args = product.args;
  const int split_log2 = log2_of(args.config.split, 8);
  // Each part of K is two units at least.
  if (split_log2 < 0 || (split_log2 > 0 && (!C::split || args.k < 2 * unit * int64_t(args.config.split))))
    return TG_UNSUPPORTED;
  CUtensorMap p_map, q_map;
  const std::optional<Tiles> tiles = cut_into_tiles(args, C::tile_m, C::tile_n);
  if (!tiles || !tensor_map_of_p<C>(&p_map, product.p) ||
      !tensor_map<float>(&q_map, product.q, C::tile_n, C::depth, CU_TENSOR_MAP_SWIZZLE_NONE)) {
    return TG_UNSUPPORTED;
  }
  const Epilogue<float, float> epilogue(args);
  const bool in_fours = args.d.col_stride == 1 && rows_at_multiples<float>(4, args.d, args.m, args.batch);
  const bool simple = in_fours && epilogue.is_scaling();
  const Work work{*tiles, split_log2, 1, in_fours, simple};
  if (product.of_p.squares > 0 || product.of_q.squares > 0) {
    if (const tg_status status = launch_transpose(args, product.of_p, product.of_q)) return status;
  }
  const int64_t blocks = C::reduces ? int64_t(tiles->order.total) << split_log2
                                    : std::min(tiles->order.total, args.sm_count * C::residents);
  return launch_configured<C>(args, blocks, 1 << split_log2, sm90_sgemm<C>, p_map, q_map, work, epilogue);
}

// Runs the configuration's tile, if the row `tile_m` x `tile_n` has this tile. `src/family/sm90_sgemm.rs` lists the
// same tiles.
template <int tile_m, int tile_n, Form P>
tg_status run_configured(const Product& product) {
  const tg_config& config = product.args.config;
  tg_status status = TG_UNSUPPORTED;
  const auto with = [&](auto kind) {
    using C = decltype(kind);
    if (config.tile_m == C::tile_m && config.tile_n == C::tile_n) status = run<C>(product);
  };
  if constexpr (tile_n == 256) {
    with(Config<128, 256, 16, 16, 2, 4, 1, 1, false, P>{});
  } else if constexpr (tile_m == 256) {
    with(Config<128, 256, 16, 16, 2, 4, 1, 1, false, P>{});
    with(Config<256, 128, 16, 16, 4, 2, 1, 1, false, P>{});
    with(Config<128, 192, 16, 16, 2, 4, 1, 1, false, P>{});
    with(Config<256, 64, 16, 16, 4, 1, 1, 2, false, P>{});
  } else {
    with(Config<128, 128, 32, 16, 2, 2, 2, 1, true, P>{});
    with(Config<128, 96, 32, 16, 2, 2, 2, 1, true, P>{});
  }
  return status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::dtype == TG_F32 && Row::cluster_m == 1 && Row::cluster_n == 1);
  constexpr int tile_m = Row::tile_m, tile_n = Row::tile_n;
  static_assert((tile_m == 128 && tile_n == 256 && Row::tile_k == 16) ||
                (tile_m == 256 && tile_n == 128 && Row::tile_k == 16) ||
                (tile_m == 128 && tile_n == 128 && Row::tile_k == 32));
  constexpr bool a_k_major = a_is_k_major(Row::layout), b_k_major = b_is_k_major(Row::layout);
  constexpr Form form = tile_n == 256 || Row::layout == TG_TN ? Form::columns : Form::lines;
  // `swaps` in src/family/sm90_sgemm.rs has the same rule.
  const bool swap_ab =
      form == Form::lines && (Row::layout == TG_TT || (Row::layout == TG_NT && problem->m < problem->n));
  const tg_config& config = problem->config;
  if (config != tg_config{config.tile_m, config.tile_n, 0, 0, config.split, 0, 0, swap_ab}) return TG_UNSUPPORTED;
  const tg_gemm_args args = swap_ab ? swapped(*problem) : *problem;
  const bool p_in_lines = swap_ab ? b_k_major : a_k_major, q_in_lines = swap_ab ? a_k_major : b_k_major;
  Product product{args, lines_of_a(args, p_in_lines), lines_of_b(args, q_in_lines), {}, {}};
  tg_gemm_args room = args;
  const auto move = [&](Lines* of, Transpose* t) {
    if (!move_to_workspace(room, of, t)) return false;
    const uint64_t bytes = uint64_t(t->squares) * transpose_side * transpose_side * sizeof(float);  // whole squares
    const uint64_t taken = std::min(bytes, room.workspace_bytes);
    room.workspace = static_cast<char*>(room.workspace) + taken, room.workspace_bytes -= taken;
    return true;
  };
  if ((p_in_lines && form == Form::columns && !move(&product.p, &product.of_p)) ||
      (q_in_lines && !move(&product.q, &product.of_q))) {
    return TG_UNSUPPORTED;
  }
  return run_configured<tile_m, tile_n, form>(product);
}

}  // namespace tilegemm

#include TG_ROWS
