// Hopper: f32 by fused multiply-adds, in all four layouts; the host side of device.hpp.
//
// Of the two operands of a kernel, P is read in lines along K or in columns, Q in columns, that is, in lines along M or N:
//
//     layout   P               Q
//     nn       A in lines      B
//     tt       B in lines      A; operands exchanged, D stored transposed
//     tn       A in columns    B
//     nt       A in lines      B transposed, or B in lines, A transposed and D stored so, whichever copies less
//
// Where the tile is 128 x 256, which is fastest with both in columns, every operand along K is transposed. That is done by a
// kernel before, into the workspace.
//
// A row of the table has several tiles, of which the launch takes the one that fills the device best. Where the tile is
// 128 x 128, K is split over groups of warps, and over a cluster besides: sums are then added in a fixed order, but are no
// single chain.
#include "common/launch.hpp"
#include "common/transpose.hpp"
#include "sm90_sgemm/device.hpp"

namespace tilegemm {
namespace {

// With P for A and Q for B.
struct Product {
  tg_gemm_args args;
  Lines p, q;
};

template <class C>
bool tensor_map_of_p(CUtensorMap* map, const Lines& of) {
  if (C::p == Form::columns) return tensor_map<float>(map, of, C::tile_m, C::depth, CU_TENSOR_MAP_SWIZZLE_NONE);
  return tensor_map<float>(map, of, C::depth, C::tile_m,
                           C::depth == 32 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

template <class C>
tg_status run(const Product& product, int split_log2) {
  const tg_gemm_args& args = product.args;
  CUtensorMap p_map, q_map;
  const std::optional<Tiles> tiles = cut_into_tiles(args, C::tile_m, C::tile_n);
  if (!tiles || !tensor_map_of_p<C>(&p_map, product.p) ||
      !tensor_map<float>(&q_map, product.q, C::tile_n, C::depth, CU_TENSOR_MAP_SWIZZLE_NONE)) {
    return TG_UNSUPPORTED;
  }
  Epilogue<float, float> epilogue(args);
  const bool in_fours = args.d.col_stride == 1 && rows_in_fours<float>(args.d, args.m, args.batch);
  const bool simple = in_fours && epilogue.is_scaling();
  Work work{*tiles, split_log2, 1, in_fours, simple};
  const void* kernel = reinterpret_cast<const void*>(sgemm<C>);
  if (const cudaError_t error = allow_shared_memory<C>(kernel, C::shared_bytes)) return cuda_status(error);
  const int64_t blocks = C::reduces ? int64_t(tiles->order.total) << split_log2
                                      : std::min(tiles->order.total, args.sm_count * C::residents);
  void* parameters[] = {&p_map, &q_map, &work, &epilogue};
  const dim3 cluster(C::split ? 1u << split_log2 : 1u);
  return Launch(args, dim3(unsigned(blocks)), dim3(C::threads), C::shared_bytes, cluster)(kernel, parameters);
}

// The best of some tiles, by the cycles that they should take. `src/cost/fma.rs` has the same numbers.
class Best {
 public:
  explicit Best(const Product& product) : product_(product) {}

  // `speed`: of the FMA units, in per cent, that the whole kernel keeps busy where K is long.
  template <class C>
  void consider(int speed) {
    const tg_gemm_args& args = product_.args;
    const int64_t tiles = ceil_div(args.m, C::tile_m) * ceil_div(args.n, C::tile_n) * args.batch[0] * args.batch[1];
    // A tile begins and ends in the time of 16 K, splitting takes that of 16 more, and clusters of four and eight reach 120 of
    // 132 multiprocessors.
    for (int log2 = 0; log2 <= (C::split ? 3 : 0) && (log2 == 0 || args.k >= int64_t(64) << log2); log2++) {
      const int64_t at_once = std::max<int64_t>(1, int64_t(args.sm_count) * (log2 > 1 ? 10 : 11) / 11 * C::residents >> log2);
      const int64_t k = ceil_div(args.k, int64_t(unit) << log2) * unit + (log2 > 0 ? 32 : 16);
      const int64_t cycles = ceil_div(tiles, at_once) * C::residents * C::tile_m * C::tile_n * k / speed;
      if (!run_ || cycles < cycles_) cycles_ = cycles, run_ = run<C>, split_log2_ = log2;
    }
  }
  tg_status operator()() const { return run_(product_, split_log2_); }

 private:
  const Product& product_;
  int64_t cycles_ = 0;
  tg_status (*run_)(const Product&, int) = nullptr;
  int split_log2_ = 0;
};

template <int tile_m, int tile_n, Form P>
tg_status run_best(const Product& product) {
  Best best(product);
  if constexpr (tile_n == 256) {
    best.consider<Config<128, 256, 16, 16, 2, 4, 1, 1, false, P>>(82);
  } else if constexpr (tile_m == 256) {
    best.consider<Config<128, 256, 16, 16, 2, 4, 1, 1, false, P>>(79);
    best.consider<Config<256, 128, 16, 16, 4, 2, 1, 1, false, P>>(78);
    best.consider<Config<128, 192, 16, 16, 2, 4, 1, 1, false, P>>(75);
    best.consider<Config<256, 64, 16, 16, 4, 1, 1, 2, false, P>>(69);
  } else {
    best.consider<Config<128, 128, 32, 16, 2, 2, 2, 1, true, P>>(68);
    best.consider<Config<128, 96, 32, 16, 2, 2, 2, 1, true, P>>(65);
  }
  return best();
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::dtype == TG_F32 && Row::cluster_m == 1 && Row::cluster_n == 1);
  constexpr int tile_m = Row::tile_m, tile_n = Row::tile_n;
  static_assert((tile_m == 128 && tile_n == 256 && Row::tile_k == 16) || (tile_m == 256 && tile_n == 128 && Row::tile_k == 16) ||
                (tile_m == 128 && tile_n == 128 && Row::tile_k == 32));
  constexpr bool a_k_major = a_is_k_major(Row::layout), b_k_major = b_is_k_major(Row::layout);
  const int64_t batches = problem->batch[0] * problem->batch[1];
  if (problem->m == 0 || problem->n == 0 || batches == 0) return TG_OK;
  constexpr int64_t most = INT_MAX / 4;  // src/kernel/limits.rs has the same numbers
  const bool contiguous = (a_k_major ? problem->a.col_stride : problem->a.row_stride) == 1 &&
                          (b_k_major ? problem->b.row_stride : problem->b.col_stride) == 1;
  if (problem->k == 0 || problem->m > most || problem->n > most || problem->k > most || batches > most || !contiguous ||
      (problem->d.col_stride != 1 && problem->n > 1)) {
    return TG_UNSUPPORTED;
  }
  // The smallest sides of the tiles that run_best() chooses from.
  constexpr int least_m = tile_n == 256 ? 128 : tile_m == 256 ? 64 : 96, least_n = tile_n == 256 ? 256 : least_m;
  if (ceil_div(problem->m, least_m) * ceil_div(problem->n, least_n) > most / batches) return TG_UNSUPPORTED;

  constexpr Form form = tile_n == 256 || Row::layout == TG_TN ? Form::columns : Form::lines;
  const bool exchange = form == Form::lines && (Row::layout == TG_TT || (Row::layout == TG_NT && problem->m < problem->n));
  const tg_gemm_args args = exchange ? exchanged(*problem) : *problem;
  const bool p_in_lines = exchange ? b_k_major : a_k_major, q_in_lines = exchange ? a_k_major : b_k_major;
  Product product{args,
                  p_in_lines ? lines_of(args.a, args.m, args.k, args.a.row_stride, args.batch)
                             : lines_of(args.a, args.k, args.m, args.a.col_stride, args.batch),
                  q_in_lines ? lines_of(args.b, args.n, args.k, args.b.col_stride, args.batch)
                             : lines_of(args.b, args.k, args.n, args.b.row_stride, args.batch)};
  Transpose of_p{}, of_q{};
  tg_gemm_args room = args;
  const auto move = [&](Lines* of, Transpose* t) {
    if (!move_to_workspace(room, of, t)) return false;
    const uint64_t bytes = uint64_t(t->squares) * transpose_side * transpose_side * sizeof(float);  // whole squares
    const uint64_t taken = std::min(bytes, room.workspace_bytes);
    room.workspace = static_cast<char*>(room.workspace) + taken, room.workspace_bytes -= taken;
    return true;
  };
  if ((p_in_lines && form == Form::columns && !move(&product.p, &of_p)) || (q_in_lines && !move(&product.q, &of_q))) {
    return TG_UNSUPPORTED;
  }
  if (of_p.squares > 0 || of_q.squares > 0) {
    if (const tg_status status = launch_transpose(args, of_p, of_q)) return status;
  }
  return run_best<tile_m, tile_n, form>(product);
}

}  // namespace tilegemm

#include TG_ROWS
