// Sums of a warp on their way through the epilogue: code that is unrolled over all registers would be too large.
#pragma once
#include "common/wgmma.hpp"

namespace tilegemm::narrow {
namespace {

// Calls use(fragment pair, its number) for pairs of fragments [0, columns / 2) of a warp by way of shared memory, where
// `parked` fragments find room at a time.
template <class S, class Use>
__device__ __forceinline__ void each_parked(float4* parked, const float (&sum)[S::width / 2], const Use& use) {
  const int lane = threadIdx.x % 32;
  constexpr int chunks = (S::columns + S::parked - 1) / S::parked;
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; chunk++) {
    __syncwarp();
#pragma unroll
    for (int c = 0; c < chunks; c++) {
      if (c != chunk) continue;
#pragma unroll
      for (int i = 0; i < S::parked; i++) parked[i * 32 + lane] = fragment(sum, c * S::parked + i);
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < S::parked; i += 2) use(parked + i * 32, (chunk * S::parked + i) / 2);
  }
}

}  // namespace
}  // namespace tilegemm::narrow
