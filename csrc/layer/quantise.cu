// X in 8 bits with factors, for products of 8 bits by 8 bits.
#include "layer/quantise.hpp"

namespace tilegemm {
namespace {

// In pieces of eight numbers, with factors of rows or of blocks.
template <class T>
tg_status run_gated(const tg_quantise& x, const PlainRows<T>& rows, const Quantised& to, const tg_launch& launch) {
  if (x.columns % 8 || x.x_stride % 8 || x.codes_stride % 8 || !at_multiple(x.x, 16) || !at_multiple(x.codes, 8))
    return TG_UNSUPPORTED;
  const GatedRows<T> gated{rows, x.function, x.columns};
  if (x.code_format == TG_I8)
    return x.kind == TG_FACTORS_OF_ROWS ? quantise_rows<int8_t, GatedRows<T>, 8>(gated, to, launch) : TG_UNSUPPORTED;
  switch (x.kind) {
    case TG_FACTORS_OF_ROWS: return quantise_rows<__nv_fp8_e4m3, GatedRows<T>, 8>(gated, to, launch);
    case TG_FACTORS_OF_BLOCKS: return quantise_blocks<TG_FACTORS_OF_BLOCKS, GatedRows<T>, 8>(gated, to, launch);
    default: return TG_UNSUPPORTED;
  }
}

template <class T>
tg_status run(const tg_quantise& x, const tg_launch& launch) {
  const Quantised to{
      static_cast<uint8_t*>(x.codes), x.factors, x.codes_stride, x.row_step, x.block_step, x.rows, x.columns};
  const PlainRows<T> rows{static_cast<const T*>(x.x), x.x_stride};
  const bool whole = x.code_format == TG_I8;
  if (x.gated) {
    if constexpr (sizeof(T) == 4) return TG_UNSUPPORTED;
    else return run_gated<T>(x, rows, to, launch);
  }
  const bool vectors = x.columns % 8 == 0 && x.x_stride * sizeof(T) % 16 == 0 && x.codes_stride % 8 == 0 &&
                       at_multiple(x.x, 16) && at_multiple(x.codes, 8);
  return vectors ? quantise<PlainRows<T>, 8>(x.kind, whole, rows, to, launch)
                 : quantise<PlainRows<T>, 1>(x.kind, whole, rows, to, launch);
}

}  // namespace
}  // namespace tilegemm

extern "C" tg_status tg_quantise_launch(const tg_quantise* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_quantise& x = *args;
  if (x.rows < 0 || x.columns < 1 || x.columns > 1 << 30) return TG_UNSUPPORTED;
  if (x.code_format != TG_F8E4M3 && x.code_format != TG_I8) return TG_UNSUPPORTED;
  if (x.rows == 0) return TG_OK;
  switch (x.format) {
    case TG_F16: return run<__half>(x, *launch);
    case TG_BF16: return run<__nv_bfloat16>(x, *launch);
    case TG_F32: return run<float>(x, *launch);
    default: return TG_UNSUPPORTED;
  }
}

extern "C" tg_status tg_load_layer_quantise() { return tilegemm::load_own_module(); }
