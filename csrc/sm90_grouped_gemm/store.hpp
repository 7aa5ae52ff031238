// From sums in registers to rows of D. The sums are of a tile of D^T: a lane has two neighbouring rows of D at a time.
#pragma once
#include "common/activation.hpp"
#include "common/ptx.hpp"
#include "common/store.hpp"

namespace tilegemm {
namespace {

// Row p of D for each row of the tile: no row at all where p is `no_row`.
constexpr uint32_t no_row = ~0u;

// Turns sums of gates into sums of gated numbers: activation(alpha * gate) * alpha * up.
template <int count>
__device__ __forceinline__ void apply_gate(float (&gate)[count], const float (&up)[count], tg_activation activation, float alpha) {
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

// Stores a warp's sums of 16 columns of D and `width` rows. `column`: the first column. `scales`, `rows`: the factor and the row of D of
// each row of the tile; `scales` may be null. `n`: the columns of D, a multiple of 8.
//
// movmatrix transposes 8 x 8 numbers, which gives a lane two neighbouring columns of a row. Four lanes of a row then exchange words: a lane
// ends with eight neighbouring columns. All exchanges of a kind follow one another, so that their latencies overlap.
template <class T, int width>
__device__ __forceinline__ void store_rows(float (&sum)[width / 2], T* d, int64_t stride, int column, int n, int height, float alpha,
                                           const float* scales, const uint32_t* rows, int lane) {
  constexpr int eights = width / 8, blocks = (eights + 1) / 2;
  const int q = lane % 4;
  uint32_t v[4 * blocks];
#pragma unroll
  for (int j = 0; j < eights; j++) {
    float2 factor = scales ? *reinterpret_cast<const float2*>(scales + 8 * j + 2 * q) : make_float2(1, 1);
    factor.x *= alpha, factor.y *= alpha;
    v[2 * j] = pack<T>(sum[4 * j] * factor.x, sum[4 * j + 1] * factor.y);
    v[2 * j + 1] = pack<T>(sum[4 * j + 2] * factor.x, sum[4 * j + 3] * factor.y);
  }
#pragma unroll
  for (int j = 0; j < 2 * eights; j++) v[j] = movmatrix(v[j]);
#pragma unroll
  for (int j = 2 * eights; j < 4 * blocks; j++) v[j] = 0;
  const bool odd = q & 1, high = q & 2;
#pragma unroll
  for (int j = 0; j < 4 * blocks; j += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? v[j] : v[j + 1], 1);
    v[j] = odd ? got : v[j], v[j + 1] = odd ? v[j + 1] : got;
  }
#pragma unroll
  for (int j = 0; j < 4 * blocks; j += 4) {
#pragma unroll
    for (int i = j; i < j + 2; i++) {
      const uint32_t got = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
      v[i] = high ? got : v[i], v[i + 2] = high ? v[i + 2] : got;
    }
  }
  const int from = column + 8 * (q % 2);
#pragma unroll
  for (int b = 0; b < blocks; b++) {
    const int row = 16 * b + 8 * (q / 2) + lane / 4;
    if (row < height && from < n && rows[row] != no_row) {
      *reinterpret_cast<uint4*>(d + int64_t(rows[row]) * stride + from) = make_uint4(v[4 * b], v[4 * b + 1], v[4 * b + 2], v[4 * b + 3]);
    }
  }
}

}  // namespace
}  // namespace tilegemm
