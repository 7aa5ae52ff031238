#include "layer/quantise.hpp"

namespace tilegemm {
namespace {
tg_status of(Factor kind, tg_format format, const void* x, int64_t stride, const Quantised& to,
             const tg_launch& launch) {
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const bool vectors =
        to.columns % 8 == 0 && stride % 8 == 0 && to.stride % 8 == 0 && at_multiple(x, 16) && at_multiple(to.codes, 8);
    return quantise(kind, PlainRows<T>{static_cast<const T*>(x), stride}, to, vectors, launch);
  };
  switch (format) {
    case TG_BF16: return run(__nv_bfloat16{});
    case TG_F16: return run(__half{});
    case TG_F32: return run(float{});
    default: return TG_UNSUPPORTED;
  }
}
}  // namespace
}  // namespace tilegemm

// kind: 0 tensor, 1 row, 2 block.
extern "C" int w8a8_quantise(int kind, int format, const void* x, int64_t x_stride, void* codes, int64_t stride,
                             float* factors, int64_t row_step, int64_t block_step, int rows, int columns, int overlap,
                             void* stream) {
  using namespace tilegemm;
  const tg_launch launch{stream, overlap, 132};
  return of(Factor(kind), tg_format(format), x, x_stride,
            {static_cast<uint8_t*>(codes), factors, stride, row_step, block_step, rows, columns}, launch);
}
