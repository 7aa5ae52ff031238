// wgmma with operand A in registers, which adds to the sums or replaces them.
#pragma once
#include "common/wgmma.hpp"

namespace tilegemm::narrow {

#define TG_NARROW_ROWS(N, ...)                                                                    \
  if constexpr (rows == N) {                                                                      \
    if constexpr (std::is_same_v<Element, __half>) TG_WGMMA_REGISTERS_ASM(N, __VA_ARGS__, "f16"); \
    else TG_WGMMA_REGISTERS_ASM(N, __VA_ARGS__, "bf16");                                          \
  }

// d = (add ? d : 0) + 64 rows of P times `rows` rows of Q over 16 of K. P's fragments for the warp are in registers.
template <class Element, int rows>
__device__ __forceinline__ void wgmma(float (&d)[rows / 2], const uint32_t (&p)[4], uint64_t q, int add) {
  static_assert(rows == 16 || rows == 32 || rows == 64 || rows == 128 || rows == 192 || rows == 256);
  TG_NARROW_ROWS(16, 1, 8, 9, 10, 11, 12, 13)
  TG_NARROW_ROWS(32, 3, 16, 17, 18, 19, 20, 21)
  TG_NARROW_ROWS(64, 7, 32, 33, 34, 35, 36, 37)
  TG_NARROW_ROWS(128, 15, 64, 65, 66, 67, 68, 69)
  TG_NARROW_ROWS(192, 23, 96, 97, 98, 99, 100, 101)
  TG_NARROW_ROWS(256, 31, 128, 129, 130, 131, 132, 133)
}

#undef TG_NARROW_ROWS

}  // namespace tilegemm::narrow
