// The layouts of sm90_swap_ab.cu. Its kernels address shared memory by hand: the constants are theirs, the layouts CuTe's, and the two are
// compared.
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

  const auto p = layout::boxes<Bits, C::p_rows, C::depth, true>();
  const auto q = layout::boxes<Bits, C::q_rows, C::depth, true>();
  for (int j = 0; j < C::depth / 16; j++) {  // as `multiply` of tiles.hpp makes descriptors
    constexpr int per_box = C::box / 16;
    const auto at = [&](int rows) { return j / per_box * (rows * 128) + j % per_box * 32; };
    layout::require(layout::offsets(p)(0, 16 * j) * 2 == at(C::p_rows), "wgmma's M side along K");
    layout::require(layout::offsets(q)(0, 16 * j) * 2 == at(C::q_rows), "wgmma's N side along K");
  }
  for (int group = 0; group < C::p_rows / 64; group++) {
    layout::require(layout::offsets(p)(64 * group, 0) * 2 == group * 64 * 128, "the rows of a warp group");
  }

  const auto p_ring = layout::ring<Bits, stages, C::stage_bytes>(p), q_ring = layout::ring<Bits, stages, C::stage_bytes>(q);
  const cute::GMMA::Layout_K_SW128_Atom<Bits> atom;
  layout::tma_view<Bits, C::p_rows, C::depth, true>(page, sides.a, p_ring, sides.m);
  layout::wgmma_operand(page, sides.a, 2, atom, p_ring, sides.m, true);
  layout::tma_view<Bits, C::q_rows, C::depth, true>(page, sides.b, q_ring, sides.n);
  layout::wgmma_operand(page, sides.b, 2, atom, q_ring, sides.n, true);

  using Shape = cute::Shape<cute::_64, cute::Int<C::width>, cute::_16>;
  const auto mma = cute::make_tiled_mma(cute::GMMA::ss_op_selector<T, T, float, Shape>(),
                                        cute::Layout<cute::Shape<cute::Int<C::p_rows / 64>, cute::_1, cute::_1>>{});
  static_assert(decltype(cute::tile_size<1>(mma))::value == C::width);
  layout::mma_views(page, mma, layout::shared_tensor<Bits>(p_ring), layout::shared_tensor<Bits>(q_ring),
                    cute::Shape<cute::Int<C::p_rows>, cute::Int<C::q_rows>>{}, sides);
}

}  // namespace tilegemm
