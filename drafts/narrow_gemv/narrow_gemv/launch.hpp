// The launch of narrow_gemv.
#pragma once
#include <algorithm>

#include "narrow_gemv/device.hpp"

namespace tilegemm {
namespace {

constexpr int most_bytes_of_block = 227 * 1024;

// W in boxes of a slot: 128 bytes of `rows` rows.
inline bool map_of_codes(CUtensorMap* map, const NarrowWeights& w, const GemvShape& shape, int64_t n) {
  return tensor_map<3>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, const_cast<uint8_t*>(w.codes),
                       {cuuint64_t(shape.bytes_of_k), cuuint64_t(n), 1}, {cuuint64_t(w.row_bytes), cuuint64_t(w.row_bytes)},
                       {128, cuuint32_t(shape.rows_of_warp), 1}, CU_TENSOR_MAP_SWIZZLE_128B);
}

// Runs a plan; refuses one that does not fit. `places`: blocks that run at the same time.
template <class S, class T, class Out>
tg_status run_gemv(const tg_gemm_args& args, const NarrowWeights& w, const GemvPlan& plan, int places) {
  const int warps = plan.warps_n * plan.warps_k;
  const int teams = int(std::max<int64_t>(1, std::min<int64_t>(places / (plan.cluster * plan.split), args.n)));
  if (plan.units != S::units || warps < 1 || warps > S::most_warps || plan.stages < 2 || plan.stages > most_stages ||
      args.m > S::most_m)
    return TG_UNSUPPORTED;
  const GemvShape shape = shape_of<S>(args, w, plan, teams);
  if (shape.shared_bytes > most_bytes_of_block) return TG_UNSUPPORTED;
  if (plan.split > 1 && (!args.workspace || args.workspace_bytes < parts_bytes<float>(args))) return TG_UNSUPPORTED;
  CUtensorMap map{};
  if (!map_of_codes(&map, w, shape, args.n)) return TG_UNSUPPORTED;
  const auto kernel = narrow_gemv<S, T, Out>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, most_bytes_of_block)) return cuda_status(error);
  const dim3 grid(unsigned(ceil_div(args.n, shape.rows) * plan.cluster), unsigned(plan.split));
  const Launch launch(args, grid, dim3(unsigned(32 * warps)), shape.shared_bytes, dim3(unsigned(plan.cluster)));
  const tg_status status = launch(kernel, map, args, w, shape, Epilogue<Out, float>(args));
  return status == TG_OK && plan.split > 1 ? launch_add_parts<Out, float>(args) : status;
}

template <Codes C, class Out>
tg_status run_exact(const tg_gemm_args& args, const NarrowWeights& w) {
  const dim3 grid(unsigned(ceil_div(args.n, warps_of_exact)), unsigned(args.m));
  return Launch(args, grid, dim3(32 * warps_of_exact), 0)(narrow_gemv_exact<C, Out>, args, w,
                                                          Epilogue<Out, float>(args));
}

}  // namespace
}  // namespace tilegemm
