// Groups of rows with a matrix B each, the weights of a GGUF file: the products of experts in decode at the speed of
// memory; more rows of a group in tiles of 8, each of which reads the group's weights.
//
// Products and sums are those of gguf_gemv (gguf/few_rows.hpp): each warp of a block keeps the activations of a span of
// K, 256 numbers, in registers, and the block goes through rows of W, 16 at a time. Rows of A come from wherever the
// list of pairs says, and rows of D go to wherever the list says.
//
// One launch does everything, and its grid does not depend on the numbers on the device: each block makes the list of
// the tiles of the groups that have rows (experts/unit_list.hpp). An item is a tile and some rows of W, as many as give
// all blocks the same work. Where K has more spans than a block has warps, the block goes through K in parts, and the
// sums of parts stay in shared memory.
#include "common/launch.hpp"
#include "gguf_grouped_gemv/device.hpp"

namespace tilegemm {
namespace {

template <class S, class T>
tg_status run(const tg_gemm_args& args) {
  const int64_t spans = ceil_div(args.k, gguf::span), parts = ceil_div(spans, S::warps), warps = ceil_div(spans, parts);
  const int entries = int(args.groups.count < args.m ? args.groups.count : args.m);
  // No more items than these: a group's last tile may have a single row.
  const int64_t items = (ceil_div(args.m, rows_of_tile) + entries) * ceil_div(args.n, gguf::rows_of_warp);
  if (items > INT_MAX / 4) return TG_UNSUPPORTED;
  const auto kernel = gguf_grouped_gemv<S, T>;
  if (const cudaError_t error = allow_shared_memory<std::pair<S, T>>(kernel, S::limit + beside))
    return cuda_status(error);
  const int bytes = S::bytes(int(warps), int(parts), int(args.groups.count), entries);
  // Blocks that a multiprocessor holds: the registers of a thread are those of S::warps warps. A block takes 1 KiB
  // beside its own.
  const int64_t residents = std::min<int64_t>(S::warps / warps, (S::limit + beside + 1024) / (bytes + 1024));
  const int64_t blocks = std::min<int64_t>(args.sm_count * std::max<int64_t>(residents, 1), items);
  const GroupedPlace place{{args.groups, args.m},
                           Divisor(args.groups.pairs_per_row),
                           int(parts),
                           entries,
                           S::list_at(int(warps), int(parts), int(args.groups.count))};
  const Launch launch(args, dim3(unsigned(blocks)), dim3(unsigned(32 * warps)), bytes);
  return launch(kernel, args, place, Epilogue<float, float>(args));
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::out == TG_F32);
  using T = typename scalar<Row::dtype>::type;
  constexpr int warps = Row::tile_k / gguf::span;
  static_assert(Row::tile_m == rows_of_tile);
  const tg_gemm_args& args = *problem;
  // src/family/gguf_grouped_gemv.rs has the same limits.
  const int64_t entries = args.groups.count < args.m ? args.groups.count : args.m;
  if (args.config != tg_config{} || args.groups.count > most_groups || entries > most_entries ||
      !gguf::has_whole_blocks<Row::b>(args))
    return TG_UNSUPPORTED;
  return run<GroupedShape<Row::b, warps>, T>(args);
}

}  // namespace tilegemm

#include TG_ROWS
