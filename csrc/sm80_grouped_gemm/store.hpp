// From sums in registers to rows of D. A lane has two neighbouring columns of a row at a time.
#pragma once
#include "common/mma.hpp"
#include "common/store.hpp"
#include "sm80_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// Four lanes have a row of four words each. Lane q gets word q of the four lanes, in the order of the lanes.
__device__ __forceinline__ void transpose_words(uint32_t (&v)[4], int lane) {
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
    v[i] = odd ? got : v[i], v[i + 1] = odd ? v[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
    v[i] = high ? got : v[i], v[i + 2] = high ? v[i + 2] : got;
  }
}

// Stores a warp's sums of `fragments` times 16 rows. `row`: the warp's first row in the tile; the next fragment is S::step_m rows further.
// `column`: the warp's first column of D. N is a multiple of 8.
//
// Exchanges among the four lanes of a row give each lane 16 bytes. Four lanes store 64 neighbouring bytes, without shared memory, which
// holds the blocks of the next tile at that time.
template <class S, int fragments>
__device__ __forceinline__ void store_rows(const float (&sum)[fragments][2 * S::fragments_n][4], const GroupedPlace& p, const GroupedTile& tile,
                                           int row, int column, int lane) {
  using T = typename S::Element;
  int64_t rows[2 * fragments];  // of D; -1: none
  float factors[2 * fragments];
#pragma unroll
  for (int i = 0; i < 2 * fragments; i++) {
    const int r = row + i / 2 * S::step_m + i % 2 * 8 + lane / 4;
    rows[i] = r < tile.height ? p.rows.row_of_d(tile.first + r) : -1;
  }
#pragma unroll
  for (int i = 0; i < 2 * fragments; i++) factors[i] = rows[i] < 0 ? 0.0f : p.alpha * p.rows.scale_of(rows[i]);
#pragma unroll
  for (int i = 0; i < 2 * fragments; i++) {
    T* const d = static_cast<T*>(p.d) + rows[i] * p.d_stride;
#pragma unroll
    for (int j = 0; j < 2 * S::fragments_n; j += 4) {
      uint32_t words[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float(&two)[4] = sum[i / 2][j + e];
        words[e] = pack<T>(two[i % 2 * 2] * factors[i], two[i % 2 * 2 + 1] * factors[i]);
      }
      transpose_words(words, lane);
      const int first = column + 8 * (j + lane % 4);
      if (rows[i] >= 0 && first < p.n) *reinterpret_cast<uint4*>(d + first) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

}  // namespace
}  // namespace tilegemm
