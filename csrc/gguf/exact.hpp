// Sums that are not finite, once more. Sums of scaled codes cannot hold the products of infinite numbers: an infinity
// times a code of zero is NaN where the weight is not zero, and a weight in 16 bits may be zero or have another sign
// where a scale times a code and a minimum nearly cancel.
//
// A warp takes a row of A and some columns. Most such sums need few weights: those at the row's infinities, and none
// where the row has a NaN, or where finite numbers overflow. So one bad sequence of a batch costs the others little.
// Where a scale of W is not finite, the sum is made number by number.
#pragma once
#include "gguf/blocks.hpp"
#include "gguf/ring.hpp"

namespace tilegemm::gguf {
namespace {

// Number `at` of A.
__device__ __forceinline__ float number_of_a(const tg_gemm_args& args, int64_t at) {
  switch (args.types.a) {
    case TG_F32: return static_cast<const float*>(args.a.ptr)[at];
    case TG_F16: return float(static_cast<const __half*>(args.a.ptr)[at]);
    default: return float(static_cast<const __nv_bfloat16*>(args.a.ptr)[at]);
  }
}

// No finite number is an infinity to a kernel; the finite numbers from here on are infinities in bf16.
struct MostOfF32 {
  static constexpr float number = 3.4028234663852886e38f;
};
struct MostOfBf16 {
  static constexpr float number = 3.3895313892515355e38f;
};

// Number k of a row of W.
template <tg_format F>
__device__ __noinline__ float number_of_w(const uint8_t* row, int64_t k) {
  constexpr Block block = block_of(F);
  return number(F, row + k / block.elements * block.bytes, int(k % block.elements));
}

// Whether a block's scale or minimum is not finite. The scales of a block of 256 are integers times these, and stay
// finite with them. Of mxfp4, whether a scale is so large that numbers between the weights and the sums may not be
// finite.
template <tg_format F>
__device__ __forceinline__ bool is_wild(const uint8_t* block) {
  if constexpr (F == TG_MXFP4) return block[0] > 127 + log2_of_tame;
  constexpr int scale = F == TG_Q2K ? 80 : F == TG_Q3K ? 108 : F == TG_Q6K ? 208 : 0;
  constexpr bool has_min = F == TG_Q4_1 || F == TG_Q5_1 || F == TG_Q2K || F == TG_Q4K || F == TG_Q5K;
  // Blocks of other formats lie at multiples of 2 bytes.
  const __half* const halves = reinterpret_cast<const __half*>(block + scale);
  return __hisinf(halves[0]) || __hisnan(halves[0]) || (has_min && (__hisinf(halves[1]) || __hisnan(halves[1])));
}

// A sum, and whether it is another than before.
struct Once {
  float sum;
  bool is_new;
};

// The sums of row m of A times up to `COLUMNS` rows of W over k in [begin, end), where infinite or NaN operands make
// them wrong. Lane c, and every `COLUMNS`-th behind it, has the same row n of matrix `i` of W, and whether it asks.
// Where a sum is infinite because finite numbers overflow, it stands. `MOST`: a greater finite number of A was an
// infinity to the kernel. All lanes of a warp take part.
template <tg_format F, int COLUMNS, class Most>
__device__ __noinline__ Once once_more(const tg_gemm_args& args, int64_t m, int i, int64_t n, bool asks, int64_t begin,
                                       int64_t end, Most) {
  constexpr Block block = block_of(F);
  constexpr int at_once = 16;  // loads of a lane under way
  const int lane = threadIdx.x % 32;
  const int64_t first_of_row = m * args.a.row_stride;
  const uint8_t* const w = matrix_at<F>(args, i) + n * row_stride<F>(args);
  float of_infinities = 0.0f;
  bool has_infinities = false, has_more = false;
  const auto of_column = [](float x) {
#pragma unroll
    for (int d = COLUMNS; d < 32; d *= 2) x += __shfl_xor_sync(~0u, x, d);
    return x;
  };
  const auto load = [&](int64_t k) { return k < end ? number_of_a(args, first_of_row + k) : 0.0f; };
#pragma unroll 1
  for (int64_t from = begin; from < end; from += 32 * at_once) {
    float x[at_once];
    bool any = false;
#pragma unroll
    for (int j = 0; j < at_once; j++) x[j] = load(from + 32 * j + lane);
#pragma unroll
    for (int j = 0; j < at_once; j++) any |= !(fabsf(x[j]) <= Most::number);
    if (!__any_sync(~0u, any)) continue;
    // Rarely: each load again, so that the code is small.
#pragma unroll 1
    for (int64_t k = from; k < from + 32 * at_once; k += 32) {
      const float of_lane = load(k + lane);
#pragma unroll 1
      for (unsigned left = __ballot_sync(~0u, !(fabsf(of_lane) <= Most::number)); left;) {
        // The lanes of a column take a number each.
        int place = -1;
#pragma unroll
        for (int split = 0; split < 32 / COLUMNS; split++) {
          if (split == lane / COLUMNS) place = __ffs(left) - 1;
          left &= left - 1;
        }
        const float number = __shfl_sync(~0u, of_lane, place & 31);
        if (place >= 0 && isfinite(number)) has_more = true;
        if (place >= 0 && !isfinite(number)) {
          has_infinities = true;
          if (asks) of_infinities += number * number_of_w<F>(w, k + place);
        }
        const float all = of_column(of_infinities);
        if (__all_sync(~0u, !asks || isnan(all))) return {all, asks};
      }
    }
  }
  of_infinities = of_column(of_infinities);
  has_infinities = __any_sync(~0u, has_infinities), has_more = __any_sync(~0u, has_more);
  bool wild = false;
  if (asks) {
    const int64_t blocks = ceil_div(end, block.elements);
#pragma unroll 8
    for (int64_t b = begin / block.elements + lane / COLUMNS; b < blocks; b += 32 / COLUMNS)
      wild |= is_wild<F>(w + b * block.bytes);
  }
#pragma unroll
  for (int d = COLUMNS; d < 32; d *= 2) wild |= bool(__shfl_xor_sync(~0u, int(wild), d));
  const bool by_number = asks && (wild || (has_more && !has_infinities));
  float sum = of_infinities;
#pragma unroll 1
  for (unsigned left = __ballot_sync(~0u, by_number && lane < COLUMNS); left; left &= left - 1) {
    const int column = __ffs(left) - 1;
    const uint8_t* const row = matrix_at<F>(args, i) + __shfl_sync(~0u, n, column) * row_stride<F>(args);
    float of_lane = 0.0f;
#pragma unroll 1
    for (int64_t k = begin + lane; k < end; k += 32)
      of_lane += number_of_w<F>(row, k) * number_of_a(args, first_of_row + k);
#pragma unroll
    for (int d = 16; d > 0; d /= 2) of_lane += __shfl_xor_sync(~0u, of_lane, d);
    if (lane % COLUMNS == column) sum = of_lane;
  }
  return {sum, asks && (by_number || has_infinities)};
}

}  // namespace
}  // namespace tilegemm::gguf
