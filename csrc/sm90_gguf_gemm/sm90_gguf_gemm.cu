// Hopper: rows of activations times the weights of a GGUF file, from 9 rows to any number.
//
// W is on wgmma's M side (swap AB), from registers: a warp group has 64 rows of W. Blocks of the file arrive by
// cp.async as they lie, in a ring of each warp, and become numbers of 16 bits in registers on their way to wgmma. The
// activations are rounded to 16 bits by a kernel before and arrive by TMA. Tiles of up to 192 rows of A multiply in f16
// (gguf/half.hpp), wider tiles in bf16 (gguf/wgmma.hpp, gguf/prepare.hpp). Sums are in f32. Where tiles are few, K is
// split. Two parts are the blocks of a cluster, whose sums meet in distributed shared memory; the sums of more parts
// meet in the workspace. Both are added up in the order of K.
//
// A product has the error of two roundings: at most 2^-7 of |w x| in bf16, and 2^-10 in f16. Results that are not
// finite are computed once more, number by number (gguf/exact.hpp).
#include "sm90_gguf_gemm/device.hpp"

namespace tilegemm {
namespace {

template <class S, class T>
tg_status run(const tg_gemm_args& args) {
  const int64_t spans = ceil_div(args.k, gguf::span), m_tiles = ceil_div(args.m, S::width), rows = m_tiles * S::width;
  const int split = args.config.split, spans_of_part = int(ceil_div(spans, split));
  const bool is_whole = split <= most_in_cluster;
  // The sums of the parts that do not meet in a cluster, and the activations behind. The last tile has rows behind the
  // end of A, whose bits may be any: these rows are columns of wgmma that nothing is stored of. Rows behind the end of
  // the tensor map, which TMA fills with zeros, would take longer than rows of memory.
  const uint64_t parts = is_whole ? 0 : parts_bytes<float>(args), x_at = (parts + 127) / 128 * 128;
  const uint64_t factors_at = x_at + uint64_t(rows * gguf::pitch_of(args.k)) * 2,
                 need = factors_at + (S::is_half ? uint64_t(args.m) * 4 : 0);
  if (!args.workspace || args.workspace_bytes < need || ceil_div(args.n, S::height) > 65535) return TG_UNSUPPORTED;
  void* const x = static_cast<char*>(args.workspace) + x_at;
  float* const factors = reinterpret_cast<float*>(static_cast<char*>(args.workspace) + factors_at);
  CUtensorMap x_map;
  if (!gguf::prepared_map(&x_map, x, rows, args.k, S::width)) return TG_UNSUPPORTED;
  const auto kernel = sm90_gguf_gemm<S>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_bytes)) return cuda_status(error);
  const auto prepare = [&] {
    if constexpr (S::is_half) return gguf::launch_prepare_half<T>(args, gguf::SameRow{}, args.m, x, factors);
    else return gguf::launch_prepare<T>(args, gguf::SameRow{}, args.m, x);
  };
  if (const tg_status status = prepare(); status != TG_OK) return status;
  const dim3 grid(unsigned(m_tiles), unsigned(ceil_div(args.n, S::height)), unsigned(split));
  constexpr tg_format out = std::is_same_v<T, float> ? TG_F32 : std::is_same_v<T, __half> ? TG_F16 : TG_BF16;
  const Launch launch(args, grid, dim3(S::threads), S::shared_bytes, dim3(1, 1, is_whole ? unsigned(split) : 1));
  const tg_status status = launch(kernel, x_map, args, static_cast<const float*>(factors), spans_of_part, out);
  return status == TG_OK && !is_whole ? launch_add_parts<T, float>(args) : status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using T = typename scalar<Row::dtype>::type;
  const tg_gemm_args& args = *problem;
  const int64_t split = args.config.split, spans = ceil_div(args.k, gguf::span);
  const bool is_tiled = args.config.tile_m == Row::tile_m && args.config.tile_n == Row::tile_n && split >= 1 &&
                        split <= spans && split <= 65535;
  if (!is_tiled || !gguf::has_whole_blocks<Row::b>(args)) return TG_UNSUPPORTED;
  using S = Shape<Row::b, Row::tile_m>;
  static_assert(Row::tile_n == S::height);
  return run<S, T>(args);
}

}  // namespace tilegemm

#include TG_ROWS
