// Rows of A in shared memory, in 16 bits: (ROW,K). Eight numbers, 16 bytes, are a chunk; chunk c of row r lies at
// place c ^ r % 8 of the eight chunks around it, for ldmatrix. Beside codes of 8 bits the pairs of 16 numbers lie in the
// order in which words of codes have them: 0, 2, 4, 6, 1, 3, 5, 7.
#pragma once
#include "narrow_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

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

  // The pairs in T.
  template <class S, class A>
  __device__ __forceinline__ void store(uint8_t* row, int key, int piece) const {
    uint32_t pairs[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint4& four = words[i / (sizeof(A) == 4 ? 2 : 4)];
      const auto word = [&](int j) { return j == 0 ? four.x : j == 1 ? four.y : j == 2 ? four.z : four.w; };
      if constexpr (sizeof(A) == 4) {
        const float low = __uint_as_float(word(i % 2 * 2)), high = __uint_as_float(word(i % 2 * 2 + 1));
        pairs[i] = narrow::bits_of<__nv_bfloat16>(__floats2bfloat162_rn(low, high));
      } else {
        pairs[i] = word(i % 4);
      }
    }
    uint8_t* const to = row + piece / 4 * 128;
    const int chunk = piece % 4 * 2;
    const auto put = [&](int at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
      *reinterpret_cast<uint4*>(to + (at ^ key) * 16) = uint4{a, b, c, d};
    };
    if constexpr (S::packed) {
      put(chunk, pairs[0], pairs[1], pairs[2], pairs[3]);
      put(chunk + 1, pairs[4], pairs[5], pairs[6], pairs[7]);
    } else {
      put(chunk, pairs[0], pairs[2], pairs[4], pairs[6]);
      put(chunk + 1, pairs[1], pairs[3], pairs[5], pairs[7]);
    }
  }
};

// Calls `with`(number) for a number of A's type: f32, which becomes bf16, or T.
template <class S, class With>
__device__ __forceinline__ void with_type(const NarrowPlace& p, const With& with) {
  if constexpr (!narrow::is_half<typename S::T>) {
    if (p.a_is_wide) return with(0.0f);
  }
  with(typename S::T());
}

// Row i of a tile in A; null: none.
__device__ __forceinline__ const void* row_of_tile(const tg_gemm_args& args, const NarrowPlace& p,
                                                   const GroupedTile& tile, int i, int bytes) {
  const int64_t row = i < tile.height ? p.rows.row_of_d(tile.first + i) : -1;
  if (row < 0) return nullptr;
  return static_cast<const uint8_t*>(args.a.ptr) + p.pairs_per_row.quotient(int(row)) * args.a.row_stride * bytes;
}

// All of a tile's rows. `meanwhile` runs when the first loads are on their way.
template <class S, class Meanwhile>
__device__ __forceinline__ void stage_rows(const tg_gemm_args& args, const NarrowPlace& p, const GroupedTile& tile,
                                           uint8_t* x, const Meanwhile& meanwhile) {
  constexpr int at_once = 2;
  const int pieces = int(p.by_pieces.value), count = tile.height * pieces;
#pragma unroll 1
  for (int first = threadIdx.x; first < count || first == int(threadIdx.x); first += at_once * blockDim.x) {
    Piece loaded[at_once];
    with_type<S>(p, [&](auto number) {
#pragma unroll
      for (int j = 0; j < at_once; j++) {
        const int at = first + j * int(blockDim.x), i = p.by_pieces.quotient(at);
        const void* const row = at < count ? row_of_tile(args, p, tile, i, sizeof number) : nullptr;
        loaded[j].load<decltype(number)>(row, (at - i * pieces) * Piece::numbers, int(args.k));
      }
    });
    if (first == int(threadIdx.x)) meanwhile();
    with_type<S>(p, [&](auto number) {
#pragma unroll
      for (int j = 0; j < at_once; j++) {
        const int at = first + j * int(blockDim.x), i = p.by_pieces.quotient(at);
        if (at < count) loaded[j].store<S, decltype(number)>(x + i * p.at.x_pitch, i % 8, at - i * pieces);
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
  const NarrowPlace& p_;
  const void* from_[count];
  Piece loaded_[count];

 public:
  __device__ Chunks(const tg_gemm_args& args, const NarrowPlace& p, const GroupedTile& tile) : args_(args), p_(p) {
#pragma unroll
    for (int j = 0; j < count; j++)
      from_[j] = row_of_tile(args, p, tile, threadIdx.x / pieces + j * rows, p.a_is_wide ? 4 : 2);
  }
  __device__ __forceinline__ void load(int chunk) {
    with_type<S>(p_, [&](auto number) {
#pragma unroll
      for (int j = 0; j < count; j++)
        loaded_[j].template load<decltype(number)>(from_[j], chunk * S::chunk_k + threadIdx.x % pieces * Piece::numbers,
                                          int(args_.k));
    });
  }
  __device__ __forceinline__ void store(uint8_t* x) const {
    with_type<S>(p_, [&](auto number) {
#pragma unroll
      for (int j = 0; j < count; j++) {
        const int i = threadIdx.x / pieces + j * rows;
        if (from_[j]) loaded_[j].template store<S, decltype(number)>(x + i * S::chunk_pitch, i % 8, threadIdx.x % pieces);
      }
    });
  }
};

}  // namespace
}  // namespace tilegemm
