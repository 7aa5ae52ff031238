// Groups of rows with a matrix B each (the grouped GEMM of a mixture of experts) by mma.sync, in f16 and bf16, with
// sums in f32: for every architecture from Ampere on.
//
// B^T is called W here: N rows of K. Rows of A are on the M side of mma.sync and rows of W on the N side. Both come by
// cp.async: rows of A from wherever the list of pairs says, and rows of D go to wherever the list says.
//
// One launch does everything, and its grid does not depend on the numbers on the device: each block makes the list of
// the groups that have rows (experts/unit_list.hpp), and takes tiles of the list until none is left. The ring of stages
// goes on from tile to tile: blocks of the next tile arrive while a tile is stored. A group's rows are split in tiles
// of equal height, in steps of 16 or 32 rows, and a tile takes as many products as the steps of its height.
#include "common/launch.hpp"
#include "sm80_grouped_gemm/device.hpp"

namespace tilegemm {
namespace {

// Blocks with `bytes` of shared memory that a multiprocessor of the current device holds, from 1 to `most`. CUDA takes
// 1 KiB of each block.
cudaError_t blocks_of_multiprocessor(int bytes, int most, int* blocks) {
  *blocks = 1;
  if (Rehearsal::is_on()) return cudaSuccess;
  int device, have;
  if (const cudaError_t error = cudaGetDevice(&device)) return error;
  if (const cudaError_t error = cudaDeviceGetAttribute(&have, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device))
    return error;
  *blocks = std::max(1, std::min(most, have / (bytes + 1024)));
  return cudaSuccess;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_NT && Row::align == 16);
  using S = GroupedShape<Row>;
  const tg_gemm_args& args = *problem;
  if (args.config != tg_config{}) return TG_UNSUPPORTED;
  const bool gated = args.gate != TG_UNGATED;
  // src/family/sm80_grouped_gemm.rs has the same limits. The temporary numbers of UnitList::fill() lie in the ring.
  const int64_t entries = std::min(args.groups.count, args.m), n_tiles = ceil_div(args.n, S::tile_n);
  if (entries >= S::shared_limit || S::ring_bytes + S::List::bytes(int(entries)) > S::shared_limit ||
      (args.groups.count + 1) * 4 > S::ring_bytes) {
    return TG_UNSUPPORTED;
  }
  const int64_t most =
      (ceil_div(args.m, S::tile_m) + entries) * n_tiles;  // tiles: a group's last tile may have a single row
  if (most > INT_MAX / 4) return TG_UNSUPPORTED;
  const GroupedPlace place{{args.groups, args.m},
                           Divisor(args.groups.pairs_per_row),
                           static_cast<const char*>(args.a.ptr),
                           static_cast<const char*>(args.b.ptr),
                           args.d.ptr,
                           args.a.row_stride * 2,
                           args.b.col_stride * 2,
                           args.n / 2 * args.b.col_stride * 2,
                           args.b.batch_stride[1] * 2,
                           args.d.row_stride,
                           float(args.alpha),
                           args.activation,
                           gated,
                           args.gate == TG_GATE_HALVES,
                           int(args.n),
                           int(args.k),
                           int(n_tiles),
                           int(entries)};
  const auto kernel = sm80_grouped_gemm<S>;
  const int bytes = S::ring_bytes + S::List::bytes(int(entries));
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_limit)) return cuda_status(error);
  int blocks;
  if (const cudaError_t error = blocks_of_multiprocessor(bytes, S::most_blocks, &blocks)) return cuda_status(error);
  const int64_t grid = std::min<int64_t>(int64_t(args.sm_count) * blocks, most);
  return launch_plainly(args, dim3(unsigned(grid)), dim3(S::threads), bytes, kernel, place);
}

}  // namespace tilegemm

#include TG_ROWS
