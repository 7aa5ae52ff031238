// Sums that are not finite, once more, number by number. Sums over a unit of K may be infinite or NaN where a scaled
// weight gives another result: an infinite factor times codes of both signs, or codes times large numbers of X.
#pragma once
#include "narrow/weights.hpp"

namespace tilegemm::narrow {
namespace {

// Whether one of `bytes` bytes is in `is_bad`(word), for a whole warp. `from` is at a multiple of 16.
template <class Is>
__device__ __forceinline__ bool any_word(const void* from, int64_t bytes, const Is& is_bad) {
  bool bad = false;
  const int lane = threadIdx.x % 32;
  for (int64_t at = lane * 16; at < bytes; at += 512) {
    const uint4 v = *reinterpret_cast<const uint4*>(static_cast<const char*>(from) + at);
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int b = 0; b < 4; b++) bad |= at + 4 * i + b < bytes && is_bad(words[i], b);
    }
  }
  return __any_sync(~0u, bad);
}

// Row m of X times row n of W over k in [begin, end), in f32. A NaN ends it. For whole warps, with the same row.
template <Code C, class T>
__device__ __noinline__ float once_more(const tg_gemm_args& args, const Weights& w, int64_t m, int64_t n, int64_t begin,
                                        int64_t end) {
  const T* const x = static_cast<const T*>(args.a.ptr) + m * args.a.row_stride;
  const auto is_nan = [](uint32_t word, int b) {
    constexpr uint32_t infinity = std::is_same_v<T, __half> ? 0x7c00 : 0x7f80;
    return b % 2 == 0 && (word >> (8 * b) & 0x7fff) > infinity;
  };
  if (any_word(x + begin, (end - begin) * 2, is_nan)) return NAN;
  if constexpr (C == Code::f8e4m3) {
    const auto is_code = [](uint32_t word, int b) { return (word >> (8 * b) & 0x7f) == 0x7f; };
    if (any_word(w.codes + n * w.row_bytes + begin, end - begin, is_code)) return NAN;
  }
  float sum = 0.0f;
#pragma unroll 1
  for (int64_t from = begin; from < end; from += 512) {
#pragma unroll 1
    for (int64_t k = from + threadIdx.x % 32; k < min(end, from + 512); k += 32)
      sum = fmaf(number_of_weight<C>(w, n, k), float(x[k]), sum);
    if (__any_sync(~0u, isnan(sum))) return NAN;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  return sum;
}

}  // namespace
}  // namespace tilegemm::narrow
