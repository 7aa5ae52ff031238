// Hopper: f32 products on tensor cores, with no more error than cuBLAS's SGEMM (docs/f32.md).
//
//     A = a0 + a1 + a2, B = b0 + b1 + b2, parts in bf16:   A @ B = a0 b2 + a1 b1 + a2 b0 + a0 b1 + a1 b0 + a0 b0 + ...
//
// The three products that are left out are below 2^-25 of |A| |B|. Tensor cores multiply bf16 exactly, but cut off
// their sums at 24 bits. Three measures keep the errors of the cuts small:
//
// - The small products come first. A tensor core adds up 32 of K, or 16; this partial sum is then added to `sum` in
// f32, rounded to
//   nearest.
// - From K = 128 to 2048, the next partial sum starts from the rounding error of that addition. Finding the error costs
// more than the
//   addition. So for other K, 2, 8 or 16 partial sums are added without their errors, and `sum` then goes to a total
//   in shared memory. The next `sum` starts from the rounding error of the addition to the total.
// - The cuts take 3e-8 to 6e-8 of a result on average. At the end D gets a share of D back, a little less than 2^-25.
// The share is
//   less than half a unit of the last place of any number, so that an exact result stays exact.
//
//     f32 A, K-major  --TMA-->  shared memory  --split-->  registers  \
//     B  --split by a kernel before-->  three planes  --TMA-->  shared memory  -->  wgmma
//
// Two warp groups have 64 rows each. From K = 256 on the groups take turns: the additions of one group run during the
// products of the other group. Blocks are persistent. An A whose K is not contiguous is transposed beforehand. The
// kernel that splits B also transposes a B whose K is not contiguous. Elements of D that are not finite are computed
// again by fused multiply-adds: the parts of an infinity, or of a number that rounds to infinity in bf16, make results
// NaN that should be finite or infinite.
//
// The workspace holds the planes of B, and in tn and tt also the transposed A. For each matrix of the batch, with K
// rounded up to 64 and N to 8, the planes take 6 * N * K bytes, and A takes 4 * M * K bytes (`footprint` in
// src/family/sm90_bf16x6.rs).
#include <algorithm>
#include <climits>

#include "common/launch.hpp"
#include "common/tensor_map.hpp"
#include "sm90_bf16x6/device.hpp"

namespace tilegemm {
namespace {

// How sums are partitioned: at each K the fastest way whose error is at most SGEMM's for any kind of data and any split
// of K by SGEMM (docs/f32.md). The yardstick is cuBLAS's error at 512 x 512, where cuBLAS splits K the most.
template <int width, int cluster>
struct Ways {
  using Short = Config<width, cluster, 16, false>;  // K < 128
  using Exact = Config<width, cluster, 32, true>;   // K < 2048
  using Long = Config<width, cluster, 32, false>;
};
constexpr int64_t least_of_exact = 128, least_of_long = 2048;
constexpr int sums_for(int64_t k) { return k < least_of_exact ? 2 : k < 8192 ? 8 : 16; }

constexpr int64_t round_up(int64_t x, int64_t multiple) { return ceil_div(x, multiple) * multiple; }

// The number of distinct matrices along each dimension of the batch.
struct Distinct {
  int64_t count[2];
  Distinct(const tg_matrix& x, const int64_t (&batch)[2])
      : count{x.batch_stride[0] == 0 ? 1 : batch[0], x.batch_stride[1] == 0 ? 1 : batch[1]} {}
  int64_t all() const { return count[0] * count[1]; }
  // Distances between the matrices along the batch, where the matrices lie one behind the other; 0 where there is one
  // matrix.
  void moves(int (&of)[2]) const { of[0] = count[0] > 1 ? int(count[1]) : 0, of[1] = count[1] > 1; }
};

// Planes of B, in boxes of `box_rows` rows and 64 bytes, the width of the swizzle.
bool tensor_map_of_planes(CUtensorMap* map, void* planes, int64_t plane_k, int64_t rows, int64_t count, int box_rows) {
  return tensor_map<3>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, planes,
                       {cuuint64_t(plane_k), cuuint64_t(rows), cuuint64_t(count)},
                       {cuuint64_t(plane_k) * 2, cuuint64_t(rows * plane_k) * 2}, {32, cuuint32_t(box_rows), 1},
                       CU_TENSOR_MAP_SWIZZLE_64B);
}

template <class C>
tg_status run(const tg_gemm_args& args, const CUtensorMap& a_map, const CUtensorMap& b_map, const CUtensorMap& d_map,
              const Place& place) {
  const Epilogue<float, float> epilogue(args);
  const int clusters = std::min(place.order.total, std::max(1, args.sm_count / C::cluster));
  return launch_configured<C>(args, clusters * C::cluster, C::cluster, sm90_bf16x6<C>, a_map, b_map, d_map, place,
                              epilogue);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::math == TG_BF16X6 && Row::dtype == TG_F32 && Row::cluster_n == 1);
  using Add = Ways<Row::tile_n, Row::cluster_m>;
  using Tiles = typename Add::Long;
  static_assert(Row::tile_m == Tiles::height && Row::tile_k == Tiles::depth);
  constexpr bool a_is_ready = a_is_k_major(Row::layout), b_in_rows = b_is_k_major(Row::layout);
  const tg_gemm_args& args = *problem;
  const int64_t m = args.m, n = args.n, k = args.k;
  const int64_t m_clusters = ceil_div(m, Tiles::height * Tiles::cluster), n_tiles = ceil_div(n, Tiles::width);

  // The workspace: first the planes of B, then the copy of A.
  const Distinct of_b(args.b, args.batch);
  const int64_t plane_k = round_up(k, plane_group), plane_bytes = round_up(of_b.all() * 3 * n * plane_k * 2, 256);
  if (!args.workspace || args.workspace_bytes < uint64_t(plane_bytes)) return TG_UNSUPPORTED;
  tg_gemm_args behind_planes = args;
  behind_planes.workspace = static_cast<char*>(args.workspace) + plane_bytes;
  behind_planes.workspace_bytes -= uint64_t(plane_bytes);
  Lines a = lines_of_a(args, a_is_ready);
  Transpose a_copy{};
  if (!a_is_ready && !move_to_workspace(behind_planes, &a, &a_copy)) return TG_UNSUPPORTED;
  const int64_t b_stride = b_in_rows ? args.b.col_stride : args.b.row_stride;
  const int64_t b_work = of_b.all() * (b_in_rows ? n * plane_k / 8 : ceil_div(n, 64) * ceil_div(k, 64));
  const bool b_wide = lines_at_multiples<float>(b_in_rows ? 2 : 4, args.b, b_stride, b_in_rows ? n : k, args.batch);
  const Unprepared b{static_cast<const float*>(args.b.ptr),
                     b_stride,
                     {args.b.batch_stride[0], args.b.batch_stride[1]},
                     args.workspace,
                     int(n),
                     int(k),
                     int(plane_k),
                     int(of_b.count[1]),
                     b_in_rows,
                     b_wide,
                     unsigned(b_work)};

  CUtensorMap a_map, b_map, d_map{};
  if (!tensor_map(&a_map, a, Tiles::height, false) ||
      !tensor_map_of_planes(&b_map, args.workspace, plane_k, n, 3 * of_b.all(), Tiles::width / Tiles::cluster)) {
    return TG_UNSUPPORTED;
  }
  const tg_matrix& d = args.d;
  const bool whole = Epilogue<float, float>(args).is_plain() && n % 4 == 0 && (d.col_stride == 1 || n == 1) &&
                     rows_at_multiples<float>(4, d, m, args.batch) && tensor_map(&d_map, lines_of_d(args), 16, false);
  const TileOrder order(m_clusters, n_tiles, args.batch, true, 8);
  Place place{args.a, args.b, args.d, int(m), int(n), int(k), order, {}, sums_for(k), 1, k >= 256, whole};
  of_b.moves(place.b_moves);

  const int64_t a_blocks = ceil_div(a_copy.squares, transpose_threads / 32);
  const int64_t blocks = std::max(a_blocks, b_in_rows ? ceil_div(b_work, prepare_threads) : b_work);
  const dim3 grid(unsigned(std::min<int64_t>(blocks, 16 * args.sm_count)));
  if (const tg_status status =
          Launch(args, grid, dim3(prepare_threads), 0)(sm90_bf16x6_prepare<!a_is_ready>, a_copy, b))
    return status;
  if (k < least_of_exact) return run<typename Add::Short>(args, a_map, b_map, d_map, place);
  if (k < least_of_long) return run<typename Add::Exact>(args, a_map, b_map, d_map, place);
  return run<typename Add::Long>(args, a_map, b_map, d_map, place);
}

}  // namespace tilegemm

#include TG_ROWS
