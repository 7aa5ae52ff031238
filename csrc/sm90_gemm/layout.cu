// The layouts of sm90_gemm.cu, from the collectives that its kernels are made of.
#include "common/layout/program.hpp"

#include "sm90_gemm/sm90_gemm.cu"

namespace tilegemm {
namespace {

using namespace cute;

// A tensor in shared memory. Types of one size have the same layouts.
template <class Layout>
auto shared_tensor(const Layout& layout) { return make_tensor(make_smem_ptr(static_cast<uint16_t*>(nullptr)), layout); }

// The load of A or B, a box of a stage for each block of the cluster that shares the load. `tile`: rows and columns of a stage.
template <class Copy, class Atom, class Layout, class Tile>
void operand(layout::Page& page, const std::string& matrix, const char* row, const Copy& copy, const Atom& atom, const Layout& layout,
             const Tile& tile, bool is_k_major) {
  const Tensor global = local_tile(copy.get_tma_tensor(make_shape(4096, 4096, 1)), tile, make_coord(0, _, 0));
  layout::copy_view(page, matrix + " from global to shared memory", copy, global, shared_tensor(layout), row, "K");
  layout::wgmma_operand(page, matrix, 2, atom, layout, row, is_k_major);
}

}  // namespace

template <class Row>
void describe(layout::Page& page) {
  using Types = Sm90<Row, false>;  // without C there are more stages; the layouts are the same
  using Mainloop = typename Types::Mainloop;
  using Epilogue = typename Types::Epilogue;
  const auto [m, n, k] = typename Types::Tile{};

  const typename Mainloop::SmemLayoutA smem_a;
  const typename Mainloop::SmemLayoutB smem_b;
  operand(page, "A", "M", typename Mainloop::Params::TMA_A{}, typename Mainloop::SmemLayoutAtomA{}, smem_a, make_shape(m, k), a_is_k_major(Row::layout));
  operand(page, "B", "N", typename Mainloop::Params::TMA_B{}, typename Mainloop::SmemLayoutAtomB{}, smem_b, make_shape(n, k), b_is_k_major(Row::layout));
  const typename Mainloop::TiledMma mma;
  layout::mma_views(page, mma, shared_tensor(smem_a), shared_tensor(smem_b), make_shape(m, n));

  // The copies of the collective's functions load() and store().
  using Bits = uint16_t;
  const typename Epilogue::SmemLayoutAtomD atom;
  const auto part = tile_to_shape(atom, typename Epilogue::EpilogueTile{});
  const auto registers = make_tiled_copy_C_atom(typename Epilogue::CopyAtomC{}, mma);
  const auto to_shared = make_tiled_copy_S(Copy_Atom<typename Epilogue::CopyOpR2S, Bits>{}, registers);
  const auto from_shared = make_tiled_copy_S(Copy_Atom<typename Epilogue::CopyOpS2R, Bits>{}, registers);
  const auto store = typename Epilogue::Params::TMA_D{};
  const Tensor d = local_tile(store.get_tma_tensor(make_shape(4096, 4096, 1)), make_shape(m, n), make_coord(0, 0, 0));

  layout::View& shared = layout::shared_view(page, "a part of C or D", 2, atom, part, "M", "N");
  layout::tma_access(shared, "TMA moves 8 neighbouring pieces", 2, atom, layout::table(layout::offsets(part)), true);
  layout::View& stores = layout::copy_view(page, "D from registers to shared memory", to_shared, shared_tensor(part), shared_tensor(part), "M", "N");
  layout::store_access(stores, "stmatrix stores a matrix", to_shared, 2, part, 8);
  layout::View& loads = layout::copy_view(page, "C from shared memory to registers", from_shared, shared_tensor(part), shared_tensor(part), "M", "N");
  layout::load_access(loads, "ldmatrix loads a matrix", from_shared, 2, part, 8);
  layout::copy_view(page, "D from shared to global memory", store, shared_tensor(part), flat_divide(d, typename Epilogue::EpilogueTile{}), "M", "N");
}

}  // namespace tilegemm
