// The layouts of sm80_gemm.cu. The kernels of that file step addresses of shared memory by hand. This program compares
// the steps with CuTe's layouts.
#ifndef __CUDA_ARCH__  // nothing for the device
#include "common/layout/program.hpp"

#include "sm80_gemm/sm80_gemm.cu"

namespace tilegemm {
namespace {

using namespace cute;

// The product of a row: its type, atom, and the k's of the atom, each in the place that its fragment has.
template <class Row, tg_format = Row::dtype, tg_math = Row::math> struct Described;
template <class Row, class T, class Atom, class K>
struct Describes {
  using type = T;
  using atom = Atom;
  using k = K;
  static constexpr bool by_lanes = false;  // whether lanes load numbers of their own
  using product = Native<Row>;
};
template <class Row> struct Described<Row, TG_F16, TG_NATIVE>
    : Describes<Row, half_t, SM80_16x8x16_F32F16F16F32_TN, _16> {};
template <class Row> struct Described<Row, TG_BF16, TG_NATIVE>
    : Describes<Row, bfloat16_t, SM80_16x8x16_F32BF16BF16F32_TN, _16> {};
template <class Row> struct Described<Row, TG_F32, TG_TF32>
    : Describes<Row, tfloat32_t, SM80_16x8x8_F32TF32TF32F32_TN, _8> {};
template <class Row>
struct Described<Row, TG_F32, TG_BF16X6>
    : Describes<Row, float, SM80_16x8x16_F32BF16BF16F32_TN, Layout<Shape<_2, _4, _2>, Stride<_1, _4, _2>>> {
  static constexpr bool by_lanes = true;
  using product = Parts<Row, false>;
};
template <class Row>
struct Described<Row, TG_F64, TG_NATIVE> : Describes<Row, double, SM80_8x8x4_F64F64F64F64_TN, _4> {
  static constexpr bool by_lanes = true;
  using product = Double<Row>;
};

// Compares the stepped addresses of copies and of fragments with the layout. A step has `k_of_step` k's; a lane loads
// `k_of_lane` neighbouring k's of two rows, eight apart, or 0 where ldmatrix loads.
template <class Op, bool is_a>
void compare(int mn_count, int warp_mn, int k_count, int k_of_step, int k_of_lane) {
  for (int thread = 0; thread < Op::lines_at_a_time * Op::across; thread++) {
    const int line = thread / Op::across, at = thread % Op::across * Op::vector;
    for (int i = 0; i < Op::copies; i++) {
      const int here = line + i * Op::lines_at_a_time;
      const uint32_t first = Op::k_major ? Op::place(line, at) : Op::place(at, line);
      layout::require(Op::copy_at(first, i) == (Op::k_major ? Op::place(here, at) : Op::place(at, here)),
                      "a thread's copies");
    }
  }
  for (int warp = 0; warp < mn_count; warp += warp_mn) {
    for (int lane = 0; lane < 32; lane++) {
      const int row = warp + Op::template row_of<is_a>(lane), k = Op::template k_of<is_a>(lane);
      for (int step = 0; step < k_count / k_of_step; step++) {
        for (int i = 0; i < warp_mn / 16; i++) {
          const uint32_t place = Op::fragment_at(Op::place(row, k), step, i);
          layout::require(place == Op::place(row + 16 * i, k + k_of_step * step), "a lane's fragments");
          for (int half = 0; half < 2; half++) {
            for (int e = 0; e < k_of_lane; e++) {
              const uint32_t number =
                  Op::stepped(place, Op::place(8 * half, 0)) + (Op::k_major ? e * Op::bytes : Op::place(0, e));
              layout::require(number == Op::place(row + 16 * i + 8 * half, k + k_of_step * step + e),
                              "a lane's numbers");
            }
          }
        }
      }
    }
  }
}

// The way of an operand to shared memory and to registers.
template <class Op, class T, int mn_count, int k_count, int threads, bool by_lanes>
void operand(layout::Page& page, const std::string& matrix, const char* row) {
  constexpr int across = Op::across, vector = Op::vector;
  using ThreadsK = Layout<Shape<Int<threads / across>, Int<across>>, Stride<Int<across>, _1>>;
  using ThreadsMN = Layout<Shape<Int<across>, Int<threads / across>>>;
  using Threads = std::conditional_t<Op::k_major, ThreadsK, ThreadsMN>;
  using Values = std::conditional_t<Op::k_major, Layout<Shape<_1, Int<vector>>>, Layout<Shape<Int<vector>, _1>>>;
  const auto copy =
      make_tiled_copy(Copy_Atom<UniversalCopy<uint_bit_t<8 * Op::bytes * vector>>, T>{}, Threads{}, Values{});
  const auto lines =
      make_layout(Shape<Int<4096>, Int<4096>>{}, std::conditional_t<Op::k_major, LayoutRight, LayoutLeft>{});
  using Global = decltype(make_tensor(make_gmem_ptr(static_cast<T*>(nullptr)), lines));
  using Tiles = decltype(local_tile(std::declval<Global>(), Shape<Int<mn_count>, Int<k_count>>{}, make_coord(_0{}, _)));
  const typename Op::Block block;
  using Shared = decltype(make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), block));
  layout::View& loads =
      layout::copy_view<Tiles, Shared>(page, matrix + " from global to shared memory", copy, row, "K");
  layout::store_access(loads, Op::async ? "cp.async stores a vector of a thread" : "a thread stores two numbers", copy,
                       Op::bytes, block, vector);

  layout::View& shared = layout::shared_view(page, matrix, Op::bytes, block, block, row, "K");
  const layout::Table offsets = layout::table(layout::offsets(block));
  if constexpr (by_lanes) {
    // Half a warp loads 8 bytes at a time, a quarter 16 bytes.
    constexpr int bytes = Op::k_major && Op::bytes == 4 ? 16 : Op::bytes, lanes = bytes == 4 ? 32 : 128 / bytes;
    std::vector<int> addresses;
    for (int lane = 0; lane < lanes; lane++)
      addresses.push_back(int(Op::place(Op::template row_of<true>(lane), Op::template k_of<true>(lane))));
    shared.access(bytes == 16 ? "a lane loads four numbers" : "a lane loads a number", lanes, bytes,
                  layout::ways(addresses, bytes));
  } else if constexpr (Op::padded) {
    std::vector<int> addresses;
    for (int lane = 0; lane < 32; lane++) addresses.push_back(offsets(lane / 4, lane % 4) * Op::bytes);
    shared.access("a lane loads a number of its fragment", 32, Op::bytes, layout::ways(addresses, Op::bytes));
  } else {
    shared.access("ldmatrix loads a matrix", 8, 16, layout::ways_of_pieces(offsets, Op::bytes, Op::k_major, 1));
  }
}

}  // namespace

template <class Row>
void describe(layout::Page& page) {
  using D = Described<Row>;
  using P = typename D::product;
  using C = Config<P>;
  using T = typename D::type;
  using Shape_MNK = typename MMA_Traits<typename D::atom>::Shape_MNK;
  constexpr int rows_of_atom = size<0>(Shape_MNK{}), k_of_atom = size<2>(Shape_MNK{}),
                k_of_lane = !D::by_lanes       ? 0
                            : P::A::bytes == 4 ? 4
                                               : 1;
  compare<typename P::A, true>(C::tile_m, C::warp_m, C::tile_k, k_of_atom, k_of_lane);
  compare<typename P::B, false>(C::tile_n, C::warp_n, C::tile_k, k_of_atom, k_of_lane);
  operand<typename P::A, T, C::tile_m, C::tile_k, C::threads, D::by_lanes>(page, "A", "M");
  operand<typename P::B, T, C::tile_n, C::tile_k, C::threads, D::by_lanes>(page, "B", "N");

  // A warp has neighbouring rows and columns.
  using RowsOfAtom = Int<rows_of_atom>;
  using M =
      Layout<Shape<RowsOfAtom, Int<C::warps_m>, Int<C::warp_m / rows_of_atom>>, Stride<_1, Int<C::warp_m>, RowsOfAtom>>;
  using N = Layout<Shape<_8, Int<C::warps_n>, Int<2 * C::fragments_n>>, Stride<_1, Int<C::warp_n>, _8>>;
  using Mma = TiledMMA<MMA_Atom<typename D::atom>, Layout<Shape<Int<C::warps_m>, Int<C::warps_n>, _1>>,
                       cute::Tile<M, N, typename D::k>>;
  using A = decltype(make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), typename P::A::Block{}));
  using B = decltype(make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), typename P::B::Block{}));
  layout::mma_views<A, B, Shape<Int<C::tile_m>, Int<C::tile_n>>>(page, Mma{});

  // D on its way to global memory: a thread stores two columns of two rows, and loads eight columns of a row.
  constexpr int rows = C::slab * C::warps_m, bytes = int(sizeof(typename C::Sum)), in_piece = 16 / bytes;
  const Layout<Shape<Int<rows>, Int<C::tile_n>>, Stride<Int<C::pitch>, _1>> slab;
  layout::View& out = layout::shared_view(page, "rows of D", bytes, slab, slab, "M", "N");
  std::vector<int> stores, loads;
  for (int lane = 0; lane < 64 / bytes; lane++) stores.push_back(slab(lane / 4, lane % 4 * 2) * bytes);
  for (int lane = 0; lane < 8; lane++) loads.push_back(slab(0, lane * 8) * bytes);
  out.access("a thread stores two numbers", 64 / bytes, 2 * bytes, layout::ways(stores, 2 * bytes));
  out.access(in_piece == 4 ? "a thread loads four of eight numbers" : "a thread loads two of eight numbers", 8, 16,
             layout::ways(loads, 16));
  page.view("shared memory of a block").fact("bytes", std::to_string(C::shared_bytes));
}

}  // namespace tilegemm

#endif
