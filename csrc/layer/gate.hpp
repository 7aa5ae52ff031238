// The functions of gates.
#pragma once
#include "common/activation.hpp"
#include "layer/launch.hpp"

namespace tilegemm {
namespace {

template <tg_gate_function function>
__device__ inline float gate_of(float x) {
  switch (function) {
    case TG_SWIGLU: return activate<Accuracy::half>(TG_SILU, x);
    case TG_GEGLU_TANH: return activate<Accuracy::half>(TG_GELU_TANH, x);
    case TG_GEGLU_ERF: return activate<Accuracy::half>(TG_GELU_ERF, x);
    default: x = relu(x); return x * x;
  }
}

}  // namespace
}  // namespace tilegemm
