// The shape of a block: rows of A on the M side of mma.sync, and a tile of W on the N side.
#pragma once
#include "common/operand.hpp"
#include "common/warps.hpp"
#include "experts/groups.hpp"
#include "experts/unit_list.hpp"

namespace tilegemm {
namespace {

template <class R>
struct GroupedShape : Warps<R> {
  using Row = R;
  using Base = Warps<R>;
  using Element = typename scalar<Row::dtype>::type;
  static constexpr int tile_m = Row::tile_m, tile_n = Row::tile_n, tile_k = Row::tile_k, stages = Row::stages;
  using A = Operand<2, true, tile_m, tile_k, stages, 16, Base::threads>;
  using W = Operand<2, true, tile_n, tile_k, stages, 16, Base::threads>;
  static constexpr int steps = tile_k / 16;  // of a block of K
  // The warps along M take turns in fragments of 16 rows, so that a tile of few rows is work for all of them.
  static constexpr int step_m = 16 * Base::warps_m;
  using List = UnitList<tile_m, 1, step_m>;
  static constexpr int ring_bytes = A::ring_bytes + W::ring_bytes;
  static constexpr int shared_limit = 99 * 1024;             // of every card from Ampere on
  static constexpr int most_blocks = tile_m == 128 ? 2 : 3;  // of a multiprocessor: registers for the sums of a tile
  static_assert(steps >= 2 && stages >= 2 && Base::warp_n % 32 == 0);
};

// The arguments of a launch. Strides of A and W are in bytes. W is B^T: N rows of K. Of a gated product the kernel sees
// rows of gates and of ups by turns: row n is at (n >> halves) * w_stride + (n & halves) * w_half, where `halves` is 1
// if the gates are the first half of W, else 0.
struct GroupedPlace {
  GroupedRows rows;
  Divisor pairs_per_row;
  const char *a, *w;
  void* d;
  int64_t a_stride, w_stride, w_half, w_of_group, d_stride;
  float alpha;
  tg_activation activation;
  bool gated;
  int halves, n, k, n_tiles, entries;
};

}  // namespace
}  // namespace tilegemm
