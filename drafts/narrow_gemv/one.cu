#include "dispatch.hpp"
using namespace tilegemm;
template <Codes C, Way W, int TI, int U, bool Z> tg_status go(const tg_gemm_args& a, const NarrowWeights& w, const GemvPlan& p) {
  return run_gemv<GemvConfig<C,W,TI,U,Z>, __nv_bfloat16, __nv_bfloat16>(a,w,p,264);
}
tg_status all_of(const tg_gemm_args& a, const NarrowWeights& w, const GemvPlan& p) {
  int s = 0;
  s += go<Codes::u4, Way::wide,1,2,false>(a,w,p);
  s += go<Codes::u4, Way::wide,2,2,true>(a,w,p);
  s += go<Codes::e2m1, Way::fine1,1,2,false>(a,w,p);
  s += go<Codes::e2m1, Way::fine1,2,2,false>(a,w,p);
  s += go<Codes::e2m1, Way::nvfp4,2,2,false>(a,w,p);
  s += go<Codes::f8e4m3, Way::wide,1,2,false>(a,w,p);
  s += go<Codes::f8e4m3, Way::whole,2,2,false>(a,w,p);
  return tg_status(s);
}
