// Few rows of activations times the weights of a GGUF file: up to 16 at the speed of memory, more in groups of 16 that
// read the weights once each.
//
// Up to two rows of some formats go as digits (digits.hpp), or without tensor cores (vector.hpp). Otherwise, each warp
// of a block keeps the activations of a span of K, 256 numbers, in registers. The block goes through rows of W, 16 at a
// time, and adds the sums of its warps in order. Where K has more spans than a block has warps, K is split, and a
// kernel adds the parts in order. Each warp copies its own blocks of W (device.hpp). From Hopper on, with up to four
// rows and a long K, one warp copies whole rows for all warps (bulk.hpp).
//
// Sums of scaled codes cannot hold the products of infinite scales. A sum that is not finite is computed once more,
// number by number.
#include "gguf_gemv/digits.hpp"
#include "gguf_gemv/vector.hpp"

namespace tilegemm {
namespace {

template <class Row, class T>
tg_status run(const tg_gemm_args& args) {
  constexpr int most_warps = Row::tile_k / gguf::span;
  const int64_t split = args.config.split, warps = ceil_div(ceil_div(args.k, gguf::span), split);
  if (split > 1 && (!args.workspace || args.workspace_bytes < parts_bytes<float>(args))) return TG_UNSUPPORTED;
  // A block for each multiprocessor, with the same number of rows.
  const int64_t units = ceil_div(args.n, gguf::rows_of_warp),
                blocks = args.sm_count > split ? args.sm_count / split : 1;
  const int of_block = int(ceil_div(units, blocks));
  const dim3 grid(unsigned(ceil_div(units, of_block)), unsigned(split), unsigned(ceil_div(args.m, gguf::most_m)));
  const GatingEpilogue<T, float> epilogue(args);
  const auto launch = [&](auto shape, auto kernel, int64_t warps_of_block, const auto&... parameters) -> tg_status {
    using S = decltype(shape);
    if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_bytes)) return cuda_status(error);
    const Launch launch(args, grid, dim3(unsigned(32 * warps_of_block)), S::bytes(int(warps)));
    return launch(kernel, args, of_block, parameters..., epilogue);
  };
  using Few = gguf::FewRows<Row::b, 1, most_warps>;
  using More = gguf::FewRows<Row::b, 2, most_warps>;
  const auto launch_own = [&] {
    if constexpr (Row::arch >= 90 && most_warps >= least_warps_of_bulk) {
      using S = BulkRows<Row::b, most_warps>;
      if (is_for_bulk(args.m, warps, of_block))
        return launch(S{}, gguf_gemv_bulk<S, T>, warps + 1, S::stages(int(warps)));
    }
    return args.m <= gguf::most_m / 2 ? launch(Few{}, gguf_gemv<Few, T>, warps)
                                      : launch(More{}, gguf_gemv<More, T>, warps);
  };
  const tg_status status = launch_own();
  return status == TG_OK && split > 1 ? launch_add_parts<T, float, GatingEpilogue<T, float>>(args) : status;
}

template <class Row, class T, int M>
tg_status run_vectors(const tg_gemm_args& args) {
  using S = VectorRows<Row::b, M>;
  if (const cudaError_t error = allow_shared_memory<S>(gguf_gemv_vector<S, T>, S::shared_bytes))
    return cuda_status(error);
  const int of_row = int(ceil_div(args.k, S::of_warp)), warps = S::most_warps / of_row * of_row;
  const int64_t blocks = args.n < args.sm_count ? args.n : args.sm_count;
  const Launch launch(args, dim3(unsigned(blocks)), dim3(unsigned(32 * warps)), S::shared_bytes);
  return launch(gguf_gemv_vector<S, T>, args, of_row, GatingEpilogue<T, float>(args));
}

template <class Row, class T>
tg_status run_digits(const tg_gemm_args& args) {
  using S = DigitRows<Row::b>;
  const int64_t split = args.config.split, spans = ceil_div(args.k, gguf::span);
  const int warps = int(ceil_div(spans, split));
  if (warps > S::most_warps || (split - 1) * warps >= spans) return TG_UNSUPPORTED;
  if (split > 1 && (!args.workspace || args.workspace_bytes < parts_bytes<float>(args))) return TG_UNSUPPORTED;
  // A block for each multiprocessor, with the same number of rows, in units of up to 16 that have the same number.
  const int64_t most_blocks = args.sm_count > split ? args.sm_count / split : 1,
                blocks = args.n < most_blocks ? args.n : most_blocks, rows = ceil_div(args.n, blocks);
  const int of_unit = int(ceil_div(rows, ceil_div(rows, gguf::rows_of_warp))),
            stages = S::stages(warps, of_unit, int(ceil_div(rows, of_unit)));
  const auto kernel = gguf_gemv_digits<S, T>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_bytes)) return cuda_status(error);
  const Launch launch(args, dim3(unsigned(blocks), unsigned(split)), dim3(unsigned(32 * (warps + 1))),
                      S::bytes(warps, of_unit, stages));
  const tg_status status = launch(kernel, args, of_unit, stages, GatingEpilogue<T, float>(args));
  return status == TG_OK && split > 1 ? launch_add_parts<T, float, GatingEpilogue<T, float>>(args) : status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using T = typename scalar<Row::dtype>::type;
  constexpr int warps = Row::tile_k / gguf::span;
  const tg_gemm_args& args = *problem;
  if (args.config.tile_n == rows_of_vectors) {
    const bool fits = args.config.tile_m == args.m && args.config.split == 1 && args.k <= most_k_of_vectors;
    if (!fits || !gguf::has_whole_blocks<Row::b>(args)) return TG_UNSUPPORTED;
    constexpr int most_m = Row::arch >= 90 && warps >= least_warps_of_bulk ? most_m_of_vectors(Row::dtype, Row::b) : 0;
    if constexpr (most_m >= 1) {
      if (args.m == 1) return run_vectors<Row, T, 1>(args);
    }
    if constexpr (most_m >= 2) {
      if (args.m == 2) return run_vectors<Row, T, 2>(args);
    }
    return TG_UNSUPPORTED;
  }
  constexpr int most_m_by_digits = most_m_of_digits(Row::arch, Row::dtype, Row::b);
  if constexpr (most_m_by_digits > 0) {
    if (args.config.tile_m <= most_m_by_digits) {
      const bool fits = args.config.tile_m == args.m && args.config.tile_n == gguf::rows_of_warp;
      if (!fits || args.config.split < 1 || !gguf::has_whole_blocks<Row::b>(args)) return TG_UNSUPPORTED;
      return run_digits<Row, T>(args);
    }
  }
  const int64_t split = args.config.split, spans = ceil_div(args.k, gguf::span);
  const bool is_tiled = args.config.tile_m == gguf::most_m && args.config.tile_n == gguf::rows_of_warp && split >= 1 &&
                        split <= spans && split <= 65535 && ceil_div(spans, split) <= warps;
  if (!is_tiled || args.m > 65535 * gguf::most_m || !gguf::has_whole_blocks<Row::b>(args)) return TG_UNSUPPORTED;
  return run<Row, T>(args);
}

}  // namespace tilegemm

#include TG_ROWS
