// wgmma for attention: S = Q @ K^T from shared memory, and O += P @ V with P in registers and V in rows of positions.
#pragma once
#include "common/wgmma.hpp"

namespace tilegemm {
namespace {

// An operand in rows of `row_bytes` (128 or 64), swizzled over as many bytes. `panel_bytes`: from a panel of columns to
// the next, of an operand whose rows are along K.
template <int row_bytes>
__device__ __forceinline__ uint64_t swizzled_descriptor(uint32_t address, int panel_bytes = 16) {
  static_assert(row_bytes == 128 || row_bytes == 64);
  return (uint64_t(row_bytes == 128 ? 1 : 2) << 62) | (uint64_t(8 * row_bytes >> 4) << 32) |
         (uint64_t(panel_bytes >> 4) << 16) | ((address & 0x3FFFF) >> 4);
}
// A descriptor `bytes` further.
__device__ __forceinline__ uint64_t further(uint64_t descriptor, int bytes) { return descriptor + (bytes >> 4); }

#define TG_SCORES_ASM(N, LAST, X, Y, ADD, TYPE)                                                       \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ADD                                            \
               ", 0;\n"                                                                               \
               " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TG_WGMMA_S##LAST \
               "}, %" #X ", %" #Y ", p, 1, 1, 0, 0;\n}"                                               \
               : TG_WGMMA_O##LAST                                                                     \
               : "l"(q), "l"(k), "n"(int(add)))
#define TG_SCORES(N, ...)                                                                \
  if constexpr (keys == N) {                                                             \
    if constexpr (std::is_same_v<Element, __half>) TG_SCORES_ASM(N, __VA_ARGS__, "f16"); \
    else TG_SCORES_ASM(N, __VA_ARGS__, "bf16");                                          \
  }

// d = (add ? d : 0) + 64 rows of Q times `keys` rows of K over 16 of the head.
template <class Element, int keys, bool add>
__device__ __forceinline__ void wgmma_scores(float (&d)[keys / 2], uint64_t q, uint64_t k) {
  static_assert(keys == 64 || keys == 80 || keys == 96 || keys == 112 || keys == 128 || keys == 144 || keys == 160 ||
                keys == 176 || keys == 192);
  TG_SCORES(64, 7, 32, 33, 34)
  TG_SCORES(80, 9, 40, 41, 42)
  TG_SCORES(96, 11, 48, 49, 50)
  TG_SCORES(112, 13, 56, 57, 58)
  TG_SCORES(128, 15, 64, 65, 66)
  TG_SCORES(144, 17, 72, 73, 74)
  TG_SCORES(160, 19, 80, 81, 82)
  TG_SCORES(176, 21, 88, 89, 90)
  TG_SCORES(192, 23, 96, 97, 98)
}

#define TG_FRAGMENTS_ASM(N, LAST, P0, P1, P2, P3, V, ADD, T, TYPE)                                    \
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %" #ADD                                            \
               ", 0;\n"                                                                               \
               " wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" TG_WGMMA_S##LAST \
               "}, {%" #P0 ", %" #P1 ", %" #P2 ", %" #P3 "}, %" #V ", p, 1, 1, %" #T ";\n}"           \
               : TG_WGMMA_O##LAST                                                                     \
               : "r"(p[0]), "r"(p[1]), "r"(p[2]), "r"(p[3]), "l"(v), "r"(add), "n"(int(transposed)))
#define TG_FRAGMENTS(N, ...)                                                                \
  if constexpr (columns == N) {                                                             \
    if constexpr (std::is_same_v<Element, __half>) TG_FRAGMENTS_ASM(N, __VA_ARGS__, "f16"); \
    else TG_FRAGMENTS_ASM(N, __VA_ARGS__, "bf16");                                          \
  }

// d = (add ? d : 0) + 64 rows of P times 16 of K, with P's fragments for the warp in registers. `transposed`: the other
// operand has rows along K.
template <class Element, int columns, bool transposed>
__device__ __forceinline__ void wgmma_fragments(float (&d)[columns / 2], const uint32_t (&p)[4], uint64_t v, int add) {
  static_assert(columns == 64 || columns == 80 || columns == 96 || columns == 128 || columns == 176 || columns == 192 ||
                columns == 256);
  TG_FRAGMENTS(64, 7, 32, 33, 34, 35, 36, 37, 38)
  TG_FRAGMENTS(80, 9, 40, 41, 42, 43, 44, 45, 46)
  TG_FRAGMENTS(96, 11, 48, 49, 50, 51, 52, 53, 54)
  TG_FRAGMENTS(128, 15, 64, 65, 66, 67, 68, 69, 70)
  TG_FRAGMENTS(176, 21, 88, 89, 90, 91, 92, 93, 94)
  TG_FRAGMENTS(192, 23, 96, 97, 98, 99, 100, 101, 102)
  TG_FRAGMENTS(256, 31, 128, 129, 130, 131, 132, 133, 134)
}

template <int pending>
__device__ __forceinline__ void wgmma_wait_for() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

}  // namespace
}  // namespace tilegemm
