// Sums of a warp's 16 rows of W, operand A of mma.m16n8k16, times a tile's rows of A, operand B, in f16. Of a lane (g,
// t): rows g and g + 8 of W by rows 2 t and 2 t + 1 of each eight rows of A.
#pragma once
#include "narrow/mma.hpp"
#include "narrow_grouped_gemm/weights.hpp"

namespace tilegemm {
namespace {

template <class S>
struct Product {
  const typename S::Codes codes{0};
  float total[S::tiles][4];  // (MMA_N,MMA), of D^T

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) total[tile][0] = total[tile][1] = total[tile][2] = total[tile][3] = 0;
  }

  // Operand A of two instructions: numbers of unit u of rows g and g + 8. `words`: the lane's word of the first piece
  // of row g.
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
          a[i][r] = codes.pair(four, zeros[r]), a[i][2 + r] = codes.pair(four >> 16, zeros[r]);
        }
      }
    }
  }

  // A chunk of K of a slot times the first `USED` tiles of the rows of A in `x`. `x`: of the lane's row; `powers`: of
  // rows 2 t and 2 t + 1; `factors`: of row g, one for each `SHARED` units.
  template <int SHARED, int USED>
  __device__ __forceinline__ void step(const uint8_t* shared, int words, const uint8_t* x, int x_pitch,
                                       const float* powers, const uint32_t* factors) {
    const int lane = threadIdx.x % 32, key = (lane / 8 ^ lane % 8) << 4;
    // Sums over a long group are added in two chains, where there are no other rows to go on with.
    constexpr int chains = SHARED > 1 && USED == 1 ? 2 : 1;
    float all[USED][4] = {};
#pragma unroll
    for (int first = 0; first < S::units_of_chunk; first += SHARED) {
      const uint32_t* const of_group = factors + first / SHARED * rows_of_warp;
      const uint32_t usual = S::Codes::zero_of(narrow::usual_zero(S::codes));
      uint32_t zeros[2] = {usual, usual};
      if constexpr (S::has_zeros)
        zeros[0] = of_group[S::factors_bytes / 4], zeros[1] = of_group[S::factors_bytes / 4 + 8];
      float part[chains][USED][4] = {};
#pragma unroll
      for (int u = first; u < first + SHARED; u++) {
        uint32_t a[2][4];
        convert(a, shared, words, u, zeros);
        const uint8_t* const of_unit = x + u / 2 * 128 + (key ^ u % 2 << 6);
#pragma unroll
        for (int tile = 0; tile < USED; tile++) {
          uint32_t b[4];
          narrow::load_matrices(of_unit + tile * 8 * x_pitch, b);
          narrow::multiply(part[0][tile], a[0], b[0], b[1]);
          narrow::multiply(part[chains - 1][tile], a[1], b[2], b[3]);
        }
      }
      const float of_rows[2] = {__uint_as_float(of_group[0]), __uint_as_float(of_group[8])};
#pragma unroll
      for (int tile = 0; tile < USED; tile++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float sum = chains == 2 ? part[0][tile][e] + part[1][tile][e] : part[0][tile][e];
          all[tile][e] = fmaf(of_rows[e / 2], sum, all[tile][e]);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < USED; tile++) {
      const float2 two = *reinterpret_cast<const float2*>(powers + 8 * tile);
#pragma unroll
      for (int e = 0; e < 4; e++) total[tile][e] = fmaf(e % 2 ? two.y : two.x, all[tile][e], total[tile][e]);
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
