// What the epilogue of few_rows.hpp adds to the sums: numbers of C and of the bias, loaded ahead of the sums.
#pragma once
#include "swap_ab/tiles.hpp"

namespace tilegemm {
namespace {

// A lane's numbers for a fragment: of C where store_fragment stores the lane's numbers of D, since C may be D and the
// lane that stores an element has to load the element; of the bias, for the lane's two columns of the sums.
template <class T>
struct Added {
  static constexpr bool turns = sizeof(T) == 2;
  uint32_t words[turns ? 2 : 4], bias[2];

  // `c`: the lane's first element, in `row` and `column` of C. `pairs`: two 16-bit numbers of a row may be loaded as
  // one word.
  __device__ __forceinline__ void load_c(const T* c, int64_t stride, int row, int column, int m, int n, bool pairs) {
    if constexpr (turns) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        words[i] = 0;
        if (row >= m || column + 8 * i >= n) continue;
        if (pairs && column + 8 * i + 1 < n) {
          asm volatile("ld.global.u32 %0, [%1];" : "=r"(words[i]) : "l"(c + 8 * i));
        } else {
          words[i] = load_bits(c + 8 * i);
          if (column + 8 * i + 1 < n) words[i] |= load_bits(c + 8 * i + 1) << 16;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        words[i] = 0;
        if (row + i % 2 < m && column + i / 2 * 8 < n) words[i] = load_bits(c + i % 2 * stride + i / 2 * 8);
      }
    }
  }

  // `from`: the first of the lane's two columns; `left`: the columns from it on.
  __device__ __forceinline__ void load_bias(const T* from, int left) {
#pragma unroll
    for (int i = 0; i < 2; i++) bias[i] = 8 * i < left ? load_bits(from + 8 * i) : 0;
  }

  // The numbers of C and of the bias for the four sums of the lane. For whole warps.
  __device__ __forceinline__ void take(float (&c)[4], float (&b)[4]) const {
    if constexpr (turns) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const uint32_t turned = movmatrix(words[i]);
        c[2 * i] = number_of<T>(turned), c[2 * i + 1] = number_of<T>(turned >> 16);
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) c[i] = number_of<T>(words[i]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) b[i] = number_of<T>(bias[i / 2]);
  }
};

}  // namespace
}  // namespace tilegemm
