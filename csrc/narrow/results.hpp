// The epilogue, for a type of C, the bias and D that the kernel does not know when it is compiled: results are few, and
// so all types share the machine code.
#pragma once
#include "common/activation.hpp"

namespace tilegemm {

class Results {
  float alpha_, beta_;
  tg_activation activation_;
  bool gates_c_;
  tg_format format_;
  tg_matrix bias_, c_, d_;

  __device__ static int64_t place(const tg_matrix& matrix, int64_t m, int64_t n) {
    return m * matrix.row_stride + n * matrix.col_stride;
  }

  __device__ float load(const tg_matrix& matrix, int m, int n, int batch = 0) const {
    const int64_t at = place(matrix, m, n) + batch * matrix.batch_stride[1];
    switch (format_) {
      case TG_F16: return __half2float(static_cast<const __half*>(matrix.ptr)[at]);
      case TG_BF16: return __bfloat162float(static_cast<const __nv_bfloat16*>(matrix.ptr)[at]);
      default: return static_cast<const float*>(matrix.ptr)[at];
    }
  }

 public:
  explicit Results(const tg_gemm_args& args)
      : alpha_(float(args.alpha)), beta_(float(args.beta)), activation_(args.activation),
        gates_c_(args.gate == TG_GATE_C), format_(args.types.d), bias_(args.bias), c_(args.c), d_(args.d) {}

  // Stores the element of D that this sum makes. Of a product with groups of rows: the group, and the row's factor.
  __device__ void store(float sum, int m, int n, int group = 0, float factor = 1.0f) const {
    float x = alpha_ * sum;
    if (bias_.ptr) x += load(bias_, m, n, group);
    x = activate<Accuracy::single>(activation_, x);
    if (beta_ != 0.0f) {
      const float c = beta_ * load(c_, m, n);
      x = gates_c_ ? x * c : x + c;
    }
    x *= factor;
    const int64_t at = place(d_, m, n);
    switch (format_) {
      case TG_F16: static_cast<__half*>(d_.ptr)[at] = __float2half_rn(x); break;
      case TG_BF16: static_cast<__nv_bfloat16*>(d_.ptr)[at] = __float2bfloat16_rn(x); break;
      default: static_cast<float*>(d_.ptr)[at] = x; break;
    }
  }
};

}  // namespace tilegemm
