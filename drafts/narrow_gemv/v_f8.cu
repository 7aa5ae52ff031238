#include "dispatch.hpp"
namespace tilegemm {
tg_status run_f8(const tg_gemm_args& a, const NarrowWeights& w, const GemvPlan& p, int places, Way way, Types types) {
  if (way == Way::whole) return run_typed<Codes::f8e4m3, Way::whole, false, true>(a, w, p, places, types);
  if (way == Way::wide) return run_typed<Codes::f8e4m3, Way::wide, false, true>(a, w, p, places, types);
  if (way == Way::fine2) return run_typed<Codes::f8e4m3, Way::fine2, false, false>(a, w, p, places, types);
  return TG_UNSUPPORTED;
}
}
