// Weights of a GGUF file as operand A of wgmma, in bf16.
//
// Lane (g, t) of a warp holds numbers 4 t ... 4 t + 3 of a step of 16, of rows g and g + 8. wgmma's slots 2 t, 2 t + 1
// of K get the first two numbers, slots 2 t + 8 and 2 t + 9 the others: the activations lie in this order
// (gguf/prepare.hpp).
#pragma once
#include "gguf/ring.hpp"

namespace tilegemm::gguf {
namespace {

// From codes to weights in bf16. The code of a weight, put into the bits of a float, is the number `base` + code -
// zero; a fused multiply-add takes the number to scale * (code - zero) - min.
template <tg_format F>
struct Values {
  using Row = gguf::Row<F>;
  // Codes of seven bits or fewer lie in the third byte of a float at 128. Codes with a sign have eight, and need a
  // float at 32768.
  static constexpr bool has_eight_bits = Row::is_signed;
  static constexpr uint32_t magic = has_eight_bits ? 0x47000000 : 0x43000000;
  static constexpr float base = (has_eight_bits ? 32768.0f : 128.0f) + float(Row::unsigned_zero);

  // Scales of mxfp4 are powers of two: weights are exact in bf16, and one operation makes two of two codes.
  static constexpr bool is_exact = F == TG_MXFP4;

  // What convert() needs of a factor and a minimum.
  __device__ static float2 factors_of(float factor, float least) {
    const float start = -(base * factor + least);
    if constexpr (!is_exact) return make_float2(factor, start);
    return make_float2(__uint_as_float(pair(factor, factor)), __uint_as_float(pair(start, start)));
  }

  // factor * (code - zero) - least. Two roundings, to 24 bits each: that of `start` and this one.

  __device__ static float number(uint32_t codes, int i, float factor, float start) {
    // Bytes 0 to 3 are codes, 4 is zero, 7 is the magic number's first.
    const uint32_t select = has_eight_bits ? 0x7404u | uint32_t(i) << 4 : 0x7044u | uint32_t(i) << 8;
    return fmaf(__uint_as_float(__byte_perm(codes, magic, select)), factor, start);
  }

  // A lane's share of a row: the two registers of a step.
  __device__ static void convert(const Row& row, int s, int t, float factor, float start, uint32_t& first,
                                 uint32_t& second) {
    if constexpr (is_exact) {
      row.pairs(true, s, t, 0x43434343, first, second);
      const auto two = [](uint32_t bits) { return reinterpret_cast<const __nv_bfloat162&>(bits); };
      const auto weights = [&](uint32_t codes) {
        const __nv_bfloat162 both = __hfma2(two(codes), two(__float_as_uint(factor)), two(__float_as_uint(start)));
        return reinterpret_cast<const uint32_t&>(both);
      };
      first = weights(first), second = weights(second);
      return;
    }
    const uint32_t codes = row.unsigned_codes(s, t);
    first = pair(number(codes, 0, factor, start), number(codes, 1, factor, start));
    second = pair(number(codes, 2, factor, start), number(codes, 3, factor, start));
  }

  __device__ static uint32_t pair(float low, float high) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(two);
  }
};

}  // namespace
}  // namespace tilegemm::gguf
