// Groups of rows with a matrix B each, in fp8 or MXFP4 with factors beside it: the experts of a layer, by mma.sync.
//
// B^T is called W here: N rows of K codes. Codes go from global memory to registers, become 16 bits there, and are the
// M side of mma.sync, whose N side is 8 rows of A: few rows of a group leave little of an instruction unused. Rows of A
// come from wherever the list of pairs says, through L1, and rows of D go to wherever the list says.
//
// One launch does everything, and its grid does not depend on the numbers on the device: each block makes the list of
// the groups that have rows (experts/unit_list.hpp), and takes tiles of the list until none is left. With few rows the
// warps of a block have parts of K of the same 16 rows of W, else rows of W of their own.
#include "common/launch.hpp"
#include "narrow_grouped_gemm/device.hpp"

namespace tilegemm {

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_NT && Row::tile_k == depth);
  using S = NarrowShape<Row>;
  const tg_gemm_args& args = *problem;
  // src/family/narrow_grouped_gemm.rs has the same limits.
  const int64_t entries = std::min(args.groups.count, args.m), n_tiles = ceil_div(args.n, Row::tile_n);
  const int64_t most = (ceil_div(args.m, Row::tile_m) + entries) * n_tiles;  // tiles
  const tg_scale& scale = args.b_scale;
  const bool of_codes = S::W::scales_sums
                            ? !scale.ptr || scale.rows == UINT32_MAX || scale.rows % depth == 0
                            : scale.ptr && scale.format == TG_F8E8M0 && (scale.rows == 32 || args.k <= 32);
  if (args.config != tg_config{} || args.groups.count > most_groups || entries > most_entries || most > INT_MAX / 4 ||
      args.k % S::W::row_unit != 0 || !of_codes || scale.zeros) {
    return TG_UNSUPPORTED;
  }
  const int list_at = S::bytes(int(args.groups.count), int(entries)) - S::List::bytes(int(entries));
  const NarrowPlace place{
      {args.groups, args.m}, Divisor(args.groups.pairs_per_row), int(n_tiles), int(entries), list_at};
  const int64_t grid = std::min<int64_t>(int64_t(args.sm_count) * 2, most);
  const Launch launch(args, dim3(unsigned(grid)), dim3(32 * S::warps), S::bytes(int(args.groups.count), int(entries)));
  return launch(narrow_grouped_gemm<S>, args, place, Epilogue<typename S::T, float>(args));
}

}  // namespace tilegemm

#include TG_ROWS
