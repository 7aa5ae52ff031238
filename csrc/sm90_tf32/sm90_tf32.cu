// Hopper: f32 products by one TF32 wgmma, in all four layouts; the host side of device.hpp.
//
// TMA rounds inputs to TF32, to nearest even: 11 bits of significand, and all exponents of f32. Sums are in f32; tensor
// cores round sums towards zero. An input that rounds to more than the largest number becomes Inf; Inf and NaN stay.
//
// One side of a tile is 128, and this side is wgmma's M side. Where the tile's N is 128, A and B are swapped (swap_ab);
// nn needs the swap. tn transposes the operand on wgmma's N side into the workspace: B, or A with swap_ab. The
// workspace then needs 4 * N * K bytes, or 4 * M * K bytes with swap_ab, for each matrix of the batch, with K rounded
// up to 64 and N to 8 (`footprint` in src/family/sm90_tf32.rs).
#include <climits>

#include "common/launch.hpp"
#include "sm90_tf32/device.hpp"

namespace tilegemm {
namespace {

// The order of tiles. Strips along S are the best order or within 1 % of the best (H100): eight tiles wide, or four
// where all tiles run at the same time or K is shallow. Where narrow tiles run at the same time, strips lie along R:
// neighbours then share P, and P is the larger part of the loads of a narrow tile.
TileOrder order_of(const tg_gemm_args& args, int64_t r_tiles, int64_t s_tiles, bool narrow, bool one_wave) {
  return TileOrder(r_tiles, s_tiles, args.batch, narrow && one_wave, one_wave || args.k <= 1024 ? 4 : 8);
}

// Clusters that run at the same time; clusters of four blocks reach 120 of an H100's 132 multiprocessors.
int64_t clusters_at_once(const tg_gemm_args& args, const Cluster& cluster) {
  return (cluster.log2() > 1 ? int64_t(args.sm_count) * 10 / 11 : args.sm_count) >> cluster.log2();
}

// Whether the kernel is compiled for a cluster. `src/family/sm90_tf32.rs` lists the same clusters.
template <class C>
bool has(const Cluster& cluster) {
  if (!C::adapts) return cluster.is(C::share, 1, 1);
  return cluster.is(2, 1, 1) || cluster.is(1, 2, 1) || cluster.is(2, 2, 1) || cluster.is(1, 1, 2) ||
         cluster.is(1, 2, 2);
}

template <class C>
tg_status run(const tg_gemm_args& args, const Cluster& cluster, const Lines& p, Lines q, bool transposes) {
  if (!has<C>(cluster)) return TG_UNSUPPORTED;
  const int64_t r = C::swap_ab ? args.n : args.m, s = C::swap_ab ? args.m : args.n;
  const int64_t batches = args.batch[0] * args.batch[1];
  const int64_t r_tiles = ceil_div(r, C::p_rows * cluster.share_q), s_tiles = ceil_div(s, C::q_rows * cluster.share_p);
  const int64_t total = r_tiles * s_tiles * batches, at_once = clusters_at_once(args, cluster),
                stages = ceil_div(args.k, C::depth);
  // K is halved only where K is long and no cluster has two tiles.
  if (at_once == 0 || (cluster.split > 1 && (total > at_once || stages < 16))) return TG_UNSUPPORTED;

  const Epilogue<float, float> epilogue(args);
  const TileOrder order = order_of(args, r_tiles, s_tiles, C::q_rows < C::p_rows, total <= at_once);
  // A D that no cache holds must not drive A and B out of L2 (7 % of 32 x 2048 x 2048 x 128).
  const bool large_d = args.m * args.n * batches * int64_t(sizeof(float)) > (int64_t(48) << 20);
  const Work work{cluster,
                  int(r),
                  int(s),
                  int(stages),
                  order,
                  epilogue.is_scaling(),
                  large_d ? evict_last : evict_normal,
                  large_d ? evict_first : evict_normal};

  Transpose into_workspace;
  if (transposes && !move_to_workspace(args, &q, &into_workspace)) return TG_UNSUPPORTED;
  CUtensorMap p_map, q_map, d_map;
  if (!tensor_map(&p_map, p, C::registers ? C::depth : C::p_rows / cluster.share_p, true) ||
      !tensor_map(&q_map, q, C::q_rows / cluster.share_q, true) ||
      !tensor_map(&d_map, lines_of_d(args), C::panel_rows, false)) {
    return TG_UNSUPPORTED;
  }
  if (transposes) {
    if (const tg_status status = launch_transpose(args, into_workspace)) return status;
  }
  const int blocks = 1 << cluster.log2();
  return launch_configured<C>(args, std::min(total, at_once) * blocks, blocks, sm90_tf32<C>, p_map, q_map, d_map, work,
                              epilogue);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  constexpr bool swap_ab = Row::layout == TG_NN || Row::tile_m != 128;
  constexpr int width = swap_ab ? Row::tile_m : Row::tile_n, share = swap_ab ? Row::cluster_n : Row::cluster_m;
  static_assert(Row::dtype == TG_F32 && Row::math == TG_TF32 && (swap_ab ? Row::tile_n : Row::tile_m) == 128);
  static_assert(Row::tile_k == 32 && Row::cluster_m * Row::cluster_n == share);
  constexpr bool a_k_major = a_is_k_major(Row::layout), b_k_major = b_is_k_major(Row::layout);
  constexpr bool p_k_major = swap_ab ? b_k_major : a_k_major, q_k_major = swap_ab ? a_k_major : b_k_major;

  const tg_gemm_args& args = *problem;
  const tg_config& config = args.config;
  const Cluster cluster{swap_ab ? config.cluster_n : config.cluster_m, swap_ab ? config.cluster_m : config.cluster_n,
                        config.split};
  if (config != tg_config{0, 0, config.cluster_m, config.cluster_n, config.split, 0, 0, 0}) return TG_UNSUPPORTED;

  const Lines a = lines_of_a(args, a_k_major), b = lines_of_b(args, b_k_major);
  const Lines &p = swap_ab ? b : a, &q = swap_ab ? a : b;
  using Shared = Config<!p_k_major, width, swap_ab, share>;
  // A block of wide tiles may be alone: no block then waits for another block.
  if constexpr (Shared::registers && width == 256) {
    if (cluster.is(1, 1, 1)) return run<Config<true, width, swap_ab, 1>>(args, cluster, p, q, !q_k_major);
  }
  return run<Shared>(args, cluster, p, q, !q_k_major);
}

}  // namespace tilegemm

#include TG_ROWS
