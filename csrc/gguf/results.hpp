// Results of the kernels by wgmma: stores of a lane, and results that are not finite once more (gguf/exact.hpp).
#pragma once
#include <cstring>

#include "gguf/exact.hpp"

namespace tilegemm::gguf {
namespace {

// The product of two numbers of 32 bits in one instruction. The compiler keeps a factor that does not change in 64
// bits, and multiplies in 64 bits.
__device__ __forceinline__ uint64_t mul_wide(uint32_t x, uint32_t y) {
  uint64_t product;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(x), "r"(y));
  return product;
}

// The stores of a lane, of neighbouring columns n and n + 1 of D, where n is even: a store of both writes whole sectors
// of 32 bytes of D, in 16 bits too. Conditions are comparisons of two numbers of 32 bits.
template <class Out>
class Stores {
  using Two = std::conditional_t<sizeof(Out) == 4, uint2, uint32_t>;
  unsigned of_first_, of_second_;  // rows that results of the columns are stored of
  bool are_pairs_;                 // all lanes store results of both columns at once
  float zero_ = 0.0f;              // unless a sum is not finite

  template <bool PAIRS>
  __device__ __forceinline__ void put(unsigned row, Out* to, float first, float second, float factor) {
    const Out both[2] = {Out(factor * first), Out(factor * second)};
    if (row < of_first_) {
      if constexpr (PAIRS) {
        Two two;
        memcpy(&two, both, sizeof two);
        *reinterpret_cast<Two*>(to) = two;
      } else {
        to[0] = both[0];
      }
      zero_ = fmaf(first, 0.0f, fmaf(second, 0.0f, zero_));
    }
    if (!PAIRS && row < of_second_) to[1] = both[1];
  }

 public:
  // `d`: the first result of D, or of a part of K; `rows`: that exist.
  __device__ __forceinline__ Stores(const tg_gemm_args& args, const Out* d, int64_t stride, int n, int rows)
      : of_first_(n < args.n ? max(rows, 0) : 0), of_second_(n + 1 < args.n ? of_first_ : 0),
        are_pairs_(args.n % 2 == 0 && stride % 2 == 0 && reinterpret_cast<uintptr_t>(d) % sizeof(Two) == 0) {}

  // Calls `rows`(put), which calls put(row, to, first, second, factor) for each row: the results at `to` and behind are
  // the sums times the factor.
  template <class Rows>
  __device__ __forceinline__ void put_rows(const Rows& rows) {
    if (are_pairs_) rows([&](auto... row) { put<true>(row...); });
    else rows([&](auto... row) { put<false>(row...); });
  }

  __device__ __forceinline__ bool are_finite() const { return zero_ == 0.0f; }
};

// A row of results: the row of A, the results of column 0 and on, and a factor of the sums. A null pointer: none.
template <class Out>
struct ResultRow {
  int64_t row_of_a;
  Out* d;
  float factor;
};

// Computes the results that are not finite of 16 columns from `first_n` on and of `rows` rows once more, over k in
// [begin, end). `row`(i): row i, a ResultRow. All lanes of the warp that has stored the results take part.
template <tg_format F, class Row>
__device__ __forceinline__ void repair(const tg_gemm_args& args, int matrix, int first_n, int rows, int64_t begin,
                                       int64_t end, const Row& row) {
  const int lane = threadIdx.x % 32, column = first_n + lane % rows_of_warp;
  __syncwarp();
#pragma unroll 1
  for (int first = 0; first < rows; first += 32) {
    // A lane looks through the results of a row.
    unsigned wrong = 0;
    if (first + lane < rows) {
      if (const auto of = row(first + lane); of.d) {
#pragma unroll
        for (int c = 0; c < rows_of_warp; c++) {
          if (first_n + c < args.n && !isfinite(float(of.d[first_n + c]))) wrong |= 1u << c;
        }
      }
    }
#pragma unroll 1
    for (unsigned left = __ballot_sync(~0u, wrong != 0); left; left &= left - 1) {
      const int lane_of_row = __ffs(left) - 1;
      const auto of = row(first + lane_of_row);
      const bool is_wrong = __shfl_sync(~0u, wrong, lane_of_row) >> lane % rows_of_warp & 1;
      const Once once =
          once_more<F, rows_of_warp>(args, of.row_of_a, matrix, column, is_wrong, begin, end, MostOfF32{});
      if (once.is_new && lane < rows_of_warp)
        of.d[column] = std::remove_reference_t<decltype(*of.d)>(of.factor * once.sum);
    }
  }
}

}  // namespace
}  // namespace tilegemm::gguf
