// Hopper: groups of rows with a matrix B each, both in e4m3, with factors of both: the products of experts with
// activations in 8 bits.
//
// B^T is called W: N rows of K codes. W is on wgmma's M side, 128 rows of it a tile, and rows of A are on the N side: a
// tile is multiplied in the least width that holds its rows. Both operands come from shared memory: W by TMA with the
// group as a coordinate, rows of A by cp.async from wherever the list of pairs says. Rows of D go to wherever the list
// says. Sums over 128 of K are added in f32, as the tensor cores keep some 13 bits; factors of blocks (1 x 128 of A,
// 128 x 128 of W) multiply these sums, and factors of rows the results.
//
// One launch does everything, and its grid does not depend on the numbers on the device: each block makes the list of
// the groups that have rows (experts/unit_list.hpp), and takes every gridDim.x-th tile of the list. A group's rows are
// split in tiles of equal height. The ring goes on from tile to tile.
#include "common/launch.hpp"
#include "common/tensor_map.hpp"
#include "sm90_fp8_grouped_gemm/device.hpp"

namespace tilegemm {
namespace {

// Whether W can lie in shared memory as `neighbours` has it: a lane of wgmma then has two rows of W that are
// neighbours, and stores two numbers of D at a time.
inline bool has_neighbours(const tg_gemm_args& args) {
  return args.n % 16 == 0 && args.b.col_stride < int64_t(1) << 32;
}

// The map of W, with a matrix for each group, in boxes of a tile's rows: K, the row of eight, whether it is odd, the 16
// rows, and the group; or K, the row, and the group. The stride of a single row, and that of a single matrix, have no
// effect.
template <class S>
bool map_of_w(CUtensorMap* map, const tg_gemm_args& args) {
  const bool neighbours = has_neighbours(args);
  const cuuint64_t k = args.k, n = args.n, groups = args.groups.count,
                   row = n == 1 ? (k + 15) / 16 * 16 : args.b.col_stride,
                   matrix = groups == 1 ? 16 : args.b.batch_stride[1];
  const cuuint64_t extents[2][5] = {{k, n, 1, 1, groups}, {k, 8, 2, n / 16, groups}},
                   strides[2][4] = {{row, 16, 16, matrix}, {2 * row, row, 16 * row, matrix}};
  constexpr cuuint32_t boxes[2][5] = {{S::depth, S::height, 1, 1, 1}, {S::depth, 8, 2, S::height / 16, 1}},
                       steps[5] = {1, 1, 1, 1, 1};
  const auto encode = driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 5, args.b.ptr, extents[neighbours], strides[neighbours],
                          boxes[neighbours], steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class Row, Sums sums>
tg_status run(const tg_gemm_args& args, const Factors& factors) {
  using S = GroupedShape<Row::tile_m, sums, typename Row::widths>;
  static_assert(Row::layout == TG_NT && Row::align == 16 && Row::tile_n == S::height && Row::tile_k == S::depth);
  const int64_t n_tiles = ceil_div(args.n, S::height), entries = std::min(args.groups.count, args.m);
  // No more tiles than these: a group's last tile may have a single row.
  const int64_t tiles = (ceil_div(args.m, S::width) + entries) * n_tiles;
  const int64_t rows_of_a = ceil_div(args.m, args.groups.pairs_per_row), stride = rows_of_a > 1 ? args.a.row_stride : 0;
  if (args.groups.count > most_groups || entries > most_entries || tiles > INT_MAX / 4 || stride > most_bytes_of_a ||
      rows_of_a * stride > most_bytes_of_a) {
    return TG_UNSUPPORTED;
  }
  const bool neighbours = has_neighbours(args);
  CUtensorMap w_map;
  if (!map_of_w<S>(&w_map, args)) return TG_UNSUPPORTED;
  const auto kernel = sm90_fp8_grouped_gemm<S>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::most_bytes)) return cuda_status(error);
  const bool has_pairs = neighbours && args.d.row_stride % 2 == 0 &&
                         reinterpret_cast<uintptr_t>(args.d.ptr) % (args.types.d == TG_F32 ? 8 : 4) == 0;
  const Problem problem{args,
                        {args.groups, args.m},
                        Divisor(args.groups.pairs_per_row),
                        factors,
                        args.b_scale.batch_stride[1],
                        uint32_t(stride),
                        int(n_tiles),
                        int(entries),
                        int(ceil_div(args.k, S::depth)),
                        float(args.alpha),
                        neighbours,
                        has_pairs && !args.bias.ptr && args.activation == TG_IDENTITY};
  const int64_t blocks = std::min<int64_t>(args.sm_count, tiles);
  const Launch launch(args, dim3(unsigned(blocks)), dim3(S::threads), S::list_at + S::List::bytes(int(entries)));
  return launch(kernel, w_map, problem, Results(args));
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  const tg_gemm_args& args = *problem;
  Factors factors;
  bool blocks;
  if (args.config != tg_config{} || !factors_of(args, &factors, &blocks)) return TG_UNSUPPORTED;
  return blocks ? run<Row, Sums::blocks>(args, factors) : run<Row, Sums::promoted>(args, factors);
}

}  // namespace tilegemm

#include TG_ROWS
