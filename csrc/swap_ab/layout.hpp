// The layouts of tiles.hpp. The kernels address shared memory by hand. This program makes the layouts with CuTe, from
// the constants of the kernels, and compares CuTe's offsets with the addresses of the kernels.
#pragma once
#include "common/layout/boxes.hpp"
#include "swap_ab/tiles.hpp"

namespace tilegemm {

// CuTe's type of the elements of A and B.
template <class C>
using element_of =
    std::conditional_t<std::is_same_v<typename C::Element, __nv_bfloat16>, cute::bfloat16_t, cute::half_t>;

// Tiles that come by TMA, with an unsplit K and the most stages.
template <class C>
void describe_tma(layout::Page& page) {
  using T = element_of<C>;
  using Bits = uint16_t;
  constexpr int stages = C::stages(1);
  const layout::Sides sides = layout::Sides::of(C::swap_ab);

  const decltype(layout::boxes<Bits, C::p_rows, C::depth, true>()) p;
  const decltype(layout::boxes<Bits, C::q_rows, C::depth, true>()) q;
  for (int j = 0; j < C::depth / 16; j++) {  // as `multiply` of tiles.hpp makes descriptors
    constexpr int per_box = C::box / 16;
    const auto at = [&](int rows) { return j / per_box * (rows * 128) + j % per_box * 32; };
    layout::require(layout::offsets(p)(0, 16 * j) * 2 == at(C::p_rows), "wgmma's M side along K");
    layout::require(layout::offsets(q)(0, 16 * j) * 2 == at(C::q_rows), "wgmma's N side along K");
  }
  for (int group = 0; group < C::p_rows / 64; group++) {
    layout::require(layout::offsets(p)(64 * group, 0) * 2 == group * 64 * 128, "the rows of a warp group");
  }

  const decltype(layout::ring<Bits, stages, C::stage_bytes>(p)) p_ring;
  const decltype(layout::ring<Bits, stages, C::stage_bytes>(q)) q_ring;
  const cute::GMMA::Layout_K_SW128_Atom<Bits> atom;
  layout::tma_view<Bits, C::p_rows, C::depth, true>(page, sides.a, p_ring, sides.m);
  layout::wgmma_operand(page, sides.a, 2, atom, p_ring, sides.m, true);
  layout::tma_view<Bits, C::q_rows, C::depth, true>(page, sides.b, q_ring, sides.n);
  layout::wgmma_operand(page, sides.b, 2, atom, q_ring, sides.n, true);

  using namespace cute;
  using Groups = Layout<Shape<Int<C::p_rows / 64>, _1, _1>>;
  const decltype(make_tiled_mma(GMMA::ss_op_selector<T, T, float, Shape<_64, Int<C::width>, _16>>(), Groups{})) mma;
  static_assert(decltype(tile_size<1>(mma))::value == C::width);
  layout::mma_views<decltype(layout::shared_tensor<Bits>(p_ring)), decltype(layout::shared_tensor<Bits>(q_ring)),
                    Shape<Int<C::p_rows>, Int<C::q_rows>>>(page, mma, sides);
}

}  // namespace tilegemm
