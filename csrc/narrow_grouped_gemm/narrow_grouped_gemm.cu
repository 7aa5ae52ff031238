// Groups of rows with a matrix B each, in codes of 8 and 4 bits with factors beside them: the experts of a layer, by
// mma.sync.
//
// B^T is called W: N rows of K codes. Codes are the M side of mma.sync, in f16, exactly, and rows of A the N side,
// eight at a time: few rows of a group leave little of an instruction unused. Rows of A come from wherever the list of
// pairs says, in f16 by powers of two (rows.hpp), and rows of D go to wherever the list says. Factors multiply sums. A
// sum that is not finite is computed once more, number by number (narrow/exact.hpp).
//
// One launch does everything, and its grid does not depend on the numbers on the device: each block makes the list of
// the groups that have rows (experts/unit_list.hpp). Tiles of 8 rows: the items are tiles times 16 rows of W, each
// block has as many as any other, and keeps rows of A while items are of the same tile. Tiles of 32 rows: a block takes
// every gridDim.x-th tile of 128 rows of W. The ring of codes goes on from item to item.
#include "common/launch.hpp"
#include "narrow_grouped_gemm/device.hpp"

namespace tilegemm {
namespace {

// Shared memory of a multiprocessor, of which a block has all but 1 KiB.
constexpr int bytes_of_multiprocessor(int arch) { return (arch == 90 || arch == 100 ? 228 : 100) * 1024; }
// Blocks of a multiprocessor, of 8 warps with at least 128 registers a thread. A block's rings take 48 KiB, its rows of
// A and sums some more: 100 KiB have room for one block.
constexpr int blocks_of(int arch) { return bytes_of_multiprocessor(arch) >= 200 * 1024 ? 2 : 1; }

// The logarithm of the warps that share K. A block has some items, and the one of its teams with most of them ends
// last; an item takes the time of half a slot beside its own.
inline int log_team_for(int slots, int64_t items) {
  int best = 0;
  int64_t least = INT64_MAX;
  for (int log = 0; 1 << log <= most_warps && 1 << log <= slots; log++) {
    const int64_t time = ceil_div(items, most_warps >> log) * (2 * ceil_div(slots, 1 << log) + 1);
    if (time < least) best = log, least = time;
  }
  return best;
}

template <int ARCH, class S>
tg_status run(const tg_gemm_args& args) {
  const int64_t entries = std::min(args.groups.count, args.m), n_tiles = ceil_div(args.n, S::tile_n);
  // Tiles: a group's last one may have a single row.
  const int64_t most = (ceil_div(args.m, S::tile_m) + entries) * n_tiles;
  if (args.groups.count > most_groups || entries > most_entries || most > INT_MAX / 4) return TG_UNSUPPORTED;
  constexpr int room = bytes_of_multiprocessor(ARCH) - 1024;
  const NarrowLayout layout = layout_of<S>(args.k, entries);
  if (layout.bytes > room) return TG_UNSUPPORTED;
  const auto kernel = narrow_grouped_gemm<S>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, room)) return cuda_status(error);
  const int blocks = std::min(bytes_of_multiprocessor(ARCH) / (layout.bytes + 1024), S::most_blocks);
  const int64_t grid = std::min<int64_t>(int64_t(args.sm_count) * blocks, most);
  const tg_scale& scale = args.b_scale;
  const bool of_all = !scale.ptr || scale.rows >= args.k;
  const int factor_bytes = narrow::bytes_of_factor(scale.ptr ? scale.format : TG_F32);
  const int64_t columns = scale.ptr && scale.columns < args.n ? scale.columns : args.n;
  const int64_t of_group = of_all ? int64_t(layout.slots) * S::units + 1 : scale.rows / unit_k;
  const NarrowPlace place{{args.groups, args.m},
                          layout,
                          Divisor(args.groups.pairs_per_row),
                          Divisor(n_tiles),
                          Divisor(columns),
                          Divisor(of_group),
                          Divisor(layout.x_pitch / (2 * Piece::numbers)),
                          narrow::bytes_of(S::codes, args.b.col_stride),
                          narrow::bytes_of(S::codes, args.b.batch_stride[1]),
                          int(n_tiles),
                          int(entries),
                          int(S::packed ? ceil_div(args.k, 32) * 16 : args.k),
                          // Some of the groups that may have rows have none.
                          log_team_for(layout.slots, ceil_div(entries * n_tiles * 3, grid * 4)),
                          int(ceil_div(args.k, unit_k)),
                          of_all || scale.rows % (long_group * unit_k) == 0 ? long_group : 1,
                          factor_bytes,
                          of_all ? 0 : scale.row_stride * factor_bytes,
                          of_all ? 0 : scale.row_stride};
  const Launch launch(args, dim3(unsigned(grid)), dim3(32 * most_warps), layout.bytes);
  return launch(kernel, args, place, Results(args));
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_NT && Row::align == 16);
  using S = NarrowShape<Row::b, Row::tile_m / 8, blocks_of(Row::arch)>;
  static_assert(Row::tile_n == S::tile_n);
  const tg_gemm_args& args = *problem;
  // src/family/narrow_grouped_gemm.rs has the same limits.
  const tg_scale& scale = args.b_scale;
  const bool of_all = !scale.ptr || scale.rows >= args.k;
  const bool in_units = of_all || (scale.rows % unit_k == 0 && scale.row_stride >= 0 && scale.row_stride <= INT_MAX);
  if (args.config != tg_config{} || !in_units) return TG_UNSUPPORTED;
  return run<Row::arch, S>(args);
}

}  // namespace tilegemm

#include TG_ROWS
