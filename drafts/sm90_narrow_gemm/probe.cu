#include "sm90_narrow_gemm/launch.hpp"
namespace tilegemm {
#include "shape.inc"
tg_status go(const tg_gemm_args& a, const narrow::Weights& w, const Cut& c) { return run<Shape<SHAPE>>(a,w,c,false); }
}
