// Common to the kernels that multiply f32 by six products of bf16 parts: fragments of the operand that is split on the
// way into registers, the order of products, exact additions, and results that are not finite. docs/f32.md and the
// kernels' sources give the reasons.
#pragma once
#include "common/bf16_parts.hpp"
#include "common/kernel.hpp"
#include "common/panel.hpp"
#include "common/wgmma.hpp"

namespace tilegemm {
namespace {

// A lane's share of 16 rows and 16 of K, for each part.
using Fragments = uint32_t[3][4];

// Reads swizzled rows of 128 bytes, in the order of the planes (common/bf16_parts.hpp). `at` is the lane's row lane / 4
// and its chunk 2 * (lane % 4) + j for half j of 32 of K. The lane's other row is eight rows further.
__device__ __forceinline__ void load_fragments(Fragments& f, uint32_t at) {
  const float4 x = load_shared_4_ordered(at), y = load_shared_4_ordered(at + 8 * 128);
  split(x.x, x.y, f[0][0], f[1][0], f[2][0]);
  split(y.x, y.y, f[0][1], f[1][1], f[2][1]);
  split(x.z, x.w, f[0][2], f[1][2], f[2][2]);
  split(y.z, y.w, f[0][3], f[1][3], f[2][3]);
#pragma unroll
  for (int part = 0; part < 3; part++) {
#pragma unroll
    for (int i = 0; i < 4; i++) asm volatile("" : "+r"(f[part][i])::"memory");
  }
}

// Product `p` of six, for half `j` of 32 of K: 0 to 4 are the small products, 5 is the large product. `q`: the planes
// of the other operand, `rows` rows of each, `part_bytes` apart. `add`: whether the product is added to d.
template <int rows, int part_bytes>
__device__ __forceinline__ void multiply_parts(float (&d)[rows / 2], const Fragments& f, uint64_t q, int j, int p,
                                               int add) {
  constexpr int of_p[] = {0, 1, 2, 0, 1, 0}, of_q[] = {2, 1, 0, 1, 0, 0};
  wgmma_registers<rows>(d, f[of_p[p]], q + ((of_q[p] * part_bytes + j * 32) >> 4), add);
}

// Tensor cores truncate sums: a result loses 3e-8 to 6e-8 of its size on average, whatever the signs are. Adding this
// constant's share of the result changes no exact result, because the share is less than half a unit of the last place
// of any number.
constexpr float given_back = 0x1p-25f * (1 - 0x1p-10f);

// Adds d to sum, and sets d to the rounding error: exactly if |sum| >= |d| (Fast2Sum), otherwise no larger than the
// true error. The sum is formed twice in one piece of assembly, by an addition and by a multiplication with a 1 that
// the compiler does not know. Otherwise ptxas keeps the old sum beside the new sum, in as many registers again.
template <int size>
__device__ __forceinline__ void add_exactly(float (&sum)[size], float (&d)[size], float one) {
  wgmma_pin(d);
#pragma unroll
  for (int i = 0; i < size; i++) {
    asm volatile(
        "{\n .reg .f32 s, t;\n add.rn.f32 s, %0, %1;\n sub.rn.f32 t, s, %0;\n fma.rn.f32 %0, %1, %2, %0;\n"
        " sub.rn.f32 %1, %1, t;\n}"
        : "+f"(sum[i]), "+f"(d[i])
        : "f"(one));
  }
  wgmma_pin(sum);
  wgmma_pin(d);
}

// Fast2Sum as above, in three instructions instead of four, for kernels with enough registers.
template <int size>
__device__ __forceinline__ void add_exactly(float (&sum)[size], float (&d)[size]) {
  wgmma_pin(d);
#pragma unroll
  for (int i = 0; i < size; i++) {
    asm volatile(
        "{\n .reg .f32 s, t;\n add.rn.f32 s, %0, %1;\n sub.rn.f32 t, s, %0;\n sub.rn.f32 %1, %1, t;\n mov.f32 %0, s;\n}"
        : "+f"(sum[i]), "+f"(d[i]));
  }
  wgmma_pin(sum);
  wgmma_pin(d);
}

// Adds x to sum and returns the exact rounding error, whichever number is larger (TwoSum).
__device__ __forceinline__ float add_whole(float& sum, float x) {
  const float old = sum;
  sum = __fadd_rn(old, x);
  const float of_x = __fsub_rn(sum, old), of_old = __fsub_rn(sum, of_x);
  return __fadd_rn(__fsub_rn(old, of_old), __fsub_rn(x, of_x));
}

// ---- Results that are not finite ------------------------------------------------------------------------------------

__device__ __forceinline__ bool is_strange(float x) { return !(fabsf(x) <= 3.402823466e38f); }

// Whether a thread of the warp has a number that is not finite; such a number is computed again. Only a number that is
// not finite, times 0, is not 0.
template <int size>
__device__ __forceinline__ bool any_strange(const float (&x)[size]) {
  float zero = 0;
#pragma unroll
  for (int i = 0; i < size; i++) zero = fmaf(x[i], 0.0f, zero);
  return __any_sync(~0u, zero != 0);
}

// An element of a @ b, by fused multiply-adds along K.
__device__ __forceinline__ float strict(const tg_matrix& a, const tg_matrix& b, int depth, int row, int column,
                                        int batch0, int batch1) {
  const auto line = [&](const tg_matrix& x, int64_t at) {
    return static_cast<const float*>(x.ptr) + at + batch0 * x.batch_stride[0] + batch1 * x.batch_stride[1];
  };
  const float* in_a = line(a, row * a.row_stride);
  const float* in_b = line(b, column * b.col_stride);
  float sum = 0;
  int k = 0;
  for (; k + 8 <= depth && sum == sum; k += 8) {
    float x[8], y[8];
#pragma unroll
    for (int i = 0; i < 8; i++)
      x[i] = __ldg(in_a + (k + i) * a.col_stride), y[i] = __ldg(in_b + (k + i) * b.row_stride);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[i], y[i], sum);
  }
  for (; k < depth && sum == sum; k++) sum = fmaf(__ldg(in_a + k * a.col_stride), __ldg(in_b + k * b.row_stride), sum);
  return sum;
}

// ---- Strips ---------------------------------------------------------------------------------------------------------
//
// A warp's 16 rows of D in shared memory, on their way to global memory, in panels (common/panel.hpp).

// Stores a warp's sums, in wgmma's order, to a strip, after TMA has read the earlier contents of the strip.
template <int size>
__device__ __forceinline__ void store_strip(const float (&sum)[size], uint32_t strip, int lane) {
  const int g = lane / 4, q = lane % 4;
  if (lane == 0) tma_store_wait_read();
  __syncwarp();
#pragma unroll
  for (int panel = 0; panel < size / 16; panel++) store_panel(sum + panel * 16, strip + panel * panel_bytes, g, q);
  __syncwarp();
}

// Stores a strip at (row, column) of D, m by n, by TMA; the stores complete asynchronously.
template <int panels>
__device__ __forceinline__ void tma_store_strip(const CUtensorMap& d_map, uint32_t strip, int row, int column, int m,
                                                int n, int batch0, int batch1, int lane) {
  fence_proxy_async();
  __syncwarp();
  if (lane == 0 && row < m) {
#pragma unroll
    for (int panel = 0; panel < panels; panel++) {
      const int at = column + panel * 32;
      if (at < n) tma_store(&d_map, strip + panel * panel_bytes, at, row, batch1, batch0);
    }
    tma_store_commit();
  }
}

// Computes again, by `strict_at`, the elements of a strip at (row, column) that are not finite and lie inside of D, m
// by n.
template <int panels, class Strict>
__device__ __forceinline__ void mend_strip(uint32_t strip, int row, int column, int m, int n, const Strict& strict_at) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int i = 0; i < 16 * panels; i++) {
    const uint32_t here = in_strip(strip, i / 16, i % 16, lane);
    const int at_m = row + i % 16, at_n = column + i / 16 * 32 + lane;
    if (is_strange(__uint_as_float(load_shared(here))) && at_m < m && at_n < n)
      store_shared(here, strict_at(at_m, at_n));
  }
}

}  // namespace
}  // namespace tilegemm
