// Hopper: groups of rows with a matrix B each, the weights of a GGUF file: the products of experts in prefill.
//
// Products are those of sm90_gguf_gemm in f16 (gguf/half.hpp): W goes from blocks to f16 in registers, and activations
// arrive by TMA in f16. A kernel before rounds the activations of each row of the product into the workspace, in the
// order of the groups, from wherever the list of pairs says. Rows of D go to wherever the list says, in f32.
//
// The grid does not depend on the numbers on the device: each block makes the list of the groups that have rows
// (experts/unit_list.hpp), and takes tiles of the list until none is left. A group's rows are split in tiles of equal
// height, and a tile is multiplied in the least width that holds the height. Where the workspace holds the activations
// of some rows only, pairs of kernels follow each other, for as many rows each; a pair leaves out the tiles without
// such rows.
//
// The list and W are read before griddepcontrol.wait: the kernel before is the family's own, and has waited for the
// kernels before.
#include "sm90_gguf_grouped_gemm/device.hpp"

namespace tilegemm {
namespace {

// The row of A of row `first` + i of the product.
struct GatheredRow {
  GroupedRows rows;
  Divisor pairs_per_row;
  int first;
  __device__ int64_t operator()(int64_t i) const {
    const int64_t row = rows.row_of_d(first + i);
    return row < 0 ? -1 : pairs_per_row.quotient(int(row));
  }
};

template <class S, class T, class Widths>
tg_status run(const tg_gemm_args& args) {
  // Bytes of a row of activations in the workspace, and of its factor: factors lie behind the rows.
  const int64_t n_tiles = ceil_div(args.n, S::height), bytes_of_row = gguf::pitch_of(args.k) * 2;
  constexpr int bytes_of_factor = 4;
  const int entries = int(args.groups.count < args.m ? args.groups.count : args.m);
  // No more tiles than these: a group's last tile may have a single row.
  const int64_t tiles = (ceil_div(args.m, S::width) + entries) * n_tiles;
  const uint64_t room = args.workspace ? args.workspace_bytes / (bytes_of_row + bytes_of_factor) : 0;
  if (room < uint64_t(args.m < 1024 ? args.m : 1024) || tiles > INT_MAX / 4) return TG_UNSUPPORTED;
  const int64_t parts = room < uint64_t(args.m) ? ceil_div(args.m, int64_t(room) / 8 * 8) : 1,
                rows = ceil_div(ceil_div(args.m, parts), 8) * 8;
  float* const factors =
      reinterpret_cast<float*>(static_cast<char*>(args.workspace) + (rows < args.m ? rows : args.m) * bytes_of_row);
  const auto kernel = sm90_gguf_grouped_gemm<S, Widths>;
  constexpr int most_bytes = S::list_at + S::List::bytes(most_entries);
  if (const cudaError_t error = allow_shared_memory<S>(kernel, most_bytes)) return cuda_status(error);
  const int64_t most_blocks = int64_t(S::blocks) * args.sm_count, blocks = tiles < most_blocks ? tiles : most_blocks;
  for (int64_t first = 0; first < args.m; first += rows) {
    const int64_t end = first + rows < args.m ? first + rows : args.m;
    const GroupedRows all{args.groups, args.m};
    const GatheredRow gathered{all, Divisor(args.groups.pairs_per_row), int(first)};
    CUtensorMap x_map;
    if (!gguf::prepared_map(&x_map, args.workspace, end - first, args.k, rows_of_load)) return TG_UNSUPPORTED;
    if (const tg_status status = gguf::launch_prepare_half<T>(args, gathered, end - first, args.workspace, factors);
        status != TG_OK)
      return status;
    const GroupedPlace place{all, factors, int(first), int(end), int(n_tiles), entries};
    const Launch launch(args, dim3(unsigned(blocks)), dim3(S::threads), S::list_at + S::List::bytes(entries));
    if (const tg_status status = launch(kernel, x_map, args, place); status != TG_OK) return status;
  }
  return TG_OK;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::out == TG_F32 && (Row::tile_m == 64 || Row::tile_m == 192));
  using T = typename scalar<Row::dtype>::type;
  const tg_gemm_args& args = *problem;
  // src/family/sm90_gguf_grouped_gemm.rs has the same limits.
  const int64_t entries = args.groups.count < args.m ? args.groups.count : args.m;
  const bool is_within = args.groups.count <= most_groups && entries <= most_entries && args.d.row_stride >= 0 &&
                         args.d.row_stride <= most_stride;
  if (args.config != tg_config{} || !is_within || !gguf::has_whole_blocks<Row::b>(args)) return TG_UNSUPPORTED;
  using Widths = std::conditional_t<Row::tile_m == 64, Widths<64>, Widths<64, 128, 192>>;
  return run<GroupedShape<Row::b, Row::tile_m>, T, Widths>(args);
}

}  // namespace tilegemm

#include TG_ROWS
