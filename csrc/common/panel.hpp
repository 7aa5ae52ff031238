// Panels of f32 results in shared memory, 16 rows and 32 columns of D each, swizzled as TMA stores them. Neighbouring
// panels make up a strip.
#pragma once
#include "common/ptx.hpp"

namespace tilegemm {

constexpr int panel_bytes = 16 * 128;

// Column `lane` of row i of a panel.
__device__ __forceinline__ uint32_t in_strip(uint32_t strip, int panel, int i, int lane) {
  return strip + panel * panel_bytes + i * 128 + ((lane / 4 ^ i % 8) << 4) + lane % 4 * 4;
}

// Stores 16 sums of each lane, in wgmma's order.
__device__ __forceinline__ void store_panel(const float* sum, uint32_t panel, int g, int q) {
#pragma unroll
  for (int j = 0; j < 4; j++) {  // odd rows in another order: no bank conflicts
    const bool odd = g & 1;
    const uint32_t to = panel + g * 128 + (((2 * (odd ? j ^ 2 : j) + q / 2) ^ g) << 4) + q % 2 * 8;
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; e++) x[e] = odd ? sum[(j ^ 2) * 4 + e] : sum[j * 4 + e];
    store_shared(to, x[0], x[1]);
    store_shared(to + 8 * 128, x[2], x[3]);
  }
}

}  // namespace tilegemm
