// wgmma with both operands in shared memory, K-major, in TMA's 128-byte swizzle; or with the first operand in registers
// and the second operand in rows of 128 or 64 bytes, swizzled.
#pragma once
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace tilegemm {

// An operand at `address`: rows of 128 bytes, swizzled in groups of eight (PTX ISA, "Matrix Descriptor Format").
__device__ inline uint64_t wgmma_descriptor(uint32_t address) {
  return (uint64_t(1) << 62) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 16) | ((address & 0x3FFFF) >> 4);
}

// A descriptor for rows of 64 bytes, with 64-byte swizzle.
__device__ inline uint64_t wgmma_descriptor_64(uint32_t address) {
  return (uint64_t(2) << 62) | (uint64_t(512 >> 4) << 32) | (uint64_t(1) << 16) | ((address & 0x3FFFF) >> 4);
}

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group and waits until at most `pending` groups are in flight.
template <int pending = 0>
__device__ inline void wgmma_commit_and_wait() {
  asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// Keeps the compiler from moving uses of the accumulators across a fence or a wait.
template <int size>
__device__ inline void wgmma_pin(float (&d)[size]) {
#pragma unroll
  for (int i = 0; i < size; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Sets sums to zero after setmaxnreg: the compiler would move plain zeros before setmaxnreg, which provides the
// registers.
template <int size>
__device__ __forceinline__ void wgmma_zero(float (&d)[size]) {
#pragma unroll
  for (int i = 0; i < size; i++) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(d[i]));
}

// Fragment j of a warp's sums: a lane's share of 16 rows and columns 8 j to 8 j + 7.
template <int size>
__device__ __forceinline__ float4 fragment(const float (&sum)[size], int j) {
  return make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
}

// Accumulators of 8 columns each, up to the number LAST: their names, and their registers.
#define TG_WGMMA_S0 "%0, %1, %2, %3"
#define TG_WGMMA_S1 TG_WGMMA_S0 ", %4, %5, %6, %7"
#define TG_WGMMA_S2 TG_WGMMA_S1 ", %8, %9, %10, %11"
#define TG_WGMMA_S3 TG_WGMMA_S2 ", %12, %13, %14, %15"
#define TG_WGMMA_S5 TG_WGMMA_S3 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define TG_WGMMA_S7 TG_WGMMA_S5 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define TG_WGMMA_S8 TG_WGMMA_S7 ", %32, %33, %34, %35"
#define TG_WGMMA_S9 TG_WGMMA_S8 ", %36, %37, %38, %39"
#define TG_WGMMA_S11 TG_WGMMA_S9 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define TG_WGMMA_S12 TG_WGMMA_S11 ", %48, %49, %50, %51"
#define TG_WGMMA_S13 TG_WGMMA_S12 ", %52, %53, %54, %55"
#define TG_WGMMA_S15 TG_WGMMA_S13 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define TG_WGMMA_S16 TG_WGMMA_S15 ", %64, %65, %66, %67"
#define TG_WGMMA_S17 TG_WGMMA_S16 ", %68, %69, %70, %71"
#define TG_WGMMA_S19 TG_WGMMA_S17 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define TG_WGMMA_S21 TG_WGMMA_S19 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define TG_WGMMA_S23 TG_WGMMA_S21 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define TG_WGMMA_S24 TG_WGMMA_S23 ", %96, %97, %98, %99"
#define TG_WGMMA_S27 TG_WGMMA_S24 ", %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TG_WGMMA_S31 \
  TG_WGMMA_S27 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define TG_WGMMA_F(i) "+f"(d[4 * i]), "+f"(d[4 * i + 1]), "+f"(d[4 * i + 2]), "+f"(d[4 * i + 3])
#define TG_WGMMA_O0 TG_WGMMA_F(0)
#define TG_WGMMA_O1 TG_WGMMA_O0, TG_WGMMA_F(1)
#define TG_WGMMA_O2 TG_WGMMA_O1, TG_WGMMA_F(2)
#define TG_WGMMA_O3 TG_WGMMA_O2, TG_WGMMA_F(3)
#define TG_WGMMA_O5 TG_WGMMA_O3, TG_WGMMA_F(4), TG_WGMMA_F(5)
#define TG_WGMMA_O7 TG_WGMMA_O5, TG_WGMMA_F(6), TG_WGMMA_F(7)
#define TG_WGMMA_O8 TG_WGMMA_O7, TG_WGMMA_F(8)
#define TG_WGMMA_O9 TG_WGMMA_O8, TG_WGMMA_F(9)
#define TG_WGMMA_O11 TG_WGMMA_O9, TG_WGMMA_F(10), TG_WGMMA_F(11)
#define TG_WGMMA_O12 TG_WGMMA_O11, TG_WGMMA_F(12)
#define TG_WGMMA_O13 TG_WGMMA_O12, TG_WGMMA_F(13)
#define TG_WGMMA_O15 TG_WGMMA_O13, TG_WGMMA_F(14), TG_WGMMA_F(15)
#define TG_WGMMA_O16 TG_WGMMA_O15, TG_WGMMA_F(16)
#define TG_WGMMA_O17 TG_WGMMA_O16, TG_WGMMA_F(17)
#define TG_WGMMA_O19 TG_WGMMA_O17, TG_WGMMA_F(18), TG_WGMMA_F(19)
#define TG_WGMMA_O21 TG_WGMMA_O19, TG_WGMMA_F(20), TG_WGMMA_F(21)
#define TG_WGMMA_O23 TG_WGMMA_O21, TG_WGMMA_F(22), TG_WGMMA_F(23)
#define TG_WGMMA_O24 TG_WGMMA_O23, TG_WGMMA_F(24)
#define TG_WGMMA_O27 TG_WGMMA_O24, TG_WGMMA_F(25), TG_WGMMA_F(26), TG_WGMMA_F(27)
#define TG_WGMMA_O31 TG_WGMMA_O27, TG_WGMMA_F(28), TG_WGMMA_F(29), TG_WGMMA_F(30), TG_WGMMA_F(31)
// X, Y: the positions of p and q in the list of assembly operands, behind the accumulators.
#define TG_WGMMA_ASM(N, LAST, X, Y, TYPE)                                                                          \
  asm volatile(                                                                                                    \
      "{\n .reg .pred p;\n setp.eq.u32 p, 0, 0;\n"                                                                 \
      " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TG_WGMMA_S##LAST "}, %" #X ", %" #Y    \
                                                                                             ", p, 1, 1, 0, 0;\n}" \
      : TG_WGMMA_O##LAST                                                                                           \
      : "l"(p), "l"(q))
#define TG_WGMMA_ROWS(N, LAST, X, Y)                                                   \
  if constexpr (rows == N) {                                                           \
    if constexpr (std::is_same_v<Element, __half>) TG_WGMMA_ASM(N, LAST, X, Y, "f16"); \
    else TG_WGMMA_ASM(N, LAST, X, Y, "bf16");                                          \
  }

// d += 64 rows of P times `rows` rows of Q over 16 of K.
template <class Element, int rows>
__device__ inline void wgmma(float (&d)[rows / 2], uint64_t p, uint64_t q) {
  static_assert(rows == 8 || rows == 16 || rows == 24 || rows == 32 || rows == 48 || rows == 64 || rows == 72 ||
                rows == 80 || rows == 96 || rows == 104 || rows == 112 || rows == 128 || rows == 136 || rows == 144 ||
                rows == 160 || rows == 176 || rows == 192 || rows == 200 || rows == 224);
  TG_WGMMA_ROWS(8, 0, 4, 5)
  TG_WGMMA_ROWS(16, 1, 8, 9)
  TG_WGMMA_ROWS(24, 2, 12, 13)
  TG_WGMMA_ROWS(32, 3, 16, 17)
  TG_WGMMA_ROWS(48, 5, 24, 25)
  TG_WGMMA_ROWS(64, 7, 32, 33)
  TG_WGMMA_ROWS(72, 8, 36, 37)
  TG_WGMMA_ROWS(80, 9, 40, 41)
  TG_WGMMA_ROWS(96, 11, 48, 49)
  TG_WGMMA_ROWS(104, 12, 52, 53)
  TG_WGMMA_ROWS(112, 13, 56, 57)
  TG_WGMMA_ROWS(128, 15, 64, 65)
  TG_WGMMA_ROWS(136, 16, 68, 69)
  TG_WGMMA_ROWS(144, 17, 72, 73)
  TG_WGMMA_ROWS(160, 19, 80, 81)
  TG_WGMMA_ROWS(176, 21, 88, 89)
  TG_WGMMA_ROWS(192, 23, 96, 97)
  TG_WGMMA_ROWS(200, 24, 100, 101)
  TG_WGMMA_ROWS(224, 27, 112, 113)
}

// P0 to P3, Q, ADD: the positions of these operands in the list of assembly operands.
#define TG_WGMMA_REGISTERS_ASM(N, LAST, P0, P1, P2, P3, Q, ADD, TYPE)                                 \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ADD                                            \
               ", 0;\n"                                                                               \
               " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TG_WGMMA_S##LAST \
               "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #Q ", p, 1, 1, 0;\n}"                 \
               : TG_WGMMA_O##LAST                                                                     \
               : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(q), "r"(add))

// d = (add ? d : 0) + 64 rows of P times `rows` rows of Q over 16 of K, in bf16. P's fragments for the warp are in
// registers.
template <int rows>
__device__ __forceinline__ void wgmma_registers(float (&d)[rows / 2], const uint32_t (&p)[4], uint64_t q, int add) {
  static_assert(rows == 16 || rows == 32 || rows == 64 || rows == 128);
  if constexpr (rows == 16) TG_WGMMA_REGISTERS_ASM(16, 1, 8, 9, 10, 11, 12, 13, "bf16");
  else if constexpr (rows == 32) TG_WGMMA_REGISTERS_ASM(32, 3, 16, 17, 18, 19, 20, 21, "bf16");
  else if constexpr (rows == 64) TG_WGMMA_REGISTERS_ASM(64, 7, 32, 33, 34, 35, 36, 37, "bf16");
  else TG_WGMMA_REGISTERS_ASM(128, 15, 64, 65, 66, 67, 68, 69, "bf16");
}

#define TG_WGMMA_REGISTERS_ROWS(N, ...)                                                           \
  if constexpr (rows == N) {                                                                      \
    if constexpr (std::is_same_v<Element, __half>) TG_WGMMA_REGISTERS_ASM(N, __VA_ARGS__, "f16"); \
    else TG_WGMMA_REGISTERS_ASM(N, __VA_ARGS__, "bf16");                                          \
  }

// d += 64 rows of P times `rows` rows of Q over 16 of K. P's fragments for the warp are in registers.
template <class Element, int rows>
__device__ __forceinline__ void wgmma(float (&d)[rows / 2], const uint32_t (&p)[4], uint64_t q) {
  static_assert(rows == 8 || rows == 16 || rows == 32 || rows == 64 || rows == 80 || rows == 128 || rows == 160 ||
                rows == 192 || rows == 256);
  constexpr int add = 1;
  TG_WGMMA_REGISTERS_ROWS(8, 0, 4, 5, 6, 7, 8, 9)
  TG_WGMMA_REGISTERS_ROWS(16, 1, 8, 9, 10, 11, 12, 13)
  TG_WGMMA_REGISTERS_ROWS(32, 3, 16, 17, 18, 19, 20, 21)
  TG_WGMMA_REGISTERS_ROWS(64, 7, 32, 33, 34, 35, 36, 37)
  TG_WGMMA_REGISTERS_ROWS(80, 9, 40, 41, 42, 43, 44, 45)
  TG_WGMMA_REGISTERS_ROWS(128, 15, 64, 65, 66, 67, 68, 69)
  TG_WGMMA_REGISTERS_ROWS(160, 19, 80, 81, 82, 83, 84, 85)
  TG_WGMMA_REGISTERS_ROWS(192, 23, 96, 97, 98, 99, 100, 101)
  TG_WGMMA_REGISTERS_ROWS(256, 31, 128, 129, 130, 131, 132, 133)
}

// ---- TF32 -----------------------------------------------------------------------------------------------------------
//
// f32 in shared memory or registers. wgmma ignores the low 13 bits: a tensor map of type TFLOAT32 rounds these bits
// off.

// Q, ADD: the positions of these operands in the list of assembly operands; P: the operand itself.
#define TG_WGMMA_TF32(N, LAST, P, Q, ADD, ...)                                                                \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ADD                                                    \
               ", 0;\n"                                                                                       \
               " wgmma.mma_async.sync.aligned.m64n" #N "k8.f32.tf32.tf32 {" TG_WGMMA_S##LAST "}, " P ", %" #Q \
                                                                                             ", p, 1, 1;\n}"  \
               : TG_WGMMA_O##LAST                                                                             \
               : __VA_ARGS__, "l"(q), "r"(add))

// d = (add ? d : 0) + 64 rows of P times `rows` rows of Q over 8 of K.
template <int rows>
__device__ __forceinline__ void wgmma_tf32(float (&d)[rows / 2], uint64_t p, uint64_t q, int add) {
  static_assert(rows == 64 || rows == 192 || rows == 256);
  if constexpr (rows == 64) TG_WGMMA_TF32(64, 7, "%32", 33, 34, "l"(p));
  if constexpr (rows == 192) TG_WGMMA_TF32(192, 23, "%96", 97, 98, "l"(p));
  if constexpr (rows == 256) TG_WGMMA_TF32(256, 31, "%128", 129, 130, "l"(p));
}

// As above, with P in registers: lane 4 g + q of a warp has rows g and g + 8, at q and then at q + 4 of K.
template <int rows>
__device__ __forceinline__ void wgmma_tf32(float (&d)[rows / 2], const uint32_t (&p)[4], uint64_t q, int add) {
  static_assert(rows == 64 || rows == 256);
#define TG_WGMMA_P "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3])
  if constexpr (rows == 64) TG_WGMMA_TF32(64, 7, "{%32, %33, %34, %35}", 36, 37, TG_WGMMA_P);
  if constexpr (rows == 256) TG_WGMMA_TF32(256, 31, "{%128, %129, %130, %131}", 132, 133, TG_WGMMA_P);
#undef TG_WGMMA_P
}

}  // namespace tilegemm
