// The layouts of sm90_tf32.cu. Its kernels address shared memory by hand: the constants are theirs, the layouts CuTe's, and the two are
// compared.
#include "common/layout/program.hpp"

#include "common/layout/boxes.hpp"
#include "sm90_tf32/sm90_tf32.cu"

namespace tilegemm {
namespace {

// (thread, value) with the values of some threads in another order: `moves` says which, `by` is xored into their numbers.
template <class Moves>
layout::Table reordered(const layout::Table& tv, int by, const Moves& moves) {
  layout::Table other = tv;
  for (int t = 0; t < tv.rows; t++) {
    for (int v = 0; v < tv.columns; v++) other.values[size_t(t) * tv.columns + v] = tv(t, moves(t) ? v ^ by : v);
  }
  return other;
}

}  // namespace

template <class Row>
void describe(layout::Page& page) {
  using namespace cute;
  constexpr bool swap_ab = Row::layout == TG_NN || Row::tile_m != 128;  // as `launch`
  constexpr bool p_k_major = swap_ab ? b_is_k_major(Row::layout) : a_is_k_major(Row::layout);
  using C = Config<!p_k_major, swap_ab ? Row::tile_m : Row::tile_n, swap_ab, swap_ab ? Row::cluster_n : Row::cluster_m>;
  using T = tfloat32_t;
  using Mma = Shape<_64, Int<C::q_rows>, _8>;
  const layout::Sides sides = layout::Sides::of(swap_ab);

  const auto p = layout::boxes<T, C::p_rows, C::depth, p_k_major>();
  const auto q = layout::boxes<T, C::q_rows, C::depth, true>();
  const auto p_at = layout::offsets(p), q_at = layout::offsets(q);
  for (int j = 0; j < 4; j++) layout::require(q_at(0, 8 * j) * 4 == 32 * j, "wgmma's N side along K");
  for (int warp = 0; warp < C::consumer_warps; warp++) {
    if (!C::registers) layout::require(p_at(warp / 4 * 64, 0) * 4 == warp / 4 * (64 * 128), "the rows of a warp group");
    for (int lane = 0; C::registers && lane < 32; lane++) {  // p_line of the kernel
      const int g = lane / 4, q4 = lane % 4, k_first = q4 ^ q4 % 2 * 4;
      const int line = warp / 2 * C::box_bytes + k_first * 128 + (((warp % 2 * 4 + g / 4) ^ k_first) << 4) + g % 4 * 4;
      const auto at = [&](int row, int k) { return p_at(warp * 16 + row, k) * 4; };
      layout::require(at(g, k_first) == line && at(g + 8, k_first) == (line ^ 0x20), "a lane's fragment at its first K");
      layout::require(at(g, k_first ^ 4) == (line ^ 0x240) && at(g + 8, k_first ^ 4) == (line ^ 0x260), "a lane's fragment at its second K");
    }
  }

  const auto p_ring = layout::ring<T, C::stages, C::stage_bytes>(p), q_ring = layout::ring<T, C::stages, C::stage_bytes>(q);
  const auto p_tensor = layout::shared_tensor<T>(p_ring), q_tensor = layout::shared_tensor<T>(q_ring);
  const auto describe_with = [&](const auto& mma) {
    const GMMA::Layout_K_SW128_Atom<T> k_major;
    const GMMA::Layout_MN_SW128_Atom<T> mn_major;
    layout::tma_view<T, C::p_rows, C::depth, p_k_major>(page, sides.a, p_ring, sides.m);
    if constexpr (C::registers) {
      layout::View& view = layout::shared_view(page, sides.a, 4, mn_major, p_ring, sides.m, "K");
      const layout::Table stage = layout::table(p_at), tv = layout::table(mma.get_layoutA_TV());
      layout::tma_access(view, "TMA stores 8 neighbouring pieces", 4, mn_major, stage, false);
      const auto ways = [&](const layout::Table& order) { return layout::ways_of_threads(order, C::p_rows, stage, 4, 1); };
      view.access("a thread would load its values in their order", 32, 4, ways(tv));
      view.access("a thread loads its values, odd threads from the second half of K", 32, 4, ways(reordered(tv, 2, [](int t) { return t % 2; })));
    } else {
      layout::wgmma_operand(page, sides.a, 4, k_major, p_ring, sides.m, true);
    }
    layout::tma_view<T, C::q_rows, C::depth, true>(page, sides.b, q_ring, sides.n);
    layout::wgmma_operand(page, sides.b, 4, k_major, q_ring, sides.n, true);
    layout::mma_views(page, mma, p_tensor, q_tensor, Shape<Int<C::p_rows>, Int<C::q_rows>>{}, sides);

    // Panels of D, 32 columns of C of all warps: a warp's 16 rows are contiguous in D, or with swap_ab its columns.
    const auto panels = layout::boxes<T, C::p_rows, 32, !swap_ab>();
    const auto c = layout::table(mma.get_layoutC_TV());
    layout::Table tv{c.rows, 16, {}};
    for (int t = 0; t < c.rows; t++) {
      for (int v = 0; v < 16; v++) tv.values.push_back(c(t, v));
    }
    const auto stores = [&](layout::View& view, const char* what, const layout::Table& order, int values) {
      view.access(what, layout::lanes_together(4 * values), 4 * values,
                  layout::ways_of_threads(order, C::p_rows, layout::table(layout::offsets(panels)), 4, values));
    };
    if constexpr (swap_ab) {
      layout::View& view = layout::shared_view(page, "the panels of D", 4, mn_major, panels, sides.m, sides.n);
      stores(view, "a thread stores a value", tv, 1);
    } else {
      layout::View& view = layout::shared_view(page, "the panels of D", 4, k_major, panels, sides.m, sides.n);
      stores(view, "a thread would store pairs in their order", tv, 2);
      stores(view, "a thread stores pairs, odd rows in another order", reordered(tv, 8, [](int t) { return t / 4 % 2; }), 2);
    }
  };
  using Groups = Layout<Shape<Int<C::p_rows / 64>, _1, _1>>;
  if constexpr (C::registers) describe_with(make_tiled_mma(GMMA::rs_op_selector<T, T, float, Mma>(), Groups{}));
  else describe_with(make_tiled_mma(GMMA::ss_op_selector<T, T, float, Mma>(), Groups{}));
}

}  // namespace tilegemm
