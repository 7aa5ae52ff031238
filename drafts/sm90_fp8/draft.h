// The draft's C interface, for the tests and timings.
#pragma once
#include "fp8/factors.hpp"

struct Problem {
  const void *x, *w;
  void* d;
  int64_t m, n, k, x_stride, w_stride, d_stride;
  tilegemm::Factors factors;
  const void *bias, *c;  // of D's type; null: none
  float alpha, beta;
  int activation, overlap, prefetch;  // prefetch: stages of W into L2 ahead of the wait
  void *stream, *workspace;
};

// How sm90_fp8_gemm runs a problem.
struct Choice {
  int width, w_box, sums, pair, strip;
};

inline tg_gemm_args args_of(const Problem& p) {
  tg_gemm_args a{};
  a.m = p.m, a.n = p.n, a.k = p.k, a.batch[0] = a.batch[1] = 1;
  a.d = {p.d, p.d_stride, 1, {0, 0}};
  a.c = {const_cast<void*>(p.c), p.d_stride, 1, {0, 0}};
  a.bias = {const_cast<void*>(p.bias), 0, 1, {0, 0}};
  a.alpha = p.alpha, a.beta = p.beta, a.activation = tg_activation(p.activation);
  a.overlap = p.overlap, a.stream = p.stream, a.sm_count = 132, a.workspace = p.workspace;
  return a;
}
