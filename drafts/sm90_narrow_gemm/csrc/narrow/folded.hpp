// Factors that multiply codes, for groups too small for sums of their own: pairs of codes as numbers of 16 bits, times a
// pair of factors. The product is rounded once. Products of e2m1 with e8m0 or e4m3 are exact.
//
// A number that 16 bits cannot hold becomes infinite, and so do the results: they are computed once more
// (narrow/exact.hpp).
#pragma once
#include "narrow/codes.hpp"

namespace tilegemm::narrow {

template <Code C, class T, Factor F>
struct Folded {
  static constexpr bool is_e2m1 = C == Code::e2m1;
  // bf16 has fewer bits than these factors: a second number has the rest.
  static constexpr bool has_low = !is_half<T> && (F == Factor::f16 || F == Factor::f32);
  // Results have to be multiplied by this power of two. In f16, factors are brought to the middle of the range.
  static constexpr float left = F == Factor::e4m3 ? 0x1p8f : is_half<T> ? 0x1p-6f : 1.0f;

  uint32_t high, low;

  __device__ __forceinline__ void set(uint32_t bits) {
    if constexpr (F == Factor::e8m0 && !is_half<T>) {
      high = min(bits + 126, 255u) * 0x00800080;  // 2^(bits - 1), for numbers of e2m1 times 2^-126
    } else if constexpr (F == Factor::e8m0) {
      high = twice<T>(__uint_as_float(bits << 23) * 0x1p5f);
    } else if constexpr (F == Factor::e4m3) {
      uint32_t two;
      asm("{\n .reg .b16 h;\n cvt.u16.u32 h, %1;\n cvt.rn.f16x2.e4m3x2 %0, h;\n}" : "=r"(two) : "r"(bits * 0x101));
      if constexpr (is_half<T>) high = multiply_two<T>(two, twice<T>(0x1p6f));
      else high = twice<T>(__low2float(as_two<__half>(two)) * 0x1p118f);
    } else {
      const float factor = number_of(F, bits);
      high = twice<T>(is_half<T> ? factor * 0x1p6f : factor);
      if constexpr (has_low) low = twice<T>(factor - __uint_as_float(high << 16));
    }
  }

  __device__ __forceinline__ uint32_t operator()(uint32_t numbers) const {
    if constexpr (has_low) return fma_two<T>(numbers, high, multiply_two<T>(numbers, low));
    else if constexpr (F == Factor::e8m0 && is_half<T>)
      return multiply_two<T>(multiply_two<T>(numbers, twice<T>(0x1p15f)), high);
    else return multiply_two<T>(numbers, high);
  }
};

}  // namespace tilegemm::narrow
