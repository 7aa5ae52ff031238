// Activations in shared memory: in f16, in the order of the fragments of operand B.
//
// Numbers are multiplied by a power of two, one for each row of X and segment of 256 numbers, so that the largest is near
// 2^15: of bf16, all down to 2^-33 of the largest are exact, and f32 is rounded to f16's 11 bits. Sums over a segment are
// multiplied by the inverse. f16 numbers are taken as they are, except beside plain codes (narrow/half.hpp): there every
// other piece is divided by 16.
#pragma once
#include "narrow_gemv/shape.hpp"

namespace tilegemm {
namespace {

// Bits of a row of X, of a part of K.
constexpr uint32_t has_infinity = 1, has_nan = 2;

// The powers of a segment, from its largest number in bits, without sign: that of a NaN, of an infinity, or of a number.
// With infinities no other number counts.
template <class T, bool PLAIN>
struct Powers {
  static constexpr bool is_half = std::is_same_v<T, __half>;
  static constexpr int mantissa = is_half ? 10 : sizeof(T) == 4 ? 23 : 7;
  static constexpr uint32_t infinity = is_half ? 0x7c00 : 0xffu << mantissa;
  float to_half, from_half;

  // The largest number of f32 may be rounded up.
  __device__ __forceinline__ explicit Powers(uint32_t most) {
    const int of_most = int(most >> mantissa);
    const int exponent = !is_half ? min((sizeof(T) == 4 ? 141 : 142) - min(of_most, 254), 126)
                         : PLAIN  ? 30 - min(of_most, 30)
                                  : 0;
    to_half = __uint_as_float(uint32_t(127 + exponent) << 23);
    from_half = __uint_as_float(uint32_t(127 - exponent) << 23);
  }
};

// Eight numbers of K.
template <class T>
struct Piece {
  uint4 words[sizeof(T) / 2];

  __device__ __forceinline__ uint32_t most() const {
    if constexpr (sizeof(T) == 4) {
      uint32_t most = 0;
#pragma unroll
      for (const uint4& four : words) {
        const auto size = [](uint32_t x) { return x & 0x7fffffff; };
        most = max(most, max(max(size(four.x), size(four.y)), max(size(four.z), size(four.w))));
      }
      return most;
    } else {
      const auto two = [](uint32_t pair) { return pair & 0x7fff7fff; };
      const uint4& all = words[0];
      const uint32_t most = __vmaxu2(__vmaxu2(two(all.x), two(all.y)), __vmaxu2(two(all.z), two(all.w)));
      return max(most & 0xffff, most >> 16);
    }
  }

  // Times a power of two, which is 1 where `AS_IT_IS`.
  template <bool AS_IT_IS>
  __device__ __forceinline__ uint4 halves(float factor) const {
    const auto pair = [&](uint32_t first, uint32_t second) {
      return narrow::bits(__floats2half2_rn(__uint_as_float(first) * factor, __uint_as_float(second) * factor));
    };
    if constexpr (sizeof(T) == 4) {
      const uint4 &x = words[0], &y = words[1];
      return {pair(x.x, x.y), pair(x.z, x.w), pair(y.x, y.y), pair(y.z, y.w)};
    } else if constexpr (AS_IT_IS) {
      return words[0];
    } else if constexpr (std::is_same_v<T, __half>) {
      const auto both = [&](uint32_t two) {
        const float2 numbers = __half22float2(narrow::halves(two));
        return narrow::bits(__floats2half2_rn(numbers.x * factor, numbers.y * factor));
      };
      const uint4& all = words[0];
      return {both(all.x), both(all.y), both(all.z), both(all.w)};
    } else {
      const auto both = [&](uint32_t two) { return pair(two << 16, two & 0xffff0000u); };
      const uint4& all = words[0];
      return {both(all.x), both(all.y), both(all.z), both(all.w)};
    }
  }
};

// Numbers `k` to `k` + 7 of row m; zeros behind K. `WHOLE`: pieces are aligned, and all of a piece exists, or none.
// Without that test for each piece, all loads are under way at once.
template <class T, bool WHOLE>
__device__ __forceinline__ Piece<T> load_piece(const tg_gemm_args& args, int m, int k, bool exists) {
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>;
  const T* const from = static_cast<const T*>(args.a.ptr) + m * args.a.row_stride + k;
  Piece<T> piece = {};
  if constexpr (WHOLE) {
    if (exists && k < args.k) {
#pragma unroll
      for (int i = 0; i < int(sizeof(T) / 2); i++) piece.words[i] = reinterpret_cast<const uint4*>(from)[i];
    }
  } else {
    Bits numbers[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      numbers[i] = 0;
      if (exists && k + i < args.k) numbers[i] = reinterpret_cast<const Bits*>(from)[i];
    }
    memcpy(&piece, numbers, sizeof piece);
  }
  return piece;
}

// The sum of eight halves.
__device__ __forceinline__ float sum_of(const uint4& piece) {
  const auto pair = [](uint32_t two) {
    const float2 numbers = __half22float2(narrow::halves(two));
    return numbers.x + numbers.y;
  };
  return (pair(piece.x) + pair(piece.y)) + (pair(piece.z) + pair(piece.w));
}

// Stores piece p of row m.
template <class S>
__device__ __forceinline__ void store_piece(uint8_t* x, const uint4& piece, int rows, int m, int p) {
  // fine: (PIECE,M), of 4 bits for ldmatrix, or (CHUNK,M,T,PAIR), chunks of 16. Otherwise (STEP,PIECE,M,T): a lane has
  // some neighbouring pieces of a step.
  constexpr uint32_t pieces = S::step_k / 32;
  const uint32_t q = p;
  const uint32_t at = !S::is_fine      ? ((q / (4 * pieces) * pieces + q % pieces) * rows + m) * 64 + q / pieces % 4 * 16
                      : S::bits == 4 ? (q * rows + m) * 16
                                     : (q / 2 * rows + m) * 32 + q % 2 * 16;
  *reinterpret_cast<uint4*>(x + at) = piece;
}

// The warps of a part of K take its slots [begin, end), of all rows; a warp takes every `warps`-th segment of a row.
// `meanwhile` runs when the first loads are on their way.
template <class S, class T, bool WHOLE, class Meanwhile>
__device__ __forceinline__ void take_pieces(const tg_gemm_args& args, const GemvShape& shape, uint8_t* x, float* powers,
                                            float* sums, uint32_t* flags, int begin, int end, int warp,
                                            const Meanwhile& meanwhile) {
  using OfSegment = Powers<T, S::needs_sums>;
  constexpr bool as_it_is = OfSegment::is_half && !S::needs_sums;
  constexpr int at_once = 8 / int(sizeof(T));
  const int lane = threadIdx.x % 32, warps = shape.warps_n, rows = int(args.m);
  const int pieces = (end - begin) * (S::slot_k / 8), items = rows * ((pieces + 31) / 32);
  // Item i is segment i / rows of row i % rows: 32 pieces, one for each lane.
#pragma unroll 1
  for (int first = warp; first == warp || first < items; first += at_once * warps) {
    Piece<T> piece[at_once];
    int m[at_once], segment[at_once];
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      const int item = first + i * warps;
      segment[i] = shape.by_m.quotient(item), m[i] = item - segment[i] * rows;
      const int p = segment[i] * 32 + lane;
      piece[i] = load_piece<T, WHOLE>(args, m[i], begin * S::slot_k + p * 8, item < items && p < pieces);
    }
    if (first == warp) meanwhile();
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      if (first + i * warps >= items) break;
      const int p = segment[i] * 32 + lane;
      const uint32_t most = __reduce_max_sync(~0u, piece[i].most());
      const OfSegment power(most);
      const uint4 halves = piece[i].template halves<as_it_is>(
          S::needs_sums && lane % 2 ? power.to_half * 0.0625f : power.to_half);
      if (p < pieces) store_piece<S>(x, halves, rows, m[i], p);
      if constexpr (S::needs_sums) {
        // A segment is a slot. Sums as Product begins with them: times the usual zero where no zeros are stored.
        constexpr int lanes = S::scaled / 8;
        constexpr float times = -S::Half::factor * (S::has_zeros ? 1 : narrow::usual_zero(S::codes));
        float sum = sum_of(halves) * (lane % 2 ? 16 * times : times);
#pragma unroll
        for (int bit = lanes / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
        if (lane % lanes == 0) sums[(segment[i] * S::scales + lane / lanes) * S::most_m + m[i]] = sum;
      }
      if (lane == 0) {
        powers[segment[i] * S::most_m + m[i]] = power.from_half / S::Half::factor;
        if (most >= OfSegment::infinity) atomicOr(flags + m[i], most > OfSegment::infinity ? has_nan : has_infinity);
      }
    }
  }
}

template <class S, class Meanwhile>
__device__ __forceinline__ void take_activations(const tg_gemm_args& args, const GemvShape& shape, uint8_t* x,
                                                 float* powers, float* sums, uint32_t* flags, int begin, int end,
                                                 int warp, const Meanwhile& meanwhile) {
  const auto take = [&](auto type) {
    using T = decltype(type);
    const uintptr_t odd = reinterpret_cast<uintptr_t>(args.a.ptr) | (args.m > 1 ? args.a.row_stride * sizeof(T) : 0);
    const bool is_whole = odd % 16 == 0 && args.k % 8 == 0;
    if (is_whole) take_pieces<S, T, true>(args, shape, x, powers, sums, flags, begin, end, warp, meanwhile);
    else take_pieces<S, T, false>(args, shape, x, powers, sums, flags, begin, end, warp, meanwhile);
  };
  switch (args.types.a) {
    case TG_F16: take(__half{}); break;
    case TG_BF16: take(__nv_bfloat16{}); break;
    default: take(float{}); break;
  }
}

}  // namespace
}  // namespace tilegemm
