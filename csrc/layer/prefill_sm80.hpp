// The kernel of prefill_sm80.cu.
#pragma once
#include "common/mma.hpp"
#include "layer/prefill.hpp"
#include "layer/prefill_checks.hpp"

namespace tilegemm {
namespace {

// Fragments: of 16 rows, of a warp. Keys: of a block.
template <class T, int Head, int Fragments, int Keys>
struct WarpConfig {
  using Element = T;
  static constexpr int head = Head, fragments = Fragments, keys = Keys;
  static constexpr int warps = 4, threads = 32 * warps, rows = 16 * warps * Fragments;
  // Panels: columns in rows of 128 or 64 bytes, whose pieces of 16 bytes are swizzled.
  static constexpr int columns = Head % 64 == 0 ? 64 : 32, panels = Head / columns, row_bytes = 2 * columns;
  static constexpr int q_bytes = rows * Head * 2, block_bytes = Keys * Head * 2;
  static constexpr int shared_bytes = q_bytes + 2 * block_bytes;
  static constexpr int blocks = Head <= 128 && Fragments == 1 ? 3 : 2;  // of a multiprocessor
  static constexpr bool keeps_q = Fragments == 1 && Head <= 128;        // in registers
};

// Where 16 bytes lie: piece `piece` of row `row`, of `rows` rows.
template <class C, int rows>
__device__ __forceinline__ uint32_t place(int row, int piece) {
  constexpr int pieces = C::columns / 8;
  const int turn = C::row_bytes == 128 ? row & 7 : row >> 1 & 3;
  return piece / pieces * (rows * C::row_bytes) + row * C::row_bytes + ((piece % pieces) ^ turn) * 16;
}

// Loads `rows` rows from row `first` on; zeros stand for rows from `end` on.
template <class C, int rows>
__device__ __forceinline__ void load_rows(uint32_t to, const typename C::Element* from, int64_t stride, int first,
                                          int end) {
  constexpr int pieces = C::head / 8, lanes = C::head == 96 ? 16 : pieces;  // of a row
  constexpr int step = C::threads / lanes;
  static_assert(rows % step == 0);
  const int row = threadIdx.x / lanes, piece = threadIdx.x % lanes;
  if (lanes != pieces && piece >= pieces) return;
  const typename C::Element* at = from + (first + row) * stride + piece * 8;
#pragma unroll
  for (int i = 0; i < rows / step; i++, at += step * stride) {
    const bool inside = first + row + i * step < end;
    copy_async_16(to + place<C, rows>(row + i * step, piece), inside ? at : from, inside ? 16 : 0, evict_normal);
  }
}

__device__ __forceinline__ void ldmatrix_transposed(uint32_t (&x)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}
template <class T, int size>
__device__ __forceinline__ void multiply(float (&sum)[size], int j, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma_16<T>(reinterpret_cast<float (&)[4]>(sum[4 * j]), a, b0, b1);
}

template <class C>
__global__ void __launch_bounds__(C::threads, C::blocks)
    layer_prefill_sm80(const __grid_constant__ tg_prefill_args args, const __grid_constant__ Work w) {
  using T = typename C::Element;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t q_at = uint32_t(__cvta_generic_to_shared(shared)), k_at = q_at + C::q_bytes;
  const uint32_t v_at = k_at + C::block_bytes;
  const Tile t = tile_at<C::rows, C::keys, false>(w, blockIdx.x);
  const int lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16 * C::fragments;  // of the warp
  const int i = lane / 8, of_8 = lane % 8;  // ldmatrix: the lane's matrix, and the row there
  const T* const k = static_cast<const T*>(args.k) + t.head / w.ratio * args.k_head_stride;
  const T* const v = static_cast<const T*>(args.v) + t.head / w.ratio * args.v_head_stride;
  griddepcontrol_wait();
  load_rows<C, C::rows>(q_at, static_cast<const T*>(args.q) + t.head * args.q_head_stride, args.q_row_stride, t.first,
                        w.tokens);
  load_rows<C, C::keys>(k_at, k, args.k_row_stride, (t.end - 1) * C::keys, w.length);
  copy_async_commit();

  const auto load_q = [&](uint32_t (&x)[4], int f, int step) {
    ldmatrix(x, q_at + place<C, C::rows>(first_row + 16 * f + i % 2 * 8 + of_8, 2 * step + i / 2));
  };
  uint32_t q[C::keeps_q ? C::head / 16 : 1][4];
  float o[C::fragments][C::head / 2];  // ((2,2,head/8)), of a lane
  Softmax softmax[C::fragments];
#pragma unroll
  for (int f = 0; f < C::fragments; f++) {
    softmax[f].start();
#pragma unroll
    for (int j = 0; j < C::head / 2; j++) o[f][j] = 0;
  }
  for (int n = t.end - 1; n >= t.begin; n--) {
    copy_async_wait<0>();
    __syncthreads();  // K is there, and V is free
    load_rows<C, C::keys>(v_at, v, args.v_row_stride, n * C::keys, w.length);
    copy_async_commit();
    if constexpr (C::keeps_q) {
      if (n == t.end - 1) {
#pragma unroll
        for (int step = 0; step < C::head / 16; step++) load_q(q[step], 0, step);
      }
    }
    float s[C::fragments][C::keys / 2];
#pragma unroll
    for (int f = 0; f < C::fragments; f++) {
#pragma unroll
      for (int j = 0; j < C::keys / 2; j++) s[f][j] = 0;
    }
#pragma unroll
    for (int step = 0; step < C::head / 16; step++) {
      uint32_t a[C::fragments][4];
#pragma unroll
      for (int f = 0; f < C::fragments; f++) {
        if constexpr (!C::keeps_q) load_q(a[f], f, step);
      }
#pragma unroll
      for (int j = 0; j < C::keys / 8; j += 2) {
        uint32_t b[4];
        ldmatrix(b, k_at + place<C, C::keys>(8 * j + i / 2 * 8 + of_8, 2 * step + i % 2));
#pragma unroll
        for (int f = 0; f < C::fragments; f++) {
          const uint32_t (&x)[4] = C::keeps_q ? q[C::keeps_q ? step : 0] : a[f];
          multiply<T>(s[f], j, x, b[0], b[1]), multiply<T>(s[f], j + 1, x, b[2], b[3]);
        }
      }
    }
    copy_async_wait<0>();
    __syncthreads();  // V is there, and K is free
    if (n > t.begin) load_rows<C, C::keys>(k_at, k, args.k_row_stride, (n - 1) * C::keys, w.length);
    copy_async_commit();

    uint32_t p[C::fragments][C::keys / 16][4];
#pragma unroll
    for (int f = 0; f < C::fragments; f++) {
      const int at = w.past + t.first + first_row + 16 * f, from = n * C::keys;
      float factor[2];
      if (is_masked(w, at, 16, from, C::keys)) mask(w, s[f], at + lane / 4, from);
      softmax[f].weigh(s[f], factor, w.scale);
      if (!__all_sync(~0u, factor[0] == 1 && factor[1] == 1)) multiply_rows(o[f], factor);
      rounded<T>(p[f], s[f]);
    }
#pragma unroll
    for (int step = 0; step < C::keys / 16; step++) {
#pragma unroll
      for (int j = 0; j < C::head / 8; j += 2) {
        uint32_t b[4];
        ldmatrix_transposed(b, v_at + place<C, C::keys>(16 * step + i % 2 * 8 + of_8, j + i / 2));
#pragma unroll
        for (int f = 0; f < C::fragments; f++) {
          multiply<T>(o[f], j, p[f][step], b[0], b[1]), multiply<T>(o[f], j + 1, p[f][step], b[2], b[3]);
        }
      }
    }
  }
  launch_dependents();

  // By way of the warp's own rows of Q's place.
  copy_async_wait<0>();
  __syncwarp();
#pragma unroll
  for (int f = 0; f < C::fragments; f++) {
    softmax[f].finish(o[f], w, t.head);
#pragma unroll
    for (int j = 0; j < C::head / 8; j++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const uint32_t to = q_at + place<C, C::rows>(first_row + 16 * f + 8 * r + lane / 4, j) + lane % 4 * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(pack<T>(o[f][4 * j + 2 * r], o[f][4 * j + 2 * r + 1]))
                     : "memory");
      }
    }
  }
  __syncwarp();
  constexpr int pieces = C::head / 8;
#pragma unroll
  for (int at = lane; at < 16 * C::fragments * pieces; at += 32) {
    const int row = first_row + at / pieces, piece = at % pieces;
    if (t.first + row < w.tokens) {
      *reinterpret_cast<float4*>(static_cast<T*>(args.o) + (t.first + row) * args.o_row_stride +
                                 t.head * args.o_head_stride + piece * 8) =
          load_shared_4_ordered(q_at + place<C, C::rows>(row, piece));
    }
  }
}

}  // namespace
}  // namespace tilegemm
