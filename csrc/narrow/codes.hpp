// From codes to numbers of 16 bits, exactly, two at a time, for operand A of a tensor core.
//
// An object has constants in registers. The compiler would make them anew for each use, unless they depend on a zero
// that the compiler does not know. Whole warps make an object. Conversions subtract the zero, which a row has as a
// constant, zero_of() the zero. Numbers of f4e2m1 come out smaller by a power of two, and a product with a factor
// brings them back (narrow/folded.hpp).
#pragma once
#include <type_traits>

#include "common/ptx.hpp"
#include "narrow/numbers.hpp"

namespace tilegemm::narrow {

template <class T>
constexpr bool is_half = std::is_same_v<T, __half>;
template <class T>
using Two = std::conditional_t<is_half<T>, __half2, __nv_bfloat162>;

template <class T>
__device__ __forceinline__ Two<T> as_two(uint32_t bits) {
  Two<T> two;
  memcpy(&two, &bits, sizeof two);
  return two;
}
template <class T>
__device__ __forceinline__ uint32_t bits_of(Two<T> two) {
  uint32_t bits;
  memcpy(&bits, &two, sizeof bits);
  return bits;
}
// A number twice, rounded.
template <class T>
__device__ __forceinline__ uint32_t twice(float x) {
  if constexpr (is_half<T>) return bits_of<T>(__float2half2_rn(x));
  else return bits_of<T>(__float2bfloat162_rn(x));
}

// Sums and products of pairs, rounded.
template <class T>
__device__ __forceinline__ uint32_t add_two(uint32_t x, uint32_t y) {
  return bits_of<T>(__hadd2(as_two<T>(x), as_two<T>(y)));
}
template <class T>
__device__ __forceinline__ uint32_t multiply_two(uint32_t x, uint32_t y) {
  return bits_of<T>(__hmul2(as_two<T>(x), as_two<T>(y)));
}
template <class T>
__device__ __forceinline__ uint32_t fma_two(uint32_t x, uint32_t y, uint32_t z) {
  return bits_of<T>(__hfma2(as_two<T>(x), as_two<T>(y), as_two<T>(z)));
}

// Numbers of f16 that bf16 holds, too, in bf16.
__device__ __forceinline__ uint32_t to_bf16(uint32_t halves) {
  const float2 two = __half22float2(as_two<__half>(halves));
  return bits_of<__nv_bfloat16>(__floats2bfloat162_rn(two.x, two.y));
}

// Two numbers of fp8 in f16.
__device__ __forceinline__ uint32_t halves_of_e4m3(uint32_t two) {
  uint32_t halves;
  asm("{\n .reg .b16 h;\n cvt.u16.u32 h, %1;\n cvt.rn.f16x2.e4m3x2 %0, h;\n}" : "=r"(halves) : "r"(two));
  return halves;
}

template <tg_format F, class T>
struct Codes;

// A code in the last bits of a number whose last bit counts 1 is the number and the code: 1024 in f16, 128 in bf16.
template <class T>
struct Codes<TG_U4, T> {
  uint32_t low, high;
  __device__ explicit Codes(uint32_t zero)
      : low(opaque(0x000f000f + zero)), high(is_half<T> ? opaque(0x00f000f0 + zero) : 0) {}
  // In bf16, -128 less 128 and more has no bits for the zero. NaN: such results are computed once more.
  __device__ static uint32_t zero_of(uint32_t zero) {
    if constexpr (is_half<T>) return 0xe400e400 + zero * 0x10001;
    else return zero < 128 ? 0xc300c300 + zero * 0x10001 : 0x7fff7fff;
  }

  // The pairs of word t of 16 bytes: for numbers 2 t, 2 t + 8, 2 t + 16 and 2 t + 24 of 32.
  __device__ __forceinline__ void convert(uint32_t word, uint32_t zero, uint32_t (&to)[4]) const {
    if constexpr (is_half<T>) {
      // The nibbles above count 16: a fused multiply-add brings them down, 960 nearer to zero.
      constexpr uint32_t sixteenth = 0x2c002c00, difference = 0x63806380;
      const uint32_t high_zero = add_two<T>(zero, difference), behind = word >> 8;
      to[0] = add_two<T>((word & low) | 0x64006400, zero);
      to[1] = fma_two<T>((word & high) | 0x64006400, sixteenth, high_zero);
      to[2] = add_two<T>((behind & low) | 0x64006400, zero);
      to[3] = fma_two<T>((behind & high) | 0x64006400, sixteenth, high_zero);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) to[i] = add_two<T>((word >> 4 * i & low) | 0x43004300, zero);
    }
  }
};

// The bits of exponent and mantissa in the lowest bits of the exponent and the highest of the mantissa are the number
// times 2 to the difference of the biases: 2^-126 in bf16.
template <class T>
struct Codes<TG_F4E2M1, T> {
  static_assert(!is_half<T>);
  __device__ explicit Codes(uint32_t) {}
  __device__ static uint32_t zero_of(uint32_t) { return 0; }

  // As above.
  __device__ __forceinline__ void convert(uint32_t word, uint32_t, uint32_t (&to)[4]) const {
    constexpr int low = 6;  // the place of the last bit
    constexpr uint32_t mask = 0x00070007u << low;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int left = low - 4 * i;
      const uint32_t size = left > 0 ? word << (left > 0 ? left : 0) : word >> (left > 0 ? 0 : -left);
      to[i] = (word << (12 - 4 * i) & 0x80008000) | (size & mask);
    }
  }
};

// Two bytes in a word's first half become a pair.
template <class T>
struct Codes<TG_F8E4M3, T> {
  __device__ explicit Codes(uint32_t) {}
  __device__ static uint32_t zero_of(uint32_t) { return 0; }
  __device__ __forceinline__ uint32_t pair(uint32_t two, uint32_t) const {
    const uint32_t halves = halves_of_e4m3(two);
    if constexpr (is_half<T>) return halves;
    else return to_bf16(halves);
  }
};

// As above, in f16: a byte in the last bits of 1024.
template <class T>
struct Codes<TG_U8, T> {
  __device__ explicit Codes(uint32_t) {}
  __device__ static uint32_t zero_of(uint32_t zero) { return 0xe400e400 + zero * 0x10001; }
  __device__ __forceinline__ uint32_t pair(uint32_t two, uint32_t zero) const {
    const uint32_t halves = add_two<__half>(__byte_perm(two, 0x64646464, 0x4140), zero);
    if constexpr (is_half<T>) return halves;
    else return to_bf16(halves);
  }
};

template <class T>
struct Codes<TG_I8, T> {
  __device__ explicit Codes(uint32_t) {}
  __device__ static uint32_t zero_of(uint32_t) { return 0xe400e400 + 128 * 0x10001; }
  __device__ __forceinline__ uint32_t pair(uint32_t two, uint32_t zero) const {
    return Codes<TG_U8, T>(0).pair(two ^ 0x8080, zero);
  }
};

}  // namespace tilegemm::narrow
