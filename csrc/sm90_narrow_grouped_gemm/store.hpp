// From a warp's sums to rows of D: 16 rows of W by a tile's rows of A.
#pragma once
#include "narrow/groups.hpp"
#include "narrow/parked.hpp"
#include "narrow/results.hpp"
#include "sm90_narrow_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// Where results of a warp go: of rows of W from n0 on those from n_from on.
template <class S>
struct Target {
  const typename S::Places& tile;
  int n0, n_from;

  __device__ __forceinline__ bool has(int n, int end) const { return n >= n_from && n < end; }
};

// Whether the sums that D has are finite.
template <class S>
__device__ __forceinline__ bool are_finite(const float (&sum)[S::width / 2], int height) {
  float zero = 0.0f;
#pragma unroll
  for (int i = 0; i < S::width / 2; i++) {
    if (i / 4 * 8 + int(threadIdx.x) % 4 * 2 + i % 2 < height) zero = fmaf(sum[i], 0.0f, zero);
  }
  return __all_sync(~0u, zero == 0.0f);
}

// Stores sums times alpha and the factor of their row, in f32. A lane has rows 2 t and 2 t + 1 of each eight of A, by
// rows g and g + 8 of W: eight lanes write 32 bytes.
template <class S>
__device__ __forceinline__ void put(const float (&sum)[S::width / 2], const Problem& p, const Target<S>& target) {
  const int lane = threadIdx.x % 32, n = target.n0 + lane / 4;
  const bool has[2] = {target.has(n, int(p.args.n)), target.has(n + 8, int(p.args.n))};
  float* const d = static_cast<float*>(p.args.d.ptr) + n;
  const float alpha = float(p.args.alpha);
#pragma unroll
  for (int j = 0; j < S::columns; j++) {
    if (8 * j >= target.tile.height) break;
    const int at = 8 * j + 2 * (lane % 4);
    const int2 rows = *reinterpret_cast<const int2*>(target.tile.rows + at);
    const float2 scales = *reinterpret_cast<const float2*>(target.tile.scales + at);
#pragma unroll
    for (int e = 0; e < 2; e++) {
      const int row = e ? rows.y : rows.x;
      if (row < 0) continue;
      float* const to = d + row * p.args.d.row_stride;
      const float scale = e ? scales.y : scales.x;
      if (has[0]) to[0] = alpha * sum[4 * j + e] * scale;
      if (has[1]) to[8] = alpha * sum[4 * j + 2 + e] * scale;
    }
  }
}

// Two fragments from shared memory through the epilogue to D, rows of the tile from `first` on. For whole warps.
template <class S>
__device__ __forceinline__ void finish(const float4* pair, int first, const Problem& p, const Results& results,
                                       const Target<S>& target) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int e = 0; e < 8; e++) {
    const int i = first + e / 4 * 8 + 2 * (lane % 4) + e % 2, n = target.n0 + lane / 4 + e % 4 / 2 * 8;
    const int row = target.tile.rows[i];
    const bool exists = row >= 0 && target.has(n, int(p.args.n));
    float sum = reinterpret_cast<const float*>(pair + e / 4 * 32 + lane)[e % 4];
    const bool is_wrong = exists && !isfinite(sum);
    if (__any_sync(~0u, is_wrong))
      sum = narrow::repaired<S::code>(p.args, p.pairs_per_row, is_wrong, target.tile.group, row, n, sum);
    if (exists) results.store(sum, row, n, target.tile.group, target.tile.scales[i]);
  }
}

}  // namespace
}  // namespace tilegemm
