// Activations in shared memory: in f16, in the order of the fragments of operand B.
//
// f16 numbers are taken as they are. bf16 numbers are multiplied by a power of two, one for each row of X and segment of
// 256 numbers, so that the largest is in [2^15, 2^16): all down to 2^-33 of the largest are exact. Sums over a segment
// are multiplied by the inverse.
#pragma once
#include "narrow_gemv/shape.hpp"

namespace tilegemm {
namespace {

// Bits of a row of X, of a part of K.
constexpr uint32_t has_infinity = 1, has_nan = 2;

// The powers of a segment, from its largest number in bits, without sign: that of a NaN, of an infinity, or of a number.
// With infinities no other number counts.
template <class T>
struct Powers {
  static constexpr bool is_bf16 = std::is_same_v<T, __nv_bfloat16>;
  static constexpr uint32_t infinity = is_bf16 ? 0x7f80 : 0x7c00;
  float to_half, from_half;

  __device__ __forceinline__ explicit Powers(uint32_t most) {
    const int exponent = is_bf16 ? min(142 - min(int(most >> 7), 254), 126) : 0;
    to_half = __uint_as_float(uint32_t(127 + exponent) << 23), from_half = __uint_as_float(uint32_t(127 - exponent) << 23);
  }
};

__device__ __forceinline__ uint32_t most_of(const uint4& piece) {
  const auto two = [](uint32_t pair) { return pair & 0x7fff7fff; };
  const uint32_t most = __vmaxu2(__vmaxu2(two(piece.x), two(piece.y)), __vmaxu2(two(piece.z), two(piece.w)));
  return max(most & 0xffff, most >> 16);
}

template <class T>
__device__ __forceinline__ uint4 to_half(const uint4& piece, float factor) {
  if constexpr (!Powers<T>::is_bf16) return piece;
  const auto pair = [&](uint32_t two) {
    return narrow::bits(
        __floats2half2_rn(__uint_as_float(two << 16) * factor, __uint_as_float(two & 0xffff0000u) * factor));
  };
  return {pair(piece.x), pair(piece.y), pair(piece.z), pair(piece.w)};
}

// Numbers `k` to `k` + 7 of row m; zeros behind K. `is_whole`: pieces are aligned, and all of a piece exists, or none.
// Without that test for each piece, all loads are under way at once.
template <class T>
__device__ __forceinline__ uint4 load_piece(const tg_gemm_args& args, int m, int k, bool exists, bool is_whole) {
  const T* const from = static_cast<const T*>(args.a.ptr) + m * args.a.row_stride + k;
  uint4 piece = {};
  if (is_whole) {
    if (exists && k < args.k) piece = *reinterpret_cast<const uint4*>(from);
  } else {
    uint16_t numbers[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      numbers[i] = 0;
      if (exists && k + i < args.k) numbers[i] = reinterpret_cast<const uint16_t*>(from)[i];
    }
    memcpy(&piece, numbers, sizeof piece);
  }
  return piece;
}

// Stores piece p of row m: a piece is eight numbers of K.
template <class S>
__device__ __forceinline__ void store_piece(uint8_t* x, const uint4& piece, int rows, int m, int p) {
  // fine: (PIECE,M), of 4 bits for ldmatrix, or (CHUNK,M,T,PAIR), chunks of 16. Otherwise (STEP,PIECE,M,T): a lane has
  // some neighbouring pieces of a step.
  constexpr uint32_t pieces = S::step_k / 32;
  const uint32_t q = p;
  const uint32_t at = !S::is_fine ? ((q / (4 * pieces) * pieces + q % pieces) * rows + m) * 64 + q / pieces % 4 * 16
                      : bits_of(S::codes) == 4 ? (q * rows + m) * 16
                                               : (q / 2 * rows + m) * 32 + q % 2 * 16;
  *reinterpret_cast<uint4*>(x + at) = piece;
}

// The warps of a part of K take its slots [begin, end), of all rows; a warp takes every `warps`-th segment of a row.
// `meanwhile` runs when the first loads are on their way.
template <class S, class T, bool WHOLE, class Meanwhile>
__device__ __forceinline__ void take_pieces(const tg_gemm_args& args, const GemvShape& shape, uint8_t* x, float* powers,
                                            uint32_t* flags, int begin, int end, int warp, const Meanwhile& meanwhile) {
  constexpr int at_once = 4;
  const int lane = threadIdx.x % 32, warps = shape.warps_n, rows = int(args.m);
  const int pieces = (end - begin) * (S::slot_k / 8), items = rows * ((pieces + 31) / 32);
  // Item i is segment i / rows of row i % rows: 32 pieces, one for each lane.
#pragma unroll 1
  for (int first = warp; first == warp || first < items; first += at_once * warps) {
    uint4 piece[at_once];
    int m[at_once], segment[at_once];
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      const int item = first + i * warps, p = shape.by_m.quotient(item) * 32 + lane;
      segment[i] = shape.by_m.quotient(item), m[i] = item - segment[i] * rows;
      piece[i] = load_piece<T>(args, m[i], begin * S::slot_k + p * 8, item < items && p < pieces, WHOLE);
    }
    if (first == warp) meanwhile();
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      if (first + i * warps >= items) break;
      const int p = segment[i] * 32 + lane;
      const uint32_t most = __reduce_max_sync(~0u, most_of(piece[i]));
      const Powers<T> power(most);
      if (p < pieces) store_piece<S>(x, to_half<T>(piece[i], power.to_half), rows, m[i], p);
      if (lane == 0) {
        powers[segment[i] * S::most_m + m[i]] = power.from_half / S::Half::factor;
        if (most >= Powers<T>::infinity) atomicOr(flags + m[i], most > Powers<T>::infinity ? has_nan : has_infinity);
      }
    }
  }
}

template <class S, class T, class Meanwhile>
__device__ __forceinline__ void take_activations(const tg_gemm_args& args, const GemvShape& shape, uint8_t* x,
                                                 float* powers, uint32_t* flags, int begin, int end, int warp,
                                                 const Meanwhile& meanwhile) {
  const uintptr_t odd = reinterpret_cast<uintptr_t>(args.a.ptr) | args.a.row_stride * 2 | args.k * 2;
  if (odd % 16 == 0) take_pieces<S, T, true>(args, shape, x, powers, flags, begin, end, warp, meanwhile);
  else take_pieces<S, T, false>(args, shape, x, powers, flags, begin, end, warp, meanwhile);
}

}  // namespace
}  // namespace tilegemm
