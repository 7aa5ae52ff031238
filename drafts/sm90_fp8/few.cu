#include "sm90_fp8_few_rows/device.hpp"

#include "draft.h"

namespace tilegemm {
namespace {

template <class C>
tg_status run(const Problem& p, int w_box, int split, int stages) {
  const tg_gemm_args args = args_of(p);
  const int split_log2 = log2_of(split, C::most_split);
  if (p.m > C::width || split_log2 < 0 || p.k <= C::depth * (split - 1) || stages < C::least_stages ||
      stages > C::most_stages || C::bytes(stages, split) > C::shared_per_block || w_box % 8 || w_box < 8 ||
      w_box > C::w_rows || (split == 1 && C::fragments * C::fragment_bytes > stages * C::stage_bytes) ||
      (C::inbox_in_ring && split * C::slots(split) * C::fragment_bytes > stages * C::stage_bytes))
    return TG_UNSUPPORTED;
  CUtensorMap w_map, x_map;
  if (!tensor_map_8(&w_map, p.w, p.w_stride, p.n, p.k, w_box) ||
      !tensor_map_8(&x_map, p.x, p.x_stride, p.m, p.k, int(p.m)))
    return TG_UNSUPPORTED;
  using Out = typename C::Out;
  const Epilogue<Out, float> epilogue(args);
  const Fp8FewRowsPlace place{args.d,
                              int(p.m),
                              int(p.n),
                              int(p.k),
                              int(ceil_div(p.n, factor_n)),
                              w_box,
                              split_log2,
                              stages,
                              p.overlap ? p.prefetch : 0,
                              rows_at_multiples<Out>(2, args.d, p.m, args.batch),
                              epilogue.is_plain()};
  if (const cudaError_t error = allow_shared_memory<C>(sm90_fp8_few_rows<C>, C::shared_per_block))
    return cuda_status(error);
  const dim3 grid(unsigned(ceil_div(p.n, w_box) * split));
  return Launch(args, grid, dim3(C::threads), C::bytes(stages, split), dim3(split))(sm90_fp8_few_rows<C>, w_map, x_map,
                                                                                    place, p.factors, epilogue);
}

template <class T, class Out, int groups, int width, int boxes>
tg_status of_sums(const Problem& p, int sums, int w_box, int split, int stages) {
  if (sums == 0) return run<Fp8FewRows<T, Out, groups, width, boxes, Sums::whole>>(p, w_box, split, stages);
  if constexpr (!std::is_same_v<T, int8_t>) {
    if (sums == 1) return run<Fp8FewRows<T, Out, groups, width, boxes, Sums::promoted>>(p, w_box, split, stages);
    if (sums == 2) return run<Fp8FewRows<T, Out, groups, width, boxes, Sums::blocks>>(p, w_box, split, stages);
  }
  return TG_UNSUPPORTED;
}

template <class T, class Out, int... widths>
tg_status of_width(const Problem& p, int groups, int width, int boxes, int sums, int w_box, int split, int stages) {
  tg_status status = TG_UNSUPPORTED;
  const auto of = [&](auto w) {
    constexpr int width = decltype(w)::value;
    if constexpr (width <= 64) {
      if (boxes == 2)
        return groups == 1 ? of_sums<T, Out, 1, width, 2>(p, sums, w_box, split, stages)
                           : of_sums<T, Out, 2, width, 2>(p, sums, w_box, split, stages);
    }
    if constexpr (width >= 32) {
      if (boxes != 1) return TG_UNSUPPORTED;
      return groups == 1 ? of_sums<T, Out, 1, width, 1>(p, sums, w_box, split, stages)
                         : of_sums<T, Out, 2, width, 1>(p, sums, w_box, split, stages);
    }
    return TG_UNSUPPORTED;
  };
  ((width == widths && (status = of(std::integral_constant<int, widths>{}), true)) || ...);
  return status;
}

}  // namespace
}  // namespace tilegemm

extern "C" int w8a8_few(const Problem* p, int int8, int out, int groups, int width, int boxes, int sums, int w_box,
                        int split, int stages) {
  using namespace tilegemm;
  using F8 = __nv_fp8_e4m3;
  const auto run = [&](auto of) { return of(*p, groups, width, boxes, sums, w_box, split, stages); };
  if (int8) return run(of_width<int8_t, __nv_bfloat16, 8, 64>);
  if (out == TG_BF16) return run(of_width<F8, __nv_bfloat16, 8, 16, 32, 64, 128>);
  if (out == TG_F16) return run(of_width<F8, __half, 16>);
  return run(of_width<F8, float, 8, 64>);
}
