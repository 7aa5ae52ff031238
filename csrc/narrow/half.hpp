// Codes of narrow weights as pairs of f16 numbers, exactly: a word of codes at a time.
#pragma once
#include "narrow/numbers.hpp"

namespace tilegemm::narrow {
namespace {

__device__ __forceinline__ uint32_t bits(__half2 pair) { return reinterpret_cast<const uint32_t&>(pair); }
__device__ __forceinline__ __half2 halves(uint32_t pair) { return reinterpret_cast<const __half2&>(pair); }

// What is subtracted from codes, twice in a register: 1024 and the code of zero.
__device__ __forceinline__ uint32_t less_zero(uint32_t zero) { return 0xe400e400u + zero * 0x00010001u; }

// A word of codes becomes `pairs` pairs. Pair i has k = 2 t + 8 i and its neighbour (4 bits, word t of 16 bytes), or
// bytes 2 i and 2 i + 1. The numbers are those of the codes less zero, times `factor`. `less`: less_zero().
template <tg_format> struct Half;

// Codes are the last bits of 1024, or of 1024 / 16 behind a multiplication.
template <> struct Half<TG_U4> {
  static constexpr int pairs = 4;
  static constexpr float factor = 1.0f;
  static __device__ __forceinline__ void from(uint32_t word, uint32_t less, uint32_t (&pair)[4]) {
    const __half2 sixteenth = halves(0x2c002c00), low = halves(less), high = __hadd2(low, halves(0x63806380));  // 960
    const uint32_t behind = word >> 8;
    pair[0] = bits(__hadd2(halves((word & 0x000f000f) | 0x64006400), low));
    pair[1] = bits(__hfma2(halves((word & 0x00f000f0) | 0x64006400), sixteenth, high));
    pair[2] = bits(__hadd2(halves((behind & 0x000f000f) | 0x64006400), low));
    pair[3] = bits(__hfma2(halves((behind & 0x00f000f0) | 0x64006400), sixteenth, high));
  }
};

// Exponent and mantissa are f16's highest bits behind two zeros, so numbers are 2^-14 times as large.
template <> struct Half<TG_F4E2M1> {
  static constexpr int pairs = 4;
  static constexpr float factor = 0x1p-14f;
  static __device__ __forceinline__ void from(uint32_t word, uint32_t, uint32_t (&pair)[4]) {
    // Bytes with a sign in bit 7 and the rest in bits 1 to 3: of the odd nibbles, of the even ones.
    const auto bytes = [](uint32_t sign, uint32_t rest) { return (sign & 0x80808080u) | (rest & 0x0e0e0e0eu); };
    const uint32_t odd = bytes(word, word >> 3), even = bytes(word << 4, word << 1);
    pair[0] = __byte_perm(even, 0, 0x2404);
    pair[1] = __byte_perm(odd, 0, 0x2404);
    pair[2] = even & 0xff00ff00u;
    pair[3] = odd & 0xff00ff00u;
  }
};

template <> struct Half<TG_U8> {
  static constexpr int pairs = 2;
  static constexpr float factor = 1.0f;
  static __device__ __forceinline__ void from(uint32_t word, uint32_t less, uint32_t (&pair)[2]) {
    pair[0] = bits(__hadd2(halves(__byte_perm(word, 0x64646464, 0x4140)), halves(less)));
    pair[1] = bits(__hadd2(halves(__byte_perm(word, 0x64646464, 0x4342)), halves(less)));
  }
};

template <> struct Half<TG_I8> {
  static constexpr int pairs = 2;
  static constexpr float factor = 1.0f;
  static __device__ __forceinline__ void from(uint32_t word, uint32_t, uint32_t (&pair)[2]) {
    Half<TG_U8>::from(word ^ 0x80808080u, less_zero(128), pair);
  }
};

template <> struct Half<TG_F8E4M3> {
  static constexpr int pairs = 2;
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 890
  static constexpr float factor = 1.0f;
#else
  static constexpr float factor = 0x1p-8f;
#endif
  static __device__ __forceinline__ void from(uint32_t word, uint32_t, uint32_t (&pair)[2]) {
#if __CUDA_ARCH__ >= 890
    asm("{\n .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n cvt.rn.f16x2.e4m3x2 %0, low;\n"
        " cvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(pair[0]), "=r"(pair[1])
        : "r"(word));
#else
    // The bias is smaller by 8. A code of seven ones carries into bit 7, and becomes NaN.
    const uint32_t nan = ((word & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int order = i ? 0x3424 : 0x1404;
      const uint32_t high = __byte_perm(word, 0, order), wrong = __byte_perm(nan, 0, order);
      pair[i] = (high & 0x80008000u) | ((high & 0x7f007f00u) >> 1) | (wrong >> 1) | (wrong >> 2);
    }
#endif
  }
};

}  // namespace
}  // namespace tilegemm::narrow
