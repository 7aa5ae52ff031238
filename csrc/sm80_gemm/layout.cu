// The layouts of sm80_gemm.cu. The kernels of that file step addresses of shared memory by hand. This program compares the steps with CuTe's
// layouts.
#ifndef __CUDA_ARCH__  // nothing for the device
#include "common/layout/program.hpp"

#include "sm80_gemm/sm80_gemm.cu"

namespace tilegemm {
namespace {

using namespace cute;

template <tg_format, tg_math> struct Product;
template <> struct Product<TG_F16, TG_NATIVE> { using type = half_t; using atom = SM80_16x8x16_F32F16F16F32_TN; };
template <> struct Product<TG_BF16, TG_NATIVE> { using type = bfloat16_t; using atom = SM80_16x8x16_F32BF16BF16F32_TN; };
template <> struct Product<TG_F32, TG_TF32> { using type = tfloat32_t; using atom = SM80_16x8x8_F32TF32TF32F32_TN; };

// Compares the stepped addresses of copies and of fragments with the layout.
template <class Op, bool is_a>
void compare(int mn_count, int warp_mn, int steps) {
  for (int thread = 0; thread < Op::lines_at_a_time * Op::across; thread++) {
    const int line = thread / Op::across, at = thread % Op::across * Op::vector;
    for (int i = 0; i < Op::copies; i++) {
      const int here = line + i * Op::lines_at_a_time;
      const uint32_t first = Op::k_major ? Op::place(line, at) : Op::place(at, line);
      layout::require(Op::copy_at(first, i) == (Op::k_major ? Op::place(here, at) : Op::place(at, here)), "a thread's copies");
    }
  }
  for (int warp = 0; warp < mn_count; warp += warp_mn) {
    for (int lane = 0; lane < 32; lane++) {
      const int row = warp + Op::template row_of<is_a>(lane), k = Op::template k_of<is_a>(lane);
      for (int step = 0; step < steps; step++) {
        for (int i = 0; i < warp_mn / 16; i++) {
          const uint32_t place = Op::fragment_at(Op::place(row, k), step, i);
          layout::require(place == Op::place(row + 16 * i, k + 32 / Op::bytes * step), "a lane's fragments");
        }
      }
    }
  }
}

// The way of an operand to shared memory and to registers.
template <class Op, class T, int mn_count, int k_count, int threads>
void operand(layout::Page& page, const std::string& matrix, const char* row) {
  constexpr int across = Op::across, vector = Op::vector;
  using ThreadsK = Layout<Shape<Int<threads / across>, Int<across>>, Stride<Int<across>, _1>>;
  using ThreadsMN = Layout<Shape<Int<across>, Int<threads / across>>>;
  using Threads = std::conditional_t<Op::k_major, ThreadsK, ThreadsMN>;
  using Values = std::conditional_t<Op::k_major, Layout<Shape<_1, Int<vector>>>, Layout<Shape<Int<vector>, _1>>>;
  const auto copy = make_tiled_copy(Copy_Atom<UniversalCopy<uint_bit_t<8 * Op::bytes * vector>>, T>{}, Threads{}, Values{});
  const auto lines = make_layout(Shape<Int<4096>, Int<4096>>{}, std::conditional_t<Op::k_major, LayoutRight, LayoutLeft>{});
  using Global = decltype(make_tensor(make_gmem_ptr(static_cast<T*>(nullptr)), lines));
  using Tiles = decltype(local_tile(std::declval<Global>(), Shape<Int<mn_count>, Int<k_count>>{}, make_coord(_0{}, _)));
  const typename Op::Block block;
  using Shared = decltype(make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), block));
  layout::View& loads = layout::copy_view<Tiles, Shared>(page, matrix + " from global to shared memory", copy, row, "K");
  layout::store_access(loads, Op::async ? "cp.async stores a vector of a thread" : "a thread stores two numbers", copy, Op::bytes, block, vector);

  layout::View& shared = layout::shared_view(page, matrix, Op::bytes, block, block, row, "K");
  const layout::Table offsets = layout::table(layout::offsets(block));
  if constexpr (Op::padded) {
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
  using C = Config<Row>;
  using T = typename Product<Row::dtype, Row::math>::type;
  compare<typename C::A, true>(C::tile_m, C::warp_m, C::steps);
  compare<typename C::B, false>(C::tile_n, C::warp_n, C::steps);
  operand<typename C::A, T, C::tile_m, C::tile_k, C::threads>(page, "A", "M");
  operand<typename C::B, T, C::tile_n, C::tile_k, C::threads>(page, "B", "N");

  // A warp has neighbouring rows and columns.
  using M = Layout<Shape<_16, Int<C::warps_m>, Int<C::fragments_m>>, Stride<_1, Int<C::warp_m>, _16>>;
  using N = Layout<Shape<_8, Int<C::warps_n>, Int<2 * C::fragments_n>>, Stride<_1, Int<C::warp_n>, _8>>;
  using Mma = TiledMMA<MMA_Atom<typename Product<Row::dtype, Row::math>::atom>, Layout<Shape<Int<C::warps_m>, Int<C::warps_n>, _1>>,
                       cute::Tile<M, N, Int<32 / C::bytes>>>;
  using A = decltype(make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), typename C::A::Block{}));
  using B = decltype(make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), typename C::B::Block{}));
  layout::mma_views<A, B, Shape<Int<C::tile_m>, Int<C::tile_n>>>(page, Mma{});

  // D on its way to global memory: a thread stores two columns of two rows, and loads eight columns of a row.
  constexpr int rows = C::slab * C::warps_m;
  const Layout<Shape<Int<rows>, Int<C::tile_n>>, Stride<Int<C::pitch>, _1>> slab;
  layout::View& out = layout::shared_view(page, "rows of D", 4, slab, slab, "M", "N");
  std::vector<int> stores, loads;
  for (int lane = 0; lane < 16; lane++) stores.push_back(slab(lane / 4, lane % 4 * 2) * 4);
  for (int lane = 0; lane < 8; lane++) loads.push_back(slab(0, lane * 8) * 4);
  out.access("a thread stores two numbers", 16, 8, layout::ways(stores, 8));
  out.access("a thread loads four of eight numbers", 8, 16, layout::ways(loads, 16));
}

}  // namespace tilegemm

#endif
