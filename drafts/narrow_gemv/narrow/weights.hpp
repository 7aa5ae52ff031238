// Narrow weights W, N x K: codes of 4 or 8 bits, and scales that groups of codes share.
//
// Row n of the codes is at `codes + n * row_bytes`; both are multiples of 16. 8 bits: number k is byte k. 4 bits: 16
// bytes hold 32 neighbours; of these, word t has k = 2 t + 8 i in bits 4 i and k = 2 t + 8 i + 1 in bits 16 + 4 i. So
// `word >> 4 * i & 0x000f000f` is a pair of neighbours.
//
// Weight (n, k) is scale * (code - zero), where scale and zero are at k / group * stride_k + n / rows * stride_n.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm {

// The formats of codes; that of scales. Without zeros, the code of zero is 8 (u4) or 128 (u8).
enum class Codes { f8e4m3, i8, u8, u4, e2m1 };
enum class Scales { f32, f16, bf16, e8m0, e4m3 };

constexpr int bits_of(Codes codes) { return codes == Codes::u4 || codes == Codes::e2m1 ? 4 : 8; }
constexpr int size_of(Scales format) {
  return format == Scales::f32 ? 4 : format == Scales::f16 || format == Scales::bf16 ? 2 : 1;
}
constexpr bool has_zero(Codes codes) { return codes == Codes::u4 || codes == Codes::u8; }
constexpr int usual_zero(Codes codes) { return codes == Codes::u4 ? 8 : codes == Codes::u8 ? 128 : 0; }

// W as the host knows it.
struct NarrowWeights {
  const uint8_t* codes;
  int64_t row_bytes;
  const void* scales;
  const uint8_t* zeros;  // or null
  int64_t stride_k, stride_n;
  int64_t group, rows;  // that share a scale: numbers of K, rows of W; as many as there are, or more: all
  Scales format;
  bool are_constant;  // no kernel before writes them: they may be loaded before the wait for that kernel
};

namespace narrow {
namespace {

// 2^(e - 127), and NaN for 255. The power of 0 is subnormal.
__device__ __forceinline__ float e8m0_to_float(uint32_t e) {
  return __uint_as_float(max(e << 23, 0x00400000u) | (((e + 1) & 0x100) << 14));
}

__device__ __forceinline__ float e4m3_to_float(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  const float x = magnitude == 0x7f ? __uint_as_float(0x7fffffff) : __uint_as_float(magnitude << 20) * 0x1p120f;
  return __uint_as_float(__float_as_uint(x) | (code & 0x80) << 24);
}

__device__ __forceinline__ float scale_to_float(Scales format, uint32_t bits) {
  switch (format) {
    case Scales::f32: return __uint_as_float(bits);
    case Scales::f16: return __half2float(__ushort_as_half(uint16_t(bits)));
    case Scales::bf16: return __uint_as_float(bits << 16);
    case Scales::e8m0: return e8m0_to_float(bits);
    default: return e4m3_to_float(bits);
  }
}

// The bits of scale `index`.
__device__ __forceinline__ uint32_t scale_bits(Scales format, const void* scales, int64_t index) {
  if (format == Scales::f32) return static_cast<const uint32_t*>(scales)[index];
  if (format == Scales::f16 || format == Scales::bf16) return static_cast<const uint16_t*>(scales)[index];
  return static_cast<const uint8_t*>(scales)[index];
}

// Code (n, k) less the code of zero where that is not stored.
template <Codes C>
__device__ __forceinline__ float code_to_float(const uint8_t* row, int64_t k) {
  if constexpr (bits_of(C) == 4) {
    const int i = int(k) % 32, nibble = i / 8 + i % 2 * 4;
    const uint32_t code = (row[k / 32 * 16 + i % 8 / 2 * 4 + nibble / 2] >> nibble % 2 * 4) & 15;
    if constexpr (C == Codes::u4) return float(code);
    // Bits 0 to 2 are those of e4m3, 2^6 times smaller.
    return e4m3_to_float((code & 8) << 4 | (code & 7) << 2) * 64.0f;
  } else {
    if constexpr (C == Codes::f8e4m3) return e4m3_to_float(row[k]);
    if constexpr (C == Codes::i8) return float(int8_t(row[k]));
    return float(row[k]);
  }
}

// Weight (n, k) in f32. A division by numbers that change: slow.
template <Codes C>
__device__ __noinline__ float number(const NarrowWeights& w, int64_t n, int64_t k) {
  const int64_t at = k / w.group * w.stride_k + n / w.rows * w.stride_n;
  const float code = code_to_float<C>(w.codes + n * w.row_bytes, k),
              zero = w.zeros ? float(w.zeros[at]) : float(usual_zero(C));
  return scale_to_float(w.format, scale_bits(w.format, w.scales, at)) * (code - zero);
}

}  // namespace
}  // namespace narrow
}  // namespace tilegemm
