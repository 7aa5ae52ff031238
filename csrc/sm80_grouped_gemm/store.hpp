// From sums in registers to rows of D. A lane has two neighbouring columns of a row at a time.
#pragma once
#include "common/mma.hpp"
#include "common/store.hpp"
#include "experts/gate.hpp"
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

// The rows of D of a lane, and the factor of each.
template <class S, int fragments>
struct LaneRows {
  int64_t rows[2 * fragments];  // -1: none
  float factors[2 * fragments];

  // `row`: the warp's first row in the tile; the next fragment is S::step_m rows further.
  __device__ LaneRows(const GroupedPlace& p, const GroupedTile& tile, int row, int lane) {
#pragma unroll
    for (int i = 0; i < 2 * fragments; i++) {
      const int r = row + i / 2 * S::step_m + i % 2 * 8 + lane / 4;
      rows[i] = r < tile.height ? p.rows.row_of_d(tile.first + r) : -1;
    }
#pragma unroll
    for (int i = 0; i < 2 * fragments; i++) factors[i] = rows[i] < 0 ? 0.0f : p.rows.scale_of(rows[i]);
  }
};

// Stores a warp's sums of `fragments` times 16 rows. `column`: the warp's first column of D. N is a multiple of 8.
//
// Exchanges among the four lanes of a row give each lane 16 bytes. Four lanes store 64 neighbouring bytes, without
// shared memory, which holds the blocks of the next tile at that time.
template <class S, int fragments>
__device__ __forceinline__ void store_rows(const float (&sum)[fragments][2 * S::fragments_n][4], const GroupedPlace& p,
                                           const LaneRows<S, fragments>& of, int column, int lane) {
  using T = typename S::Element;
#pragma unroll
  for (int i = 0; i < 2 * fragments; i++) {
    T* const d = static_cast<T*>(p.d) + of.rows[i] * p.d_stride;
    const float factor = p.alpha * of.factors[i];
#pragma unroll
    for (int j = 0; j < 2 * S::fragments_n; j += 4) {
      uint32_t words[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float (&two)[4] = sum[i / 2][j + e];
        words[e] = pack<T>(two[i % 2 * 2] * factor, two[i % 2 * 2 + 1] * factor);
      }
      transpose_words(words, lane);
      const int first = column + 8 * (j + lane % 4);
      if (of.rows[i] >= 0 && first < p.n)
        *reinterpret_cast<uint4*>(d + first) = make_uint4(words[0], words[1], words[2], words[3]);
    }
  }
}

// The same of a gated product: a lane has a gate and the number that the gate multiplies. `column`: the warp's first
// column of gates and ups by turns. N is a multiple of 16.
//
// A word has a lane's numbers of two neighbouring blocks of four columns of D, so that each lane gets eight
// neighbouring columns.
template <class S, int fragments>
__device__ __forceinline__ void store_gated(const float (&sum)[fragments][2 * S::fragments_n][4], const GroupedPlace& p,
                                            const LaneRows<S, fragments>& of, int column, int lane) {
  using T = typename S::Element;
  constexpr int blocks = 2 * S::fragments_n;  // of four columns of D
#pragma unroll
  for (int i = 0; i < 2 * fragments; i++) {
    T* const d = static_cast<T*>(p.d) + of.rows[i] * p.d_stride;
    float gate[blocks], up[blocks];
#pragma unroll
    for (int j = 0; j < blocks; j++) gate[j] = sum[i / 2][j][i % 2 * 2], up[j] = sum[i / 2][j][i % 2 * 2 + 1];
    apply_gate(gate, up, p.activation, p.alpha);
#pragma unroll
    for (int j = 0; j < blocks; j += 8) {
      uint32_t words[4];
#pragma unroll
      for (int e = 0; e < 4; e++)
        words[e] =
            j + 2 * e < blocks ? pack<T>(gate[j + 2 * e] * of.factors[i], gate[j + 2 * e + 1] * of.factors[i]) : 0;
      transpose_words(words, lane);
      const uint4 eight = make_uint4(__byte_perm(words[0], words[1], 0x5410), __byte_perm(words[2], words[3], 0x5410),
                                     __byte_perm(words[0], words[1], 0x7632), __byte_perm(words[2], words[3], 0x7632));
      const int block = j + 2 * (lane % 4), first = column / 2 + 4 * block;
      if (of.rows[i] >= 0 && block < blocks && first < p.n / 2) *reinterpret_cast<uint4*>(d + first) = eight;
    }
  }
}

}  // namespace
}  // namespace tilegemm
