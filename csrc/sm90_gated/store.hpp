// The way of gated.hpp's sums from the tensor cores' registers through the gate to D.
#pragma once
#include "common/activation.hpp"
#include "common/ptx.hpp"
#include "common/store.hpp"

namespace tilegemm {

// The part of D that a warp stores: 16 rows from `row` on, before `m_end`; columns from n0 on, before n. Columns before
// n_from belong to another tile.
template <class T>
struct Part {
  T* d;
  int64_t stride;
  int row, m_end, n0, n_from, n;
  bool wide;  // rows of D begin at multiples of 16 bytes
};

// v[..][b] of lane q of a quad goes to v[..][q] of lane b.
template <int count>
__device__ __forceinline__ void transpose_in_quads(uint32_t (&v)[count][4], int q) {
#pragma unroll
  for (int bit = 1; bit <= 2; bit *= 2) {
    const bool high = q & bit;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      if (i & bit) continue;
#pragma unroll
      for (int c = 0; c < count; c++) {
        const uint32_t got = __shfl_xor_sync(~0u, high ? v[c][i] : v[c][i + bit], bit);
        v[c][i] = high ? got : v[c][i], v[c][i + bit] = high ? v[c][i + bit] : got;
      }
    }
  }
}

// Stores eight numbers to a row of D, `left` numbers at most.
template <class T>
__device__ __forceinline__ void store_eight(T* to, const uint32_t (&v)[4], bool wide, int left) {
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

// activation(alpha * gate) * (alpha * up), in place of the gates.
template <int count>
__device__ __forceinline__ void gate_each(float (&gate)[count], const float (&up)[count], tg_activation activation,
                                          float alpha) {
#pragma unroll
  for (int e = 0; e < count; e++) gate[e] *= alpha;
  switch (activation) {
    case TG_RELU: activate_each<TG_RELU, Accuracy::half>(gate); break;
    case TG_GELU_ERF: activate_each<TG_GELU_ERF, Accuracy::half>(gate); break;
    case TG_GELU_TANH: activate_each<TG_GELU_TANH, Accuracy::half>(gate); break;
    case TG_SILU: activate_each<TG_SILU, Accuracy::half>(gate); break;
    default: break;
  }
#pragma unroll
  for (int e = 0; e < count; e++) gate[e] *= alpha * up[e];
}

// Stores a warp's share of a tile. `sum`: the first half are sums of gates, the second half sums of the numbers that
// the gates multiply, each as fragments of 8 columns. For whole warps.
template <class T, int numbers>
__device__ __forceinline__ void store_gated(const float (&sum)[numbers], const Part<T>& part, tg_activation activation,
                                            float alpha) {
  constexpr int fragments = numbers / 8;
  const int lane = threadIdx.x % 32, q = lane % 4, row = part.row + lane / 4;
  if (part.row >= part.m_end) return;
#pragma unroll
  for (int j = 0; j < fragments; j += 4) {
    float gate[16], up[16];
#pragma unroll
    for (int e = 0; e < 16; e++) {
      const bool exists = j + e / 4 < fragments;
      gate[e] = exists ? sum[exists ? 4 * j + e : 0] : 0;
      up[e] = exists ? sum[exists ? 4 * (fragments + j) + e : 0] : 0;
    }
    gate_each(gate, up, activation, alpha);
    uint32_t words[2][4];  // of rows `row` and `row` + 8
#pragma unroll
    for (int i = 0; i < 4; i++) {
      words[0][i] = pack<T>(gate[4 * i], gate[4 * i + 1]);
      words[1][i] = pack<T>(gate[4 * i + 2], gate[4 * i + 3]);
    }
    transpose_in_quads(words, q);
    const int column = part.n0 + 8 * (j + q);
    if (j + q >= fragments || column < part.n_from || column >= part.n) continue;
    T* const to = part.d + row * part.stride + column;
    if (row < part.m_end) store_eight(to, words[0], part.wide, part.n - column);
    if (row + 8 < part.m_end) store_eight(to + 8 * part.stride, words[1], part.wide, part.n - column);
  }
}

}  // namespace tilegemm
