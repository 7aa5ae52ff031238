// Examples of copies that belong to no kernel: published examples, which tests hold, and an example that shows why
// shared memory is padded or swizzled.
#ifndef __CUDA_ARCH__  // nothing for the device
#include "common/layout/views.hpp"

using namespace cute;
namespace layout = tilegemm::layout;

namespace {

// A tensor in memory; nothing is read.
template <class T, class Layout>
auto global(const Layout& layout) {
  return make_tensor(make_gmem_ptr(static_cast<T*>(nullptr)), layout);
}
template <class T, class Layout>
auto shared(const Layout& layout) {
  return make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), layout);
}

// 16-byte copies of a 128 x 32 tile of a column-major matrix: 8 threads copy 64 rows, 4 threads as many columns.
void column_major_tile(layout::Page& page) {
  page.entry("copy_column_major",
             "a 128 x 32 tile of a column-major 1024 x 1024 matrix of f16, 16 bytes of a thread at a time");
  const auto copy = make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, half_t>{},
                                    Layout<Shape<_8, _4>, Stride<_1, _8>>{}, Layout<Shape<_8>>{});
  const Layout matrix = make_layout(make_shape(Int<1024>{}, Int<1024>{}));
  const Tensor tiles = local_tile(global<half_t>(matrix), Shape<_128, _32>{}, make_coord(0, _));
  const Layout tile = make_layout(Shape<_128, _32>{});
  layout::View& view = layout::copy_view<decltype(tiles), decltype(shared<half_t>(tile))>(
      page, "tiles from global to shared memory", copy, "M", "K");
  layout::store_access(view, "a thread stores 8 values", copy, 2, tile, 8);
}

// The copy of A of a SGEMM: a block's tile is 128 x 128 x 8, K has 8 tiles, shared memory 3 stages.
template <class T, class Threads, class Values, class Major, class Smem>
void sgemm_copy(layout::Page& page, const char* name, const char* about, Threads threads, Values values, Major major,
                Smem smem) {
  page.entry(name, about);
  using Word = uint_bit_t<32 * int(size(values))>;
  const auto copy = make_tiled_copy(Copy_Atom<UniversalCopy<Word>, T>{}, threads, values);
  const Layout a = make_layout(make_shape(Int<256>{}, Int<64>{}), major);
  const Tensor tiles = local_tile(global<T>(a), Shape<_128, _8>{}, make_coord(0, _));
  const auto stage = take<0, 2>(smem);
  layout::View& view = layout::copy_view<decltype(tiles), decltype(shared<T>(smem))>(
      page, "A from global to shared memory", copy, "M", "K");
  layout::store_access(view, "a thread stores its values", copy, 4, stage, int(size(values)));
  layout::shared_view(page, "A", 4, stage, smem, "M", "K");
}

// Elementwise: a thread has 4 x 8 values of a 16 x 256 tile.
void elementwise(layout::Page& page) {
  page.entry("elementwise_row_major", "a row-major 1024 x 1024 matrix of f16, 4 x 8 values of each of 4 x 32 threads");
  const auto copy = make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, half_t>{},
                                    Layout<Shape<_4, _32>, Stride<_32, _1>>{}, Layout<Shape<_4, _8>, Stride<_8, _1>>{});
  const Tensor matrix = global<half_t>(make_layout(make_shape(Int<1024>{}, Int<1024>{}), LayoutRight{}));
  layout::copy_view<decltype(matrix), decltype(matrix)>(page, "tiles between global memory and registers", copy, "M",
                                                        "N");
}

}  // namespace

int main() {
  layout::Page page;
  column_major_tile(page);
  const Layout<Shape<_32, _8>, Stride<_1, _32>> rows;
  const Layout<Shape<_32, _8>, Stride<_8, _1>> columns;
  const Layout<Shape<_4, _1>> four;
  const Layout<Shape<_1, _1>> one;
  const auto stages = make_layout(Shape<_128, _8, _3>{});
  const auto padded = make_layout(Shape<_128, _8, _3>{}, Stride<_1, Int<132>, Int<132 * 8>>{});
  sgemm_copy<float>(page, "sgemm_copy_a", "A of a SGEMM of (M, N, K) = (256, 128, 64), M-major, 256 threads, 3 stages",
                    rows, four, LayoutLeft{}, stages);
  sgemm_copy<float>(page, "sgemm_copy_a_k_major",
                    "the same A, K-major, in columns of 128 numbers: a column is in one bank", columns, one,
                    LayoutRight{}, stages);
  sgemm_copy<float>(page, "sgemm_copy_a_k_major_padded", "the same A, K-major, in columns of 132 numbers", columns, one,
                    LayoutRight{}, padded);
  elementwise(page);
  page.print();
}

#endif
