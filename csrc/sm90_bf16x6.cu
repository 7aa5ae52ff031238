// Hopper: f32 products on tensor cores, with no more error than those of fused multiply-adds (docs/f32.md).
//
//     A = a0 + a1 + a2, B = b0 + b1 + b2, parts in bf16:   A @ B = a0 b2 + a1 b1 + a2 b0 + a0 b1 + a1 b0 + a0 b0 + ...
//
// What is left out is below 2^-25 of |A| |B|. Tensor cores multiply bf16 exactly, but cut off what they add up at 24 bits.
// Three things keep that small:
//
// - The small products come first, and sums stay in a tensor core for 32 of K only, or 16; then they are added to `sum` in f32,
//   rounded to nearest.
// - What such an addition loses is where the next sum in the tensor core starts. Or, since that costs more than the addition, a
//   few sums are added plainly, and then go to a total in shared memory, by an addition whose error is where `sum` goes on.
// - At the end D gets half of what is cut off on average, proportional to it: less than half a unit of its last place, so that
//   a result that was exact stays so.
//
//     f32 A, K-major  --TMA-->  shared memory  --split-->  registers  \
//     B  --split by a kernel before-->  three planes  --TMA-->  shared memory  -->  wgmma
//
// Two warp groups of 64 rows take turns, one's additions under the other's products; blocks are persistent. An A whose K is not
// contiguous is transposed beforehand, B whenever it has to be. Elements of D that are not finite are computed again by
// fused multiply-adds: parts of an infinity, or of a number that rounds to one, make NaN where there is none.
#include <algorithm>
#include <climits>

#include "sm90.hpp"
#include "sm90_bf16x6.hpp"

namespace tilegemm {
namespace {

// How sums are cut up, so that the error is at most SGEMM's for any kind of data and however that splits K (docs/f32.md).
// At each K the fastest of those that are. cuBLAS's error at 512 x 512, where it splits K the most, is the yardstick.
template <int width, int cluster>
struct Ways {
  using Short = Config<width, cluster, 16, false>;  // K < 128
  using Exact = Config<width, cluster, 32, true>;   // K < 2048
  using Long = Config<width, cluster, 32, false>;
};
constexpr int64_t least_of_exact = 128, least_of_long = 2048;
constexpr int sums_for(int64_t k) { return k < least_of_exact ? 2 : k < 8192 ? 8 : 16; }

constexpr int64_t round_up(int64_t x, int64_t multiple) { return ceil_div(x, multiple) * multiple; }

bool is_multiple(const tg_matrix& x, int64_t stride, int elements) {
  return reinterpret_cast<uintptr_t>(x.ptr) % (4 * elements) == 0 && stride % elements == 0 &&
         x.batch_stride[0] % elements == 0 && x.batch_stride[1] % elements == 0;
}

// Matrices of the batch that are not the same, along its dimensions.
struct Distinct {
  int64_t count[2];
  Distinct(const tg_matrix& x, const int64_t (&batch)[2])
      : count{x.batch_stride[0] == 0 ? 1 : batch[0], x.batch_stride[1] == 0 ? 1 : batch[1]} {}
  int64_t all() const { return count[0] * count[1]; }
  // Distances between them, where they follow each other.
  void moves(int (&of)[2]) const { of[0] = count[0] > 1 ? int(count[1]) : 0, of[1] = count[1] > 1; }
};

// Rows, `strides[0]` from one to the next, in batches; boxes of as many bytes of a row as shared memory is swizzled by, and
// `box_rows` high. False: TMA cannot address it.
template <int rank>
bool tensor_map(CUtensorMap* map, CUtensorMapDataType type, int size, const void* data, const int64_t (&extents)[rank],
                const int64_t (&strides)[rank - 1], int box_bytes, int box_rows) {
  cuuint64_t shape[rank], bytes[rank - 1];
  cuuint32_t box[rank] = {cuuint32_t(box_bytes / size), cuuint32_t(box_rows)}, steps[rank];
  for (int i = 0; i < rank; i++) {
    shape[i] = cuuint64_t(extents[i]), steps[i] = 1;
    if (i > 1) box[i] = 1;
    // The stride of an extent of 1 means nothing, and may be anything.
    if (i > 0) bytes[i - 1] = cuuint64_t(extents[i] == 1 ? round_up(extents[0] * size, 16) : strides[i - 1] * size);
  }
  const auto encode = driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  return encode && encode(map, type, rank, const_cast<void*>(data), shape, bytes, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                          box_bytes == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                          CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

template <class C>
tg_status run(const tg_gemm_args& args, const CUtensorMap& a_map, const CUtensorMap& b_map, const CUtensorMap& d_map,
              const Place& place) {
  const void* kernel = reinterpret_cast<const void*>(multiply<C>);
  if (const cudaError_t error = allow_shared_memory<C>(kernel, C::shared_bytes)) return cuda_status(error);
  Epilogue<float, float> epilogue(args);
  const int clusters = std::min(place.tiles, std::max(1, args.sm_count / C::cluster));
  void* parameters[] = {const_cast<CUtensorMap*>(&a_map), const_cast<CUtensorMap*>(&b_map),
                        const_cast<CUtensorMap*>(&d_map), const_cast<Place*>(&place), &epilogue};
  return Launch(args, dim3(clusters * C::cluster), dim3(C::threads), C::shared_bytes, dim3(C::cluster))(kernel, parameters);
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
  const int64_t m = args.m, n = args.n, k = args.k, batches = args.batch[0] * args.batch[1];
  if (m == 0 || n == 0 || batches == 0) return TG_OK;
  const int64_t m_clusters = ceil_div(m, Tiles::height * Tiles::cluster), n_tiles = ceil_div(n, Tiles::width);
  constexpr int64_t most = INT_MAX / 4;
  if (k == 0 || m > most || n > most || k > most || 3 * batches > most || m_clusters * n_tiles > most / batches) {
    return TG_UNSUPPORTED;
  }
  const bool contiguous = (a_is_ready ? args.a.col_stride : args.a.row_stride) == 1 &&
                          (b_in_rows ? args.b.row_stride : args.b.col_stride) == 1;
  if (!contiguous || args.sm_count < Tiles::cluster) return TG_UNSUPPORTED;

  // The workspace: planes of B, then A's copy.
  const Distinct of_a(args.a, args.batch), of_b(args.b, args.batch);
  const int64_t plane_k = round_up(k, plane_group), copy_k = round_up(k, 4);
  const int64_t plane_bytes = round_up(of_b.all() * 3 * n * plane_k * 2, 256);
  const int64_t copy_bytes = a_is_ready ? 0 : of_a.all() * m * copy_k * 4;
  if (!args.workspace || args.workspace_bytes < uint64_t(plane_bytes + copy_bytes)) return TG_UNSUPPORTED;
  void* const planes = args.workspace;
  void* const copy = static_cast<char*>(args.workspace) + plane_bytes;

  const auto unprepared = [&](const tg_matrix& x, int64_t stride, void* to, int64_t rows, int64_t pitch, const Distinct& of,
                              Form form) {
    const bool in_rows = form == Form::planes_of_rows;
    const int64_t work = form == Form::none ? 0
                         : in_rows          ? of.all() * rows * pitch / 8
                                            : of.all() * ceil_div(rows, 64) * ceil_div(k, 64);
    return Unprepared{static_cast<const float*>(x.ptr), stride, {x.batch_stride[0], x.batch_stride[1]}, to, int(rows), int(k),
                      int(pitch), int(of.count[1]), form, is_multiple(x, stride, in_rows ? 2 : 4), unsigned(work)};
  };
  Unprepared a = unprepared(args.a, args.a.col_stride, copy, m, copy_k, of_a, a_is_ready ? Form::none : Form::copy_of_columns);
  Unprepared b = b_in_rows ? unprepared(args.b, args.b.col_stride, planes, n, plane_k, of_b, Form::planes_of_rows)
                           : unprepared(args.b, args.b.row_stride, planes, n, plane_k, of_b, Form::planes_of_columns);

  CUtensorMap a_map, b_map, d_map{};
  const int64_t a_stride = a_is_ready ? args.a.row_stride : copy_k;
  const int64_t a_outer = a_is_ready ? args.a.batch_stride[0] : of_a.count[1] * m * copy_k;
  const int64_t a_inner = a_is_ready ? args.a.batch_stride[1] : m * copy_k;
  constexpr auto f32 = CU_TENSOR_MAP_DATA_TYPE_FLOAT32, bf16 = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  if (!tensor_map<4>(&a_map, f32, 4, a_is_ready ? args.a.ptr : copy, {k, m, of_a.count[1], of_a.count[0]},
                     {a_stride, a_inner, a_outer}, 128, Tiles::height) ||
      !tensor_map<3>(&b_map, bf16, 2, planes, {plane_k, n, 3 * of_b.all()}, {plane_k, n * plane_k}, 64,
                     Tiles::width / Tiles::cluster)) {
    return TG_UNSUPPORTED;
  }
  const tg_matrix& d = args.d;
  const bool whole = Epilogue<float, float>(args).is_plain() && n % 4 == 0 && (d.col_stride == 1 || n == 1) &&
                     is_multiple(d, m == 1 ? 0 : d.row_stride, 4) &&
                     tensor_map<4>(&d_map, f32, 4, d.ptr, {n, m, args.batch[1], args.batch[0]},
                                   {d.row_stride, d.batch_stride[1], d.batch_stride[0]}, 128, 16);
  Place place{args.a, args.b, args.d, int(m), int(n), int(k), int(args.batch[1]), int(m_clusters), int(n_tiles),
              int(m_clusters * n_tiles * batches), args.swizzle > 0 ? args.swizzle : 8, {}, {}, sums_for(k), 1, k >= 256, whole};
  of_a.moves(place.a_moves), of_b.moves(place.b_moves);

  const int64_t blocks = std::max<int64_t>(a.work, b_in_rows ? ceil_div(b.work, prepare_threads) : b.work);
  void* parameters[] = {&a, &b};
  const dim3 grid(unsigned(std::min<int64_t>(blocks, 16 * args.sm_count)));
  const tg_status status =
      Launch(args, grid, dim3(prepare_threads), 0)(reinterpret_cast<const void*>(prepare_both), parameters);
  if (status != TG_OK) return status;
  if (k < least_of_exact) return run<typename Add::Short>(args, a_map, b_map, d_map, place);
  if (k < least_of_long) return run<typename Add::Exact>(args, a_map, b_map, d_map, place);
  return run<typename Add::Long>(args, a_map, b_map, d_map, place);
}

}  // namespace tilegemm

#include TG_ROWS
