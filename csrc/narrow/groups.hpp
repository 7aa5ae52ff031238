// Products of groups of rows with narrow weights whose type of A the kernel does not know when it is compiled.
#pragma once
#include "narrow/exact.hpp"

namespace tilegemm::narrow {
namespace {

// Calls `with`(number) for a number of A's type.
template <class With>
__device__ __forceinline__ void with_type(const tg_gemm_args& args, const With& with) {
  switch (args.types.a) {
    case TG_F16: with(__half()); break;
    case TG_BF16: with(__nv_bfloat16()); break;
    default: with(0.0f); break;
  }
}

// Sums that are not finite, once more: a lane's, where it asks, of its row of A by its row of W. For whole warps.
template <tg_format CODES>
__device__ __noinline__ float repaired(const tg_gemm_args& args, const Divisor& pairs_per_row, bool asks, int group,
                                       int row, int n, float sum) {
#pragma unroll 1
  for (unsigned left = __ballot_sync(~0u, asks); left; left &= left - 1) {
    const int lane = __ffs(left) - 1;
    const int64_t of_a = pairs_per_row.quotient(__shfl_sync(~0u, row, lane)), of_w = __shfl_sync(~0u, n, lane);
    float exact;
    with_type(args,
              [&](auto number) { exact = once_more<CODES, decltype(number)>(args, of_a, of_w, 0, args.k, group); });
    if (int(threadIdx.x) % 32 == lane) sum = exact;
  }
  return sum;
}

}  // namespace
}  // namespace tilegemm::narrow
