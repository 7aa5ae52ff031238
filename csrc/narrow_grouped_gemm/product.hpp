// Sums of a warp's 16 rows of W, operand A of mma.m16n8k16, times a tile's rows of A, operand B, in f16. Of a lane (g,
// t): rows g and g + 8 of W by rows 2 t and 2 t + 1 of each eight rows of A.
#pragma once
#include "common/mma.hpp"
#include "narrow_grouped_gemm/weights.hpp"

namespace tilegemm {
namespace {

// Four matrices of 8 x 8 numbers; lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(const uint8_t* from, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(uint32_t(__cvta_generic_to_shared(from))));
}

// Where a slot's groups end: the current one among those of the slot, and the unit of the slot where the next begins.
struct SlotGroup {
  int group, end;
};

template <class S>
struct Product {
  const typename S::Codes codes{0};
  float total[S::tiles][4] = {};  // (MMA_N,MMA), of D^T
  float part[S::tiles][4] = {};   // over numbers that share a factor and a power

  __device__ __forceinline__ void clear(float (&sums)[S::tiles][4]) {
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) sums[tile][0] = sums[tile][1] = sums[tile][2] = sums[tile][3] = 0;
  }

  // Operand A of two instructions: numbers of unit u of rows g and g + 8. `words`: the lane's word of the first piece
  // of row g of the slot.
  __device__ __forceinline__ void convert(uint32_t (&a)[2][4], const uint8_t* shared, int words, int u,
                                          const uint32_t (&zeros)[2]) const {
    const auto word = [&](int piece, int r) {
      return *reinterpret_cast<const uint32_t*>(shared + (words ^ piece << 4) + r * 8 * row_bytes);
    };
#pragma unroll
    for (int r = 0; r < 2; r++) {
      if constexpr (S::packed) {
        uint32_t pairs[4];
        codes.convert(word(u, r), zeros[r], pairs);
        a[0][r] = pairs[0], a[0][2 + r] = pairs[1], a[1][r] = pairs[2], a[1][2 + r] = pairs[3];
      } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const uint32_t four = word(2 * u + i, r);
          a[i][r] = codes.pair(four, 0), a[i][2 + r] = codes.pair(four >> 16, 0);
        }
      }
    }
  }

  // Units [FIRST, FIRST + S::units_of_chunk) of a slot times the rows of A in `x`, of which `height` exist. `x`: of the
  // lane's row and the first unit; `powers`: of rows 2 t and 2 t + 1.
  template <int FIRST>
  __device__ __forceinline__ void step(const uint8_t* shared, int words, const uint8_t* x, int x_pitch,
                                       const float* powers, const Beside<S>& beside, SlotGroup& at, int of_group,
                                       int height) {
    const int lane = threadIdx.x % 32, g = lane / 4, key = (lane / 8 ^ lane % 8) << 4;
    uint32_t zeros[2] = {};
    if constexpr (S::has_zeros) zeros[0] = beside.zero(at.group, g), zeros[1] = beside.zero(at.group, g + 8);
#pragma unroll
    for (int u = FIRST; u < FIRST + S::units_of_chunk; u++) {
      uint32_t a[2][4];
      convert(a, shared, words, u, zeros);
      const uint8_t* const of_unit = x + (u - FIRST) / 2 * 128 + (key ^ (u - FIRST) % 2 << 6);
#pragma unroll
      for (int tile = 0; tile < S::tiles; tile++) {
        if (S::tiles > 1 && 8 * tile >= height) break;
        uint32_t b[4];
        load_matrices(of_unit + tile * 8 * x_pitch, b);
        mma_16<__half>(part[tile], a[0], b[0], b[1]);
        mma_16<__half>(part[tile], a[1], b[2], b[3]);
      }
      const bool is_end = u + 1 == at.end;
      if (!is_end && u + 1 < FIRST + S::units_of_chunk) continue;
      const float factors[2] = {beside.factor(at.group, g), beside.factor(at.group, g + 8)};
#pragma unroll
      for (int tile = 0; tile < S::tiles; tile++) {
        if (S::tiles > 1 && 8 * tile >= height) break;
        const float2 two = *reinterpret_cast<const float2*>(powers + 8 * tile);
#pragma unroll
        for (int e = 0; e < 4; e++)
          total[tile][e] = fmaf(factors[e / 2], part[tile][e] * (e % 2 ? two.y : two.x), total[tile][e]);
      }
      clear(part);
      if (is_end) {
        at.group++, at.end += of_group;
        if constexpr (S::has_zeros) {
          if (u + 1 < FIRST + S::units_of_chunk)
            zeros[0] = beside.zero(at.group, g), zeros[1] = beside.zero(at.group, g + 8);
        }
      }
    }
  }

  // Stores the sums, (M,N), from the warp's first column of N on.
  __device__ __forceinline__ void put(float* to) const {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) {
#pragma unroll
      for (int e = 0; e < 4; e++) to[(8 * tile + 2 * t + e % 2) * S::sums_pitch + g + e / 2 * 8] = total[tile][e];
    }
  }
};

}  // namespace
}  // namespace tilegemm
