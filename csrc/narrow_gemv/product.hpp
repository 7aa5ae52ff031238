// A step: 64 bytes of each of a warp's rows of W, times up to 16 rows of X.
//
// Codes are operand A of mma.m16n8k16, X is operand B. Lane (g, t) has row first_row_of(g) of the warp's rows and every
// eighth behind it. Where a scale multiplies sums over a whole step, the lane takes 16 neighbouring bytes of the step:
// the order of k is free. Otherwise it takes word t of each 16 bytes.
#pragma once
#include "narrow/mma.hpp"
#include "narrow_gemv/shape.hpp"

namespace tilegemm {
namespace {

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// Neighbouring words at an address that allows it.
template <int count>
__device__ __forceinline__ void load_words(const uint8_t* from, uint32_t (&words)[count]) {
  if constexpr (count == 4) {
    const uint4 four = *reinterpret_cast<const uint4*>(from);
    words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
  } else {
    const uint2 two = *reinterpret_cast<const uint2*>(from);
    words[0] = two.x, words[1] = two.y;
  }
}

template <class S>
struct Product {
  using Half = typename S::Half;
  static constexpr int rows = S::rows_of_lane;
  // (MMA_M,MMA_N,MMA), of D^T: all sums, and those of a segment of X, which are smaller or larger by a power of two.
  float total[S::units][S::tiles][4], part[S::units][S::tiles][4];

  __device__ __forceinline__ static void clear(float (&sums)[S::units][S::tiles][4]) {
#pragma unroll
    for (int i = 0; i < S::units * S::tiles * 4; i++) sums[i / (4 * S::tiles)][i / 4 % S::tiles][i % 4] = 0;
  }

  // Adds the part times the powers of rows 2 t and 2 t + 1 of X of each tile.
  __device__ __forceinline__ void add_part(const float* powers, int t) {
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) {
      const float2 power = *reinterpret_cast<const float2*>(powers + 8 * tile + 2 * t);
#pragma unroll
      for (int unit = 0; unit < S::units; unit++) {
#pragma unroll
        for (int e = 0; e < 4; e++)
          total[unit][tile][e] = fmaf(e % 2 ? power.y : power.x, part[unit][tile][e], total[unit][tile][e]);
      }
    }
  }

  __device__ __forceinline__ void add(int unit, const float (&sum)[S::tiles][4], const uint32_t (&scales)[rows]) {
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) {
#pragma unroll
      for (int e = 0; e < 4; e++)
        part[unit][tile][e] = fmaf(__uint_as_float(scales[2 * unit + e / 2]), sum[tile][e], part[unit][tile][e]);
    }
  }

  // What is subtracted from codes, from what is stored of a row's zero.
  __device__ __forceinline__ static uint32_t less(uint32_t zero) {
    return S::has_zeros ? zero : narrow::less_zero(narrow::usual_zero(S::codes));
  }

  // `codes`: the lane's 16 bytes of its first row; `x`: of each tile; `pitch`: from a piece to the next; `scales` and
  // `zeros`: those of the lane's rows in the step, (SCALE,GROUP,ROW).
  __device__ __forceinline__ void wide_step(const uint8_t* codes, const uint8_t* const (&x)[S::tiles], int pitch,
                                            const uint8_t* scales, const uint8_t* zeros, int t) {
    constexpr int pieces = S::step_k / 32;
    uint4 b[S::tiles][pieces];
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) {
#pragma unroll
      for (int j = 0; j < pieces; j++) b[tile][j] = *reinterpret_cast<const uint4*>(x[tile] + j * pitch);
    }
    uint32_t scale[rows], zero[rows] = {};
    if constexpr (S::way == Way::wide) load_words(scales, scale);
    if constexpr (S::has_zeros) load_words(zeros, zero);
    uint32_t group[2] = {};  // the scales of the lane's two groups of 16, of all its rows, a byte each
    if constexpr (S::way == Way::groups_of_16) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint8_t* const from = scales + (2 * t + i) * S::rows;
        if constexpr (rows == 4) group[i] = *reinterpret_cast<const uint32_t*>(from);
        else group[i] = *reinterpret_cast<const uint16_t*>(from);
      }
    }
    float sum[S::units][S::tiles][4];
    if constexpr (S::way == Way::wide) clear(sum);
#pragma unroll
    for (int unit = 0; unit < S::units; unit++) {
      const uint4 of_rows[2] = {*reinterpret_cast<const uint4*>(codes + 2 * unit * 8 * S::slot_bytes),
                                *reinterpret_cast<const uint4*>(codes + (2 * unit + 1) * 8 * S::slot_bytes)};
      __half2 factor[2][2];  // (GROUP,ROW)
      if constexpr (S::way == Way::groups_of_16) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          uint32_t of_pair[2];  // rows 0 and 1
          narrow::Half<TG_F8E4M3>::from(unit ? group[i] >> 16 : group[i], 0, of_pair);
          factor[i][0] = narrow::halves(__byte_perm(of_pair[0], 0, 0x1010));
          factor[i][1] = narrow::halves(__byte_perm(of_pair[0], 0, 0x3232));
        }
      }
      auto& to = [&]() -> float (&)[S::tiles][4] {
        if constexpr (S::way == Way::wide) return sum[unit];
        else return part[unit];
      }();
      // Pairs of two words at a time: then pairs of X are neighbours in registers.
      constexpr int words = Half::pairs == 4 ? 2 : 1;
#pragma unroll
      for (int i = 0; i < 4; i += words) {
        uint32_t a[2][words][Half::pairs];
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
          for (int j = 0; j < words; j++) {
            Half::from(word_of(of_rows[r], i + j), less(zero[2 * unit + r]), a[r][j]);
            if constexpr (S::way == Way::groups_of_16) {
#pragma unroll
              for (int p = 0; p < Half::pairs; p++)
                a[r][j][p] = narrow::bits(__hmul2(narrow::halves(a[r][j][p]), factor[p / 2][r]));
            }
          }
        }
        if constexpr (words == 2) {
#pragma unroll
          for (int p = 0; p < 4; p++) {
            const uint32_t of_w[4] = {a[0][0][p], a[1][0][p], a[0][1][p], a[1][1][p]};
#pragma unroll
            for (int tile = 0; tile < S::tiles; tile++)
              narrow::multiply(to[tile], of_w, word_of(b[tile][p], i), word_of(b[tile][p], i + 1));
          }
        } else {
          const uint32_t of_w[4] = {a[0][0][0], a[1][0][0], a[0][0][1], a[1][0][1]};
#pragma unroll
          for (int tile = 0; tile < S::tiles; tile++)
            narrow::multiply(to[tile], of_w, word_of(b[tile][i / 2], i % 2 * 2),
                             word_of(b[tile][i / 2], i % 2 * 2 + 1));
        }
      }
      if constexpr (S::way == Way::wide) add(unit, sum[unit], scale);
    }
  }

  // `codes`: the lane's word of the first 16 bytes of its first row, of which those behind differ in bits 4 and 5.
  __device__ __forceinline__ void fine_step(const uint8_t* shared, uint32_t codes, const uint8_t* const (&x)[S::tiles],
                                            int pitch, const uint8_t* scales, const uint8_t* zeros) {
    constexpr int of_scale = 4 / S::scales_of_step;
#pragma unroll
    for (int s = 0; s < S::scales_of_step; s++) {
      uint32_t scale[rows], zero[rows] = {};
      load_words(scales + s * S::rows * 4, scale);
      if constexpr (S::has_zeros) load_words(zeros + s * S::rows * 4, zero);
      float sum[S::units][S::tiles][4];
      clear(sum);
#pragma unroll
      for (int c = s * of_scale; c < (s + 1) * of_scale; c++) {
        uint32_t b[S::tiles][Half::pairs];
#pragma unroll
        for (int tile = 0; tile < S::tiles; tile++) {
          if constexpr (Half::pairs == 4) narrow::load_matrices(x[tile] + c * 4 * pitch, b[tile]);
          else load_words(x[tile] + c * pitch, b[tile]);
        }
        const uint8_t* const words = shared + (codes ^ c << 4);
#pragma unroll
        for (int unit = 0; unit < S::units; unit++) {
          uint32_t a[2][Half::pairs];
#pragma unroll
          for (int r = 0; r < 2; r++)
            Half::from(*reinterpret_cast<const uint32_t*>(words + (2 * unit + r) * 8 * S::slot_bytes),
                       less(zero[2 * unit + r]), a[r]);
#pragma unroll
          for (int p = 0; p < Half::pairs; p += 2) {
            const uint32_t of_w[4] = {a[0][p], a[1][p], a[0][p + 1], a[1][p + 1]};
#pragma unroll
            for (int tile = 0; tile < S::tiles; tile++)
              narrow::multiply(sum[unit][tile], of_w, b[tile][p], b[tile][p + 1]);
          }
        }
      }
#pragma unroll
      for (int unit = 0; unit < S::units; unit++) add(unit, sum[unit], scale);
    }
  }
};

}  // namespace
}  // namespace tilegemm
