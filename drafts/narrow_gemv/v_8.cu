#include "dispatch.hpp"
namespace tilegemm {
tg_status run_i8(const tg_gemm_args& a, const NarrowWeights& w, const GemvPlan& p, int places, Way way, Types types) {
  if (way == Way::whole) return run_typed<Codes::i8, Way::whole, false, false>(a, w, p, places, types);
  if (way == Way::wide) return run_typed<Codes::i8, Way::wide, false, false>(a, w, p, places, types);
  return TG_UNSUPPORTED;
}
tg_status run_u8(const tg_gemm_args& a, const NarrowWeights& w, const GemvPlan& p, int places, Way way, Types types) {
  if (way == Way::wide && w.zeros) return run_typed<Codes::u8, Way::wide, true, false>(a, w, p, places, types);
  if (way == Way::wide) return run_typed<Codes::u8, Way::wide, false, false>(a, w, p, places, types);
  if (way == Way::fine1 && w.zeros) return run_typed<Codes::u8, Way::fine1, true, false>(a, w, p, places, types);
  if (way == Way::fine2 && w.zeros) return run_typed<Codes::u8, Way::fine2, true, false>(a, w, p, places, types);
  return TG_UNSUPPORTED;
}
}
