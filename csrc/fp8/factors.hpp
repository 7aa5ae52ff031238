// The factors of X and W in 8 bits, and how sums are kept.
//
// X (m, k) counts times x[m * x_m + k / 128 * x_k] and W (n, k) times w[n * w_n], or in blocks
// w[n / 128 * w_n + k / 128 * w_k]. A stride of 0 makes one factor of a tensor.
//
// Hopper's tensor cores keep some 13 bits of a sum of e4m3. So sums over 128 of K, four products, are added in f32
// (`promoted`, and `blocks`, where each is multiplied by its factors first). `whole` leaves all of K to the tensor
// cores: fast, and for s8 exact.
#pragma once
#include "common/fp8.hpp"
#include "common/kernel.hpp"
#include "common/ptx.hpp"
#include "common/tensor_map.hpp"

namespace tilegemm {

template <> struct scalar<TG_I8> {
  using type = int8_t;
  using accumulator = int;
};

enum class Sums { whole, promoted, blocks };

constexpr int factor_k = 128, factor_n = 128;  // of a block

// Null: no factors.
struct Factors {
  const float* x;
  int64_t x_m, x_k;
  const float* w;
  int64_t w_n, w_k;
};

// The factors of a problem, and whether they are of blocks. False: there are factors that no kernel takes.
// src/family/fp8.rs has the same conditions.
inline bool factors_of(const tg_gemm_args& args, Factors* factors, bool* blocks) {
  const tg_scale &a = args.a_scale, &b = args.b_scale;
  const auto known = [](const tg_scale& scale) { return !scale.ptr || (scale.format == TG_F32 && !scale.zeros); };
  // What numbers along an extent share: a factor of all, or of so many.
  const auto all = [](uint32_t shared, int64_t extent) { return shared >= extent; };
  const bool x_rows = a.ptr && !all(a.rows, args.m), x_blocks = a.ptr && !all(a.columns, args.k);
  const bool w_rows = b.ptr && !all(b.columns, args.n), w_blocks = b.ptr && !all(b.rows, args.k);
  *factors = {static_cast<const float*>(a.ptr), x_rows ? a.row_stride : 0, x_blocks ? a.col_stride : 0,
              static_cast<const float*>(b.ptr), w_rows ? b.col_stride : 0, w_blocks ? b.row_stride : 0};
  *blocks = x_blocks || w_blocks || (w_rows && b.columns != 1);
  return known(a) && known(b) && (!x_rows || a.rows == 1) && (!x_blocks || a.columns == factor_k) &&
         (!w_blocks || b.rows == factor_k) && (!w_rows || b.columns == (*blocks ? factor_n : 1)) &&
         (!*blocks || (a.ptr && b.ptr));
}

__device__ __forceinline__ float load_shared_f(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from));
  return x;
}

// Copies a factor to shared memory without waiting, or zero where it does not exist.
__device__ __forceinline__ void copy_factor(uint32_t to, const float* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}

// The same of factor `at` of some; without factors the factor is 1.
__device__ __forceinline__ void copy_factor(uint32_t to, const float* factors, int64_t at, bool exists) {
  if (factors) copy_factor(to, factors + at, exists);
  else asm volatile("st.shared.f32 [%0], 0f3F800000;" ::"r"(to) : "memory");
}

// A warp's copies of the factors of one stage: `rows` of X, then `blocks` of W, for each 128 of K of the stage.
// `x_rows`: rows of X that exist from the first one on; `w_blocks`: likewise of W.
template <int rows, int blocks, int boxes>
struct FactorLoader {
  static constexpr int in_box = rows + blocks, bytes = (boxes * in_box * 4 + 15) / 16 * 16, copies = (in_box + 31) / 32;
  const float* from[copies];
  int64_t step[copies];
  bool exists[copies];

  __device__ __forceinline__ FactorLoader(const Factors& f, int first_m, int first_block, int x_rows, int w_blocks,
                                          int first_k, int lane) {
#pragma unroll
    for (int i = 0; i < copies; i++) {
      const int e = lane + 32 * i;
      const bool of_x = e < rows;
      const int at = of_x ? e : e - rows;
      exists[i] = at < (of_x ? x_rows : min(w_blocks, blocks));
      step[i] = of_x ? f.x_k : f.w_k;
      from[i] = exists[i] ? (of_x ? f.x + (first_m + at) * f.x_m : f.w + (first_block + at) * f.w_n) + first_k * step[i]
                          : f.x;
      if (!exists[i]) step[i] = 0;
    }
  }

  // `left`: blocks along K that exist from this stage on.
  __device__ __forceinline__ void load(uint32_t to, int left, int lane) {
#pragma unroll
    for (int b = 0; b < boxes; b++) {
#pragma unroll
      for (int i = 0; i < copies; i++) {
        const int e = lane + 32 * i;
        if (e < in_box) {
          const bool is = exists[i] && b < left;
          copy_factor(to + (b * in_box + e) * 4, is ? from[i] : from[0], is);
        }
        from[i] += step[i];
      }
    }
  }
};

// A K-major operand of numbers of 8 bits: K x rows, in swizzled boxes of 128 x `box_rows`.
inline bool tensor_map_8(CUtensorMap* map, const void* ptr, int64_t stride, int64_t rows, int64_t k, int box_rows,
                         CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  if (rows == 1) stride = (k + 15) / 16 * 16;  // the stride of a single row has no effect
  return tensor_map<2>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, const_cast<void*>(ptr), {cuuint64_t(k), cuuint64_t(rows)},
                       {cuuint64_t(stride)}, {128, cuuint32_t(box_rows)}, CU_TENSOR_MAP_SWIZZLE_128B, promotion);
}

// Boxes of a two-dimensional tensor, as common/ptx.hpp has them of three.
__device__ __forceinline__ void tma_load_2(const void* map, uint32_t to, uint32_t barrier, int x, int y,
                                           uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void tma_store_2(const void* map, uint32_t from, int x, int y) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from),
               "r"(x), "r"(y)
               : "memory");
}
__device__ __forceinline__ void tma_prefetch_2(const void* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x), "r"(y) : "memory");
}

}  // namespace tilegemm
