// Activations in shared memory: in f16, in the order of the fragments of operand B.
//
// Numbers are multiplied by a power of two, one for each row of X and segment of 256 numbers, so that the largest is
// near 2^15: of bf16, all down to 2^-33 of the largest are exact, and f32 is rounded to f16's 11 bits. Sums over a
// segment are multiplied by the inverse. f16 numbers are taken as they are.
#pragma once
#include "narrow_gemv/shape.hpp"

namespace tilegemm {
namespace {

// Bits of a row of X, of a part of K.
constexpr uint32_t has_infinity = 1, has_nan = 2;

// The powers of a segment, from its largest number in bits, without sign: that of a NaN, of an infinity, or of a
// number. With infinities no other number counts.
template <class T>
struct Powers {
  static constexpr bool is_half = std::is_same_v<T, __half>;
  static constexpr int mantissa = is_half ? 10 : sizeof(T) == 4 ? 23 : 7;
  static constexpr uint32_t infinity = is_half ? 0x7c00 : 0xffu << mantissa;
  float to_half, from_half;

  // The largest number of f32 may be rounded up.
  __device__ __forceinline__ explicit Powers(uint32_t most) {
    const int of_most = int(most >> mantissa);
    const int exponent = is_half ? 0 : min((sizeof(T) == 4 ? 141 : 142) - min(of_most, 254), 126);
    to_half = __uint_as_float(uint32_t(127 + exponent) << 23);
    from_half = __uint_as_float(uint32_t(127 - exponent) << 23);
  }
};

// Eight numbers of K.
template <class T>
struct Piece {
  static constexpr int quarters = sizeof(T) / 2;  // words of 16 bytes
  uint4 words[quarters];

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

  // In f16, times a power of two. f32 is rounded; bf16 is exact, except for numbers that are too small to count.
  __device__ __forceinline__ uint4 halves(float factor) const {
    float numbers[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint4& all = words[quarters == 2 ? i / 4 : 0];
      const int at = quarters == 2 ? i % 4 : i / 2;
      const uint32_t word = at == 0 ? all.x : at == 1 ? all.y : at == 2 ? all.z : all.w;
      if constexpr (sizeof(T) == 4) numbers[i] = __uint_as_float(word);
      else numbers[i] = __uint_as_float(i % 2 ? word & 0xffff0000u : word << 16);
      numbers[i] *= factor;
    }
    uint32_t pairs[4];
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = narrow::bits(__floats2half2_rn(numbers[2 * i], numbers[2 * i + 1]));
    return {pairs[0], pairs[1], pairs[2], pairs[3]};
  }
};

// Stores piece p of row m.
template <class S>
__device__ __forceinline__ void store_piece(uint8_t* x, const uint4& piece, int rows, int m, int p) {
  // fine: (PIECE,M), of 4 bits for ldmatrix, or (CHUNK,M,T,PAIR), chunks of 16. Otherwise (STEP,PIECE,M,T): a lane has
  // some neighbouring pieces of a step.
  constexpr uint32_t pieces = S::step_k / 32;
  const uint32_t q = p;
  const uint32_t at = !S::is_fine    ? ((q / (4 * pieces) * pieces + q % pieces) * rows + m) * 64 + q / pieces % 4 * 16
                      : S::bits == 4 ? (q * rows + m) * 16
                                     : (q / 2 * rows + m) * 32 + q % 2 * 16;
  *reinterpret_cast<uint4*>(x + at) = piece;
}

// Where a part of K has its activations in shared memory: numbers, powers of segments, bits of rows.
struct Staged {
  uint8_t* x;
  float* powers;
  uint32_t* flags;
};

// The activations of a part of K: slots [begin, end), of all rows. The part's warps take items in turns; item i is
// segment i / rows of row i % rows: 32 pieces, one for each lane.
template <class S>
class Stager {
  const tg_gemm_args& args_;
  const GemvShape& shape_;
  const Staged to_;
  const int first_k_, rows_, pieces_, items_;
  const int bytes_;  // of a number
  bool is_whole_;    // pieces are aligned, and all of a piece exists, or none

  static constexpr int words = 8;  // of 16 bytes, that a lane has under way

  // 16 bytes of numbers that are loaded one by one.
  template <class Bits>
  __device__ __noinline__ static uint4 load_numbers(const Bits* from, int existing) {
    uint32_t words_of[4] = {};
#pragma unroll
    for (int i = 0; i < int(16 / sizeof(Bits)); i++) {
      const uint32_t number = i < existing ? from[i] : 0;
      words_of[i * sizeof(Bits) / 4] |= number << i * sizeof(Bits) % 4 * 8;
    }
    return make_uint4(words_of[0], words_of[1], words_of[2], words_of[3]);
  }

  // Zeros behind K.
  template <class Bits>
  __device__ __forceinline__ void load(uint4 (&loaded)[words], int first) const {
    constexpr int quarters = sizeof(Bits) / 2;
#pragma unroll
    for (int i = 0; i < words / quarters; i++) {
      const int item = first + i * shape_.warps_n, segment = shape_.by_m.quotient(item), m = item - segment * rows_;
      const int p = segment * 32 + int(threadIdx.x % 32), k = first_k_ + p * 8;
      const bool exists = item < items_ && p < pieces_ && k < args_.k;
      const Bits* const from = static_cast<const Bits*>(args_.a.ptr) + m * args_.a.row_stride + k;
#pragma unroll
      for (int q = 0; q < quarters; q++) {
        constexpr int numbers = 16 / sizeof(Bits);
        uint4& word = loaded[i * quarters + q];
        word = {};
        if (is_whole_) {
          if (exists) word = reinterpret_cast<const uint4*>(from)[q];
        } else if (exists) {
          word = load_numbers(from + q * numbers, int(min(args_.k - k, int64_t(8))) - q * numbers);
        }
      }
    }
  }

  template <class T>
  __device__ __forceinline__ void store(const uint4 (&loaded)[words], int first) const {
    using OfSegment = Powers<T>;
    constexpr int quarters = Piece<T>::quarters;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < words / quarters; i++) {
      const int item = first + i * shape_.warps_n, segment = shape_.by_m.quotient(item), m = item - segment * rows_;
      if (item >= items_) break;
      Piece<T> piece;
#pragma unroll
      for (int q = 0; q < quarters; q++) piece.words[q] = loaded[i * quarters + q];
      const int p = segment * 32 + lane;
      const uint32_t most = __reduce_max_sync(~0u, piece.most());
      const OfSegment power(most);
      uint4 halves = piece.words[0];
      if constexpr (!OfSegment::is_half) halves = piece.halves(power.to_half);
      if (p < pieces_) store_piece<S>(to_.x, halves, rows_, m, p);
      if (lane == 0) {
        to_.powers[segment * S::most_m + m] = power.from_half / S::Half::factor;
        if (most >= OfSegment::infinity) atomicOr(to_.flags + m, most > OfSegment::infinity ? has_nan : has_infinity);
      }
    }
  }

 public:
  __device__ __forceinline__ Stager(const tg_gemm_args& args, const GemvShape& shape, const Staged& to, int begin,
                                    int end)
      : args_(args), shape_(shape), to_(to), first_k_(begin * S::slot_k), rows_(int(args.m)),
        pieces_((end - begin) * (S::slot_k / 8)), items_(rows_ * ((pieces_ + 31) / 32)),
        bytes_(args.types.a == TG_F32 ? 4 : 2) {
    const uintptr_t odd = reinterpret_cast<uintptr_t>(args.a.ptr) | (args.m > 1 ? args.a.row_stride * bytes_ : 0);
    is_whole_ = odd % 16 == 0 && args.k % 8 == 0;
  }

  // Takes a warp's items. `meanwhile` runs when the first loads are on their way.
  template <class Meanwhile>
  __device__ __forceinline__ void take(int warp, const Meanwhile& meanwhile) const {
    const int step = words * 2 / bytes_ * shape_.warps_n;
#pragma unroll 1
    for (int first = warp; first == warp || first < items_; first += step) {
      uint4 loaded[words];
      if (bytes_ == 4) load<uint32_t>(loaded, first);
      else load<uint16_t>(loaded, first);
      if (first == warp) meanwhile();
      switch (args_.types.a) {
        case TG_F16: store<__half>(loaded, first); break;
        case TG_BF16: store<__nv_bfloat16>(loaded, first); break;
        default: store<float>(loaded, first); break;
      }
    }
  }
};

}  // namespace
}  // namespace tilegemm
