// Products of sm80_gemm in the formats that mma.sync takes as they are: f16, bf16 and TF32.
#pragma once
#include "common/mma.hpp"
#include "common/operand.hpp"
#include "common/warps.hpp"

namespace tilegemm {
namespace {

// 16 x 8 sums of products over 32 bytes of K.
template <class Row>
CUTE_DEVICE void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (Row::dtype == TG_F32) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    mma_16<typename scalar<Row::dtype>::type>(sum, a, b0, b1);
  }
}

// Rounds to nearest. Tensor cores cut the last bits off.
template <int count>
CUTE_DEVICE void round_to_tf32(uint32_t (&fragments)[count][4]) {
  CUTE_UNROLL
  for (int i = 0; i < count; i++) {
    CUTE_UNROLL
    for (int j = 0; j < 4; j++)
      asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(fragments[i][j]) : "f"(__uint_as_float(fragments[i][j])));
  }
}

// A warp's sums of products. A step is 32 bytes of K; the fragments of a step are loaded while the step before
// multiplies.
template <class OF>
struct Native : Warps<OF> {
  using Row = OF;
  using Sum = float;
  static constexpr int bytes = int(sizeof(typename scalar<Row::dtype>::type));
  using A =
      Operand<bytes, a_is_k_major(Row::layout), Row::tile_m, Row::tile_k, Row::stages, Row::align, 32 * Row::warps>;
  using B =
      Operand<bytes, b_is_k_major(Row::layout), Row::tile_n, Row::tile_k, Row::stages, Row::align, 32 * Row::warps>;
  static constexpr int steps = Row::tile_k * bytes / 32;
  static constexpr bool mends = false;
  static constexpr int fragments_m = Warps<Row>::fragments_m, fragments_n = Warps<Row>::fragments_n;

  typename A::template Fragments<true> from_a;
  typename B::template Fragments<false> from_b;
  float sum[fragments_m][2 * fragments_n][4] = {};      // (MMA_M,MMA_N,MMA)
  uint32_t a[2][fragments_m][4], b[2][fragments_n][4];  // (PIPE,MMA_M,MMA), (PIPE,MMA_N/2,MMA x 2)

  CUTE_DEVICE Native(uint32_t ring_a, uint32_t ring_b, int warp_m, int warp_n)
      : from_a(ring_a, warp_m), from_b(ring_b, warp_n) {}

  // Loads the fragments of a step from a stage.
  CUTE_DEVICE void load(int stage, int step) {
    CUTE_UNROLL
    for (int i = 0; i < fragments_m; i++) from_a.load(a[step % 2][i], stage * A::stage_bytes, step, i);
    CUTE_UNROLL
    for (int i = 0; i < fragments_n; i++) from_b.load(b[step % 2][i], stage * B::stage_bytes, step, i);
  }

  // Multiplies the fragments of a step.
  CUTE_DEVICE void multiply(int step) {
    if constexpr (Row::math == TG_TF32) round_to_tf32(a[step % 2]), round_to_tf32(b[step % 2]);
    CUTE_UNROLL
    for (int i = 0; i < fragments_m; i++) {
      CUTE_UNROLL
      for (int j = 0; j < 2 * fragments_n; j++) {
        tilegemm::multiply<Row>(sum[i][j], a[step % 2][i], b[step % 2][j / 2][j % 2 * 2],
                                b[step % 2][j / 2][j % 2 * 2 + 1]);
      }
    }
  }

  CUTE_DEVICE void finish() {}
};

}  // namespace
}  // namespace tilegemm
