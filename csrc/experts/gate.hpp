// Gated products in registers.
#pragma once
#include "common/activation.hpp"

namespace tilegemm {
namespace {

// Turns sums of gates into sums of gated numbers: activation(alpha * gate) * alpha * up.
template <int count>
__device__ __forceinline__ void apply_gate(float (&gate)[count], const float (&up)[count], tg_activation activation,
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

}  // namespace
}  // namespace tilegemm
