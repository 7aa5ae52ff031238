// Rows of A in shared memory, in f16: (ROW,K). Numbers are multiplied by a power of two, one for each row and chunk of
// K, so that the largest is near 2^15: of bf16, all down to 2^-32 of the largest are exact, and f32 is rounded to f16's
// 11 bits. Sums over a chunk are multiplied by the inverse. f16 numbers are taken as they are.
//
// Eight numbers, 16 bytes, are an octet; octet o of row r lies at place o ^ r % 8 of the eight octets around it, for
// ldmatrix. Beside codes of 8 bits the pairs of 16 numbers lie in the order in which words of codes have them:
// 0, 2, 4, 6, 1, 3, 5, 7.
#pragma once
#include "narrow/groups.hpp"
#include "narrow_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// The powers of a chunk, from the bits of its largest number without sign.
template <class A>
struct Powers {
  static constexpr bool is_half = std::is_same_v<A, __half>;
  static constexpr int mantissa = sizeof(A) == 4 ? 23 : 7;
  float to_half = 1.0f, from_half = 1.0f;

  // The largest number of f32 may be rounded up.
  __device__ __forceinline__ explicit Powers(uint32_t most) {
    if constexpr (!is_half) {
      const int exponent = min((sizeof(A) == 4 ? 141 : 142) - min(int(most >> mantissa), 254), 126);
      to_half = __uint_as_float(uint32_t(127 + exponent) << 23);
      from_half = __uint_as_float(uint32_t(127 - exponent) << 23);
    }
  }
};

// 16 numbers of a row, as they come.
struct Piece {
  static constexpr int numbers = 16;
  uint4 words[4];

  template <class A>
  __device__ __forceinline__ void load(const void* row, int k, int end) {
    constexpr int each = 16 / sizeof(A);
#pragma unroll
    for (int i = 0; i < int(sizeof(A)); i++) {
      words[i] = uint4{};
      if (row && k + i * each < end)
        words[i] = *reinterpret_cast<const uint4*>(static_cast<const A*>(row) + k + i * each);
    }
  }

  __device__ __forceinline__ uint32_t word(int i) const {
    const uint4& four = words[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }

  // The bits of the largest number of a chunk, without sign. The lanes of a chunk are neighbours; for whole warps.
  template <class S, class A>
  __device__ __forceinline__ uint32_t most() const {
    uint32_t most = 0;
    if constexpr (!Powers<A>::is_half) {
#pragma unroll
      for (int i = 0; i < 4 * int(sizeof(A)); i++) {
        if constexpr (sizeof(A) == 4) most = max(most, word(i) & 0x7fffffff);
        else most = __vmaxu2(most, word(i) & 0x7fff7fff);
      }
      if constexpr (sizeof(A) == 2) most = max(most & 0xffff, most >> 16);
#pragma unroll
      for (int bit = 1; bit < S::chunk_k / numbers; bit *= 2) most = max(most, __shfl_xor_sync(~0u, most, bit));
    }
    return most;
  }

  // The pairs in f16, times `factor`.
  template <class S, class A>
  __device__ __forceinline__ void store(uint8_t* row, int key, int piece, float factor) const {
    uint32_t pairs[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if constexpr (Powers<A>::is_half) {
        pairs[i] = word(i);
      } else {
        const bool wide = sizeof(A) == 4;
        const float low = __uint_as_float(wide ? word(2 * i % 16) : word(i) << 16),
                    high = __uint_as_float(wide ? word((2 * i + 1) % 16) : word(i) & 0xffff0000);
        pairs[i] = narrow::bits(__floats2half2_rn(low * factor, high * factor));
      }
    }
    uint8_t* const to = row + piece / 4 * 128;
    const int octet = piece % 4 * 2;
    const auto put = [&](int at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
      *reinterpret_cast<uint4*>(to + (at ^ key) * 16) = uint4{a, b, c, d};
    };
    if constexpr (S::packed) {
      put(octet, pairs[0], pairs[1], pairs[2], pairs[3]);
      put(octet + 1, pairs[4], pairs[5], pairs[6], pairs[7]);
    } else {
      put(octet, pairs[0], pairs[2], pairs[4], pairs[6]);
      put(octet + 1, pairs[1], pairs[3], pairs[5], pairs[7]);
    }
  }
};

// Row i of a tile in A; null: none.
__device__ __forceinline__ const void* row_of_tile(const tg_gemm_args& args, const NarrowPlace& p,
                                                   const GroupedTile& tile, int i) {
  const int64_t row = i < tile.height ? p.rows.row_of_d(tile.first + i) : -1;
  if (row < 0) return nullptr;
  const int bytes = args.types.a == TG_F32 ? 4 : 2;
  return static_cast<const uint8_t*>(args.a.ptr) + p.pairs_per_row.quotient(int(row)) * args.a.row_stride * bytes;
}

// All of a tile's rows, and their powers, (CHUNK,ROW). `meanwhile` runs when the first loads are on their way.
template <class S, class Meanwhile>
__device__ __forceinline__ void stage_rows(const tg_gemm_args& args, const NarrowPlace& p, const GroupedTile& tile,
                                           uint8_t* x, float* powers, const Meanwhile& meanwhile) {
  constexpr int at_once = 2, of_chunk = S::chunk_k / Piece::numbers;
  const int pieces = int(p.by_pieces.value), count = tile.height * pieces, begin = int(threadIdx.x) / 32 * 32;
#pragma unroll 1
  for (int first = begin; first < count || first == begin; first += at_once * blockDim.x) {
    Piece loaded[at_once];
    const auto place = [&](int j) { return first + int(threadIdx.x) % 32 + j * int(blockDim.x); };
    narrow::with_type(args, [&](auto number) {
#pragma unroll
      for (int j = 0; j < at_once; j++) {
        const int at = place(j), i = p.by_pieces.quotient(at);
        const void* const row = at < count ? row_of_tile(args, p, tile, i) : nullptr;
        loaded[j].load<decltype(number)>(row, (at - i * pieces) * Piece::numbers, int(args.k));
      }
    });
    if (first == begin) meanwhile();
    narrow::with_type(args, [&](auto number) {
      using A = decltype(number);
#pragma unroll
      for (int j = 0; j < at_once; j++) {
        const int at = place(j), i = p.by_pieces.quotient(at), piece = at - i * pieces;
        const Powers<A> power(loaded[j].most<S, A>());
        if (at >= count) continue;
        loaded[j].store<S, A>(x + i * p.at.x_pitch, i % 8, piece, power.to_half);
        if (piece % of_chunk == 0) powers[piece / of_chunk * S::tile_m + i] = power.from_half * (1 / S::Codes::factor);
      }
    });
  }
}

// Chunks of K of a tile's rows: loaded while the chunk before is multiplied.
template <class S>
class Chunks {
  static constexpr int threads = 32 * most_warps, pieces = S::chunk_k / Piece::numbers;  // of a row
  static constexpr int count = S::tile_m * pieces / threads, rows = threads / pieces;
  const tg_gemm_args& args_;
  const void* from_[count];
  Piece loaded_[count];

 public:
  __device__ Chunks(const tg_gemm_args& args, const NarrowPlace& p, const GroupedTile& tile) : args_(args) {
#pragma unroll
    for (int j = 0; j < count; j++) from_[j] = row_of_tile(args, p, tile, threadIdx.x / pieces + j * rows);
  }
  __device__ __forceinline__ void load(int chunk) {
    narrow::with_type(args_, [&](auto number) {
#pragma unroll
      for (int j = 0; j < count; j++)
        loaded_[j].template load<decltype(number)>(from_[j], chunk * S::chunk_k + threadIdx.x % pieces * Piece::numbers,
                                                   int(args_.k));
    });
  }
  __device__ __forceinline__ void store(uint8_t* x, float* powers) const {
    narrow::with_type(args_, [&](auto number) {
      using A = decltype(number);
#pragma unroll
      for (int j = 0; j < count; j++) {
        const int i = threadIdx.x / pieces + j * rows, piece = threadIdx.x % pieces;
        const Powers<A> power(loaded_[j].template most<S, A>());
        if (!from_[j]) continue;
        loaded_[j].template store<S, A>(x + i * S::chunk_pitch, i % 8, piece, power.to_half);
        if (piece == 0) powers[i] = power.from_half * (1 / S::Codes::factor);
      }
    });
  }
};

}  // namespace
}  // namespace tilegemm
