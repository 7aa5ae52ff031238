// fp8, 4 bits of exponent and 3 of mantissa, for kernels that take the format.
#pragma once
#include <cuda_fp8.h>

#include "common/kernel.hpp"

namespace tilegemm {

template <> struct scalar<TG_F8E4M3> {
  using type = __nv_fp8_e4m3;
  using accumulator = float;
};

}  // namespace tilegemm
