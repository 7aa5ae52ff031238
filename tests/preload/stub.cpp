// A libcublas (with -DLT: a libcublasLt) whose products print their arguments and return a status of their own. scripts/check_preload.sh builds the two with the
// symbol versions of NVIDIA's libraries. NVIDIA's headers declare every function, so a wrong signature is an error of the compiler.
#include <cublasLt.h>
#include <cublas_v2.h>

#include <cstdio>
#include <cstring>

#ifndef VERSION
#define VERSION 13
#endif

// A handle and a descriptor are numbers: the pointer mode of a handle, and an attribute's value of a descriptor.
template <class T> static int number(T pointer) { return *reinterpret_cast<const int*>(pointer); }

template <class... Arguments> static cublasStatus_t say(const char* name, cublasStatus_t status, Arguments... arguments) {
  std::printf("%s", name);
  ((std::printf(" %lld", (long long)arguments)), ...);
  std::printf("\n");
  return status;
}

#define SAY(...) say(__func__, CUBLAS_STATUS_ARCH_MISMATCH, __VA_ARGS__)

extern "C" {

#ifdef LT

cublasStatus_t cublasLtCreate(cublasLtHandle_t*) { return CUBLAS_STATUS_SUCCESS; }

static cublasStatus_t set(int number, void* value, size_t bytes, size_t* written) {
  for (size_t i = 0; i < bytes; ++i) static_cast<char*>(value)[i] = 0;
  std::memcpy(value, &number, bytes < sizeof number ? bytes : sizeof number);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, void* value, size_t bytes, size_t* written) {
  return set(attribute == CUBLASLT_MATMUL_DESC_COMPUTE_TYPE ? CUBLAS_COMPUTE_32F : number(desc), value, bytes, written);
}

cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t desc, cublasLtMatrixLayoutAttribute_t, void* value, size_t bytes, size_t* written) {
  return set(number(desc), value, bytes, written);
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes, cudaStream_t stream) {
  return SAY(handle, number(desc), alpha, a, number(a_layout), b, number(b_layout), beta, c, number(c_layout), d, number(d_layout), algorithm, workspace, bytes,
             stream);
}

#else

cublasStatus_t cublasCreate_v2(cublasHandle_t*) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
  *value = type == MAJOR_VERSION ? VERSION : 0;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t, cudaStream_t* stream) {
  *stream = nullptr;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = static_cast<cublasPointerMode_t>(number(handle));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
  *mode = CUBLAS_DEFAULT_MATH;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType a_type, int lda, const void* b, cudaDataType b_type, int ldb, const void* beta, void* c, cudaDataType c_type, int ldc,
                            cublasComputeType_t compute, cublasGemmAlgo_t algo) {
  // NVIDIA's library calls cublasLtMatmul, too: not a call of the program.
  static int plain = 0;
  const auto layout = reinterpret_cast<cublasLtMatrixLayout_t>(&plain);
  cublasLtMatmul(nullptr, reinterpret_cast<cublasLtMatmulDesc_t>(&plain), alpha, a, layout, b, layout, beta, c, layout, c, layout, nullptr, nullptr, 0, nullptr);
  return SAY(number(handle), transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, algo);
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType a_type, int lda, long long stride_a, const void* b, cudaDataType b_type, int ldb,
                                          long long stride_b, const void* beta, void* c, cudaDataType c_type, int ldc, long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algo) {
  return SAY(number(handle), transa, transb, m, n, k, alpha, a, a_type, lda, stride_a, b, b_type, ldb, stride_b, beta, c, c_type, ldc, stride_c, batch, compute,
             algo);
}

cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const void* alpha,
                                   const void* const a[], cudaDataType a_type, int lda, const void* const b[], cudaDataType b_type, int ldb, const void* beta,
                                   void* const c[], cudaDataType c_type, int ldc, int batch, cublasComputeType_t compute, cublasGemmAlgo_t algo) {
  return SAY(number(handle), transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, batch, compute, algo);
}

cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const float* alpha,
                                  const float* const a[], int lda, const float* const b[], int ldb, const float* beta, float* const c[], int ldc, int batch) {
  return SAY(number(handle), transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, batch);
}

#define TYPED(GEMM, STRIDED, T)                                                                                                                                    \
  cublasStatus_t GEMM(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const T* alpha, const T* a, int lda,        \
                      const T* b, int ldb, const T* beta, T* c, int ldc) {                                                                                         \
    return SAY(number(handle), transa, transb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                                                                      \
  }                                                                                                                                                                \
  cublasStatus_t STRIDED(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const T* alpha, const T* a, int lda,     \
                         long long stride_a, const T* b, int ldb, long long stride_b, const T* beta, T* c, int ldc, long long stride_c, int batch) {              \
    return SAY(number(handle), transa, transb, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, c, ldc, stride_c, batch);                                \
  }
TYPED(cublasSgemm_v2, cublasSgemmStridedBatched, float)
TYPED(cublasDgemm_v2, cublasDgemmStridedBatched, double)
TYPED(cublasHgemm, cublasHgemmStridedBatched, __half)

#endif
}
