// Calls each product that the preload library defines, with other numbers for every argument, and checks the status. The libraries are those of stub.cpp.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdio>
#include <cstdlib>

template <class T> static T* at(long address) { return reinterpret_cast<T*>(address << 12); }

static int calls = 0;

static void check(const char* name, cublasStatus_t status) {
  ++calls;
  if (status == CUBLAS_STATUS_ARCH_MISMATCH) return;
  std::fprintf(stderr, "%s returned %d, not the library's status\n", name, status);
  std::exit(1);
}

#define CHECK(name, ...) check(#name, name(__VA_ARGS__))

#ifdef STATIC
// A name in every cuBLASLt.
extern const char* const environment;
const char* const environment = "CUBLASLT_LOG_LEVEL";
#endif

int main() {
#ifdef STATIC
  std::printf("%s\n", environment);
#endif
  static int host = 0, device = 1, plain = 0;  // static: the addresses are the same in every run
  const auto handle = reinterpret_cast<cublasHandle_t>(&host), by_device = reinterpret_cast<cublasHandle_t>(&device);
  static const float alpha = 1.5f, beta = 0.5f;
  static const double alpha64 = 1.5, beta64 = 0.5;
  static const __half alpha16{}, beta16{};
  const auto n = CUBLAS_OP_N, t = CUBLAS_OP_T;
  const auto bf16 = CUDA_R_16BF;
  const auto f32 = CUBLAS_COMPUTE_32F;
  const auto algo = CUBLAS_GEMM_DEFAULT;
  CHECK(cublasGemmEx, handle, t, n, 1, 2, 3, &alpha, at<void>(1), bf16, 4, at<void>(2), bf16, 5, &beta, at<void>(3), bf16, 6, f32, algo);
  CHECK(cublasGemmEx, by_device, t, n, 1, 2, 3, &alpha, at<void>(1), bf16, 4, at<void>(2), bf16, 5, &beta, at<void>(3), bf16, 6, f32, algo);
  CHECK(cublasGemmEx, handle, t, n, 1, 2, 3, &alpha, at<void>(1), CUDA_R_8I, 4, at<void>(2), CUDA_R_8I, 5, &beta, at<void>(3), CUDA_R_32I, 6, f32, algo);
  CHECK(cublasGemmEx, handle, t, n, 1, 2, 3, &alpha, at<void>(1), CUDA_R_16F, 4, at<void>(2), CUDA_R_16F, 5, &beta, at<void>(3), CUDA_R_16F, 6,
        CUBLAS_COMPUTE_16F, algo);
  CHECK(cublasGemmEx, handle, t, n, -1, 2, 3, &alpha, at<void>(1), bf16, 4, at<void>(2), bf16, 5, &beta, at<void>(3), bf16, 6, f32, algo);
  CHECK(cublasGemmStridedBatchedEx, handle, t, n, 1, 2, 3, &alpha, at<void>(1), bf16, 4, 1L << 33, at<void>(2), bf16, 5, 1L << 34, &beta, at<void>(3), bf16, 6,
        1L << 35, 7, f32, algo);
  CHECK(cublasGemmBatchedEx, handle, t, n, 1, 2, 3, &alpha, at<const void*>(1), bf16, 4, at<const void*>(2), bf16, 5, &beta, at<void*>(3), bf16, 6, 7, f32, algo);
  CHECK(cublasSgemmBatched, handle, t, n, 1, 2, 3, &alpha, at<const float*>(1), 4, at<const float*>(2), 5, &beta, at<float*>(3), 6, 7);
  CHECK(cublasSgemm_v2, handle, t, n, 1, 2, 3, &alpha, at<float>(1), 4, at<float>(2), 5, &beta, at<float>(3), 6);
  CHECK(cublasSgemmStridedBatched, handle, t, n, 1, 2, 3, &alpha, at<float>(1), 4, 1L << 33, at<float>(2), 5, 1L << 34, &beta, at<float>(3), 6, 1L << 35, 7);
  CHECK(cublasDgemm_v2, handle, t, n, 1, 2, 3, &alpha64, at<double>(1), 4, at<double>(2), 5, &beta64, at<double>(3), 6);
  CHECK(cublasDgemmStridedBatched, handle, t, n, 1, 2, 3, &alpha64, at<double>(1), 4, 1L << 33, at<double>(2), 5, 1L << 34, &beta64, at<double>(3), 6, 1L << 35,
        7);
  CHECK(cublasHgemm, handle, t, n, 1, 2, 3, &alpha16, at<__half>(1), 4, at<__half>(2), 5, &beta16, at<__half>(3), 6);
  CHECK(cublasHgemmStridedBatched, handle, t, n, 1, 2, 3, &alpha16, at<__half>(1), 4, 1L << 33, at<__half>(2), 5, 1L << 34, &beta16, at<__half>(3), 6, 1L << 35,
        7);
  const auto desc = reinterpret_cast<cublasLtMatmulDesc_t>(&plain);
  const auto layout = reinterpret_cast<cublasLtMatrixLayout_t>(&plain);
  CHECK(cublasLtMatmul, reinterpret_cast<cublasLtHandle_t>(&host), desc, &alpha, at<void>(1), layout, at<void>(2), layout, &beta, at<void>(3), layout, at<void>(4),
        layout, nullptr, at<void>(5), 1L << 33, at<CUstream_st>(6));
  std::printf("%d calls\n", calls);
}
