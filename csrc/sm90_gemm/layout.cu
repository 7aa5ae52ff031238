// The layouts of sm90_gemm.cu, from the collectives that the kernels are made of.
#ifndef __CUDA_ARCH__  // nothing for the device
#include "common/layout/program.hpp"

#include "sm90_gemm/sm90_gemm.cu"

namespace tilegemm {
namespace {

using namespace cute;

// The type of a tensor in shared memory. Types of one size have the same layouts.
template <class Layout, class Bits = uint16_t>
using Shared = decltype(make_tensor(make_smem_ptr(static_cast<Bits*>(nullptr)), Layout{}));

// The tensor of coordinates that a TMA copy has of a matrix.
template <class Copy>
auto coordinates(const Copy& copy) {
  return copy.get_tma_tensor(Shape<Int<4096>, Int<4096>, _1>{});
}

// The load of A or B, a box of a stage for each block of the cluster that shares the load. Tile: rows and columns of a
// stage.
template <class Tile, class Copy, class Atom, class Layout>
void operand(layout::Page& page, const std::string& matrix, const char* row, const Copy& copy, const Atom& atom,
             const Layout& layout, bool is_k_major) {
  using Tiles = decltype(local_tile(coordinates(copy), Tile{}, make_coord(_0{}, _, _0{})));
  layout::copy_view<Tiles, Shared<Layout>>(page, matrix + " from global to shared memory", copy, row, "K");
  layout::wgmma_operand(page, matrix, 2, atom, layout, row, is_k_major);
}

}  // namespace

template <class Row>
void describe(layout::Page& page) {
  using Types = Sm90<Row, false>;  // without C there are more stages; the layouts are the same
  using Mainloop = typename Types::Mainloop;
  using Epilogue = typename Types::Epilogue;
  using M = Int<Row::tile_m>;
  using N = Int<Row::tile_n>;
  using K = Int<Row::tile_k>;

  const typename Mainloop::SmemLayoutA smem_a;
  const typename Mainloop::SmemLayoutB smem_b;
  const typename Mainloop::SmemLayoutAtomA atom_a;
  const typename Mainloop::SmemLayoutAtomB atom_b;
  operand<Shape<M, K>>(page, "A", "M", typename Mainloop::Params::TMA_A{}, atom_a, smem_a, a_is_k_major(Row::layout));
  operand<Shape<N, K>>(page, "B", "N", typename Mainloop::Params::TMA_B{}, atom_b, smem_b, b_is_k_major(Row::layout));
  const typename Mainloop::TiledMma mma;
  layout::mma_views<Shared<typename Mainloop::SmemLayoutA>, Shared<typename Mainloop::SmemLayoutB>, Shape<M, N>>(page,
                                                                                                                 mma);

  // The copies of the collective's functions load() and store().
  using Bits = std::conditional_t<Row::out == TG_F32, uint32_t, uint16_t>;
  using Tile = typename Epilogue::EpilogueTile;
  const typename Epilogue::SmemLayoutAtomD atom;
  const decltype(tile_to_shape(atom, Tile{})) part;
  using Part = Shared<decltype(tile_to_shape(atom, Tile{})), Bits>;
  const typename Epilogue::Params::TMA_D store{};
  using D = decltype(flat_divide(local_tile(coordinates(store), Shape<M, N>{}, make_coord(_0{}, _0{}, _0{})), Tile{}));

  layout::View& shared = layout::shared_view(page, "a part of C or D", int(sizeof(Bits)), atom, part, "M", "N");
  layout::tma_access(shared, "TMA moves 8 neighbouring pieces", int(sizeof(Bits)), atom,
                     layout::table(layout::offsets(part)), true);
  if constexpr (sizeof(Bits) == 2) {  // f32 goes from registers to shared memory by plain stores
    using Registers = decltype(make_tiled_copy_C_atom(typename Epilogue::CopyAtomC{}, mma));
    const decltype(make_tiled_copy_S(Copy_Atom<typename Epilogue::CopyOpR2S, Bits>{}, Registers{})) to_shared;
    const decltype(make_tiled_copy_S(Copy_Atom<typename Epilogue::CopyOpS2R, Bits>{}, Registers{})) from_shared;
    layout::View& stores =
        layout::copy_view<Part, Part>(page, "D from registers to shared memory", to_shared, "M", "N");
    layout::store_access(stores, "stmatrix stores a matrix", to_shared, 2, part, 8);
    layout::View& loads =
        layout::copy_view<Part, Part>(page, "C from shared memory to registers", from_shared, "M", "N");
    layout::load_access(loads, "ldmatrix loads a matrix", from_shared, 2, part, 8);
  }
  layout::copy_view<Part, D>(page, "D from shared to global memory", store, "M", "N");
}

}  // namespace tilegemm

#endif
