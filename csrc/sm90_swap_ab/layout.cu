// The layouts of sm90_swap_ab.cu. Its kernels address shared memory by hand: the constants are theirs, the layouts CuTe's, and the two are
// compared.
#ifndef __CUDA_ARCH__  // nothing for the device
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // every width of a multiple of 8

#include "common/layout/program.hpp"

#include "common/layout/boxes.hpp"
#include "sm90_swap_ab/sm90_swap_ab.cu"

namespace tilegemm {

// The widest tiles of a row, with whole K and the row's most stages.
template <class Row>
void describe(layout::Page& page) {
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

}  // namespace tilegemm

#endif
