// From sums in registers to rows of D. The sums are of a tile of D^T: a thread has two neighbouring rows of D at a
// time.
//
// A warp group's columns of D pass through a stage of the ring: `stmatrix` transposes sums into rows, and a bulk copy
// takes each row to D. The copies run while the warp group multiplies the next tile.
#pragma once
#include "common/ptx.hpp"
#include "common/store.hpp"
#include "experts/gate.hpp"

namespace tilegemm {
namespace {

// Row p of D for each row of the tile: no row at all where p is `no_row`.
constexpr uint32_t no_row = ~0u;

// Bytes from one row of D to the next in shared memory: 128 numbers, and 16 bytes so that the eight rows of a matrix
// lie in different banks.
constexpr int row_pitch = 256 + 16;

// Stores 8 x 8 matrices of 16-bit numbers transposed: two numbers of a column in each lane. Lane 8 i + j has the
// address of row j of matrix i.
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}

// Writes a warp's sums of 16 columns and `width` rows of D to shared memory. `to`: the first of the columns in the
// first row. `scales`: the factor of each row of the tile, or null.
template <class T, int width>
__device__ __forceinline__ void write_rows(const float (&sum)[width / 2], uint32_t to, float alpha, const float* scales,
                                           int lane) {
  constexpr int eights = width / 8;
  // Matrices of a store: eight rows and the first eight columns, the other columns, and the same of the next eight
  // rows.
  const uint32_t own = to + (lane / 16 * 8 + lane % 8) * row_pitch + lane / 8 % 2 * 16;
  uint32_t words[4];
#pragma unroll
  for (int j = 0; j < eights; j++) {
    float2 factor = scales ? *reinterpret_cast<const float2*>(scales + 8 * j + 2 * (lane % 4)) : make_float2(1, 1);
    factor.x *= alpha, factor.y *= alpha;
    words[j % 2 * 2] = pack<T>(sum[4 * j] * factor.x, sum[4 * j + 1] * factor.y);
    words[j % 2 * 2 + 1] = pack<T>(sum[4 * j + 2] * factor.x, sum[4 * j + 3] * factor.y);
    if (j % 2 == 1) store_matrices(own + (j - 1) * 8 * row_pitch, words[0], words[1], words[2], words[3]);
    else if (j == eights - 1) store_matrices(own + j * 8 * row_pitch, words[0], words[1]);
  }
}

// Copies `bytes`, a multiple of 16, from shared memory to `to`. The copy is of the thread's current group of stores
// (tma_store_commit()).
__device__ __forceinline__ void store_bulk(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes)
               : "memory");
}

// Copies a warp group's rows from shared memory to D. `thread`: of the warp group; `d`: the warp group's first column
// in D; `bytes` of a row.
template <class T>
__device__ __forceinline__ void copy_rows(T* d, int64_t stride, uint32_t from, int bytes, int height,
                                          const uint32_t* rows, int thread) {
#pragma unroll 1
  for (int r = thread; r < height; r += 128) {
    if (rows[r] != no_row) store_bulk(d + int64_t(rows[r]) * stride, from + r * row_pitch, uint32_t(bytes));
  }
  tma_store_commit();
}

}  // namespace
}  // namespace tilegemm
