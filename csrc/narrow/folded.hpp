// Factors that multiply codes: pairs of codes as numbers of 16 bits, times a pair of factors. The product is rounded
// once. Products of f4e2m1 with TG_F8E8M0 or TG_F8E4M3 are exact.
//
// A number that 16 bits cannot hold becomes infinite or NaN, and so do the results: they are computed once more
// (narrow/exact.hpp).
#pragma once
#include "narrow/codes.hpp"

namespace tilegemm::narrow {

// The bits of a factor of two or four bytes as a number.
__device__ __forceinline__ float factor_of(tg_format format, uint32_t bits) {
  return format == TG_F32    ? __uint_as_float(bits)
         : format == TG_BF16 ? __uint_as_float(bits << 16)
                             : __half2float(__ushort_as_half(uint16_t(bits)));
}

// In f32, f16 or bf16. Most have more bits than bf16, or those of f32 than f16: a second number has the rest. Numbers
// are brought to where the second number is no subnormal number; in f16 weights of 64 and more are too large then, and
// factors keep nine bits from 2^-26 on.
template <tg_format F, class T, int UNIT>
struct Folded {
  // Results have to be multiplied by this power of two.
  static constexpr float left = is_half<T> ? 0x1p-10f : 0x1p-40f;
  uint32_t high, low;

  __device__ __forceinline__ void set(tg_format format, uint32_t bits) {
    const float factor = factor_of(format, bits) * (1.0f / left);
    high = twice<T>(factor);
    low = twice<T>(factor - (is_half<T> ? __low2float(as_two<T>(high)) : __uint_as_float(high << 16)));
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t numbers) const {
    return fma_two<T>(numbers, high, multiply_two<T>(numbers, low));
  }
};

// MXFP4. A factor of 2^(bits - 9), for numbers that come times 2^-126: from 2^10 on it is infinite. The least factors
// leave numbers that are off by 2^-126 at most.
template <class T>
struct Folded<TG_F4E2M1, T, 32> {
  static constexpr float left = 0x1p8f;
  uint32_t high;

  __device__ __forceinline__ void set(tg_format, uint32_t bits) { high = min(bits + 118, 255u) * 0x00800080; }
  __device__ __forceinline__ uint32_t operator()(uint32_t numbers) const { return multiply_two<T>(numbers, high); }
};

// NVFP4.
template <class T>
struct Folded<TG_F4E2M1, T, 16> {
  static constexpr float left = 0x1p8f;
  uint32_t high;

  __device__ __forceinline__ void set(tg_format, uint32_t bits) {
    high = twice<T>(__low2float(as_two<__half>(halves_of_e4m3(bits))) * 0x1p118f);
  }
  __device__ __forceinline__ uint32_t operator()(uint32_t numbers) const { return multiply_two<T>(numbers, high); }
};

}  // namespace tilegemm::narrow
