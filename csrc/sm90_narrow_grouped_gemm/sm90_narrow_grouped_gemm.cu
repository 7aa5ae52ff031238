// Hopper: groups of rows with a matrix B each, in codes of 8 and 4 bits with factors beside them: the products of
// experts in prefill.
//
// B^T is called W: N rows of K codes. Products are those of sm90_narrow_gemm (csrc/narrow): W is on wgmma's M side,
// from registers; codes arrive by TMA with the group as a coordinate, factors and zeros by cp.async as they lie. A
// tile's K is the unit of its factors, and says where factors come in: 256, 128 and 32 as there, but results of 128
// are never rounded. Rows of A arrive by cp.async from wherever the list of pairs says, and rows of D go to wherever
// the list says, in f32 or in A's type. A in f32 is rounded to bf16 first, in the workspace.
//
// One launch does everything else, and its grid does not depend on the numbers on the device: each block makes the list
// of the groups that have rows (experts/unit_list.hpp), and takes every gridDim.x-th tile of the list. A group's rows
// are split in tiles of equal height, and a tile is multiplied in the least width that holds the height. The rings go
// on from tile to tile. A result that is not finite is computed once more, number by number (narrow/exact.hpp).
#include "narrow/of_call.hpp"
#include "sm90_narrow_grouped_gemm/device.hpp"
#include "sm90_narrow_grouped_gemm/round.hpp"

namespace tilegemm {
namespace {

template <class S, int UNIT>
tg_status run(const tg_gemm_args& args) {
  const int64_t n_tiles = ceil_div(args.n, S::height), entries = std::min(args.groups.count, args.m);
  // No more tiles than these: a group's last tile may have a single row.
  const int64_t tiles = (ceil_div(args.m, S::width) + entries) * n_tiles;
  if (args.groups.count > most_groups || entries > most_entries || tiles > INT_MAX / 4) return TG_UNSUPPORTED;
  const bool rounds = args.types.a == TG_F32;
  const int64_t rows_of_a = ceil_div(args.m, args.groups.pairs_per_row), pitch = pitch_of(args.k);
  if (rounds && (!args.workspace || args.workspace_bytes < uint64_t(rows_of_a) * pitch)) return TG_UNSUPPORTED;
  CUtensorMap w_map;
  if (!narrow::codes_map<S>(&w_map, args)) return TG_UNSUPPORTED;
  const auto kernel = sm90_narrow_grouped_gemm<S>;
  constexpr int most_bytes = S::list_at + S::List::bytes(most_entries);
  if (const cudaError_t error = allow_shared_memory<S>(kernel, most_bytes)) return cuda_status(error);
  if (rounds) {
    if (const tg_status status = launch_round(args, rows_of_a, args.workspace); status != TG_OK) return status;
  }
  const tg_scale& scale = args.b_scale;
  const auto by = [&](uint32_t shared, int64_t extent) {
    return Divisor(scale.ptr && shared < extent ? int64_t(shared) : extent);
  };
  const narrow::FactorFormat factors = narrow::factor_format<S, UNIT>(scale);
  const Problem problem{args,
                        {args.groups, args.m},
                        Divisor(args.groups.pairs_per_row),
                        static_cast<const uint8_t*>(rounds ? args.workspace : args.a.ptr),
                        rounds ? pitch : 2 * args.a.row_stride,
                        int(n_tiles),
                        int(entries),
                        int(ceil_div(args.k, narrow::batch)),
                        factors.format,
                        factors.bytes,
                        factors.one,
                        by(scale.rows, args.k),
                        by(scale.columns, args.n),
                        narrow::has_vectors(args),
                        args.types.d == TG_F32 && !args.bias.ptr && args.activation == TG_IDENTITY};
  const int64_t blocks = std::min<int64_t>(args.sm_count, tiles);
  const Launch launch(args, dim3(unsigned(blocks)), dim3(S::threads), S::list_at + S::List::bytes(int(entries)));
  return launch(kernel, w_map, problem, Results(args));
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using T = std::conditional_t<Row::dtype == TG_F16, __half, __nv_bfloat16>;
  using S = GroupedShape<Row::b, T, Row::tile_m, Row::tile_k>;
  static_assert(Row::layout == TG_NT && Row::align == 16 && Row::tile_n == S::height);
  const tg_gemm_args& args = *problem;
  if (args.config != tg_config{} || !narrow::takes_factors<S, Row::tile_k>(args)) return TG_UNSUPPORTED;
  return run<S, Row::tile_k>(args);
}

}  // namespace tilegemm

#include TG_ROWS
