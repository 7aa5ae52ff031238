// The layouts of sm90_tf32.cu. The kernels of that file address shared memory by hand. This program makes the layouts
// with CuTe, from the constants of the kernels, and compares CuTe's offsets with the addresses of the kernels.
#ifndef __CUDA_ARCH__  // nothing for the device
#include "common/layout/program.hpp"

#include "common/layout/boxes.hpp"
#include "sm90_tf32/sm90_tf32.cu"

namespace tilegemm {
namespace {

// (thread, value) with the values of some threads in another order. `moves` says which threads; `by` is xored into the
// numbers of values.
template <class Moves>
layout::Table reordered(const layout::Table& tv, int by, const Moves& moves) {
  layout::Table other = tv;
  for (int t = 0; t < tv.rows; t++) {
    for (int v = 0; v < tv.columns; v++) other.values[size_t(t) * tv.columns + v] = tv(t, moves(t) ? v ^ by : v);
  }
  return other;
}

// The layouts of a stage of P and of Q.
template <class C>
using StageP = decltype(layout::boxes<cute::tfloat32_t, C::p_rows, C::depth, !C::registers>());
template <class C>
using StageQ = decltype(layout::boxes<cute::tfloat32_t, C::q_rows, C::depth, true>());
template <class C, class Stage>
using Ring = decltype(layout::ring<cute::tfloat32_t, C::stages, C::stage_bytes>(Stage{}));
template <class C, class Stage>
using Shared = decltype(layout::shared_tensor<cute::tfloat32_t>(Ring<C, Stage>{}));

template <class C>
auto tiled_mma() {
  using namespace cute;
  using T = tfloat32_t;
  using Mma = Shape<_64, Int<C::q_rows>, _8>;
  using Groups = Layout<Shape<Int<C::p_rows / 64>, _1, _1>>;
  if constexpr (C::registers) return make_tiled_mma(GMMA::rs_op_selector<T, T, float, Mma>(), Groups{});
  else return make_tiled_mma(GMMA::ss_op_selector<T, T, float, Mma>(), Groups{});
}

// Compares CuTe's offsets with the addresses of device.hpp.
template <class C>
void compare() {
  const decltype(layout::offsets(StageP<C>{})) p;
  const decltype(layout::offsets(StageQ<C>{})) q;
  for (int j = 0; j < 4; j++) layout::require(q(0, 8 * j) * 4 == 32 * j, "wgmma's N side along K");
  for (int warp = 0; warp < C::consumer_warps; warp++) {
    if (!C::registers) layout::require(p(warp / 4 * 64, 0) * 4 == warp / 4 * (64 * 128), "the rows of a warp group");
    for (int lane = 0; C::registers && lane < 32; lane++) {
      const int g = lane / 4, q4 = lane % 4, k_first = q4 ^ q4 % 2 * 4;
      const int line = warp / 2 * C::box_bytes + k_first * 128 + (((warp % 2 * 4 + g / 4) ^ k_first) << 4) + g % 4 * 4;
      const auto at = [&](int row, int k) { return p(warp * 16 + row, k) * 4; };
      layout::require(at(g, k_first) == line && at(g + 8, k_first) == (line ^ 0x20),
                      "a lane's fragment at its first K");
      layout::require(at(g, k_first ^ 4) == (line ^ 0x240) && at(g + 8, k_first ^ 4) == (line ^ 0x260),
                      "a lane's fragment at its second K");
    }
  }
}

// P from memory to registers, where the columns of P are contiguous.
template <class C>
void registers(layout::Page& page, const layout::Table& tv, const layout::Sides& sides) {
  const cute::GMMA::Layout_MN_SW128_Atom<cute::tfloat32_t> atom;
  layout::View& view = layout::shared_view(page, sides.a, 4, atom, Ring<C, StageP<C>>{}, sides.m, "K");
  const layout::Table stage = layout::table(decltype(layout::offsets(StageP<C>{})){});
  layout::tma_access(view, "TMA stores 8 neighbouring pieces", 4, atom, stage, false);
  const auto ways = [&](const layout::Table& order) { return layout::ways_of_threads(order, C::p_rows, stage, 4, 1); };
  const layout::Table order = reordered(tv, 2, [](int t) { return t % 2; });
  view.access("a thread would load its values in their order", 32, 4, ways(tv));
  view.access("a thread loads its values, odd threads from the second half of K", 32, 4, ways(order));
}

// Panels of D: 32 columns of C, for all warps. The rows of C are contiguous in D; with swap_ab, the columns of C are
// contiguous.
template <class C>
void panels(layout::Page& page, const layout::Table& c, const layout::Sides& sides) {
  using T = cute::tfloat32_t;
  using Atom = std::conditional_t<C::swap_ab, cute::GMMA::Layout_MN_SW128_Atom<T>, cute::GMMA::Layout_K_SW128_Atom<T>>;
  const decltype(layout::boxes<T, C::p_rows, 32, !C::swap_ab>()) panels;
  layout::View& view = layout::shared_view(page, "the panels of D", 4, Atom{}, panels, sides.m, sides.n);
  layout::Table tv{c.rows, 16, {}};
  for (int t = 0; t < c.rows; t++) {
    for (int v = 0; v < 16; v++) tv.values.push_back(c(t, v));
  }
  const layout::Table offsets = layout::table(layout::offsets(panels));
  const auto stores = [&](const char* what, const layout::Table& order, int values) {
    view.access(what, layout::lanes_together(4 * values), 4 * values,
                layout::ways_of_threads(order, C::p_rows, offsets, 4, values));
  };
  if (C::swap_ab) {
    stores("a thread stores a value", tv, 1);
  } else {
    stores("a thread would store pairs in their order", tv, 2);
    stores("a thread stores pairs, odd rows in another order", reordered(tv, 8, [](int t) { return t / 4 % 2; }), 2);
  }
}

}  // namespace

template <class Row>
void describe(layout::Page& page) {
  using T = cute::tfloat32_t;
  constexpr bool swap_ab = Row::layout == TG_NN || Row::tile_m != 128;  // as `launch`
  constexpr bool p_k_major = swap_ab ? b_is_k_major(Row::layout) : a_is_k_major(Row::layout);
  using C = Config<!p_k_major, swap_ab ? Row::tile_m : Row::tile_n, swap_ab, swap_ab ? Row::cluster_n : Row::cluster_m>;
  using P = StageP<C>;
  using Q = StageQ<C>;
  const layout::Sides sides = layout::Sides::of(swap_ab);
  const cute::GMMA::Layout_K_SW128_Atom<T> k_major;
  const decltype(tiled_mma<C>()) mma;
  compare<C>();

  layout::tma_view<T, C::p_rows, C::depth, p_k_major>(page, sides.a, Ring<C, P>{}, sides.m);
  if constexpr (C::registers) registers<C>(page, layout::table(decltype(mma.get_layoutA_TV()){}), sides);
  else layout::wgmma_operand(page, sides.a, 4, k_major, Ring<C, P>{}, sides.m, true);
  layout::tma_view<T, C::q_rows, C::depth, true>(page, sides.b, Ring<C, Q>{}, sides.n);
  layout::wgmma_operand(page, sides.b, 4, k_major, Ring<C, Q>{}, sides.n, true);
  using Tile = cute::Shape<cute::Int<C::p_rows>, cute::Int<C::q_rows>>;
  layout::mma_views<Shared<C, P>, Shared<C, Q>, Tile>(page, mma, sides);
  panels<C>(page, layout::table(decltype(mma.get_layoutC_TV()){}), sides);
}

}  // namespace tilegemm

#endif
