// The way of the sums of wave.hpp from the tensor cores' registers to D.
#pragma once
#include "swap_ab/tiles.hpp"

namespace tilegemm {

// The part of D that a warp stores: rows of P from p0 on, rows of Q from q0 on. Columns of D before n_from belong to
// another tile.
template <class Out>
struct Part {
  Out* d;
  int64_t stride;
  int p0, q0, m_end, n_from, n;
  bool wide;
};

// v[..][b] of lane q of a quad goes to v[..][q] of lane b. Each step handles all `count` vectors, so that the shuffles
// of different vectors overlap.
template <int count>
__device__ __forceinline__ void quad_transpose(uint32_t (&v)[count][4], int q) {
  const bool odd = q & 1, high = q & 2;
  uint32_t got[count];
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
#pragma unroll
    for (int c = 0; c < count; c++) got[c] = __shfl_xor_sync(~0u, odd ? v[c][i] : v[c][i + 1], 1);
#pragma unroll
    for (int c = 0; c < count; c++) v[c][i] = odd ? got[c] : v[c][i], v[c][i + 1] = odd ? v[c][i + 1] : got[c];
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
#pragma unroll
    for (int c = 0; c < count; c++) got[c] = __shfl_xor_sync(~0u, high ? v[c][i] : v[c][i + 2], 2);
#pragma unroll
    for (int c = 0; c < count; c++) v[c][i] = high ? got[c] : v[c][i], v[c][i + 2] = high ? v[c][i + 2] : got[c];
  }
}

// Stores eight numbers to a row of D, `left` numbers at most.
template <class T>
__device__ __forceinline__ void put(T* to, const uint32_t (&v)[4], bool wide, int left) {
  if (wide && left >= 8) {
    *reinterpret_cast<uint4*>(to) = make_uint4(v[0], v[1], v[2], v[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint16_t bits = uint16_t(v[i / 2] >> (16 * (i % 2)));
    if (i < left) *reinterpret_cast<uint16_t*>(to + i) = bits;
  }
}

// Stores fragment j to D in f32, from the registers that hold the sums: a warp's store fills sectors of 32 bytes in
// four rows of D.
template <class C>
__device__ __forceinline__ void store_f32(const float4& v, int j, const Part<float>& part) {
  static_assert(C::swap_ab);
  const int lane = threadIdx.x % 32;
  const float x[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int row = part.q0 + 8 * j + lane % 4 * 2 + i % 2, column = part.p0 + lane / 4 + i / 2 * 8;
    if (row < part.m_end && column >= part.n_from && column < part.n) part.d[row * part.stride + column] = x[i];
  }
}

// Stores `count` fragments from j on to D, `groups` groups at most. For whole warps.
template <class C, int groups>
__device__ __forceinline__ void store(const float4 (&v)[groups * C::group], int count, int j,
                                      const Part<typename C::Out>& part) {
  using T = typename C::Out;
  const int lane = threadIdx.x % 32, q = lane % 4;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int i = 0; i < groups * C::group; i++) {
      if (i < count) store_f32<C>(v[i], j + i, part);
    }
  } else if constexpr (C::swap_ab) {
    uint32_t words[groups][4];
#pragma unroll
    for (int i = 0; i < 2 * groups; i++) {
      words[i / 2][i % 2 * 2] = movmatrix(pack<T>(v[i].x, v[i].y));
      words[i / 2][i % 2 * 2 + 1] = movmatrix(pack<T>(v[i].z, v[i].w));
    }
    quad_transpose(words, q);
    const int column = part.p0 + 8 * (q % 2);
#pragma unroll
    for (int g = 0; g < groups; g++) {
      const int i = 2 * g + q / 2, row = part.q0 + 8 * (j + i) + lane / 4;
      if (i < count && row < part.m_end && column >= part.n_from && column < part.n) {
        put(part.d + row * part.stride + column, words[g], part.wide, part.n - column);
      }
    }
  } else {
    uint32_t words[2 * groups][4];  // of rows lane / 4 and lane / 4 + 8
#pragma unroll
    for (int i = 0; i < 4 * groups; i++) {
      words[i / 4 * 2][i % 4] = pack<T>(v[i].x, v[i].y);
      words[i / 4 * 2 + 1][i % 4] = pack<T>(v[i].z, v[i].w);
    }
    quad_transpose(words, q);
    const int row = part.p0 + lane / 4;
#pragma unroll
    for (int g = 0; g < groups; g++) {
      const int i = 4 * g + q, column = part.q0 + 8 * (j + i);
      if (i >= count || column < part.n_from || column >= part.n) continue;
      T* const to = part.d + row * part.stride + column;
      if (row < part.m_end) put(to, words[2 * g], part.wide, part.n - column);
      if (row + 8 < part.m_end) put(to + 8 * part.stride, words[2 * g + 1], part.wide, part.n - column);
    }
  }
}

// Whether fragments from j on have rows of D, in any lane.
template <class C>
__device__ __forceinline__ bool reaches(int j, const Part<typename C::Out>& part) {
  return (C::swap_ab ? part.q0 + 8 * j : part.p0) < part.m_end;
}

// Stores fragments `from` to `end` - 1 to D, eight at a time; get(j) is fragment j.
template <class C, int from, int end, class Get>
__device__ __forceinline__ void store_all(const Get& get, const Part<typename C::Out>& part) {
  constexpr int groups = 8 / C::group;
#pragma unroll
  for (int j = from; j < end; j += 8) {
    if (!reaches<C>(j, part)) break;
    float4 v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = j + i < end ? get(j + i < end ? j + i : from) : make_float4(0, 0, 0, 0);
    store<C, groups>(v, end - j < 8 ? end - j : 8, j, part);
  }
}

}  // namespace tilegemm
