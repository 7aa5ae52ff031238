// The list of kernels of the draft's driver.
#pragma once
#include "draft_host.hpp"

#ifdef __CUDACC__
#include "sm90_narrow_gemm/launch.hpp"
namespace tilegemm {
namespace {
template <class S>
Entry entry_of(const char* name) {
  using T = typename S::Number;
  return {name,     S::code,     narrow::is_half<T>, S::width, S::height, S::blocks, S::is_late, S::is_folded,
          S::unit,  S::factor,   multiply<S, T>,
          multiply<S, float>,
          {S::w_stages, S::x_stages}};
}
}  // namespace
}  // namespace tilegemm
#define ENTRY(NAME, ...) static const Add add_##NAME(tilegemm::entry_of<tilegemm::Shape<__VA_ARGS__>>(#NAME));
using bf16 = __nv_bfloat16;
using half_t = __half;
using tilegemm::Parts;
using tilegemm::Scaling;
using tilegemm::narrow::Code;
using tilegemm::narrow::Factor;
#endif
