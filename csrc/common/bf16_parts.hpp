// f32 as three bf16 parts: x = a + b + c. Each part is the bf16 nearest to the rest. The parts together are exact (3 x
// 8 bits, and signs for the rests that rounding up makes negative), down to bf16's least subnormal 2^-133.
//
// The operand that wgmma reads from shared memory lies in planes, a plane for each part. `prepare` makes planes in
// memory.
#pragma once
#include "common/ptx.hpp"

namespace tilegemm {

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

// The parts of two numbers. The first part of a number that is not finite, or that rounds to infinity, is not finite,
// whatever the other parts are. So no product of such a number is finite.
__device__ __forceinline__ void split(float low, float high, uint32_t& a, uint32_t& b, uint32_t& c) {
  a = pack_bf16(low, high);
  low -= __uint_as_float(a << 16), high -= __uint_as_float(a & 0xffff0000);
  b = pack_bf16(low, high);
  low -= __uint_as_float(b << 16), high -= __uint_as_float(b & 0xffff0000);
  c = pack_bf16(low, high);
}

// Planes are [matrix][part][row][K], K rounded up to whole groups of 32 with zeros. In each group, position p has
// element
//
//     8 t + 4 s + 2 h + e,   p = 16 s + 8 h + 2 t + e   (s, h, e: 0 or 1; t: 0 to 3)
//
// because the numbers that thread t of a quad needs for two fragments of wgmma, 16 of K each, are then 32 neighbouring
// bytes of an f32 row.
constexpr int plane_group = 32;
// The first of the elements 8 t + e, e = 0, 1 and t = 0 ... 3, at positions 8 c and up.
__device__ __forceinline__ int first_element(int c) { return c / 4 * 32 + c % 4 / 2 * 4 + c % 2 * 2; }

// The operand to prepare: matrices of `rows` x `k`, with contiguous K (`in_rows`) or contiguous `rows`. `pitch`:
// elements between the rows of a plane.
struct Unprepared {
  const float* from;
  int64_t stride, batch_stride[2];  // `stride` is the stride of the dimension that is not contiguous
  void* to;
  int rows, k, pitch, batch1;
  bool in_rows;
  bool wide;      // whether 8 bytes (`in_rows`) or 16 can be read at once
  unsigned work;  // items of eight elements, or tiles of 64 x 64, of all matrices

  __device__ __forceinline__ const float* matrix(unsigned i) const {
    const unsigned outer = i / batch1;
    return from + outer * batch_stride[0] + (i - outer * batch1) * batch_stride[1];
  }
};

// Eight elements in the order of the planes, at position `at` in eights.
__device__ __forceinline__ void store_parts(const float (&x)[8], void* to, size_t at, size_t plane) {
  uint4 a, b, c;
  split(x[0], x[1], a.x, b.x, c.x), split(x[2], x[3], a.y, b.y, c.y);
  split(x[4], x[5], a.z, b.z, c.z), split(x[6], x[7], a.w, b.w, c.w);
  uint4* const planes = static_cast<uint4*>(to) + at;
  planes[0] = a, planes[plane] = b, planes[2 * plane] = c;
}

__device__ __forceinline__ void split_rows(const Unprepared& u, unsigned item) {
  const unsigned per_row = u.pitch / 8, line = item / per_row, c = item - line * per_row;
  const unsigned matrix = line / u.rows, row = line - matrix * u.rows;
  const int k0 = first_element(c);
  const float* const from = u.matrix(matrix) + row * u.stride + k0;
  float x[8];
  if (u.wide && k0 + 26 <= u.k) {
#pragma unroll
    for (int t = 0; t < 4; t++) {
      const float2 v = __ldg(reinterpret_cast<const float2*>(from + 8 * t));
      x[2 * t] = v.x, x[2 * t + 1] = v.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = k0 + i / 2 * 8 + i % 2 < u.k ? __ldg(from + i / 2 * 8 + i % 2) : 0;
  }
  const size_t plane = size_t(u.rows) * per_row;
  store_parts(x, u.to, matrix * 3 * plane + size_t(row) * per_row + c, plane);
}

// Prepares 64 of K x 64 rows through `tile`: [k][row]. Chunks of four rows are permuted in `tile`, so that neither the
// writes nor the reads have bank conflicts.
__device__ __forceinline__ void split_columns(const Unprepared& u, unsigned item, float* tile) {
  const auto at = [](int k, int row) { return k * 64 + ((row / 4 ^ (k / 2 % 4 + k / 32 * 4)) << 2) + row % 4; };
  const unsigned along_rows = (u.rows + 63) / 64, along_k = (u.k + 63) / 64, matrix = item / (along_rows * along_k);
  item -= matrix * along_rows * along_k;
  const int k0 = item / along_rows * 64, row0 = item % along_rows * 64, thread = threadIdx.x;
  const float* const from = u.matrix(matrix);
  float4 v[4];
#pragma unroll
  for (int j = 0; j < 4; j++) {
    const int k = k0 + thread / 16 + 16 * j, row = row0 + thread % 16 * 4;
    const float* const line = from + k * u.stride + row;
    if (u.wide && k < u.k && row + 4 <= u.rows) {
      v[j] = __ldg(reinterpret_cast<const float4*>(line));
    } else {
      const auto get = [&](int i) { return k < u.k && row + i < u.rows ? __ldg(line + i) : 0; };
      v[j] = make_float4(get(0), get(1), get(2), get(3));
    }
  }
  __syncthreads();  // the tile before has been read
#pragma unroll
  for (int j = 0; j < 4; j++) *reinterpret_cast<float4*>(tile + at(thread / 16 + 16 * j, thread % 16 * 4)) = v[j];
  __syncthreads();
  const unsigned per_row = u.pitch / 8;
  const size_t plane = size_t(u.rows) * per_row;
#pragma unroll
  for (int j = 0; j < 2; j++) {
    const int n = thread + 256 * j, c = n % 8, row = n / 8, k = first_element(c);
    if (row0 + row < u.rows && k0 + 8 * c < u.pitch) {
      float x[8];
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = tile[at(k + i / 2 * 8 + i % 2, row)];
      store_parts(x, u.to, matrix * 3 * plane + size_t(row0 + row) * per_row + k0 / 8 + c, plane);
    }
  }
}

constexpr int prepare_threads = 256;

// Prepares the whole operand with the blocks of a grid, `prepare_threads` threads in each; `tile`: 64 x 64.
__device__ __forceinline__ void prepare(const Unprepared& u, float* tile) {
  if (u.in_rows) {
    const unsigned threads = gridDim.x * prepare_threads;
    for (unsigned i = blockIdx.x * prepare_threads + threadIdx.x; i < u.work; i += threads) split_rows(u, i);
  } else {
    for (unsigned i = blockIdx.x; i < u.work; i += gridDim.x) split_columns(u, i, tile);
  }
}

}  // namespace tilegemm
