// Rows of a matrix A in f32, f16 or bf16, on their way to another format.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm {
namespace {

template <class T>
struct Numbers {
  static constexpr int width = 4;  // neighbouring numbers of a thread
  const T* from;
  int64_t stride, k;

  __host__ __device__ explicit Numbers(const tg_gemm_args& args)
      : from(static_cast<const T*>(args.a.ptr)), stride(args.a.row_stride), k(args.k) {}

  __device__ void load(int64_t row, int64_t at, float (&x)[width]) const {
    const T* const here = from + row * stride + at;
    const bool is_whole = at + width <= k && reinterpret_cast<uintptr_t>(here) % (width * sizeof(T)) == 0;
    T numbers[width];
    if (is_whole) {
      if constexpr (sizeof(T) == 4) *reinterpret_cast<float4*>(numbers) = *reinterpret_cast<const float4*>(here);
      else *reinterpret_cast<uint2*>(numbers) = *reinterpret_cast<const uint2*>(here);
    }
#pragma unroll
    for (int i = 0; i < width; i++) x[i] = is_whole ? float(numbers[i]) : at + i < k ? float(here[i]) : 0.0f;
  }
};

}  // namespace
}  // namespace tilegemm
