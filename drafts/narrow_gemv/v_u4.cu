#include "dispatch.hpp"
namespace tilegemm {
tg_status run_u4(const tg_gemm_args& a, const NarrowWeights& w, const GemvPlan& p, int places, Way way, Types types) {
  if (w.zeros) {
    if (way == Way::wide) return run_typed<Codes::u4, Way::wide, true, false>(a, w, p, places, types);
    if (way == Way::fine1) return run_typed<Codes::u4, Way::fine1, true, false>(a, w, p, places, types);
    return TG_UNSUPPORTED;
  }
  if (way == Way::whole) return run_typed<Codes::u4, Way::whole, false, false>(a, w, p, places, types);
  if (way == Way::wide) return run_typed<Codes::u4, Way::wide, false, true>(a, w, p, places, types);
  if (way == Way::fine1) return run_typed<Codes::u4, Way::fine1, false, false>(a, w, p, places, types);
  if (way == Way::fine2) return run_typed<Codes::u4, Way::fine2, false, false>(a, w, p, places, types);
  return TG_UNSUPPORTED;
}
}
