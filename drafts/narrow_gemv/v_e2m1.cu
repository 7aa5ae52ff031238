#include "dispatch.hpp"
namespace tilegemm {
tg_status run_e2m1(const tg_gemm_args& a, const NarrowWeights& w, const GemvPlan& p, int places, Way way, Types types) {
  if (way == Way::fine1) return run_typed<Codes::e2m1, Way::fine1, false, true>(a, w, p, places, types);
  if (way == Way::nvfp4) return run_typed<Codes::e2m1, Way::nvfp4, false, false>(a, w, p, places, types);
  return TG_UNSUPPORTED;
}
template <Codes C> tg_status any(const tg_gemm_args& a, const NarrowWeights& w, Types types) {
  return types == Types::bf16 ? run_exact<C, __nv_bfloat16>(a, w) : types == Types::f16 ? run_exact<C, __half>(a, w) : run_exact<C, float>(a, w);
}
tg_status run_any(Codes codes, const tg_gemm_args& a, const NarrowWeights& w, Types types) {
  switch (codes) {
    case Codes::f8e4m3: return any<Codes::f8e4m3>(a, w, types);
    case Codes::i8: return any<Codes::i8>(a, w, types);
    case Codes::u8: return any<Codes::u8>(a, w, types);
    case Codes::u4: return any<Codes::u4>(a, w, types);
    default: return any<Codes::e2m1>(a, w, types);
  }
}
}
