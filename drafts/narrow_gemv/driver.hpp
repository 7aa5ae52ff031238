// Checks and times products with narrow weights: what the drivers share. The oracle adds in f64 numbers that it reads
// by itself, as csrc/tilegemm.h defines them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tilegemm.h"

#define CHECK(call)                                                                         \
  do {                                                                                      \
    const cudaError_t error_ = (call);                                                      \
    if (error_ != cudaSuccess) {                                                            \
      printf("%s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));      \
      exit(1);                                                                              \
    }                                                                                       \
  } while (0)

constexpr uint32_t all_of = UINT32_MAX;

struct Case {
  tg_format a = TG_BF16, b = TG_U4, d = TG_BF16;
  int m = 1, n = 64, k = 128;
  bool scaled = true;
  tg_format factor = TG_F16;
  uint32_t group = 128, rows = 1;  // along K, along N
  bool zeros = false;
  // Of the data: special codes and factors, an infinity and a NaN in X, tiny or huge numbers in X.
  bool special = false, wild_x = false;
  float x_size = 1;
  int pad_x = 0, gap = 0, x_offset = 0;
  bool bias = false, in_place = false;
  tg_activation activation = TG_IDENTITY;
  float alpha = 1, beta = 0;
  tg_gate gate = TG_UNGATED;
  int overlap = 0;
};

inline const char* name_of(tg_format f) {
  switch (f) {
    case TG_F16: return "f16";
    case TG_BF16: return "bf16";
    case TG_F32: return "f32";
    case TG_F8E4M3: return "f8e4m3";
    case TG_U4: return "u4";
    case TG_U8: return "u8";
    case TG_I8: return "i8";
    case TG_F4E2M1: return "f4e2m1";
    case TG_F8E8M0: return "e8m0";
    default: return "?";
  }
}
inline std::string text_of(const Case& c) {
  char text[256];
  snprintf(text, sizeof text, "%dx%dx%d %s x %s %s g%d r%d%s%s%s x%g pad%d+%d gap%d%s%s act%d alpha%g beta%g gate%d ov%d", c.m,
           c.n, c.k, name_of(c.a), name_of(c.b), c.scaled ? name_of(c.factor) : "none", int(c.group), int(c.rows),
           c.zeros ? " zeros" : "", c.special ? " special" : "", c.wild_x ? " wild" : "", c.x_size, c.pad_x, c.x_offset, c.gap,
           c.bias ? " bias" : "", c.in_place ? " in-place" : "", c.activation, c.alpha, c.beta, c.gate, c.overlap);
  return text;
}
__host__ __device__ inline int bits_of_format(tg_format f) {
  return f == TG_F32 ? 32 : f == TG_F16 || f == TG_BF16 ? 16 : f == TG_U4 || f == TG_F4E2M1 ? 4 : 8;
}

__host__ __device__ inline double decode_small(int code, int mantissa, int exponents, int bias) {
  const int sign = code >> (mantissa + exponents) & 1, e = code >> mantissa & ((1 << exponents) - 1),
            f = code & ((1 << mantissa) - 1);
  const double x = e == 0 ? ldexp(double(f), 1 - bias - mantissa) : ldexp(double((1 << mantissa) + f), e - bias - mantissa);
  return sign ? -x : x;
}
__host__ __device__ inline double decode(tg_format format, const void* at, int64_t i) {
  const uint8_t byte = format == TG_F32 || format == TG_F16 || format == TG_BF16 ? 0 : static_cast<const uint8_t*>(at)[i];
  switch (format) {
    case TG_F32: return static_cast<const float*>(at)[i];
    case TG_F16: return __half2float(static_cast<const __half*>(at)[i]);
    case TG_BF16: return __bfloat162float(static_cast<const __nv_bfloat16*>(at)[i]);
    case TG_F8E4M3: return (byte & 127) == 127 ? nan("") : decode_small(byte, 3, 4, 7);
    case TG_F8E8M0: return byte == 255 ? nan("") : ldexp(1.0, int(byte) - 127);
    case TG_I8: return int8_t(byte);
    default: return byte;
  }
}

struct Sum {
  double sum, size, of_rounded;
};
// Sums in f64: of products, of their magnitudes, and of products with weights in f32, which may overflow.
__global__ void oracle(tg_gemm_args args, Sum* out) {
  const int64_t n = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, m = blockIdx.y;
  if (n >= args.n) return;
  const tg_scale& s = args.b_scale;
  const bool packed = bits_of_format(args.types.b) == 4;
  const uint8_t* row = static_cast<const uint8_t*>(args.b.ptr) + n * args.b.col_stride / (packed ? 2 : 1);
  double sum = 0, size = 0, of_rounded = 0;
  for (int64_t k = 0; k < args.k; k++) {
    double code;
    if (packed) {
      // Word t, nibble i: number 2 t + 8 (i % 4) + i / 4.
      const int in = int(k % 32), t = in % 8 / 2, i = in / 8 + in % 2 * 4;
      uint32_t word;
      memcpy(&word, row + k / 32 * 16 + t * 4, 4);
      const int nibble = word >> (4 * i) & 15;
      code = args.types.b == TG_U4 ? nibble : decode_small(nibble, 1, 2, 1);
    } else {
      code = decode(args.types.b, row, k);
    }
    double zero = args.types.b == TG_U4 ? 8 : args.types.b == TG_U8 ? 128 : 0, factor = 1;
    if (s.ptr) {
      const int64_t at = (s.rows == all_of ? 0 : k / s.rows) * s.row_stride + (s.columns == all_of ? 0 : n / s.columns) * s.col_stride;
      if (s.zeros) zero = s.zeros[at];
      factor = decode(s.format, s.ptr, at);
    }
    const double x = decode(args.types.a, args.a.ptr, m * args.a.row_stride + k), product = (code - zero) * factor * x;
    sum += product, size += fabs(product), of_rounded += double(float((code - zero) * factor)) * x;
  }
  out[m * args.n + n] = {sum, size, of_rounded};
}

// A problem in device memory; weights in `copies`, each with its factors.
struct Problem {
  Case c;
  tg_gemm_args args{};
  std::vector<void*> owned;
  std::vector<uint8_t> c_before;
  int copies;
  std::vector<const void*> b_of, s_of;
  std::vector<const uint8_t*> z_of;
  size_t d_bytes;

  template <class T>
  T* upload(const std::vector<T>& host) {
    void* p;
    CHECK(cudaMalloc(&p, host.size() * sizeof(T) + 64));
    CHECK(cudaMemcpy(p, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    owned.push_back(p);
    return static_cast<T*>(p);
  }
  static void put(std::vector<uint8_t>& to, tg_format f, int64_t i, double x) {
    if (f == TG_F32) reinterpret_cast<float*>(to.data())[i] = float(x);
    else if (f == TG_F16) reinterpret_cast<__half*>(to.data())[i] = __float2half_rn(float(x));
    else reinterpret_cast<__nv_bfloat16*>(to.data())[i] = __float2bfloat16_rn(float(x));
  }

  Problem(const Case& c, int copies, unsigned seed) : c(c), copies(copies) {
    std::mt19937 rng(seed);
    std::normal_distribution<double> normal;
    const auto uniform = [&](double a, double b) { return std::uniform_real_distribution<double>(a, b)(rng); };
    const bool packed = bits_of_format(c.b) == 4;
    const int64_t per = packed ? 32 : 16, stride = (c.k + per - 1) / per * per + per * c.gap;
    const int64_t row_bytes = packed ? stride / 2 : stride;
    args.m = c.m, args.n = c.n, args.k = c.k, args.batch[0] = args.batch[1] = 1;
    // X, in memory that is NaN around it.
    const int sx = bits_of_format(c.a) / 8, sd = bits_of_format(c.d) / 8;
    const int64_t lda = c.k + c.pad_x;
    std::vector<uint8_t> x((c.m * lda + c.x_offset + 64) * sx, 0xff);
    for (int i = 0; i < c.m; i++)
      for (int j = 0; j < c.k; j++) put(x, c.a, c.x_offset + i * lda + j, normal(rng) * c.x_size * (i % 3 == 2 ? 0.01 : 1));
    if (c.wild_x) {
      const double wild[] = {INFINITY, -INFINITY, NAN};
      for (int i = 0; i < c.m; i++)
        if (i % 4 < 3) put(x, c.a, c.x_offset + i * lda + int(rng() % c.k), wild[i % 4]);
    }
    args.a = {upload(x) + c.x_offset * sx, lda, 1, {0, 0}};
    // W.
    const int64_t groups = c.group == all_of ? 1 : (c.k + c.group - 1) / c.group, of_n = c.rows == all_of ? 1 : (c.n + c.rows - 1) / c.rows;
    const bool by_rows = c.rows == 1 || c.rows == all_of;  // (groups, out); otherwise (out, groups)
    const int64_t count = groups * of_n;
    for (int copy = 0; copy < copies; copy++) {
      std::vector<uint8_t> codes(row_bytes * c.n);
      for (size_t i = 0; i + 4 <= codes.size(); i += 4) { const uint32_t r = rng(); memcpy(&codes[i], &r, 4); }
      for (size_t i = codes.size() / 4 * 4; i < codes.size(); i++) codes[i] = uint8_t(rng());
      if (c.b == TG_F8E4M3)
        for (int64_t n = 0; n < c.n; n++)
          for (int64_t k = 0; k < row_bytes; k++) {
            uint8_t& code = codes[n * row_bytes + k];
            if (k >= c.k) code = 0x7f;  // behind K: must not count
            else if ((code & 127) == 127) code = c.special && rng() % 8 == 0 ? code : 0x3f;
          }
      b_of.push_back(upload(codes));
      const int sf = bits_of_format(c.factor) / 8;
      std::vector<uint8_t> factors(count * sf), zeros(count);
      for (int64_t i = 0; i < count; i++) {
        const bool is_special = c.special && rng() % (count > 64 ? count / 16 : 4) == 0;
        if (c.factor == TG_F8E8M0) {
          const uint8_t wild[] = {0, 1, 254, 255};
          factors[i] = is_special ? wild[rng() % 4] : uint8_t(120 + rng() % 9);
        } else if (c.factor == TG_F8E4M3) {
          const uint8_t wild[] = {0, 0x80, 0x7f, 0xff, 0x7e, 1};
          factors[i] = is_special ? wild[rng() % 6] : uint8_t(0x20 + rng() % 0x21);
        } else {
          const double wild[] = {0, -0.5, INFINITY, -INFINITY, NAN, 1e-40, 6e-8, 1e30};
          put(factors, c.factor, i, is_special ? wild[rng() % 8] : exp2(uniform(-7, 1)));
        }
        zeros[i] = uint8_t(rng() % (c.b == TG_U4 ? 16 : 256));
      }
      if (!c.scaled) { s_of.push_back(nullptr), z_of.push_back(nullptr); continue; }
      s_of.push_back(upload(factors));
      z_of.push_back(c.zeros ? upload(zeros) : nullptr);
    }
    args.b = {const_cast<void*>(b_of[0]), 1, stride, {0, 0}};
    if (c.scaled) {
      args.b_scale.ptr = s_of[0], args.b_scale.zeros = z_of[0], args.b_scale.format = c.factor;
      args.b_scale.rows = c.group, args.b_scale.columns = c.rows;
      args.b_scale.row_stride = c.group == all_of ? 0 : by_rows ? of_n : 1;
      args.b_scale.col_stride = c.rows == all_of ? 0 : by_rows ? 1 : groups;
    }
    // Bias, C, D, with a guard behind D.
    std::vector<uint8_t> bias(c.n * sd), cc(c.m * c.n * sd), d((c.m * c.n + 64) * sd, 0xff);
    for (int j = 0; j < c.n; j++) put(bias, c.d, j, normal(rng));
    for (int i = 0; i < c.m * c.n; i++) put(cc, c.d, i, normal(rng) * 8);
    if (c.bias) args.bias = {upload(bias), 0, 1, {0, 0}};
    if (c.in_place) std::copy(cc.begin(), cc.end(), d.begin());
    d_bytes = d.size();
    c_before = cc;
    args.d = {upload(d), c.n, 1, {0, 0}};
    if (c.beta != 0) args.c = c.in_place ? args.d : tg_matrix{upload(cc), c.n, 1, {0, 0}};
    args.alpha = c.alpha, args.beta = c.beta, args.activation = c.activation, args.gate = c.gate;
    args.types = {c.a, c.b, c.d, c.d, TG_F32};
    args.sm_count = 132, args.overlap = c.overlap;
  }
  ~Problem() {
    for (void* p : owned) cudaFree(p);
  }
  Problem(const Problem&) = delete;
  // D as it was.
  void restore() {
    if (c.in_place) CHECK(cudaMemcpy(args.d.ptr, c_before.data(), c_before.size(), cudaMemcpyHostToDevice));
    else CHECK(cudaMemset(args.d.ptr, 0xff, d_bytes));
  }
  void use(int copy) {
    args.b.ptr = const_cast<void*>(b_of[copy % copies]);
    args.b_scale.ptr = s_of[copy % copies], args.b_scale.zeros = z_of[copy % copies];
  }

  static double activate(tg_activation a, double x) {
    switch (a) {
      case TG_RELU: return std::isnan(x) ? x : std::max(x, 0.0);
      case TG_SILU: return x == -INFINITY ? 0 : x / (1 + exp(-x));
      case TG_GELU_ERF: return x == -INFINITY ? 0 : x == INFINITY ? x : 0.5 * x * (1 + erf(x / sqrt(2.0)));
      case TG_GELU_TANH: return x == -INFINITY ? 0 : x == INFINITY ? x : 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
      default: return x;
    }
  }
  // An element of D from a sum.
  double element(double sum, int64_t at, const std::vector<uint8_t>& bias) const {
    double x = c.alpha * sum;
    if (c.bias) x += decode(c.d, bias.data(), at % c.n);
    x = activate(c.activation, x);
    if (c.beta == 0) return x;
    const double cc = c.beta * decode(c.d, c_before.data(), at);
    return c.gate == TG_GATE_C ? x * cc : x + cc;
  }
  static double rounded(tg_format f, double x) {
    return f == TG_F32 ? float(x) : f == TG_F16 ? __half2float(__double2half(x)) : __bfloat162float(__double2bfloat16(x));
  }

  // Errors of D; prints the first ones. `worst`: the largest error over its bound.
  int check(double& worst) {
    Sum* sums;
    CHECK(cudaMalloc(&sums, sizeof(Sum) * c.m * c.n));
    oracle<<<dim3((c.n + 63) / 64, c.m), 64>>>(args, sums);
    std::vector<Sum> expected(c.m * c.n);
    CHECK(cudaMemcpy(expected.data(), sums, sizeof(Sum) * c.m * c.n, cudaMemcpyDeviceToHost));
    CHECK(cudaFree(sums));
    std::vector<uint8_t> d(d_bytes), bias(c.n * 4);
    CHECK(cudaMemcpy(d.data(), args.d.ptr, d_bytes, cudaMemcpyDeviceToHost));
    if (c.bias) CHECK(cudaMemcpy(bias.data(), args.bias.ptr, c.n * bits_of_format(c.d) / 8, cudaMemcpyDeviceToHost));
    int wrong = 0;
    const double unit = c.d == TG_F32 ? 0x1p-24 : c.d == TG_F16 ? 0x1p-11 : 0x1p-8;
    for (int64_t i = 0; i < int64_t(c.m) * c.n; i++) {
      const double got = decode(c.d, d.data(), i), sum = expected[i].sum, size = expected[i].size;
      const double want = element(sum, i, bias);
      // Sums in f32; X of f32 is rounded to 11 bits.
      const double of_sum = (0x1p-23 * (16 + 0.02 * c.k) + (c.a == TG_F32 ? 0x1p-11 * 1.02 : 0)) * size * fabs(c.alpha);
      double gain = 1.13;
      if (c.gate == TG_GATE_C) gain *= fabs(c.beta * decode(c.d, c_before.data(), i));
      const double bound = of_sum * gain + unit * fabs(want) * 1.02 + 1e-6 * fabs(want - c.alpha * sum) + 1e-30 + (c.d == TG_F16 ? 0x1p-25 : 0);
      const double other = element(expected[i].of_rounded, i, bias);
      bool fits;
      if (!std::isfinite(want)) fits = std::isnan(want) ? std::isnan(got) : got == want;
      else {
        fits = fabs(got - want) <= bound || got == rounded(c.d, want + bound) || got == rounded(c.d, want - bound);
        // Parts beyond f32.
        if (!fits && !std::isfinite(got) && size > 0x1p126) fits = true;
        if (fits && bound > 0 && std::isfinite(got)) worst = std::max(worst, fabs(got - want) / bound);
      }
      if (!fits && !std::isfinite(other)) fits = std::isnan(other) ? std::isnan(got) : got == other;
      if (!fits && wrong++ < 3) printf("  WRONG [%d,%d] got %g want %g bound %g size %g\n", int(i / c.n), int(i % c.n), got, want, bound, size);
    }
    for (size_t i = c.m * c.n * bits_of_format(c.d) / 8; i < d_bytes; i++)
      if (d[i] != 0xff) { printf("  WRONG behind D\n"); return wrong + 1; }
    return wrong;
  }
};

// Microseconds of a launch, each with weights that are cold: the median of graphs with many launches.
template <class LaunchOne>
double time_of(Problem& problem, cudaStream_t stream, const LaunchOne& launch, int count = 40, int runs = 9) {
  problem.args.stream = stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < count; i++) {
    problem.use(i);
    if (launch(problem.args) != TG_OK) {
      cudaStreamEndCapture(stream, &graph);
      return -1;
    }
  }
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t begin, end;
  CHECK(cudaEventCreate(&begin));
  CHECK(cudaEventCreate(&end));
  std::vector<float> times;
  for (int i = 0; i < runs + 2; i++) {
    CHECK(cudaEventRecord(begin, stream));
    CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaEventRecord(end, stream));
    CHECK(cudaEventSynchronize(end));
    float ms;
    CHECK(cudaEventElapsedTime(&ms, begin, end));
    if (i >= 2) times.push_back(ms * 1000 / count);
  }
  CHECK(cudaGraphExecDestroy(exec));
  CHECK(cudaGraphDestroy(graph));
  CHECK(cudaEventDestroy(begin));
  CHECK(cudaEventDestroy(end));
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}
