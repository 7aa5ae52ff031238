// Hopper: groups of rows with a matrix B each (the grouped GEMM of a mixture of experts), in f16 and bf16, with sums in
// f32.
//
// B^T is called W here: N rows of K. W is on wgmma's M side, and rows of A are on the N side: tiles come in steps of 8
// rows of A. W comes by TMA with the group as a coordinate, rows of A by cp.async from wherever the list of pairs says,
// and rows of D go to wherever the list says.
//
// One launch does everything, and its grid does not depend on the numbers on the device: each block makes the list of
// the groups that have rows (experts/unit_list.hpp), and takes tiles of the list until none is left. A group's rows are
// split in tiles of equal height, and a tile is multiplied in the least width that holds the height. Blocks of a
// cluster of two share W where a group has several tiles along M.
//
// Gated products: each half of W is a dimension of the tensor map, so that halves and interleaved columns are the same
// to the kernel. A warp group multiplies by 64 columns of gates and by the 64 columns that the gates multiply, and a
// thread has both sums of an element of D.
//
// A plan names the tile, the blocks that share W (`cluster_m`), and the stages of the ring;
// src/family/sm90_grouped_gemm.rs chooses them.
#include "common/launch.hpp"
#include "common/tensor_map.hpp"
#include "sm90_grouped_gemm/device.hpp"

namespace tilegemm {
namespace {

template <class Ws>
struct WidestOf;
template <int... widths>
struct WidestOf<Widths<widths...>> {
  static constexpr int value = [] {
    int widest = 0;
    ((widest = widths > widest ? widths : widest), ...);
    return widest;
  }();
};

template <class Row, int cluster>
tg_status run(const tg_gemm_args& args) {
  using T = typename scalar<Row::dtype>::type;
  // A tile of 256 rows of W has two warp groups that multiply and two that load, a tile of 128 rows one of each. With
  // more than 176 rows of A the sums take the registers of one of the warp groups that load.
  constexpr int consumers = Row::tile_n / 128, producers = Row::tile_m > 176 ? 1 : consumers;
  using S = GroupedShape<T, Row::tile_n, Row::tile_m, consumers, producers, cluster>;
  using Ws = typename Row::widths;
  static_assert(WidestOf<Ws>::value == Row::tile_m);
  const int entries = int(args.groups.count < args.m ? args.groups.count : args.m),
            list_bytes = UnitList<S::most, cluster>::bytes(entries);
  const int stages = S::stages(list_bytes);
  if (stages < S::least_stages || args.config.stages != stages) return TG_UNSUPPORTED;
  // The temporary numbers of UnitList::fill() lie in the ring.
  if ((args.groups.count + 1) * 4 > int64_t(stages) * S::stage_bytes) return TG_UNSUPPORTED;
  const int64_t n_tiles = ceil_div(args.n, S::w_rows);
  const bool gated = args.gate != TG_UNGATED, interleaved = args.gate == TG_GATE_INTERLEAVED;
  const int64_t columns = gated ? args.n / 2 : args.n;
  // The dimensions of W: K, columns of D, groups, and the two halves of gated products.
  const int64_t row = args.b.col_stride, half = interleaved ? row : columns * row;
  const Lines w{args.b.ptr,
                args.k,
                columns,
                interleaved ? 2 * row : row,
                {gated ? 2 : 1, args.groups.count},
                {half, args.b.batch_stride[1]}};
  CUtensorMap w_map;
  if (!tensor_map<T>(&w_map, w, S::depth, S::w_box, CU_TENSOR_MAP_SWIZZLE_128B)) return TG_UNSUPPORTED;
  const GroupedPlace place{{args.groups, args.m},
                           Divisor(args.groups.pairs_per_row),
                           args.a.ptr,
                           args.d.ptr,
                           args.a.row_stride,
                           args.d.row_stride,
                           float(args.alpha),
                           args.activation,
                           gated,
                           int(columns),
                           int(args.k),
                           int(n_tiles),
                           entries,
                           stages};
  const auto kernel = sm90_grouped_gemm<S, Ws>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_limit)) return cuda_status(error);
  const int bytes = stages * S::stage_bytes + S::fixed_bytes(list_bytes);
  // No more blocks than tiles that the rows can have: a group's last tile may have a single row.
  const int64_t most = (ceil_div(args.m, S::most) + entries) * n_tiles * cluster;
  if (most > INT_MAX / 2) return TG_UNSUPPORTED;
  const int64_t blocks = std::min<int64_t>(args.sm_count / cluster * cluster, ceil_div(most, cluster) * cluster);
  return Launch(args, dim3(unsigned(blocks)), dim3(S::threads), bytes, dim3(cluster))(kernel, w_map, place);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_NT && Row::align == 16);
  const tg_gemm_args& args = *problem;
  const tg_config& config = args.config;
  if (args.groups.count > 65535 || config.tile_m != Row::tile_m || config.tile_n != Row::tile_n ||
      config.cluster_n != 1 || config.split != 1 || config.warps != 0 || config.swap_ab != 1) {
    return TG_UNSUPPORTED;
  }
  if (config.cluster_m == 1) return run<Row, 1>(args);
  if constexpr (Row::cluster_m == 2) {
    if (config.cluster_m == 2 && args.sm_count >= 2) return run<Row, 2>(args);
  }
  return TG_UNSUPPORTED;
}

}  // namespace tilegemm

#include TG_ROWS
