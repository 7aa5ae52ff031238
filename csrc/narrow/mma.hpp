// Fragments of mma.m16n8k16 in f16.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm::narrow {
namespace {

// Four matrices of 8 x 8 numbers; lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(const uint8_t* from, uint32_t (&words)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(uint32_t(__cvta_generic_to_shared(from))));
}

// Like mma_16, but the compiler may move it.
__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace
}  // namespace tilegemm::narrow
