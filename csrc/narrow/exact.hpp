// Sums that are not finite, once more, number by number. Sums over a unit of K may be infinite or NaN where a scaled
// weight gives another result: an infinite factor times codes of both signs, or codes times large numbers of X.
#pragma once
#include "narrow/numbers.hpp"

namespace tilegemm::narrow {
namespace {

// Whether `is_bad`(word, b) holds for a byte b of a word, of so many bytes; not for zeros. For a whole warp. `from` is
// a multiple of 16.
template <class Is>
__device__ __forceinline__ bool any_word(const void* from, int64_t bytes, const Is& is_bad) {
  bool bad = false;
  const int lane = threadIdx.x % 32;
  for (int64_t at = lane * 16; at < bytes; at += 512) {
    const uint8_t* const piece = static_cast<const uint8_t*>(from) + at;
    uint32_t words[4] = {};
    if (at + 16 <= bytes) {
      const uint4 v = *reinterpret_cast<const uint4*>(piece);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
#pragma unroll
      for (int i = 0; i < 15; i++) words[i / 4] |= at + i < bytes ? uint32_t(piece[i]) << (8 * (i % 4)) : 0;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) bad |= is_bad(words[i / 4], i % 4);
  }
  return __any_sync(~0u, bad);
}

// Row m of A times column n of B, of the matrix of a group of rows, over k in [begin, end), in f32. A NaN ends it. For
// whole warps, with the same row and column. `begin` is a multiple of 16.
template <tg_format F, class T>
__device__ __noinline__ float once_more(const tg_gemm_args& args, int64_t m, int64_t n, int64_t begin, int64_t end,
                                        int64_t matrix = 0) {
  const T* const x = static_cast<const T*>(args.a.ptr) + m * args.a.row_stride;
  const auto is_nan = [](uint32_t word, int b) {
    if constexpr (sizeof(T) == 4) return b == 0 && (word & 0x7fffffff) > 0x7f800000;
    constexpr uint32_t infinity = std::is_same_v<T, __half> ? 0x7c00 : 0x7f80;
    return b % 2 == 0 && (word >> (8 * b) & 0x7fff) > infinity;
  };
  if (any_word(x + begin, (end - begin) * int64_t(sizeof(T)), is_nan)) return NAN;
  if constexpr (F == TG_F8E4M3) {
    const auto is_nan_code = [](uint32_t word, int b) { return (word >> (8 * b) & 0x7f) == 0x7f; };
    const uint8_t* const row =
        static_cast<const uint8_t*>(args.b.ptr) + matrix * args.b.batch_stride[1] + n * args.b.col_stride;
    if (any_word(row + begin, end - begin, is_nan_code)) return NAN;
  }
  const Column column(args, 0, matrix, n);
  float sum = 0.0f;
#pragma unroll 1
  for (int64_t from = begin; from < end; from += 512) {
#pragma unroll 1
    for (int64_t k = from + threadIdx.x % 32; k < min(end, from + 512); k += 32)
      sum = fmaf(column[k], float(x[k]), sum);
    if (__any_sync(~0u, isnan(sum))) return NAN;
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  return sum;
}

}  // namespace
}  // namespace tilegemm::narrow
