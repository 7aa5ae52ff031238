// The activations of all families, each as exact as D's type needs.
//
// An `erff` or `tanhf` takes up to a hundred instructions; an epilogue with these calls takes as long as a GEMM. Where
// D has 16 bits, errors that are small beside the rounding of D cost nothing: docs/performance.md has the errors and
// the instructions of each form. Limits are the limits of the functions: -0 or 0 at -inf, inf at inf, NaN for NaN.
#pragma once
#include <limits>

#include "common/kernel.hpp"

namespace tilegemm {

// The accuracy for D in 16 bits, for D in f32, and for the type of x itself by <cmath>.
enum class Accuracy { half, single, exact };
template <class T>
constexpr Accuracy accuracy_of = sizeof(T) == 2   ? Accuracy::half
                                 : sizeof(T) == 4 ? Accuracy::single
                                                  : Accuracy::exact;

// x / y to 2 ulp: IEEE division of floats is a function call on the device. That call made SiLU take a third of a
// GEMM's time.
__host__ __device__ inline float divide(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fdividef(x, y);
#else
  return x / y;
#endif
}
__host__ __device__ inline double divide(double x, double y) { return x / y; }

// 2^x and 1 / x by the hardware's instructions, to 2^-22 and 1 ulp; subnormals count as 0.
__host__ __device__ inline float exp2_approximate(float x) {
#ifdef __CUDA_ARCH__
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  return exp2f(x);
#endif
}
__host__ __device__ inline float reciprocal_approximate(float x) {
#ifdef __CUDA_ARCH__
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(x) : "f"(x));
  return x;
#else
  return 1 / x;
#endif
}

// max(x, 0), NaN for NaN.
__host__ __device__ inline float relu(float x) {
#ifdef __CUDA_ARCH__
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(x) : "f"(x));
  return x;
#else
  return x < 0 ? 0 : x;
#endif
}
__host__ __device__ inline double relu(double x) { return x < 0 ? 0 : x; }

// GELU(erf) is x Phi(x) = max(x, 0) - t Phi(-t) with t = |x|. Phi(-t) is 2^r(t) with a polynomial r: one `ex2`, no
// division, and no cancellation where GELU approaches 0. The polynomials are minimax fits of our own (linear
// programming over Chebyshev nodes). The weight of an error of r is the change of the sum that the error causes, over
// the change that the sum may have. From t = `end` on, 2^r(t) is 0.
struct GeluErf {
  static constexpr float end = 16;
  // For f16: to little more than half a unit, 1e-8, up to t = 8. For bf16: to a tenth of half a unit at most, up to t =
  // `end`.
  float half[8] = {-1.00000751f,   -1.15112615f,     -0.458768845f,   -0.053654775f,
                   0.00835699681f, -0.000891803531f, 5.66780982e-05f, -1.59166166e-06f};
  // For f32: to 2^-24 and 1e-12.
  float single[11] = {-0.999999881f,    -1.15110874f,     -0.459187448f,   -0.0525334887f,
                      0.00707207015f,   -9.42614424e-05f, -0.00023789324f, 6.53575917e-05f,
                      -9.23675452e-06f, 7.13636211e-07f,  -2.38030058e-08f};
};

template <int count>
__host__ __device__ inline float gelu_erf(float x, const float (&r)[count]) {
  const float t = fminf(fabsf(x), GeluErf::end);
  float exponent = r[count - 1];
#pragma unroll
  for (int i = count - 2; i >= 0; i--) exponent = fmaf(exponent, t, r[i]);
  return fmaf(-t, exp2_approximate(exponent), relu(x));
}

// GELU(tanh) is x / (1 + 2^(x (first + third x^2))), since (1 + tanh(y)) / 2 = 1 / (1 + exp(-2 y)); SiLU is x / (1 +
// 2^(linear x)).
struct Gate {
  static constexpr float first = -2.30220820f;   // -2 sqrt(2 / pi) log2(e)
  static constexpr float third = -0.102943240f;  // 0.044715 times `first`
  static constexpr float linear = -1.44269504f;  // -log2(e)
};

// x, but the lowest finite number at -inf, so that 0 times x is 0. NaN becomes the lowest number, too.
template <class T>
__host__ __device__ inline T finite_below(T x) {
  return fmax(x, std::numeric_limits<T>::lowest());
}

// GELU(erf) as in the paper (Hendrycks & Gimpel, arXiv 1606.08415, eq. 1); GELU(tanh) is the paper's approximation (eq.
// 2).
template <Accuracy accuracy, class T>
__host__ __device__ inline T activate(tg_activation activation, T x) {
  if (activation == TG_RELU) return relu(x);
  if constexpr (accuracy == Accuracy::exact) {
    const T y = finite_below(x);
    switch (activation) {
      case TG_GELU_ERF: return T(0.5) * y * erfc(x * T(-0.70710678118654752440));
      case TG_GELU_TANH: return divide(y, T(1) + exp(T(-1.59576912160573071176) * (x + T(0.044715) * x * x * x)));
      case TG_SILU: return divide(y, T(1) + exp(-x));
      default: return x;
    }
  } else {
    constexpr GeluErf gelu;
    constexpr bool half = accuracy == Accuracy::half;
    const auto gate = [&](float power) {
      return half ? finite_below(x) * reciprocal_approximate(1 + power) : divide(finite_below(x), 1 + power);
    };
    switch (activation) {
      case TG_GELU_ERF:
        if constexpr (half) return gelu_erf(x, gelu.half);
        else return gelu_erf(x, gelu.single);
      case TG_GELU_TANH: return gate(exp2_approximate(x * fmaf(Gate::third * x, x, Gate::first)));
      case TG_SILU: return gate(half ? exp2_approximate(Gate::linear * x) : expf(-x));
      default: return x;
    }
  }
}

// `activate` with constant parameters, on several elements in place.
template <tg_activation activation, Accuracy accuracy, class T, int count>
__host__ __device__ inline void activate_each(T (&x)[count]) {
#pragma unroll
  for (int e = 0; e < count; e++) x[e] = activate<accuracy>(activation, x[e]);
}

}  // namespace tilegemm
