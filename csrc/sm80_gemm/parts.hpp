// f32 products of sm80_gemm by six products of bf16 parts (common/bf16_parts.hpp). docs/f32.md has the method.
//
// A thread reads four neighbouring k's of a row at a time, and splits them in registers. These are the k's 2 t, 2 t +
// 1, 2 t + 8 and 2 t + 9 of an instruction of 16 k's, t = lane % 4: the order of k's within 16 does not matter, as long
// as A and B have the same.
//
// A step is a fragment of A, 16 rows by 16 k's. The first step of 16 k's also splits the fragments of B, which the
// other steps use again.
#pragma once
#include "common/bf16_sums.hpp"
#include "common/mma.hpp"
#include "common/operand.hpp"
#include "common/tile_order.hpp"
#include "common/warps.hpp"

namespace tilegemm {
namespace {

// The K below which large and small products need separate sums.
constexpr int most_apart = 256;

// A block of an f32 operand in shared memory. Along K, eight lanes read two rows at a time, which lie in different
// halves of 128 bytes. Along MN, lanes read eight rows of four k's at a time, and the k's lie in different groups of
// eight numbers.
template <bool K_MAJOR, int MN, int K>
struct FloatLines {
  using Rows = decltype(composition(Swizzle<1, 4, 1>{}, Layout<Shape<_8, Int<K>>, Stride<Int<K>, _1>>{}));
  using Columns =
      decltype(composition(Swizzle < 2, 3, MN == 64 ? 5 : 6 > {}, Layout<Shape<Int<MN>, _16>, Stride<_1, Int<MN>>>{}));
  using Block = decltype(tile_to_shape(conditional_t<K_MAJOR, Rows, Columns>{}, Shape<Int<MN>, Int<K>>{}));
  static constexpr bool padded = false;
  static_assert(K_MAJOR ? K == 32 : (MN == 64 || MN == 128) && K % 16 == 0);
};

// Such an operand, and its fragments of 16 rows by 16 k's.
template <bool K_MAJOR, int MN, int K, int STAGES, int ALIGN, int THREADS>
struct FloatOperand : Stages<FloatLines<K_MAJOR, MN, K>, 4, K_MAJOR, MN, K, STAGES, ALIGN, THREADS> {
  using Base = Stages<FloatLines<K_MAJOR, MN, K>, 4, K_MAJOR, MN, K, STAGES, ALIGN, THREADS>;
  using Base::place, Base::stepped;

  // The first of a lane's numbers.
  template <bool>
  CUTE_HOST_DEVICE static constexpr int row_of(int lane) {
    return lane / 4;
  }
  template <bool>
  CUTE_HOST_DEVICE static constexpr int k_of(int lane) {
    return lane % 4 * 4;
  }

  // The place of fragment `i` of a warp at 16 k's `step` of a stage, from the place of fragment 0 at step 0.
  CUTE_HOST_DEVICE static constexpr uint32_t fragment_at(uint32_t first, int step, int i) {
    return stepped(stepped(first, place(16 * i, 0)), place(0, 16 * step));
  }

  // A warp's fragments, `warp_mn` being the first row of the warp.
  struct Reader {
    uint32_t from;

    CUTE_DEVICE Reader(uint32_t ring, int warp_mn) {
      const int lane = int(threadIdx.x) % 32;
      from = ring + place(warp_mn + row_of<true>(lane), k_of<true>(lane));
    }

    // A lane's four k's of two rows, eight rows apart.
    CUTE_DEVICE void load(float (&to)[8], uint32_t stage, int step, int i) const {
      const uint32_t at = fragment_at(from + stage, step, i);
      CUTE_UNROLL
      for (int half = 0; half < 2; half++) {
        const uint32_t row = stepped(at, place(8 * half, 0));
        if constexpr (K_MAJOR) {
          const float4 x = load_shared_4_ordered(row);
          to[4 * half] = x.x, to[4 * half + 1] = x.y, to[4 * half + 2] = x.z, to[4 * half + 3] = x.w;
        } else {
          CUTE_UNROLL
          for (int k = 0; k < 4; k++) to[4 * half + k] = __uint_as_float(load_shared(row + place(0, k)));
        }
      }
    }
  };
};

// Splits what `Reader` has loaded. Part p of a fragment of A is f[p]; as fragments of two instructions, B has f[p][0]
// and f[p][2] for its first eight columns, f[p][1] and f[p][3] for the others.
CUTE_DEVICE void split_fragments(Fragments& f, const float (&x)[8]) {
  split(x[0], x[1], f[0][0], f[1][0], f[2][0]);
  split(x[4], x[5], f[0][1], f[1][1], f[2][1]);
  split(x[2], x[3], f[0][2], f[1][2], f[2][2]);
  split(x[6], x[7], f[0][3], f[1][3], f[2][3]);
}

// Computes the sums again that are not finite (docs/f32.md), of rows of D that lie in shared memory. `k0`, `depth`: the
// part of K.
template <class C>
CUTE_DEVICE void mend(float* slab, const tg_gemm_args& args, int64_t k0, int depth, int m0, int n0, const Tile& tile) {
  tg_matrix a = args.a, b = args.b;
  a.ptr = static_cast<float*>(a.ptr) + k0 * a.col_stride, b.ptr = static_cast<float*>(b.ptr) + k0 * b.row_stride;
  CUTE_NO_UNROLL
  for (int at = int(threadIdx.x); at < C::slab * C::warps_m * C::tile_n; at += C::threads) {
    const int line = at / C::tile_n, column = at % C::tile_n;
    const int m = m0 + line / C::slab * C::warp_m + line % C::slab, n = n0 + column;
    float& sum = slab[line * C::pitch + column];
    if (is_strange(sum) && m < args.m && n < args.n) sum = strict(a, b, depth, m, n, tile.batch0, tile.batch1);
  }
}

// A warp's sums of products. Tensor cores cut the last digits of their sums off, before Hopper after every eight
// products. So sums leave the tensor cores every 16 of K, by an addition whose rounding error is where the next sum
// starts.
//
// apart: large and small products have separate sums. The total of large sums may then be smaller than the next sum.
template <class OF, bool apart>
struct Parts : Warps<OF> {
  using Row = OF;
  using Sum = float;
  using A = FloatOperand<a_is_k_major(Row::layout), Row::tile_m, Row::tile_k, Row::stages, Row::align, 32 * Row::warps>;
  using B = FloatOperand<b_is_k_major(Row::layout), Row::tile_n, Row::tile_k, Row::stages, Row::align, 32 * Row::warps>;
  static constexpr int fragments_m = Warps<Row>::fragments_m, fragments_n = Warps<Row>::fragments_n;
  static constexpr int steps = Row::tile_k / 16 * fragments_m;
  static constexpr bool mends = true;
  static_assert(fragments_m % 2 == 0 && Row::dtype == TG_F32 && Row::out == TG_F32);

  typename A::Reader from_a;
  typename B::Reader from_b;
  float sum[fragments_m][2 * fragments_n][4] = {};   // (MMA_M,MMA_N,MMA)
  float rest[fragments_m][2 * fragments_n][4] = {};  // rounding errors; small products, if `apart`
  float a[2][8], b[fragments_n][8];                  // (PIPE,MMA), (MMA_N/2,MMA x 2)
  Fragments of_b[fragments_n];

  CUTE_DEVICE Parts(uint32_t ring_a, uint32_t ring_b, int warp_m, int warp_n)
      : from_a(ring_a, warp_m), from_b(ring_b, warp_n) {}

  CUTE_DEVICE void load(int stage, int step) {
    from_a.load(a[step % 2], stage * A::stage_bytes, step / fragments_m, step % fragments_m);
    if (step % fragments_m == 0) {
      CUTE_UNROLL
      for (int i = 0; i < fragments_n; i++) from_b.load(b[i], stage * B::stage_bytes, step / fragments_m, i);
    }
  }

  CUTE_DEVICE void multiply(int step) {
    const int i = step % fragments_m;
    if (i == 0) {
      CUTE_UNROLL
      for (int j = 0; j < fragments_n; j++) split_fragments(of_b[j], b[j]);
    }
    Fragments of_a;
    split_fragments(of_a, a[step % 2]);
    // The small products, then the large product.
    constexpr int in_a[] = {0, 1, 2, 0, 1, 0}, in_b[] = {2, 1, 0, 1, 0, 0};
    float large[2 * fragments_n][4] = {};  // (MMA_N,MMA)
    CUTE_UNROLL
    for (int p = 0; p < 6; p++) {
      CUTE_UNROLL
      for (int j = 0; j < 2 * fragments_n; j++) {
        const auto& parts = of_b[j / 2][in_b[p]];
        mma_16<__nv_bfloat16>(apart && p == 5 ? large[j] : rest[i][j], of_a[in_a[p]], parts[j % 2], parts[j % 2 + 2]);
      }
    }
    CUTE_UNROLL
    for (int j = 0; j < 2 * fragments_n; j++) {
      CUTE_UNROLL
      for (int e = 0; e < 4; e++) {
        if constexpr (apart) {
          rest[i][j][e] += add_whole(sum[i][j][e], large[j][e]);
        } else {  // Fast2Sum
          const float old = sum[i][j][e];
          sum[i][j][e] = __fadd_rn(old, rest[i][j][e]);
          rest[i][j][e] = __fsub_rn(rest[i][j][e], __fsub_rn(sum[i][j][e], old));
        }
      }
    }
  }

  // Adds what is left, and gives back the share of a result that tensor cores have cut off. If `apart`, the share is a
  // little smaller, as in sm90_bf16x6_direct.
  CUTE_DEVICE void finish() {
    constexpr float given = apart ? given_back * (1 - 0x1p-6f) : given_back;
    CUTE_UNROLL
    for (int i = 0; i < fragments_m; i++) {
      CUTE_UNROLL
      for (int j = 0; j < 2 * fragments_n; j++) {
        CUTE_UNROLL
        for (int e = 0; e < 4; e++)
          sum[i][j][e] = __fadd_rn(sum[i][j][e], __fmaf_rn(sum[i][j][e], given, rest[i][j][e]));
      }
    }
  }

  // Whether a sum of the thread is not finite.
  CUTE_DEVICE bool has_strange() const {
    float zero = 0;
    CUTE_UNROLL
    for (int i = 0; i < fragments_m; i++) {
      CUTE_UNROLL
      for (int j = 0; j < 2 * fragments_n; j++) {
        CUTE_UNROLL
        for (int e = 0; e < 4; e++)
          zero = fmaf(sum[i][j][e], 0.0f, zero);  // only a number that is not finite, times 0, is not 0
      }
    }
    return zero != 0;
  }
};

}  // namespace
}  // namespace tilegemm
