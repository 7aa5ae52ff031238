// The epilogue, which makes an element of D from an accumulator, once for every family:
//
//     d = activation(alpha * acc + bias) + beta * c
//
// Arithmetic is done in the accumulator's type and rounded once. c is not read when beta is 0.
#pragma once
#include "common/activation.hpp"
#include "common/kernel.hpp"

namespace tilegemm {

// The epilogue of one problem, passed to a kernel by value. `T`: inputs and output, `Acc`: accumulator.
template <class T, class Acc, Accuracy accuracy = accuracy_of<T>>
struct Epilogue {
  Acc alpha, beta;
  tg_activation activation;
  tg_matrix bias, c;

  explicit Epilogue(const tg_gemm_args& args)
      : alpha(Acc(args.alpha)), beta(Acc(args.beta)), activation(args.activation), bias(args.bias), c(args.c) {}

  // Whether D is the product alone; whether D is the product times alpha.
  bool is_plain() const { return alpha == Acc(1) && is_scaling(); }
  bool is_scaling() const { return beta == Acc(0) && !bias.ptr && activation == TG_IDENTITY; }

  __device__ T operator()(Acc acc, int64_t i, int64_t j, int64_t batch0, int64_t batch1) const {
    return T(unrounded(acc, i, j, batch0, batch1));
  }

  __device__ Acc unrounded(Acc acc, int64_t i, int64_t j, int64_t batch0, int64_t batch1) const {
    Acc x = activated(acc, i, j, batch0, batch1);
    if (beta != Acc(0)) x += beta * load(c, i, j, batch0, batch1);
    return x;
  }

  // activation(alpha * acc + bias)
  __device__ Acc activated(Acc acc, int64_t i, int64_t j, int64_t batch0, int64_t batch1) const {
    Acc x = alpha * acc;
    if (bias.ptr) x += load(bias, i, j, batch0, batch1);
    return activate<accuracy>(activation, x);
  }

  // Passes several elements at (i[e], j[e]) through the epilogue in place. The loads of all elements are issued
  // together, and the activation is chosen once. Elements outside of D (`inside`) read nothing.
  template <int count>
  __device__ void each(Acc (&x)[count], const int (&i)[count], const int (&j)[count], const bool (&inside)[count],
                       int64_t batch0, int64_t batch1) const {
#pragma unroll
    for (int e = 0; e < count; e++) x[e] *= alpha;
    const auto add = [&](const tg_matrix& matrix, Acc factor) {
      Acc y[count];
#pragma unroll
      for (int e = 0; e < count; e++) y[e] = inside[e] ? load(matrix, i[e], j[e], batch0, batch1) : Acc(0);
#pragma unroll
      for (int e = 0; e < count; e++) x[e] += factor * y[e];
    };
    if (bias.ptr) add(bias, Acc(1));
    switch (activation) {
      case TG_RELU: activate_each<TG_RELU, accuracy>(x); break;
      case TG_GELU_ERF: activate_each<TG_GELU_ERF, accuracy>(x); break;
      case TG_GELU_TANH: activate_each<TG_GELU_TANH, accuracy>(x); break;
      case TG_SILU: activate_each<TG_SILU, accuracy>(x); break;
      default: break;
    }
    if (beta != Acc(0)) add(c, beta);
  }

 protected:
  __device__ static Acc load(const tg_matrix& matrix, int64_t i, int64_t j, int64_t batch0, int64_t batch1) {
    const int64_t offset = i * matrix.row_stride + j * matrix.col_stride + batch0 * matrix.batch_stride[0] +
                           batch1 * matrix.batch_stride[1];
    return Acc(static_cast<const T*>(matrix.ptr)[offset]);
  }
};

// The epilogue of kernels that take TG_GATE_C: d = activation(alpha * acc + bias) * (beta * c) there.
template <class T, class Acc>
struct GatingEpilogue : Epilogue<T, Acc> {
  bool gates_c;

  explicit GatingEpilogue(const tg_gemm_args& args) : Epilogue<T, Acc>(args), gates_c(args.gate == TG_GATE_C) {}

  __device__ T operator()(Acc acc, int64_t i, int64_t j, int64_t batch0, int64_t batch1) const {
    if (!gates_c) return T(this->unrounded(acc, i, j, batch0, batch1));
    return T(this->activated(acc, i, j, batch0, batch1) * (this->beta * this->load(this->c, i, j, batch0, batch1)));
  }
};

}  // namespace tilegemm
