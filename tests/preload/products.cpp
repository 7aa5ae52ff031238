// Products of a program that knows cuBLAS alone, each beside sums in f64 of 4,000 of its numbers: for libtilegemm_preload.so under the cuBLAS that this program is linked with,
// 12 or 13. docs/preload.md says how to build and run it. Matrices are in columns: C = A @ B + beta * C, m x n x k.
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

static std::mt19937 bits(1);
static bool all_right = true;

static void check(const char* what, int status) {
  if (status == 0) return;
  std::fprintf(stderr, "%s returned %d\n", what, status);
  std::exit(1);
}
#define CHECK(call) check(#call, int(call))

template <class T>
static std::vector<T> random_numbers(size_t count) {
  std::normal_distribution<float> normal;
  std::vector<T> numbers(count);
  for (T& number : numbers) number = T(normal(bits));
  return numbers;
}

template <class T>
static T* on_device(const std::vector<T>& numbers) {
  void* at = nullptr;
  CHECK(cudaMalloc(&at, numbers.size() * sizeof(T)));
  CHECK(cudaMemcpy(at, numbers.data(), numbers.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(at);
}

struct Size {
  int m, n, k, batch = 1;
};

// `call`(a, b, c) multiplies; `transposed`: A is k x m in memory. `bias`: of each row of C; empty: none.
template <class T, class Call>
static void product(const char* name, Size s, bool transposed, double beta, Call&& call, const std::vector<T>& bias = {}) {
  const size_t of_a = size_t(s.m) * s.k, of_b = size_t(s.k) * s.n, of_c = size_t(s.m) * s.n;
  const auto a = random_numbers<T>(of_a * s.batch), b = random_numbers<T>(of_b * s.batch), c = random_numbers<T>(of_c * s.batch);
  T *const on_a = on_device(a), *const on_b = on_device(b), *const on_c = on_device(c);
  CHECK(call(on_a, on_b, on_c));
  std::vector<T> d(c.size());
  CHECK(cudaMemcpy(d.data(), on_c, d.size() * sizeof(T), cudaMemcpyDeviceToHost));
  for (T* const at : {on_a, on_b, on_c}) CHECK(cudaFree(at));
  double worst = 0;
  for (int sample = 0; sample < 4000; sample++) {
    const size_t z = bits() % s.batch, i = bits() % s.m, j = bits() % s.n, at = z * of_c + j * s.m + i;
    double sum = beta * double(c[at]), size = std::fabs(sum);
    for (size_t l = 0; l < size_t(s.k); l++) {
      const double term = double(a[z * of_a + (transposed ? i * s.k + l : l * s.m + i)]) * double(b[z * of_b + j * s.k + l]);
      sum += term, size += std::fabs(term);
    }
    if (!bias.empty()) sum += double(bias[i]);
    const double error = std::fabs(double(d[at]) - sum) / size;
    if (!(error <= worst)) worst = error;  // NaN, too
  }
  // Results have f32's 24 bits at best here, and bf16's 8 at worst.
  const double most = sizeof(T) == 2 ? 4e-3 : sizeof(T) == 4 ? 1e-5 : 1e-14;
  const bool is_right = worst <= most;
  all_right = all_right && is_right;
  std::printf("%-34s %5d x %5d x %5d, %2d of them: largest error %.1e of the sum of |a b|%s\n", name, s.m, s.n, s.k, s.batch, worst, is_right ? "" : "  WRONG");
}

static void dense(cublasHandle_t handle, Size s) {
  const float one = 1, zero = 0, half = 0.5f;
  const double one64 = 1, zero64 = 0;
  const __half one16 = 1.0f, zero16 = 0.0f;
  const auto n = CUBLAS_OP_N, t = CUBLAS_OP_T;
  product<__nv_bfloat16>("cublasGemmEx, bf16", s, true, 0, [&](auto a, auto b, auto c) {
    return cublasGemmEx(handle, t, n, s.m, s.n, s.k, &one, a, CUDA_R_16BF, s.k, b, CUDA_R_16BF, s.k, &zero, c, CUDA_R_16BF, s.m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  });
  product<__half>("cublasGemmEx, f16, beta", s, true, 0.5, [&](auto a, auto b, auto c) {
    return cublasGemmEx(handle, t, n, s.m, s.n, s.k, &one, a, CUDA_R_16F, s.k, b, CUDA_R_16F, s.k, &half, c, CUDA_R_16F, s.m, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  });
  product<float>("cublasSgemm", s, false, 0, [&](auto a, auto b, auto c) { return cublasSgemm(handle, n, n, s.m, s.n, s.k, &one, a, s.m, b, s.k, &zero, c, s.m); });
  product<double>("cublasDgemm", s, false, 0, [&](auto a, auto b, auto c) { return cublasDgemm(handle, n, n, s.m, s.n, s.k, &one64, a, s.m, b, s.k, &zero64, c, s.m); });
  s.k = std::min(s.k, 256);  // sums in f16
  product<__half>("cublasHgemm", s, false, 0, [&](auto a, auto b, auto c) { return cublasHgemm(handle, n, n, s.m, s.n, s.k, &one16, a, s.m, b, s.k, &zero16, c, s.m); });
}

static void batched(cublasHandle_t handle, Size s) {
  const float one = 1, zero = 0;
  const auto n = CUBLAS_OP_N, t = CUBLAS_OP_T;
  const long long of_a = (long long)(s.m) * s.k, of_b = (long long)(s.k) * s.n, of_c = (long long)(s.m) * s.n;
  product<__nv_bfloat16>("cublasGemmStridedBatchedEx, bf16", s, true, 0, [&](auto a, auto b, auto c) {
    return cublasGemmStridedBatchedEx(handle, t, n, s.m, s.n, s.k, &one, a, CUDA_R_16BF, s.k, of_a, b, CUDA_R_16BF, s.k, of_b, &zero, c, CUDA_R_16BF, s.m, of_c, s.batch,
                                      CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
  });
  product<float>("cublasSgemmStridedBatched", s, true, 0, [&](auto a, auto b, auto c) {
    return cublasSgemmStridedBatched(handle, t, n, s.m, s.n, s.k, &one, a, s.k, of_a, b, s.k, of_b, &zero, c, s.m, of_c, s.batch);
  });
}

static void light(cublasLtHandle_t handle, Size s, bool with_bias) {
  const auto bias = random_numbers<__nv_bfloat16>(with_bias ? s.m : 1);
  __nv_bfloat16* const on_bias = on_device(bias);
  const auto call = [&](auto a, auto b, auto c) {
    const float one = 1, zero = 0;
    const cublasOperation_t t = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t of_a, of_b, of_c;
    cublasLtMatmulPreference_t preference;
    CHECK(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &t, sizeof t));
    if (with_bias) {
      CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
      CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &on_bias, sizeof on_bias));
    }
    CHECK(cublasLtMatrixLayoutCreate(&of_a, CUDA_R_16BF, s.k, s.m, s.k));
    CHECK(cublasLtMatrixLayoutCreate(&of_b, CUDA_R_16BF, s.k, s.n, s.k));
    CHECK(cublasLtMatrixLayoutCreate(&of_c, CUDA_R_16BF, s.m, s.n, s.m));
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle, product, of_a, of_b, of_c, of_c, preference, 1, &found, &count));
    return count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : cublasLtMatmul(handle, product, &one, a, of_a, b, of_b, &zero, c, of_c, c, of_c, &found.algo, nullptr, 0, nullptr);
  };
  product<__nv_bfloat16>(with_bias ? "cublasLtMatmul, bf16, bias" : "cublasLtMatmul, bf16", s, true, 0, call, with_bias ? bias : std::vector<__nv_bfloat16>{});
  CHECK(cudaFree(on_bias));
}

int main() {
  cublasHandle_t handle;
  cublasLtHandle_t lt;
  int version, runtime;
  CHECK(cublasCreate(&handle));
  CHECK(cublasLtCreate(&lt));
  CHECK(cublasGetVersion(handle, &version));
  CHECK(cudaRuntimeGetVersion(&runtime));
  std::printf("cuBLAS %d, CUDA runtime %d\n", version, runtime);
  for (const Size s : {Size{4096, 1, 4096}, {4096, 16, 4096}, {2048, 512, 2048}, {4096, 1000, 1024}, {128, 128, 8192}}) dense(handle, s);
  batched(handle, {512, 128, 64, 24});
  for (const bool with_bias : {false, true}) light(lt, {2048, 300, 1024}, with_bias);
  std::printf("%s\n", all_right ? "all right" : "WRONG");
  return all_right ? 0 : 1;
}
