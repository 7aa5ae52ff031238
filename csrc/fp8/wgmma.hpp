// wgmma of numbers of 8 bits, e4m3 or s8, with both operands in shared memory, K-major, in TMA's 128-byte swizzle.
#pragma once
#include <cuda_fp8.h>

#include <cstdint>
#include <type_traits>

#include "common/wgmma.hpp"

namespace tilegemm {

// The type of the tensor core's sums.
template <class T>
using wgmma_sum = std::conditional_t<std::is_same_v<T, int8_t>, int, float>;

__device__ __forceinline__ void pin(float& x) { asm volatile("" : "+f"(x)::"memory"); }
__device__ __forceinline__ void pin(int& x) { asm volatile("" : "+r"(x)::"memory"); }
template <class Acc, int size>
__device__ __forceinline__ void pin_all(Acc (&d)[size]) {
#pragma unroll
  for (int i = 0; i < size; i++) pin(d[i]);
}

// The accumulators of TG_WGMMA_S* (common/wgmma.hpp), in registers of kind R: "f" or "r".
#define TG_WGMMA_8_F(R, i) "+" R(d[4 * i]), "+" R(d[4 * i + 1]), "+" R(d[4 * i + 2]), "+" R(d[4 * i + 3])
#define TG_WGMMA_8_O0(R) TG_WGMMA_8_F(R, 0)
#define TG_WGMMA_8_O1(R) TG_WGMMA_8_O0(R), TG_WGMMA_8_F(R, 1)
#define TG_WGMMA_8_O3(R) TG_WGMMA_8_O1(R), TG_WGMMA_8_F(R, 2), TG_WGMMA_8_F(R, 3)
#define TG_WGMMA_8_FOUR(R, i) \
  TG_WGMMA_8_F(R, i), TG_WGMMA_8_F(R, (i + 1)), TG_WGMMA_8_F(R, (i + 2)), TG_WGMMA_8_F(R, (i + 3))
#define TG_WGMMA_8_O7(R) TG_WGMMA_8_O3(R), TG_WGMMA_8_FOUR(R, 4)
#define TG_WGMMA_8_O11(R) TG_WGMMA_8_O7(R), TG_WGMMA_8_FOUR(R, 8)
#define TG_WGMMA_8_O13(R) TG_WGMMA_8_O11(R), TG_WGMMA_8_F(R, 12), TG_WGMMA_8_F(R, 13)
#define TG_WGMMA_8_O15(R) TG_WGMMA_8_O11(R), TG_WGMMA_8_FOUR(R, 12)
#define TG_WGMMA_8_O17(R) TG_WGMMA_8_O15(R), TG_WGMMA_8_F(R, 16), TG_WGMMA_8_F(R, 17)
#define TG_WGMMA_8_O19(R) TG_WGMMA_8_O15(R), TG_WGMMA_8_FOUR(R, 16)
#define TG_WGMMA_8_O23(R) TG_WGMMA_8_O19(R), TG_WGMMA_8_FOUR(R, 20)
#define TG_WGMMA_8_O27(R) TG_WGMMA_8_O23(R), TG_WGMMA_8_FOUR(R, 24)
#define TG_WGMMA_8_O31(R) TG_WGMMA_8_O27(R), TG_WGMMA_8_FOUR(R, 28)
// P, Q, ADD: the positions of these operands in the list of assembly operands. SCALES: of the operands' signs, for
// e4m3.
#define TG_WGMMA_8_ASM(N, LAST, P, Q, ADD, R, TYPES, SCALES)                                                  \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ADD                                                    \
               ", 0;\n"                                                                                       \
               " wgmma.mma_async.sync.aligned.m64n" #N "k32." TYPES " {" TG_WGMMA_S##LAST "}, %" #P ", %" #Q  \
                                                                                          ", p" SCALES ";\n}" \
               : TG_WGMMA_8_O##LAST(R)                                                                        \
               : "l"(p), "l"(q), "r"(add))
#define TG_WGMMA_8_ROWS(N, LAST, P, Q, ADD)                                                            \
  if constexpr (rows == N) {                                                                           \
    if constexpr (std::is_same_v<T, int8_t>) TG_WGMMA_8_ASM(N, LAST, P, Q, ADD, "r", "s32.s8.s8", ""); \
    else TG_WGMMA_8_ASM(N, LAST, P, Q, ADD, "f", "f32.e4m3.e4m3", ", 1, 1");                           \
  }

// The high word of wgmma_descriptor(); the low word has the address in units of 16 bytes, and 1 in its bit 16.
constexpr uint64_t wgmma_high = 1 << 30 | 1024 >> 4;

// d = (add ? d : 0) + 64 rows of P times `rows` rows of Q over 32 of K.
template <class T, int rows>
__device__ __forceinline__ void wgmma_8(wgmma_sum<T> (&d)[rows / 2], uint64_t p, uint64_t q, int add) {
  static_assert(std::is_same_v<T, int8_t> || std::is_same_v<T, __nv_fp8_e4m3>);
  static_assert(rows == 8 || rows == 16 || rows == 32 || rows == 64 || rows == 96 || rows == 112 || rows == 128 ||
                rows == 144 || rows == 160 || rows == 192 || rows == 224 || rows == 256);
  TG_WGMMA_8_ROWS(8, 0, 4, 5, 6)
  TG_WGMMA_8_ROWS(16, 1, 8, 9, 10)
  TG_WGMMA_8_ROWS(32, 3, 16, 17, 18)
  TG_WGMMA_8_ROWS(64, 7, 32, 33, 34)
  TG_WGMMA_8_ROWS(96, 11, 48, 49, 50)
  TG_WGMMA_8_ROWS(112, 13, 56, 57, 58)
  TG_WGMMA_8_ROWS(128, 15, 64, 65, 66)
  TG_WGMMA_8_ROWS(144, 17, 72, 73, 74)
  TG_WGMMA_8_ROWS(160, 19, 80, 81, 82)
  TG_WGMMA_8_ROWS(192, 23, 96, 97, 98)
  TG_WGMMA_8_ROWS(224, 27, 112, 113, 114)
  TG_WGMMA_8_ROWS(256, 31, 128, 129, 130)
}

// Starts the products of 128 of K: 64 rows at `p` with `rows` rows at `q`, one swizzled box each. `add`: whether the
// first product adds to `d`. The descriptors of a box differ in their low words, by the distance in units of 16 bytes.
template <class T, int rows>
__device__ __forceinline__ void multiply_box(wgmma_sum<T> (&d)[rows / 2], uint32_t p, uint32_t q, int add) {
  constexpr uint64_t high = wgmma_high << 32;
  const uint32_t low_p = p >> 4 | 1 << 16, low_q = q >> 4 | 1 << 16;
#pragma unroll
  for (int j = 0; j < 4; j++) wgmma_8<T, rows>(d, high | (low_p + 2 * j), high | (low_q + 2 * j), j > 0 ? 1 : add);
}

template <int pending>
__device__ __forceinline__ void wgmma_wait_for() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

}  // namespace tilegemm
