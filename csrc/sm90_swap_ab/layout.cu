// The layouts of sm90_swap_ab.cu. The kernels of that file address shared memory by hand. This program makes the
// layouts with CuTe, from the constants of the kernels, and compares CuTe's offsets with the addresses of the kernels.
#ifndef __CUDA_ARCH__                          // nothing for the device
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // every width that is a multiple of 8

#include "common/layout/program.hpp"

#include "common/layout/boxes.hpp"
#include "sm90_swap_ab/sm90_swap_ab.cu"

namespace tilegemm {

// The widest tiles of a row, with an unsplit K and the most stages.
template <class Row>
void describe_tma(layout::Page& page) {
  using C = Config<Row, widest(typename Row::widths{})>;
  using T = std::conditional_t<Row::dtype == TG_BF16, cute::bfloat16_t, cute::half_t>;
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

// A W at odd addresses: a line of W begins as many bytes after the start of its place in shared memory as the line's
// address is past a multiple of 16.
template <class C, class T>
void describe_raw(layout::Page& page) {
  using namespace cute;
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
  if constexpr (Row::align < 16) {
    using T = std::conditional_t<Row::dtype == TG_BF16, cute::bfloat16_t, cute::half_t>;
    describe_raw<Config<Row, widest(typename Row::widths{})>, T>(page);
  } else {
    describe_tma<Row>(page);
  }
}

}  // namespace tilegemm

#endif
