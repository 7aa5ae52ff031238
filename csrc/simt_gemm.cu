// f32 GEMM on the FMA units, in CuTe: every layout, size, stride and alignment.
//
// A thread block computes one TILE_M x TILE_N tile of D with 16 x 16 threads. cp.async brings TILE_K columns of A and of
// B per stage into a ring of shared-memory buffers. No operand is transposed on the way: shared memory keeps the major of
// global memory, and a thread reads four floats at once ("a piece") along whichever direction is contiguous:
//
//     K-major:   1 row  x 4 k        MN-major:  4 rows x 1 k
//
// Both majors cost one 16-byte load per four floats, so all four layouts run the same loop. It holds four k of A in
// registers, streams B through two pieces, and reloads each piece of A right after its last use. That is 64 accumulators
// + 32 + 8 registers for a 128 x 128 tile, which leaves room for two thread blocks per multiprocessor.
#include <climits>
#include <cute/tensor.hpp>

#include "epilogue.hpp"
#include "kernel.hpp"

namespace tilegemm {

using namespace cute;

constexpr int threads = 256;
constexpr int vec = 4;  // floats of a piece: one 16-byte access of shared memory

// One operand in blocks of MN rows (A) or columns (B) by K, copied from global memory ALIGN bytes at a time.
template <bool K_MAJOR, int MN, int K, int ALIGN>
struct Operand {
  static constexpr bool k_major = K_MAJOR;
  static constexpr int width = ALIGN / int(sizeof(float));  // floats per cp.async
  static constexpr int rows = MN / 16;                      // of one thread
  static constexpr int pieces = rows;                       // of one thread, per `vec` k

  // Four K-major rows are followed by four floats of padding. The rows 4t ... 4t + 3 belong to thread t, so the threads of
  // a warp read at a distance of 4 * K + 4 floats: eight neighbours cover all 32 banks. An MN-major block needs no padding.
  static CUTE_HOST_DEVICE constexpr auto smem_layout() {
    if constexpr (k_major) {
      return make_layout(Shape<Shape<Int<vec>, Int<MN / vec>>, Int<K>>{},
                         Stride<Stride<Int<K>, Int<vec * K + vec>>, _1>{});
    } else {
      return make_layout(Shape<Int<MN>, Int<K>>{});
    }
  }
  static constexpr int smem_floats = k_major ? MN / vec * (vec * K + vec) : MN * K;

  // Neighbouring threads copy neighbouring vectors; K is below the number of threads, so each thread copies one k only.
  static CUTE_HOST_DEVICE constexpr auto tiled_copy() {
    using Atom = Copy_Atom<UniversalCopy<uint_bit_t<8 * ALIGN>>, float>;
    if constexpr (k_major) {
      using Threads = Layout<Shape<Int<threads * width / K>, Int<K / width>>, Stride<Int<K / width>, _1>>;
      return make_tiled_copy(Atom{}, Threads{}, Layout<Shape<_1, Int<width>>>{});
    } else {
      return make_tiled_copy(Atom{}, Layout<Shape<Int<threads / K>, Int<K>>>{}, Layout<Shape<Int<width>, _1>>{});
    }
  }

  // The whole matrix of one batch. The contiguous stride is static.
  static CUTE_HOST_DEVICE auto tensor(const float* ptr, int64_t extent, int64_t k, int64_t stride_mn, int64_t stride_k) {
    const auto shape = make_shape(extent, k);
    if constexpr (k_major) {
      return make_tensor(make_gmem_ptr(ptr), shape, make_stride(stride_mn, _1{}));
    } else {
      return make_tensor(make_gmem_ptr(ptr), shape, make_stride(_1{}, stride_k));
    }
  }

  // Groups a thread's part of a block, (ROWS,K,...), into pieces: (VEC,PIECES,...).
  template <class Tensor>
  static CUTE_HOST_DEVICE auto into_pieces(Tensor&& tensor) {
    using Piece = conditional_t<k_major, Shape<_1, Int<vec>>, Shape<Int<vec>, _1>>;
    return group_modes<1, 3>(group_modes<0, 2>(flat_divide(tensor, Piece{})));
  }

  // Row and k of an element of a piece, among the thread's own rows and the `vec` k in registers.
  static CUTE_HOST_DEVICE constexpr int row(int piece, int element) {
    return k_major ? piece : piece % (rows / vec) * vec + element;
  }
  static CUTE_HOST_DEVICE constexpr int k(int piece, int element) { return k_major ? element : piece / (rows / vec); }
};

// Copies `bytes` bytes, 0 ... WIDTH * 4, without waiting, and zero-fills the rest. Global memory behind them is not touched.
template <int WIDTH>
CUTE_DEVICE void copy_async(const float* gmem, float* smem, int bytes) {
  const uint32_t target = cast_smem_ptr_to_uint(smem);
  if constexpr (WIDTH == 4) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(gmem), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;" ::"r"(target), "l"(gmem), "r"(bytes) : "memory");
  }
}

// The order in which the tiles of D are visited: in bands of `group` rows of tiles (columns, when along M), so that the
// tiles that run at the same time share their operands in L2.
struct Raster {
  unsigned tiles_m, tiles_n, group;
  bool along_m;
  int64_t first_batch;

  Raster(const tg_gemm_args& args, int tile_m, int tile_n)
      : tiles_m(unsigned(ceil_div(args.m, tile_m))), tiles_n(unsigned(ceil_div(args.n, tile_n))),
        along_m(args.raster == TG_RASTER_ALONG_M), first_batch(0) {
    group = std::min(args.swizzle > 0 ? unsigned(args.swizzle) : 8u, along_m ? tiles_n : tiles_m);
  }

  struct Tile { unsigned m, n; int64_t batch; };

  CUTE_DEVICE Tile operator()(unsigned index) const {
    const unsigned tiles = tiles_m * tiles_n, in_batch = index % tiles;
    const unsigned rows = along_m ? tiles_n : tiles_m, cols = along_m ? tiles_m : tiles_n;
    const unsigned first_row = in_batch / (group * cols) * group, in_band = in_batch % (group * cols);
    const unsigned height = min(group, rows - first_row);
    const unsigned row = first_row + in_band % height, col = in_band / height;
    return {along_m ? col : row, along_m ? row : col, first_batch + index / tiles};
  }
};

template <class Row>
struct SimtGemm {
  static_assert(Row::dtype == TG_F32, "the FMA units are used for f32 only");
  static_assert(Row::align == 4 || Row::align == 16, "operands are copied 4 or 16 bytes at a time");
  static_assert(Row::tile_m % 64 == 0 && Row::tile_n % 64 == 0, "a thread owns four rows or columns of every 64");
  static_assert(Row::tile_k % 8 == 0 && 256 % Row::tile_k == 0, "a whole number of vectors in each direction");
  static_assert(Row::stages >= 3, "one stage is read while the others are on their way");

  using A = Operand<a_is_k_major(Row::layout), Row::tile_m, Row::tile_k, Row::align>;
  using B = Operand<b_is_k_major(Row::layout), Row::tile_n, Row::tile_k, Row::align>;
  static constexpr int smem_bytes = Row::stages * (A::smem_floats + B::smem_floats) * int(sizeof(float));
  static constexpr int blocks_per_sm = Row::tile_m * Row::tile_n <= 128 * 128 ? 2 : 1;

  // 16 x 16 threads, a warp being 4 x 8. Lane bit 0 goes along N and bit 1 along M: lanes that differ in one of them read
  // the same piece of one operand, the condition under which 16-byte loads are served for half a warp at a time.
  // Each thread owns 4 x 4 outputs of every 64 x 64.
  using Threads = Layout<Shape<Shape<_2, _2, _4>, Shape<_2, _2, _2, _2>, _1>,
                         Stride<Stride<_2, _8, Int<32>>, Stride<_1, _4, _16, _128>, _0>>;
  using Quads = Layout<Shape<_16, Int<vec>>, Stride<Int<vec>, _1>>;
  using Mma = TiledMMA<MMA_Atom<UniversalFMA<float, float, float>>, Threads, Tile<Quads, Quads, Underscore>>;
};

// Bytes that each copy of this thread has to read, given how many rows and k of the block exist.
template <class Op, class Coords>
CUTE_DEVICE auto valid_bytes(const Coords& tc, int64_t rows_left, int64_t k_left) {
  Tensor bytes = make_tensor<int>(make_layout(Shape<Int<size<1>(Coords{})>, Int<size<2>(Coords{})>>{}));
  return bytes;
}

}  // namespace tilegemm

#include TG_ROWS
