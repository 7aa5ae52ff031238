// Rounding to bf16.
#pragma once
#include <cuda_bf16.h>

namespace tilegemm {

// A finite number stays finite.
__device__ __forceinline__ __nv_bfloat16 to_bf16(float x) {
  constexpr float most = 3.3895313892515355e38f;
  return __nv_bfloat16(isfinite(x) ? fminf(fmaxf(x, -most), most) : x);
}

}  // namespace tilegemm
