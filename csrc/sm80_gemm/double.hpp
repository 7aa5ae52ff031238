// f64 products of sm80_gemm: mma.sync m8n8k4, and m16n8k4 from Hopper on.
//
// With g = lane / 4 and t = lane % 4, a lane has the numbers of A at row g and of B at column g of eight, at k = t of
// four.
#pragma once
#include "common/operand.hpp"
#include "common/ptx.hpp"
#include "common/warps.hpp"

namespace tilegemm {
namespace {

// A block of an f64 operand in shared memory. 16 lanes read four rows of four k's at a time. Along K the rows, along MN
// the k's lie in different quarters of 128 bytes.
template <bool K_MAJOR, int MN, int K>
struct DoubleLines {
  using Rows = decltype(composition(Swizzle<2, 2, 2>{}, Layout<Shape<_8, Int<K>>, Stride<Int<K>, _1>>{}));
  using Columns =
      decltype(composition(Swizzle < 2, 2, MN == 64 ? 4 : 5 > {}, Layout<Shape<Int<MN>, _4>, Stride<_1, Int<MN>>>{}));
  using Block = decltype(tile_to_shape(conditional_t<K_MAJOR, Rows, Columns>{}, Shape<Int<MN>, Int<K>>{}));
  static constexpr bool padded = false;
  static_assert(K_MAJOR ? K == 16 : (MN == 64 || MN == 128) && K % 4 == 0);
};

// Such an operand, and its fragments of 16 rows by four k's.
template <bool K_MAJOR, int MN, int K, int STAGES, int ALIGN, int THREADS>
struct DoubleOperand : Stages<DoubleLines<K_MAJOR, MN, K>, 8, K_MAJOR, MN, K, STAGES, ALIGN, THREADS> {
  using Base = Stages<DoubleLines<K_MAJOR, MN, K>, 8, K_MAJOR, MN, K, STAGES, ALIGN, THREADS>;
  using Base::place, Base::stepped;

  // The first of a lane's numbers.
  template <bool>
  CUTE_HOST_DEVICE static constexpr int row_of(int lane) {
    return lane / 4;
  }
  template <bool>
  CUTE_HOST_DEVICE static constexpr int k_of(int lane) {
    return lane % 4;
  }

  // The place of fragment `i` of a warp at four k's `step` of a stage, from the place of fragment 0 at step 0.
  CUTE_HOST_DEVICE static constexpr uint32_t fragment_at(uint32_t first, int step, int i) {
    return stepped(stepped(first, place(16 * i, 0)), place(0, 4 * step));
  }

  // A warp's fragments, `warp_mn` being the first row of the warp.
  struct Reader {
    uint32_t from;

    CUTE_DEVICE Reader(uint32_t ring, int warp_mn) {
      const int lane = int(threadIdx.x) % 32;
      from = ring + place(warp_mn + row_of<true>(lane), k_of<true>(lane));
    }

    // A lane's number of two rows, eight rows apart.
    CUTE_DEVICE void load(double (&to)[2], uint32_t stage, int step, int i) const {
      const uint32_t at = fragment_at(from + stage, step, i);
      CUTE_UNROLL
      for (int half = 0; half < 2; half++) to[half] = load_shared_double(stepped(at, place(8 * half, 0)));
    }
  };
};

// 16 x 8 sums of products over a K of four.
template <int arch>
CUTE_DEVICE void mma_double(double (&sum)[4], const double (&a)[2], double b) {
  if constexpr (arch >= 90) {
    asm volatile("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+d"(sum[0]), "+d"(sum[1]), "+d"(sum[2]), "+d"(sum[3])
                 : "d"(a[0]), "d"(a[1]), "d"(b));
  } else {
    CUTE_UNROLL
    for (int half = 0; half < 2; half++) {
      asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                   : "+d"(sum[2 * half]), "+d"(sum[2 * half + 1])
                   : "d"(a[half]), "d"(b));
    }
  }
}

// A warp's sums of products. A step is four of K; the fragments of a step are loaded while the step before multiplies.
template <class OF>
struct Double : Warps<OF> {
  using Row = OF;
  using Sum = double;
  using A =
      DoubleOperand<a_is_k_major(Row::layout), Row::tile_m, Row::tile_k, Row::stages, Row::align, 32 * Row::warps>;
  using B =
      DoubleOperand<b_is_k_major(Row::layout), Row::tile_n, Row::tile_k, Row::stages, Row::align, 32 * Row::warps>;
  static constexpr int fragments_m = Warps<Row>::fragments_m, fragments_n = Warps<Row>::fragments_n;
  static constexpr int steps = Row::tile_k / 4;
  static constexpr bool mends = false;
  static_assert(Row::dtype == TG_F64 && Row::out == TG_F64);

  typename A::Reader from_a;
  typename B::Reader from_b;
  double sum[fragments_m][2 * fragments_n][4] = {};   // (MMA_M,MMA_N,MMA)
  double a[2][fragments_m][2], b[2][fragments_n][2];  // (PIPE,MMA_M,MMA), (PIPE,MMA_N/2,MMA x 2)

  CUTE_DEVICE Double(uint32_t ring_a, uint32_t ring_b, int warp_m, int warp_n)
      : from_a(ring_a, warp_m), from_b(ring_b, warp_n) {}

  CUTE_DEVICE void load(int stage, int step) {
    CUTE_UNROLL
    for (int i = 0; i < fragments_m; i++) from_a.load(a[step % 2][i], stage * A::stage_bytes, step, i);
    CUTE_UNROLL
    for (int i = 0; i < fragments_n; i++) from_b.load(b[step % 2][i], stage * B::stage_bytes, step, i);
  }

  CUTE_DEVICE void multiply(int step) {
    CUTE_UNROLL
    for (int i = 0; i < fragments_m; i++) {
      CUTE_UNROLL
      for (int j = 0; j < 2 * fragments_n; j++)
        mma_double<Row::arch>(sum[i][j], a[step % 2][i], b[step % 2][j / 2][j % 2]);
    }
  }

  CUTE_DEVICE void finish() {}
};

}  // namespace
}  // namespace tilegemm
