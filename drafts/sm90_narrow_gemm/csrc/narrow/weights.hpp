// Narrow weights: codes of 4 or 8 bits, and factors and zero points of groups of codes.
//
// W[n, k] = factor * (code - zero). Codes lie in rows along K: one byte for a number, or, in 4 bits, 16 bytes for 32
// numbers. Nibble i of word t there and nibble i + 4 are numbers 2 t + 8 i and the next one, so that `word >> 4 i` holds
// a pair of neighbours, and lane t of a tensor core's operand has its registers of two steps of 16 in word t.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm::narrow {

// `i8`: two's complement; `u8`, `u4`: less a zero point; `e2m1`: 0, .5, 1, 1.5, 2, 3, 4, 6, with the sign in bit 3.
enum class Code { f8e4m3, i8, u8, u4, e2m1 };
constexpr bool has_nibbles(Code code) { return code == Code::u4 || code == Code::e2m1; }
constexpr bool has_zeros(Code code) { return code == Code::u8 || code == Code::u4; }
// The zero point where none is stored.
constexpr int usual_zero(Code code) { return code == Code::u4 ? 8 : code == Code::u8 ? 128 : 0; }
// The largest magnitude of a code less its zero point.
constexpr float largest_of(Code code) {
  return code == Code::f8e4m3 ? 448 : code == Code::e2m1 ? 6 : code == Code::u4 ? 15 : code == Code::i8 ? 128 : 255;
}

// Of a factor: `e8m0` is a power of two, 2^(bits - 127), or NaN.
enum class Factor { f32, f16, bf16, e8m0, e4m3 };
constexpr int bytes_of(Factor factor) { return factor == Factor::f32 ? 4 : factor < Factor::e8m0 ? 2 : 1; }

struct Weights {
  const uint8_t* codes;
  int64_t row_bytes;  // a multiple of 16, and `codes` is one, too
  const void* factors;
  Factor format;
  // Element (n, k) has factor k / group * stride_k + n / rows * stride_n. INT_MAX: all.
  int group, rows;
  int64_t stride_k, stride_n;
  const uint8_t* zeros;  // with the strides of the factors; null: the usual zero point
};

// Bytes of a row of codes, as far as K goes.
constexpr int64_t code_bytes(Code code, int64_t k) { return has_nibbles(code) ? ceil_div(k, 32) * 16 : k; }

__device__ __forceinline__ float float_of_e4m3(uint32_t bits) {
  uint32_t two;
  asm("{\n .reg .b16 h;\n cvt.u16.u32 h, %1;\n cvt.rn.f16x2.e4m3x2 %0, h;\n}" : "=r"(two) : "r"(bits & 0xff));
  return __half2float(__ushort_as_half(uint16_t(two)));
}

// 0 is 2^-127, a subnormal number.
__device__ __forceinline__ float float_of_e8m0(uint32_t bits) {
  return __uint_as_float(bits == 0 ? 1u << 22 : bits == 255 ? 0x7fffffffu : bits << 23);
}

// A factor from its bits.
__device__ __forceinline__ float number_of(Factor format, uint32_t bits) {
  switch (format) {
    case Factor::f32: return __uint_as_float(bits);
    case Factor::f16: return __half2float(__ushort_as_half(uint16_t(bits)));
    case Factor::bf16: return __uint_as_float(bits << 16);
    case Factor::e8m0: return float_of_e8m0(bits);
    default: return float_of_e4m3(bits);
  }
}

// The bits of factor `at`.
__device__ __forceinline__ uint32_t factor_bits(const void* factors, int bytes, int64_t at) {
  if (bytes == 4) return static_cast<const uint32_t*>(factors)[at];
  if (bytes == 2) return static_cast<const uint16_t*>(factors)[at];
  return static_cast<const uint8_t*>(factors)[at];
}

__device__ __forceinline__ int64_t place_of_factor(const Weights& w, int64_t n, int64_t k) {
  return k / w.group * w.stride_k + n / w.rows * w.stride_n;
}

// Code k of a row, as a number, less no zero point.
template <Code C>
__device__ __forceinline__ float number_of_code(const uint8_t* row, int64_t k) {
  if constexpr (has_nibbles(C)) {
    const int in_piece = int(k % 32), pair = in_piece % 8 / 2, nibble = in_piece / 8 + in_piece % 2 * 4;
    const uint32_t code = row[k / 32 * 16 + pair * 4 + nibble / 2] >> (nibble % 2 * 4) & 15;
    if constexpr (C == Code::u4) return float(code);
    const uint32_t size = code & 7;
    const float number = size < 2 ? 0.5f * size : float((2 + size % 2) << size / 2) * 0.25f;
    return code & 8 ? -number : number;
  } else if constexpr (C == Code::f8e4m3) {
    return float_of_e4m3(row[k]);
  } else if constexpr (C == Code::i8) {
    return float(int8_t(row[k]));
  } else {
    return float(row[k]);
  }
}

// W[n, k] in f32.
template <Code C>
__device__ __forceinline__ float number_of_weight(const Weights& w, int64_t n, int64_t k) {
  float code = number_of_code<C>(w.codes + n * w.row_bytes, k);
  const int64_t at = place_of_factor(w, n, k);
  if constexpr (has_zeros(C)) code -= w.zeros ? float(w.zeros[at]) : float(usual_zero(C));
  return code * number_of(w.format, factor_bits(w.factors, bytes_of(w.format), at));
}

}  // namespace tilegemm::narrow
