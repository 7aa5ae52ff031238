// Narrow weights as operand A of mma.sync: where a lane's codes lie, and what they become in registers.
//
// A lane has 16 numbers of a row in a step of 64 of K, and W and x agree in which: so the order of K is the codes' own.
#pragma once
#include <cuda_fp8.h>

#include "common/kernel.hpp"
#include "narrow/numbers.hpp"

namespace tilegemm {
namespace {

constexpr int depth = 64;  // of a step

template <tg_format F, class T>
struct Codes;

// 16 neighbours for each of four lanes. Each code is exact in 16 bits, and factors multiply the sums of a step.
template <class T>
struct Codes<TG_F8E4M3, T> {
  using Raw = uint4;
  static constexpr int row_unit = 16;  // K is a multiple
  static constexpr bool scales_sums = true;

  static __device__ int first(int t) { return 16 * t; }
  static __device__ int64_t bytes(int64_t numbers) { return numbers; }
  // Four numbers of x from this one on meet the codes of `half_step`, of which there are four.
  static __device__ int x_of(int half_step) { return 4 * half_step; }

  static __device__ uint32_t pair(uint16_t codes) {
    const __half2_raw half = __nv_cvt_fp8x2_to_halfraw2(codes, __NV_E4M3);
    if constexpr (std::is_same_v<T, __half>) {
      return uint32_t(half.x) | uint32_t(half.y) << 16;
    } else {
      const float2 wide = __half22float2(__half2(half));
      const __nv_bfloat162 both = __floats2bfloat162_rn(wide.x, wide.y);
      return reinterpret_cast<const uint32_t&>(both);
    }
  }
  // Numbers 4 i to 4 i + 3 of the lane.
  static __device__ void numbers(const Raw& raw, int i, uint32_t, uint32_t& low, uint32_t& high) {
    const uint32_t word = i == 0 ? raw.x : i == 1 ? raw.y : i == 2 ? raw.z : raw.w;
    low = pair(uint16_t(word)), high = pair(uint16_t(word >> 16));
  }
};

// Half of the 32 numbers of 16 bytes, which have a power of two, for each of four lanes: numbers multiplied by it are
// exact in bf16, or beyond it.
template <>
struct Codes<TG_F4E2M1, __nv_bfloat16> {
  using Raw = uint2;
  static constexpr int row_unit = 32;
  static constexpr bool scales_sums = false;

  static __device__ int first(int t) { return t / 2 * 32 + t % 2 * 4; }
  static __device__ int64_t bytes(int64_t numbers) { return numbers / 2; }
  static __device__ int x_of(int half_step) { return 8 * half_step; }

  // 2^126, by which subnormal numbers of the codes' exponents are multiplied.
  static __device__ uint32_t scaled(uint32_t x, uint32_t factor) {
    const uint32_t shift = 0x7e807e80;
    __nv_bfloat162 y = __hmul2(reinterpret_cast<const __nv_bfloat162&>(x), reinterpret_cast<const __nv_bfloat162&>(shift));
    y = __hmul2(y, reinterpret_cast<const __nv_bfloat162&>(factor));
    return reinterpret_cast<const uint32_t&>(y);
  }
  // The codes at 4 i and 4 i + 16 of a word.
  static __device__ uint32_t pair(uint32_t word, int i) {
    const uint32_t magnitudes = (i < 2 ? word << (6 - 4 * i) : word >> (4 * i - 6)) & 0x01c001c0;
    return magnitudes | (word << (12 - 4 * i) & 0x80008000);
  }
  static __device__ void numbers(const Raw& raw, int i, uint32_t factor, uint32_t& low, uint32_t& high) {
    low = scaled(pair(raw.x, i), factor), high = scaled(pair(raw.y, i), factor);
  }
};

}  // namespace
}  // namespace tilegemm
