// Views of CuTe's copies and products, and of matrices in shared memory.
#pragma once
#include "common/layout/page.hpp"

namespace tilegemm::layout {

// CuTe's layouts are types. Views take the types of tensors and layouts, which saves the compiler the code that would
// make them.

// The static layout of a type of tensor.
template <class Tensor>
auto layout_of() {
  using Layout = cute::remove_cvref_t<decltype(std::declval<Tensor>().layout())>;
  static_assert(cute::is_static<Layout>::value, "a layout is evaluated from its type");
  return Layout{};
}

// ---- Shared memory --------------------------------------------------------------------------------------------------

// A layout of shared memory as offsets in elements: CuTe's swizzles of pointers become swizzles of offsets.
template <class Layout>
auto offsets(const Layout& layout) {
  return layout;
}
template <int B, int M, int S, int bits, class Layout>
auto offsets(const cute::ComposedLayout<cute::Swizzle<B, M, S>, cute::smem_ptr_flag_bits<bits>, Layout>& layout) {
  return cute::as_position_independent_swizzle_layout(layout);
}

// The swizzle of a layout of offsets, in words.
template <class Layout>
std::string swizzle(const Layout&) {
  return "none";
}
template <int B, int M, int S, class Offset, class Layout>
std::string swizzle(const cute::ComposedLayout<cute::Swizzle<B, M, S>, Offset, Layout>&) {
  const auto bits = [](int first) { return std::to_string(first) + " to " + std::to_string(first + B - 1); };
  return B == 0 ? "none"
                : text(cute::Swizzle<B, M, S>{}) + ", which xors bits " + bits(M + S) + " of the offset into bits " +
                      bits(M);
}

// A matrix in shared memory. A third mode of the layout, if there is a third mode, is the stages. `Atom` is the layout
// that is repeated.
template <class Atom, class Layout>
View& shared_view(Page& page, const std::string& matrix, int bytes, const Atom& atom, const Layout& layout,
                  const char* row, const char* column) {
  using namespace cute;
  View& view = page.view(matrix + " in shared memory");
  const int stages = int(size(layout)) / int(size<0>(layout) * size<1>(layout));
  view.fact("layout", offsets(layout)).fact("atom", offsets(atom)).fact("swizzle", swizzle(offsets(atom)));
  view.fact("bytes", std::to_string(int(size(layout)) / stages * bytes) + " a stage, " + std::to_string(stages) +
                         (stages > 1 ? " stages" : " stage"));
  page.grid(view, bank_grid(table(offsets(atom)), bytes, row, column));
  return view;
}

// Adds the accesses of TMA, which moves neighbouring pieces of 16 bytes. `along_columns`: neighbours along the columns
// are contiguous.
template <class Atom>
View& tma_access(View& view, const char* what, int bytes, const Atom& atom, const Table& stage, bool along_columns) {
  const int line = along_columns ? int(cute::size<1>(atom)) : int(cute::size<0>(atom));
  return view.access(what, 8, 16, ways_of_pieces(stage, bytes, along_columns, std::min(8, line * bytes / 16)));
}

// An operand of wgmma in shared memory, which TMA stores.
template <class Atom, class Layout>
void wgmma_operand(Page& page, const std::string& matrix, int bytes, const Atom& atom, const Layout& layout,
                   const char* row, bool is_k_major) {
  View& view = shared_view(page, matrix, bytes, atom, layout, row, "K");
  const Table stage = table(cute::take<0, 2>(offsets(layout)));
  tma_access(view, "TMA stores 8 neighbouring pieces", bytes, atom, stage, is_k_major);
  view.access("wgmma loads a core matrix", 8, 16, ways_of_pieces(stage, bytes, is_k_major, 1));
}

// ---- Copies ---------------------------------------------------------------------------------------------------------

template <class Copy>
struct copy_operation;
template <class Operation, class... Args, class T>
struct copy_operation<cute::Copy_Atom<cute::Copy_Traits<Operation, Args...>, T>> {
  using type = Operation;
};
template <class Operation, class T>
struct copy_operation<cute::Copy_Atom<Operation, T>> {
  using type = Operation;
};
template <class Atom, class Layout, class Tiler>
struct copy_operation<cute::TiledCopy<Atom, Layout, Tiler>> : copy_operation<Atom> {};

// (thread, value) -> element of a tile, counted down the tile's columns. A tiler may name rows and columns in an order
// of its own.
template <class Layout, class Tiler>
Table tile_table(const Layout& tv, const Tiler& tiler) {
  using namespace cute;
  const auto place = [](const auto& mode, int i) {
    if constexpr (is_layout<remove_cvref_t<decltype(mode)>>::value) return int(mode(i));
    else return i;
  };
  const int rows = int(size<0>(tiler));
  Table elements = table(tv);
  for (int& at : elements.values) at = place(get<0>(tiler), at % rows) + rows * place(get<1>(tiler), at / rows);
  return elements;
}

// A view of a copy: the atom, tiler, thread-value layout, and thread 0's partitions of tensors of the types Source and
// Destination.
template <class Source, class Destination, class Copy>
View& copy_view(Page& page, const std::string& title, const Copy& copy, const char* row, const char* column) {
  using Tiler = typename Copy::Tiler_MN;
  using Layout = typename Copy::TiledLayout_TV;
  using Thread = decltype(copy.get_slice(cute::Int<0>{}));
  View& view = page.view(title);
  view.fact("atom", type_name<typename copy_operation<Copy>::type>())
      .fact("tiler", cute::shape(Tiler{}))
      .fact("thread-value layout", Layout{});
  view.fact("source partition", layout_of<decltype(std::declval<Thread>().partition_S(std::declval<Source>()))>());
  view.fact("destination partition",
            layout_of<decltype(std::declval<Thread>().partition_D(std::declval<Destination>()))>());
  if (cute::size<0>(Layout{}) > 1) {
    page.grid(view, thread_grid(tile_table(Layout{}, Tiler{}), row, column, int(cute::size<0>(Tiler{})),
                                int(cute::size<1>(Tiler{}))));
  }
  return view;
}

// Adds the store of a copy's tile to a matrix in shared memory, `values` elements of a thread at a time.
template <class Copy, class Layout>
View& store_access(View& view, const char* what, const Copy& copy, int bytes, const Layout& layout, int values) {
  const int rows = int(cute::size<0>(typename Copy::Tiler_MN{}));
  return view.access(what, lanes_together(values * bytes), values * bytes,
                     ways_of_threads(tile_table(decltype(copy.get_layoutD_TV()){}, typename Copy::Tiler_MN{}), rows,
                                     table(offsets(layout)), bytes, values));
}
// Adds the load of a copy's tile from a matrix in shared memory, `values` elements of a thread at a time.
template <class Copy, class Layout>
View& load_access(View& view, const char* what, const Copy& copy, int bytes, const Layout& layout, int values) {
  const int rows = int(cute::size<0>(typename Copy::Tiler_MN{}));
  return view.access(what, lanes_together(values * bytes), values * bytes,
                     ways_of_threads(tile_table(decltype(copy.get_layoutS_TV()){}, typename Copy::Tiler_MN{}), rows,
                                     table(offsets(layout)), bytes, values));
}

// ---- Products -------------------------------------------------------------------------------------------------------

// Whether an operand is in registers. wgmma reads shared memory, for all threads together.
template <class Fragment>
constexpr bool is_in_registers = !std::is_base_of_v<cute::GMMA::DescriptorIterator, Fragment>;

// The operands of the product, by the sides of the MMA: with swap_ab, the MMA's A is B, and the MMA's C is D
// transposed.
struct Sides {
  const char *a = "A", *b = "B", *m = "M", *n = "N";
  static Sides of(bool swap_ab) { return swap_ab ? Sides{"B", "A", "N", "M"} : Sides{}; }
};

// A tiled MMA. A and B: the types of the operands in shared memory; Tile: rows and columns of a block's tile.
template <class A, class B, class Tile, class Mma>
void mma_views(Page& page, const Mma& mma, const Sides& sides = {}) {
  using namespace cute;
  using Thread = decltype(mma.get_slice(Int<0>{}));
  const int m = int(tile_size<0>(mma)), n = int(tile_size<1>(mma)), k = int(tile_size<2>(mma));
  const auto fragments = [&](const char* matrix, const auto& tv, const auto& partition, const char* row,
                             const char* column, int rows, int columns, bool in_registers) {
    View& view = page.view(std::string("MMA: ") + matrix + (in_registers ? " in registers" : " in shared memory"));
    view.fact("thread-value layout", tv).fact("partition", partition);
    if (in_registers) page.grid(view, thread_grid(table(tv), row, column, rows, columns));
  };
  View& view = page.view("MMA");
  view.fact("atom", type_name<typename Mma::Atom::MMA_Op>())
      .fact("tiler", tile_shape(mma))
      .fact("threads", mma.get_thr_layout_vmnk());
  constexpr bool a_in_registers = is_in_registers<typename Mma::FrgTypeA>,
                 b_in_registers = is_in_registers<typename Mma::FrgTypeB>;
  fragments(sides.a, decltype(mma.get_layoutA_TV()){},
            layout_of<decltype(std::declval<Thread>().partition_A(std::declval<A>()))>(), sides.m, "K", m, k,
            a_in_registers);
  fragments(sides.b, decltype(mma.get_layoutB_TV()){},
            layout_of<decltype(std::declval<Thread>().partition_B(std::declval<B>()))>(), sides.n, "K", n, k,
            b_in_registers);
  fragments("C", decltype(mma.get_layoutC_TV()){},
            decltype(make_layout(partition_shape_C(mma, std::declval<Tile>()))){}, sides.m, sides.n, m, n, true);
}

}  // namespace tilegemm::layout
