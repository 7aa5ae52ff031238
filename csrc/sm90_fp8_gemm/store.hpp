// From a warp's sums to rows of D: factors of rows and columns, the epilogue, and stores of whole pieces of rows.
#pragma once
#include "common/epilogue.hpp"
#include "common/ptx.hpp"
#include "common/store.hpp"
#include "fp8/factors.hpp"

namespace tilegemm {
namespace {

// 8 x 8 numbers of 16 bits each: lane 8 i + j has the address of row j of matrix i.
__device__ __forceinline__ void store_matrices(uint32_t to, const uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]),
               "r"(v[2]), "r"(v[3])
               : "memory");
}
__device__ __forceinline__ uint4 load_shared_16_bytes(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

struct RowsOfD {
  tg_matrix d;
  int m_end, n_end;  // of the tile
  bool wide;         // rows of D are aligned to 16 bytes
};

// A warp's 16 rows and `width` columns of D, from (m0, n0) on. In 16 bits `chunk` columns at a time pass through the
// warp's patches of shared memory. Pieces of 16 bytes of a row are permuted as in TMA's swizzles of `chunk` numbers, so
// that rows of a matrix lie in different banks.
template <int width>
constexpr int chunk_of = width % 64 == 0   ? 64
                         : width % 32 == 0 ? 32
                                           : 16;
template <int width>
constexpr int patch_of = 16 * chunk_of<width> * 2;  // bytes

template <int chunk>
__device__ __forceinline__ uint32_t place_in_patch(int row, int piece) {
  return uint32_t(row * (chunk * 2) + ((piece ^ row / (64 / chunk)) & (chunk / 8 - 1)) * 16);
}

// Puts chunk c into a patch.
template <class T, int chunk, class Get>
__device__ __forceinline__ void put_chunk(const Get& get, int c, uint32_t patch, int lane) {
#pragma unroll
  for (int j = 0; j < chunk / 8; j += 2) {
    const float4 v = get(c * (chunk / 8) + j), w = get(c * (chunk / 8) + j + 1);
    const uint32_t words[4] = {pack<T>(v.x, v.y), pack<T>(v.z, v.w), pack<T>(w.x, w.y), pack<T>(w.z, w.w)};
    store_matrices(patch + place_in_patch<chunk>(lane % 16, j + lane / 16), words);
  }
}

// By TMA, from `count` patches in turn, where boxes lie inside of the tile or outside of D. `columns`: of the tile.
// `turn`: the next patch.
template <class T, int width, int count, class Get>
__device__ __forceinline__ void store_boxes(const Get& get, uint32_t patches, int& turn, int m0, int n0, int columns,
                                            int lane, const void* map) {
  constexpr int chunk = chunk_of<width>;
#pragma unroll
  for (int c = 0; c < width / chunk; c++) {
    if (c * chunk >= columns) break;
    const uint32_t patch = patches + turn * patch_of<width>;
    if (++turn == count) turn = 0;
    if (lane == 0) tma_store_wait_read<count - 1>();
    __syncwarp();
    put_chunk<T, chunk>(get, c, patch, lane);
    fence_proxy_async();
    __syncwarp();
    if (lane == 0) tma_store_2(map, patch, n0 + c * chunk, m0), tma_store_commit();
  }
}

template <class T, int width, class Get>
__device__ __forceinline__ void store_rows(const Get& get, uint32_t patch, int m0, int n0, int lane, const RowsOfD& p) {
  [[maybe_unused]] const int g = lane / 4, q = lane % 4;
  if constexpr (sizeof(T) == 4) {
    const bool twos = p.d.row_stride % 2 == 0 && reinterpret_cast<uintptr_t>(p.d.ptr) % 8 == 0;
    T* const to = static_cast<T*>(p.d.ptr) + (m0 + g) * p.d.row_stride + n0 + 2 * q;
#pragma unroll
    for (int j = 0; j < width / 8; j++) {
      const float4 v = get(j);
      const int n = n0 + 8 * j + 2 * q;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (m0 + g + 8 * i >= p.m_end || n >= p.n_end) continue;
        T* const at = to + i * 8 * p.d.row_stride + 8 * j;
        const float x = i ? v.z : v.x, y = i ? v.w : v.y;
        if (twos && n + 1 < p.n_end) {
          *reinterpret_cast<float2*>(at) = make_float2(x, y);
        } else {
          at[0] = x;
          if (n + 1 < p.n_end) at[1] = y;
        }
      }
    }
  } else {
    constexpr int chunk = chunk_of<width>, pieces = chunk / 8, rows_at_once = 32 / pieces;
    const int row = lane / pieces, piece = lane % pieces;
    T* const to = static_cast<T*>(p.d.ptr) + (m0 + row) * p.d.row_stride + n0 + piece * 8;
#pragma unroll
    for (int c = 0; c < width / chunk; c++) {
      put_chunk<T, chunk>(get, c, patch, lane);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < 16; i += rows_at_once) {
        const uint4 v = load_shared_16_bytes(patch + place_in_patch<chunk>(row + i, piece));
        const int n = n0 + c * chunk + piece * 8;
        if (m0 + row + i >= p.m_end || n >= p.n_end) continue;
        T* const at = to + i * p.d.row_stride + c * chunk;
        if (p.wide && n + 8 <= p.n_end) {
          *reinterpret_cast<uint4*>(at) = v;
        } else {
          const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int e = 0; e < 8; e++) {
            const uint16_t bits = uint16_t(words[e / 2] >> (16 * (e % 2)));
            if (n + e < p.n_end) *reinterpret_cast<uint16_t*>(at + e) = bits;
          }
        }
      }
      __syncwarp();
    }
  }
}

// The same through the epilogue: 16 rows and 8 columns at a time, in f32.
template <class T, class E>
__device__ __noinline__ void finish_patch(uint32_t patch, int m0, int n0, const RowsOfD& p, const E& epilogue) {
  const int lane = threadIdx.x % 32;
  float x[4];
  int i[4], j[4];
  bool inside[4];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    i[e] = m0 + 4 * e + lane / 8, j[e] = n0 + lane % 8;
    inside[e] = i[e] < p.m_end && j[e] < p.n_end;
    x[e] = load_shared_f(patch + (4 * e + lane / 8) * 32 + lane % 8 * 4);
  }
  epilogue.each(x, i, j, inside, 0, 0);
#pragma unroll
  for (int e = 0; e < 4; e++) {
    if (inside[e]) static_cast<T*>(p.d.ptr)[i[e] * p.d.row_stride + j[e]] = T(x[e]);
  }
}
template <class T, int width, class Get, class E>
__device__ __forceinline__ void finish_rows(const Get& get, uint32_t patch, int m0, int n0, int lane, const RowsOfD& p,
                                            const E& epilogue) {
#pragma unroll
  for (int j = 0; j < width / 8; j++) {
    const float4 v = get(j);
    const uint32_t to = patch + lane / 4 * 32 + lane % 4 * 8;
    store_shared(to, v.x, v.y), store_shared(to + 8 * 32, v.z, v.w);
    __syncwarp();
    finish_patch<T>(patch, m0, n0 + 8 * j, p, epilogue);
    __syncwarp();
  }
}

}  // namespace
}  // namespace tilegemm
