// From a problem to an instance; the draft's own stand-in for tables and Rust.
#pragma once
#include "narrow_gemv/launch.hpp"

namespace tilegemm {

enum class Types { bf16, f16, bf16_f32 };

// How the scales of a problem are applied; false: number by number.
inline bool way_of(Codes codes, const NarrowWeights& w, int64_t k, Way& way) {
  const int64_t step = bits_of(codes) == 4 ? 128 : 64;
  const bool is_all = w.group >= k;
  if (is_all && !w.zeros) way = Way::whole;
  else if (codes == Codes::e2m1 && w.format == Scales::e4m3 && w.group == 16) way = Way::nvfp4;
  else if (is_all || w.group % step == 0) way = Way::wide;
  else if (w.group % (step / 2) == 0) way = Way::fine2;
  else if (w.group % (step / 4) == 0) way = Way::fine1;
  else return false;
  return w.stride_k >= 0 && w.stride_k * size_of(w.format) < (int64_t(1) << 32) && w.row_bytes < (int64_t(1) << 30);
}

tg_status run_f8(const tg_gemm_args&, const NarrowWeights&, const GemvPlan&, int places, Way way, Types types);
tg_status run_i8(const tg_gemm_args&, const NarrowWeights&, const GemvPlan&, int places, Way way, Types types);
tg_status run_u8(const tg_gemm_args&, const NarrowWeights&, const GemvPlan&, int places, Way way, Types types);
tg_status run_u4(const tg_gemm_args&, const NarrowWeights&, const GemvPlan&, int places, Way way, Types types);
tg_status run_e2m1(const tg_gemm_args&, const NarrowWeights&, const GemvPlan&, int places, Way way, Types types);
tg_status run_any(Codes codes, const tg_gemm_args&, const NarrowWeights&, Types types);

namespace {

template <Codes C, Way WAY, bool ZEROS, class T, class Out>
tg_status run_sized(const tg_gemm_args& args, const NarrowWeights& w, const GemvPlan& plan, int places) {
  if (args.m <= 8) {
    if (plan.units == 1) return run_gemv<GemvConfig<C, WAY, 1, 1, ZEROS>, T, Out>(args, w, plan, places);
    return run_gemv<GemvConfig<C, WAY, 1, 2, ZEROS>, T, Out>(args, w, plan, places);
  }
  if (plan.units == 1) return run_gemv<GemvConfig<C, WAY, 2, 1, ZEROS>, T, Out>(args, w, plan, places);
  return run_gemv<GemvConfig<C, WAY, 2, 2, ZEROS>, T, Out>(args, w, plan, places);
}

template <Codes C, Way WAY, bool ZEROS, bool ALL_TYPES>
tg_status run_typed(const tg_gemm_args& args, const NarrowWeights& w, const GemvPlan& plan, int places, Types types) {
  if (types == Types::bf16)
    return run_sized<C, WAY, ZEROS, __nv_bfloat16, __nv_bfloat16>(args, w, plan, places);
  if constexpr (ALL_TYPES) {
    if (types == Types::f16) return run_sized<C, WAY, ZEROS, __half, __half>(args, w, plan, places);
    return run_sized<C, WAY, ZEROS, __nv_bfloat16, float>(args, w, plan, places);
  }
  return TG_UNSUPPORTED;
}

}  // namespace
}  // namespace tilegemm
