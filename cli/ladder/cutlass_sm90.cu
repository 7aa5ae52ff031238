// CUTLASS SM90: what Hopper makes of a GEMM, TMA and WGMMA in warps that specialise.
//
// One warp group does nothing but ask TMA for tiles; two others multiply them with WGMMA, which reads both operands
// from shared memory itself. The two blocks of a cluster are neighbours in M and share B: each loads half of it and
// multicasts. A block computes 128 x 256 of D, 85 FLOP per byte without the multicast, and walks on to its next tile.
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/device/gemm_universal_adapter.h"
#include "cutlass/gemm/kernel/gemm_universal.hpp"

#include "launched.hpp"

namespace {

using cute::_1, cute::_128, cute::_2, cute::_256, cute::_64, cute::Shape;
using cutlass::half_t, cutlass::layout::ColumnMajor, cutlass::layout::RowMajor;

using Tile = Shape<_128, _256, _64>;
using Cluster = Shape<_2, _1, _1>;
constexpr int align = 16 / sizeof(half_t), align_d = 16 / sizeof(float);  // TMA: 16 bytes

using Epilogue = cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster, cutlass::epilogue::collective::EpilogueTileAuto,
    float, float, void, RowMajor, align_d, float, RowMajor, align_d,
    cutlass::epilogue::TmaWarpSpecializedCooperative>::CollectiveOp;

// As many stages as fit beside the epilogue's shared memory. B is N x K row-major, so K x N column-major.
using Stages = cutlass::gemm::collective::StageCountAutoCarveout<int(sizeof(Epilogue::SharedStorage))>;
using Mainloop = cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, half_t, RowMajor, align, half_t, ColumnMajor, align, float,
    Tile, Cluster, Stages, cutlass::gemm::KernelTmaWarpSpecializedCooperative>::CollectiveOp;

using Problem = Shape<int, int, int, int>;  // M, N, K, batch
using Kernel = cutlass::gemm::kernel::GemmUniversal<Problem, Mainloop, Epilogue, cutlass::gemm::PersistentScheduler>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

int launch(const void* a, const void* b, void* d, int m, int n, int k, void* stream) {
  Gemm::Arguments arguments{};
  arguments.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  arguments.problem_shape = {m, n, k, 1};
  arguments.mainloop.ptr_A = static_cast<const half_t*>(a);
  arguments.mainloop.ptr_B = static_cast<const half_t*>(b);
  arguments.epilogue.ptr_D = static_cast<float*>(d);
  cute::get<0>(arguments.mainloop.dA) = cute::get<0>(arguments.mainloop.dB) = k;
  cute::get<0>(arguments.epilogue.dD) = n;
  arguments.epilogue.thread.alpha = 1;
  arguments.epilogue.thread.beta = 0;
  arguments.scheduler.max_swizzle_size = 8;  // tiles that run together form a block of D and share in L2

  Gemm gemm;
  if (gemm.can_implement(arguments) != cutlass::Status::kSuccess) return TG_RUNG_UNSUPPORTED;
  if (gemm.initialize(arguments) != cutlass::Status::kSuccess) return TG_RUNG_CUDA_ERROR;
  return gemm.run(cudaStream_t(stream)) == cutlass::Status::kSuccess ? TG_RUNG_OK : TG_RUNG_CUDA_ERROR;
}

}  // namespace

const tg_rung tg_rung_cutlass_sm90 = {
    "CUTLASS SM90", "TMA, WGMMA, warps that specialise, clusters that multicast", {128, 256, 64}, launch};
