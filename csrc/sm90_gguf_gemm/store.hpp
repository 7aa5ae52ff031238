// From sums in registers to results in D, or in the part of the workspace for a part of K.
#pragma once
#include "common/ptx.hpp"
#include "gguf/results.hpp"
#include "gguf/wgmma.hpp"

namespace tilegemm {
namespace {

// Rows of results, from row `first` of A on.
template <class Out>
struct RowsFrom {
  int first;
  Out* d;
  int64_t stride;
  float factor;
  __device__ __forceinline__ gguf::ResultRow<Out> operator()(int i) const {
    return {first + i, d + (first + i) * stride, factor};
  }
};

// A warp's results: of its 16 rows of W, and of the rows of A of its block.
struct Place {
  const tg_gemm_args& args;
  int warp, lane, first_m, first_n;  // `first_n`: of the block
  float alpha;

  __device__ __forceinline__ int g() const { return lane / 4; }
  __device__ __forceinline__ int t() const { return lane % 4; }
  __device__ __forceinline__ int first_row() const { return first_n + warp * gguf::rows_of_warp; }
  // How many rows of A exist from row `m` on.
  __device__ __forceinline__ int rows_from(int m) const { return int(args.m) - m; }
};

// Puts a lane's sums: rows 2 g and 2 g + 1 of W, by columns 2 t and 2 t + 1 of each eight. The pointer advances: the
// compiler would multiply in 64 bits for each row.
template <class Out, int columns>
struct PutSums {
  const float (&sum)[4 * columns];  // ((2,2),columns)
  Out* d;
  int64_t stride;
  float alpha;
  template <class Put>
  __device__ __forceinline__ void operator()(const Put& put) const {
    Out* to = d;
#pragma unroll
    for (int j = 0; j < columns; j++) {
      put(8 * j, to, sum[4 * j], sum[4 * j + 2], alpha), to += stride;
      put(8 * j + 1, to, sum[4 * j + 1], sum[4 * j + 3], alpha), to += 7 * stride;
    }
  }
};

// Stores the sums of a block over spans [begin, end) of K.
template <class S, class Out>
__device__ __forceinline__ void store(const Place& p, const float (&sum)[S::width / 2], Out* d, int64_t stride,
                                      int begin, int end) {
  const int m = p.first_m + 2 * p.t(), n = p.first_row() + 2 * p.g();
  gguf::Stores stores(p.args, d, stride, n, p.rows_from(m));
  stores.put_rows(PutSums<Out, S::width / 8>{sum, d + m * stride + n, stride, p.alpha});
  if (!__all_sync(~0u, stores.are_finite())) {
    const int64_t from = int64_t(begin) * gguf::span, until = min(int64_t(end) * gguf::span, p.args.k);
    gguf::repair<S::format>(p.args, 0, p.first_row(), min(S::width, p.rows_from(p.first_m)), from, until,
                            RowsFrom<Out>{p.first_m, d, stride, p.alpha});
  }
}

}  // namespace
}  // namespace tilegemm
