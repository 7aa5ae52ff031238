// The layouts of sm100_gemm.cu. TMA stores boxes, and tcgen05.mma reads CuTe's layouts: this program compares the place
// of every number, and counts the bank conflicts of the way of D.
#ifndef __CUDA_ARCH__  // nothing for the device
#include "common/layout/program.hpp"

#include "common/layout/boxes.hpp"
#include "sm100_gemm/sm100_gemm.cu"

namespace tilegemm {
namespace {

using namespace cute;

// The byte of a stage at which TMA stores a number: a box has lines of 128 bytes, along K or along the rows; the number
// of a line is xored into the number of a piece of 16 bytes (PTX ISA, "128B swizzling mode").
template <class C, bool k_major>
int place_by_tma(int row, int k) {
  constexpr int bytes = int(sizeof(typename C::T));
  const int line = k_major ? row : row / C::line * C::tile_k + k, at = (k_major ? k : row % C::line) * bytes;
  return line * 128 + ((at / 16 ^ line % 8) << 4) + at % 16;
}

// An operand of `rows` rows of a block, in the ring that CuTe's descriptors are made of.
template <class C, class Ring, bool k_major, int rows>
void operand(layout::Page& page, const char* matrix, const char* row_name) {
  using T = typename C::T;
  using Atom = typename C::template Atom<k_major>;
  constexpr int bytes = int(sizeof(T)), stage_bytes = rows * 128, step = 32 / bytes;  // of K in a product
  const auto ring = layout::offsets(Ring{});
  for (int s = 0; s < C::stages; s++) {
    for (int row = 0; row < rows; row++) {
      for (int k = 0; k < C::tile_k; k++) {
        const int at = int(ring(make_coord(make_coord(row, k % step), 0, k / step, s))) * bytes;
        layout::require(at == s * stage_bytes + place_by_tma<C, k_major>(row, k), "a number of a stage");
      }
    }
  }

  using Shape = Shape<Int<rows>, Int<C::tile_k>, Int<C::stages>>;
  const decltype(tile_to_shape(Atom{}, Shape{}, typename C::template Order<k_major>{})) stages;
  layout::tma_view<T, rows, C::tile_k, k_major>(page, matrix, stages, row_name);
  layout::View& view = layout::shared_view(page, matrix, bytes, Atom{}, stages, row_name, "K");
  const layout::Table stage = layout::table(take<0, 2>(layout::offsets(stages)));
  layout::tma_access(view, "TMA stores 8 neighbouring pieces", bytes, Atom{}, stage, k_major);
  view.access("tcgen05.mma loads a core matrix", 8, 16, layout::ways_of_pieces(stage, bytes, k_major, 1));
}

// D on its way: a thread has a row of 64 columns and stores four at a time; then eight threads have a row, and load
// four of eight columns.
void parts(layout::Page& page) {
  layout::View& view = page.view("rows of D in shared memory");
  const auto most = [](const auto& place) {
    int most = 0;
    for (int first = 0; first < 32; first += 8) {
      for (int piece = 0; piece < 16; piece++) {
        std::vector<int> addresses;
        for (int lane = first; lane < first + 8; lane++) addresses.push_back(16 * place(lane, piece));
        most = std::max(most, layout::ways(addresses, 16));
      }
    }
    return most;
  };
  view.access("a thread stores four numbers of its row", 8, 16,
              most([](int lane, int piece) { return place_of(lane, piece); }));
  view.access("a thread loads four of eight numbers", 8, 16,
              most([](int lane, int piece) { return place_of(lane / 8 + piece / 2 * 4, lane % 8 * 2 + piece % 2); }));
}

}  // namespace

template <class Row>
void describe(layout::Page& page) {
  using C = Config<Row>;
  operand<C, typename C::RingA, C::a_k_major, C::a_rows>(page, "A", "M");
  operand<C, typename C::RingB, C::b_k_major, C::b_rows>(page, "B", "N");

  // The threads of CuTe's product are thread blocks.
  const typename C::Mma mma;
  layout::View& view = page.view("MMA");
  view.fact("atom", layout::type_name<typename C::Mma::Atom::MMA_Op>())
      .fact("tiler", tile_shape(mma))
      .fact("blocks", mma.get_thr_layout_vmnk());
  view.fact("A: block and value", decltype(mma.get_layoutA_TV()){})
      .fact("B: block and value", decltype(mma.get_layoutB_TV()){});
  view.fact("C: block and value", decltype(mma.get_layoutC_TV()){});

  // A lane of tensor memory is 1 << 16 in an address, a column is 1; a thread of the storing warps has a lane.
  using Sums = decltype(C::Mma::make_fragment_C(typename C::Sums{}));
  const auto sums = layout::layout_of<Sums>();
  for (int row = 0; row < 128; row++) {
    for (int column = 0; column < C::tile_n; column++) {
      layout::require(int(sums(make_coord(row, column), 0, 0)) == (row << 16) + column,
                      "a number of C in tensor memory");
    }
  }
  const Layout<Shape<_128, Int<C::part>>, Stride<_1, _128>> loaded;
  layout::View& registers = page.view("MMA: C in registers");
  registers.fact("tensor memory", sums).fact("thread-value layout", loaded);
  page.grid(registers, layout::thread_grid(layout::table(loaded), "M", "N", 128, C::part));
  if constexpr (C::rung >= Rung::subtiles) parts(page);
}

}  // namespace tilegemm

#endif
