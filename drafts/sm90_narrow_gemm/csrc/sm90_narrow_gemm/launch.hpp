// The host's side: checks, tensor maps, and the launch.
#pragma once
#include "common/add_parts.hpp"
#include "common/tensor_map.hpp"
#include "sm90_narrow_gemm/cut.hpp"
#include "sm90_narrow_gemm/device.hpp"

namespace tilegemm {
namespace {

template <class S>
tg_status run(const tg_gemm_args& args, const narrow::Weights& w, const Cut& cut, bool is_f32) {
  using T = typename S::Number;
  const int m = int(args.m), n = int(args.n), k = int(args.k);
  if (w.group != INT_MAX && (S::is_late || w.group % S::unit)) return TG_UNSUPPORTED;
  if (w.group == INT_MAX && !S::is_late && args.k > w.group) return TG_UNSUPPORTED;
  if (w.format != S::factor) return TG_UNSUPPORTED;
  const int m_tiles = int(ceil_div(m, S::width)), unit = 8 * cut.share;
  const int x_box = std::min(int(ceil_div(ceil_div(m, m_tiles), unit)) * unit, S::width);
  const int n_tiles = int(ceil_div(n, S::height)), groups = int(ceil_div(n_tiles, cut.share));
  const int k_batches = int(ceil_div(k, batch)), stages = int(ceil_div(k_batches, S::batches));
  const int of_part = int(ceil_div(stages, cut.split)) * S::batches;
  if ((cut.split - 1) * of_part >= k_batches) return TG_UNSUPPORTED;
  const bool is_part = cut.split > 1 && !cut.in_cluster;
  const int in_cluster = cut.in_cluster ? cut.split : 1, tiles = m_tiles * groups;
  const int clusters = cut.clusters && cut.split == 1 ? std::min(cut.clusters, tiles) : tiles;
  CUtensorMap w_map, x_map;
  const int64_t w_length = narrow::code_bytes(S::code, k);
  if (!tensor_map<3>(&w_map, CU_TENSOR_MAP_DATA_TYPE_UINT8, const_cast<uint8_t*>(w.codes),
                     {cuuint64_t(w_length), cuuint64_t(n), 1}, {cuuint64_t(w.row_bytes), cuuint64_t(w.row_bytes) * n},
                     {w_row, S::height, 1}, CU_TENSOR_MAP_SWIZZLE_128B))
    return TG_UNSUPPORTED;
  if (!tensor_map<T>(&x_map, args.a, args.a.row_stride, m, k, args.batch, x_box / cut.share,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B))
    return TG_UNSUPPORTED;
  const int bytes = int(S::factor_bytes);
  const bool vectors = w.stride_n == 1 && w.rows == 1 && w.stride_k * bytes % 16 == 0 &&
                       reinterpret_cast<uintptr_t>(w.factors) % 16 == 0 &&
                       (!w.zeros || (reinterpret_cast<uintptr_t>(w.zeros) % 16 == 0 && w.stride_k % 16 == 0));
  const Epilogues<T> epilogues{Epilogue<T, float>(args), Epilogue<float, float>(args)};
  const bool wide = args.d.row_stride % 8 == 0 && reinterpret_cast<uintptr_t>(args.d.ptr) % 16 == 0;
  const Problem p{args, w, x_box, m_tiles, n_tiles, tiles, cut.share, cut.split, cut.in_cluster && cut.split > 1, of_part,
                  Divisor(m_tiles), Divisor(std::min(w.group, k)), vectors, is_f32, wide,
                  epilogues.of_f32.is_scaling()};
  const auto kernel = sm90_narrow_gemm<S>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_bytes)) return cuda_status(error);
  const Launch launch(args, dim3(unsigned(clusters * cut.share * in_cluster), is_part ? unsigned(cut.split) : 1),
                      dim3(S::threads), S::shared_bytes, dim3(unsigned(cut.share * in_cluster), 1, 1));
  return launch(kernel, w_map, x_map, p, epilogues);
}

// Parts of K that meet in the workspace are in f32, and another kernel adds them.
template <class S, class Out>
tg_status multiply(const tg_gemm_args& args, const narrow::Weights& w, const Cut& cut) {
  constexpr bool is_f32 = sizeof(Out) == 4;
  if (cut.split == 1 || cut.in_cluster) return run<S>(args, w, cut, is_f32);
  tg_gemm_args parts = args;
  parts.alpha = 1, parts.beta = 0, parts.bias.ptr = nullptr, parts.activation = TG_IDENTITY;
  if (!args.workspace || args.workspace_bytes < parts_bytes<float>(args)) return TG_UNSUPPORTED;
  const tg_status status = run<S>(parts, w, cut, true);
  return status == TG_OK ? launch_add_parts<Out, float>(args) : status;
}

}  // namespace
}  // namespace tilegemm
