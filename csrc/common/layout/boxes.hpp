// Operands in the boxes of common/tensor_map.hpp, 128 bytes wide and swizzled, as CuTe's layouts. Kernels address these
// boxes by hand.
#pragma once
#include "common/layout/views.hpp"

namespace tilegemm::layout {

// Boxes of 128 bytes along K, or along the rows: the layout of one stage. The boxes of a stage lie one after the other.
template <class T, int rows, int depth, bool k_major>
auto boxes() {
  using namespace cute;
  if constexpr (k_major)
    return tile_to_shape(GMMA::Layout_K_SW128_Atom<T>{}, Shape<Int<rows>, Int<depth>>{}, Step<_1, _2>{});
  else return tile_to_shape(GMMA::Layout_MN_SW128_Atom<T>{}, Shape<Int<rows>, Int<depth>>{}, Step<_2, _1>{});
}

// The stages of a ring, `stage_bytes` apart.
template <class T, int stages, int stage_bytes, class Stage>
auto ring(const Stage& stage) {
  using namespace cute;
  const auto all = append(stage.layout_b(), Layout<Int<stages>, Int<stage_bytes / int(sizeof(T))>>{});
  return make_composed_layout(stage.layout_a(), stage.offset(), all);
}

// A tensor in shared memory; nothing is read.
template <class T, class Layout>
auto shared_tensor(const Layout& layout) {
  return cute::make_tensor(cute::make_smem_ptr(static_cast<T*>(nullptr)), layout);
}

// The load of an operand by TMA. CuTe's own kernels make tensor maps from the type of this copy.
template <class T, int rows, int depth, bool k_major, class Ring>
void tma_view(Page& page, const std::string& matrix, const Ring& ring, const char* row) {
  using namespace cute;
  using Major = conditional_t<k_major, Stride<int64_t, _1>, Stride<_1, int64_t>>;
  using Global = decltype(make_tensor(static_cast<const T*>(nullptr), make_shape(int32_t(0), int32_t(0)), Major{}));
  using Tile = Shape<Int<rows>, Int<depth>>;
  const decltype(make_tma_copy(SM90_TMA_LOAD{}, Global{}, boxes<T, rows, depth, k_major>(), Tile{}, _1{})) copy{};
  using Tiles = decltype(local_tile(copy.get_tma_tensor(Shape<Int<4096>, Int<4096>>{}), Tile{}, make_coord(_0{}, _)));
  copy_view<Tiles, decltype(shared_tensor<T>(ring))>(page, matrix + " from global to shared memory", copy, row, "K");
}

}  // namespace tilegemm::layout
