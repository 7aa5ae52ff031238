// CUTLASS's persistent kernels with the tile order of this library.
//
// CUTLASS's own scheduler has groups of 1, 2, 4 or 8 tiles. That scheduler rounds both sides of the grid up to whole
// groups, computes the additional tiles, and divides in 64 bits before the first load.
#pragma once
#include "cutlass/gemm/kernel/tile_scheduler.hpp"

#include "common/tile_order.hpp"

namespace tilegemm {

// A grid is (blocks of a cluster along M, along N, clusters), and the batch has a single dimension.
class TileScheduler : cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90 {
  using Base = cutlass::gemm::kernel::detail::PersistentTileSchedulerSm90;

 public:
  using Base::IsDynamicPersistent, Base::can_implement, Base::compute_epilogue, Base::fixup,
      Base::get_work_k_tile_count, Base::get_work_k_tile_start, Base::requires_separate_reduction,
      Base::valid_warpgroup_in_work_tile;
  using Base::CLCResponse, Base::Pipeline, Base::PipelineStorage, Base::SharedStorage, Base::ThrottlePipeline,
      Base::ThrottlePipelineStorage, Base::WorkTileInfo;

  struct Arguments {
    TileOrder order{1, 1, {1, 1}, false, 1};
  };
  struct Params : Base::Params, Arguments {};

  template <class Problem, class Tile, class Cluster>
  static Params to_underlying_arguments(Problem, Tile, Cluster, const cutlass::KernelHardwareInfo&,
                                        const Arguments& arguments, void* = nullptr, uint32_t = 1, uint32_t = 1) {
    Params params;
    params.order = arguments.order;
    return params;
  }
  template <class Problem, class Accumulator>
  static size_t get_workspace_size(const Arguments&, Problem, const cutlass::KernelHardwareInfo&, uint32_t,
                                   uint32_t = 1, uint32_t = 1) {
    return 0;
  }

  TileScheduler() = default;
  CUTLASS_DEVICE explicit TileScheduler(const Params& params) : order_(params.order) {
    const auto [block_m, block_n, block_l] = cute::block_id_in_cluster();
    block_m_ = int(block_m), block_n_ = int(block_n), next_ = int(blockIdx.z);
    // In per-thread registers: otherwise slower units compute warp-uniform values, and special registers are read
    // again.
    asm volatile("" : "+r"(block_m_), "+r"(block_n_), "+r"(next_));
  }

  CUTLASS_DEVICE WorkTileInfo get_current_work() const { return work_at(next_); }
  template <class Cluster>
  CUTLASS_DEVICE WorkTileInfo initial_work_tile_info(Cluster) {
    return get_current_work();
  }
  CUTLASS_DEVICE void advance_to_next_work(uint32_t count = 1) { next_ += int(gridDim.z * count); }
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo) {
    advance_to_next_work();
    return cute::make_tuple(get_current_work(), true);
  }
  template <class Pipeline, class State>
  CUTLASS_DEVICE auto fetch_next_work(WorkTileInfo work, Pipeline&, State) {
    return fetch_next_work(work);
  }
  CUTLASS_DEVICE bool is_last_tile(WorkTileInfo&, uint32_t count = 1) const {
    return next_ + int(gridDim.z * count) >= order_.total;
  }

 private:
  CUTLASS_DEVICE WorkTileInfo work_at(int t) const {
    if (t >= order_.total) return WorkTileInfo::invalid_work_tile();
    const Tile tile = order_.at(t);
    return {tile.m * int(gridDim.x) + block_m_, tile.n * int(gridDim.y) + block_n_, tile.batch0, true};
  }

  TileOrder order_{1, 1, {1, 1}, false, 1};
  int block_m_ = 0, block_n_ = 0, next_ = 0;
};

struct OurOrder {};  // the tag with which a kernel requests this scheduler

}  // namespace tilegemm

template <class Arch, class Tile, class Cluster, uint32_t Stages>
struct cutlass::gemm::kernel::detail::TileSchedulerSelector<tilegemm::OurOrder, Arch, Tile, Cluster, Stages> {
  using Scheduler = tilegemm::TileScheduler;
};
