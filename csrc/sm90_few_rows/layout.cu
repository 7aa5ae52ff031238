// The layouts of sm90_few_rows.cu: the widest tiles of a row, with an unsplit K.
#ifndef __CUDA_ARCH__                          // nothing for the device
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // every width that is a multiple of 8

#include "common/layout/program.hpp"

#include "sm90_few_rows/sm90_few_rows.cu"
#include "swap_ab/layout.hpp"

namespace tilegemm {

// A W at odd addresses: a line of W begins as many bytes after the start of its place in shared memory as the line's
// address is past a multiple of 16.
template <class C>
void describe_raw(layout::Page& page) {
  using namespace cute;
  using T = element_of<C>;
  using Bits = uint16_t;
  constexpr int stages = C::stages(1), line = RawW<C>::pitch / 2, stage = C::stage_bytes / 2;
  using Lines = conditional_t<C::k_major, Stride<Int<line>, _1, Int<stage>>, Stride<_1, Int<line>, Int<stage>>>;
  const Layout<Shape<Int<C::w_rows>, Int<C::depth>, Int<stages>>, Lines> w_ring;
  const auto w = take<0, 2>(w_ring);
  const layout::Sides sides = layout::Sides::of(true);
  const decltype(layout::ring<Bits, stages, C::stage_bytes>(layout::boxes<Bits, C::q_rows, C::depth, true>())) q_ring;
  const decltype(make_tiled_mma(GMMA::rs_op_selector<T, T, float, Shape<_64, Int<C::width>, _16>>())) mma;

  layout::View& view = layout::shared_view(page, sides.a, 2, w, w_ring, sides.m, "K");
  view.fact("a line's first byte", std::string("its address modulo 16 further"));
  const layout::Table tv = layout::table(decltype(mma.get_layoutA_TV()){}), offsets = layout::table(w);
  const auto ways = [&](int values) { return layout::ways_of_threads(tv, int(tile_size<0>(mma)), offsets, 2, values); };
  if constexpr (C::k_major)
    view.access("a thread loads pairs of values from lines at multiples of 16 bytes", 32, 4, ways(2));
  else view.access("a thread loads its values from lines at multiples of 16 bytes", 32, 2, ways(1));

  layout::tma_view<Bits, C::q_rows, C::depth, true>(page, sides.b, q_ring, sides.n);
  layout::wgmma_operand(page, sides.b, 2, GMMA::Layout_K_SW128_Atom<Bits>{}, q_ring, sides.n, true);
  layout::mma_views<decltype(layout::shared_tensor<Bits>(w_ring)), decltype(layout::shared_tensor<Bits>(q_ring)),
                    Shape<Int<C::p_rows>, Int<C::q_rows>>>(page, mma, sides);
}

template <class Row>
void describe(layout::Page& page) {
  using C = FewRows<Row, widest(typename Row::widths{})>;
  if constexpr (C::raw) describe_raw<C>(page);
  else describe_tma<C>(page);
}

}  // namespace tilegemm

#endif
