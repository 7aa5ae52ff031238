// Hopper: CUTLASS 3 kernels fed by TMA, multiplied by WGMMA, with warp-specialised persistent thread blocks.
//
// A row of the table states the tile, the cluster that shares loads by multicast, the pipeline depth and the schedule.
// With `cooperative`, two consumer warp groups compute one tile. With `pingpong`, each group computes a tile of its
// own, and the epilogue of one tile runs during the products of the other tile. TMA fills elements outside of a matrix
// with zeros, so M and K may have any length. TMA also drops stores outside of a matrix, but in pieces of 16 bytes
// (seen on an H100): N must fill the last piece of a row of D. Pointers and strides are multiples of 16 bytes as well.
#include <climits>

// A kernel waits for the kernel before where the loads begin, and lets the next kernel start where the loads end.
#define CUTLASS_ENABLE_GDC_FOR_SM90 1

#include "common/launch.hpp"
#include "common/tensor_map.hpp"

#include "cutlass/cuda_host_adapter.hpp"

// CUTLASS's own macro looks up the function by name for each descriptor of each launch.
#undef CUTLASS_CUDA_DRIVER_WRAPPER_CALL
#define CUTLASS_CUDA_DRIVER_WRAPPER_CALL(NAME) tilegemm::driver_function<PFN_##NAME##_v12000>(#NAME)

#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

#include "common/kernel.hpp"
#include "sm90_gemm/epilogue.hpp"
#include "sm90_gemm/tile_scheduler.hpp"

namespace tilegemm {

// A row has two kernels, without and with C: the parts of C that are loaded ahead of the stores take shared memory from
// A and B, and a product without C keeps that memory.
template <class Row, bool AddsC>
struct Sm90 {
  using Element = std::conditional_t<Row::dtype == TG_BF16, cutlass::bfloat16_t, cutlass::half_t>;
  using Out = std::conditional_t<Row::out == TG_F32, float, Element>;  // C, the bias and D
  using LayoutA =
      std::conditional_t<a_is_k_major(Row::layout), cutlass::layout::RowMajor, cutlass::layout::ColumnMajor>;
  using LayoutB =
      std::conditional_t<b_is_k_major(Row::layout), cutlass::layout::ColumnMajor, cutlass::layout::RowMajor>;
  using LayoutD = cutlass::layout::RowMajor;
  static constexpr int alignment = Row::align / sizeof(Element), out_alignment = Row::align / sizeof(Out);

  using Tile = cute::Shape<cute::Int<Row::tile_m>, cute::Int<Row::tile_n>, cute::Int<Row::tile_k>>;
  using Cluster = cute::Shape<cute::Int<Row::cluster_m>, cute::Int<Row::cluster_n>, cute::_1>;

  static_assert(Row::schedule != Schedule::none, "name a schedule: cooperative or pingpong");
  static constexpr bool cooperative = Row::schedule == Schedule::cooperative;
  using MainloopSchedule = std::conditional_t<cooperative, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                                              cutlass::gemm::KernelTmaWarpSpecializedPingpong>;
  using EpilogueSchedule = std::conditional_t<cooperative, cutlass::epilogue::TmaWarpSpecializedCooperative,
                                              cutlass::epilogue::TmaWarpSpecialized>;

  using EpilogueOp = BiasActivation<Out, Row::tile_m, Row::tile_n, AddsC>;
  using ElementC = std::conditional_t<AddsC, Out, void>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, ElementC, LayoutD, out_alignment, Out, LayoutD,
      out_alignment, EpilogueSchedule, EpilogueOp>::CollectiveOp;

  // 0 stages: as many as fit into the shared memory that the epilogue leaves.
  using Stages =
      std::conditional_t<Row::stages == 0,
                         cutlass::gemm::collective::StageCountAutoCarveout<sizeof(typename Epilogue::SharedStorage)>,
                         cutlass::gemm::collective::StageCount<Row::stages>>;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, LayoutA, alignment, Element, LayoutB, alignment,
      float, Tile, Cluster, Stages, MainloopSchedule>::CollectiveOp;

  using Problem = cute::Shape<int, int, int, int>;  // M, N, K, batch
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Problem, Mainloop, Epilogue, OurOrder>;
};

// The CuTe stride of an operand: the contiguous mode is static, the other mode and the batch are set. False: TMA cannot
// address the operand.
template <class Element, class Stride>
bool tma_stride(const tg_matrix& matrix, bool rows_are_contiguous, const int64_t (&batch)[2], Stride* stride) {
  const int64_t unit = rows_are_contiguous ? matrix.col_stride : matrix.row_stride;
  const int64_t leading = rows_are_contiguous ? matrix.row_stride : matrix.col_stride;
  int64_t batch_stride;
  if (unit != 1 || !merge_batch_strides(matrix, batch, &batch_stride)) return false;

  const auto addressable = [](int64_t elements) {
    constexpr int64_t limit = int64_t(1) << 40;  // bytes; the limit of cuTensorMapEncodeTiled
    constexpr int64_t size = sizeof(Element);
    return elements >= 0 && elements < limit / size && elements * size % 16 == 0;
  };
  if (!addressable(leading) || !addressable(batch_stride) || reinterpret_cast<uintptr_t>(matrix.ptr) % 16 != 0)
    return false;

  constexpr int leading_mode = cutlass::gemm::detail::is_major<0, Stride>() ? 1 : 0;
  cute::get<leading_mode>(*stride) = leading;
  cute::get<2>(*stride) = batch_stride;
  return true;
}

// The bias as a vector along M or along N. False: the bias is a matrix.
template <class Epilogue>
bool bias_vector(const tg_gemm_args& args, Epilogue* epilogue) {
  const tg_matrix& bias = args.bias;
  if (!bias.ptr) return true;
  if (bias.row_stride != 0 && bias.col_stride != 0) return false;
  epilogue->bias = static_cast<decltype(epilogue->bias)>(bias.ptr);
  epilogue->bias_along_m = bias.row_stride != 0;
  epilogue->bias_stride = bias.row_stride + bias.col_stride;
  return merge_batch_strides(bias, args.batch, &epilogue->bias_batch_stride);
}

// Strips of 2048 rows, visited along N, were the best or within 2 % of the best in all measurements (H100, 1000 to
// 16384 rows, K of 64 to 28672). Clusters of 256 x 256 are up to 1 % faster in strips of 2048 columns, unless there are
// many columns.
template <class Row>
TileOrder order_of(const tg_gemm_args& args, int64_t clusters_m, int64_t clusters_n, int64_t batch) {
  constexpr int rows = Row::tile_m * Row::cluster_m, columns = Row::tile_n * Row::cluster_n;
  const bool along_m = rows == columns && args.n < 8192;
  return TileOrder(clusters_m, clusters_n, {batch, 1}, along_m, 2048 / (along_m ? columns : rows));
}

namespace {

// Prefetches a block's first loads, one stage of A and of B, into L2.
template <class Kernel>
__device__ void prefetch_first_stage(const typename Kernel::Params& params) {
  using namespace cute;
  const auto& mainloop = params.mainloop;
  const auto [a, b] = typename Kernel::CollectiveMainloop().load_init(params.problem_shape, mainloop);
  const Tile tile = params.scheduler.order.at(int(blockIdx.z));
  const int block_m = int(blockIdx.x), block_n = int(blockIdx.y);
  const int m = tile.m * int(gridDim.x) + block_m, n = tile.n * int(gridDim.y) + block_n;
  prefetch(mainloop.tma_load_a, mainloop.tma_load_a.get_slice(block_n).partition_S(a(_, _, m, 0, tile.batch0)));
  prefetch(mainloop.tma_load_b, mainloop.tma_load_b.get_slice(block_m).partition_S(b(_, _, n, 0, tile.batch0)));
}

template <class Kernel>
__global__ void __launch_bounds__(Kernel::MaxThreadsPerBlock, Kernel::MinBlocksPerMultiprocessor)
    sm90_gemm(const __grid_constant__ typename Kernel::Params params, bool overlap) {
  extern __shared__ char shared[];
  if (overlap && threadIdx.x == 32) prefetch_first_stage<Kernel>(params);  // a thread of a warp that is idle here
  Kernel()(params, shared);
}

}  // namespace

template <class Row, bool AddsC>
tg_status launch(const tg_gemm_args* args) {
  using Types = Sm90<Row, AddsC>;
  using Element = typename Types::Element;
  using Out = typename Types::Out;
  using Kernel = typename Types::Kernel;

  const int64_t batch = args->batch[0] * args->batch[1];
  const int64_t clusters_m = ceil_div(args->m, Row::tile_m * Row::cluster_m);
  const int64_t clusters_n = ceil_div(args->n, Row::tile_n * Row::cluster_n);

  constexpr int cluster_size = Row::cluster_m * Row::cluster_n;
  static_assert(cluster_size <= 8, "larger clusters are not portable and need an attribute of the kernel");

  typename Kernel::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {int(args->m), int(args->n), int(args->k), int(batch)};
  arguments.mainloop.ptr_A = static_cast<const Element*>(args->a.ptr);
  arguments.mainloop.ptr_B = static_cast<const Element*>(args->b.ptr);
  arguments.epilogue.ptr_D = static_cast<Out*>(args->d.ptr);
  arguments.epilogue.thread.alpha = float(args->alpha);
  arguments.epilogue.thread.activation = args->activation;
  if (!tma_stride<Element>(args->a, a_is_k_major(Row::layout), args->batch, &arguments.mainloop.dA) ||
      !tma_stride<Element>(args->b, !b_is_k_major(Row::layout), args->batch, &arguments.mainloop.dB) ||
      !tma_stride<Out>(args->d, true, args->batch, &arguments.epilogue.dD) ||
      !bias_vector(*args, &arguments.epilogue.thread)) {
    return TG_UNSUPPORTED;
  }
  if constexpr (AddsC) {
    arguments.epilogue.ptr_C = static_cast<const Out*>(args->c.ptr);
    arguments.epilogue.thread.beta = float(args->beta);
    if (!tma_stride<Out>(args->c, true, args->batch, &arguments.epilogue.dC)) return TG_UNSUPPORTED;
  }
  arguments.scheduler.order = order_of<Row>(*args, clusters_m, clusters_n, batch);

  // GemmUniversalAdapter would do the rest, with two cudaFuncSetAttribute calls per launch. The adapter's can_implement
  // is not called: that function derives the alignment of strides from the extents, as if operands were packed.
  if (const cudaError_t error = allow_shared_memory<Types>(sm90_gemm<Kernel>, Kernel::SharedStorageSize))
    return cuda_status(error);
  const typename Kernel::Params params = Kernel::to_underlying_arguments(arguments, nullptr);

  const int64_t clusters = std::min<int64_t>(clusters_m * clusters_n * batch, args->sm_count / cluster_size);
  const dim3 cluster(Row::cluster_m, Row::cluster_n, 1);
  const Launch launch(*args, dim3(cluster.x, cluster.y, unsigned(clusters)), Kernel::get_block_shape(),
                      Kernel::SharedStorageSize, cluster);
  return launch(sm90_gemm<Kernel>, params, args->overlap != 0);
}

template <class Row>
tg_status launch(const tg_gemm_args* args) {
  return args->beta == 0 ? launch<Row, false>(args) : launch<Row, true>(args);
}

}  // namespace tilegemm

#include TG_ROWS
