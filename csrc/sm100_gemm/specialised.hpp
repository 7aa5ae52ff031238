// Data-centre Blackwell, the last two rungs: a warp loads, a warp multiplies, four warps store. Two blocks may share a
// tile.
//
//     load       | stages of tile 0                   | stages of tile 1, as far as the ring has room ...
//     multiply   | products of tile 0 into sums 0     | products of tile 1 into sums 1    | of tile 2 into read sums 0
//     store                                           | sums 0 to D                       | sums 1 to D
//
// The barriers, and who arrives:
//
//     full         of the first block: its loading warp, once, with the bytes of all blocks' loads of the stage
//     empty        of every block: a commit, when the products of the stage have ended
//     sums_full    of every block: a commit, when the products of the tile have ended
//     sums_empty   of the first block: every storing warp of all blocks, when the warp's sums are in registers
//
// The second block may load a stage before the first block has announced the bytes. The phase of `full` does not end
// before that: the arrival that announces the bytes is the phase's only arrival.
#pragma once
#include "sm100_gemm/store.hpp"

namespace tilegemm {
namespace {

template <class C>
__device__ __forceinline__ void run_specialised(typename C::Shared& shared, const CUtensorMap& a_map,
                                                const CUtensorMap& b_map, const Work& work,
                                                const Epilogue<typename C::Out, float>& epilogue,
                                                uint32_t tensor_memory, int warp, int lane) {
  const int rank = C::ctas == 1 ? 0 : int(cluster_rank()), first = int(blockIdx.x) / C::ctas,
            step = int(gridDim.x) / C::ctas;
  const uint32_t full = cute::cast_smem_ptr_to_uint(shared.full), empty = cute::cast_smem_ptr_to_uint(shared.empty);
  const uint32_t sums_full = cute::cast_smem_ptr_to_uint(shared.sums_full),
                 sums_empty = cute::cast_smem_ptr_to_uint(shared.sums_empty);

  if (warp == 0 && lane == 0) {
    Stage at = Stage::to_fill();
#pragma unroll 1
    for (int t = first; t < work.order.total; t += step) {
      const Tile tile = work.order.at(t);
#pragma unroll 1
      for (int k = 0; k < work.k_blocks; k++) {
        if (rank == 0) at.acquire(full, empty, C::ctas * (C::a_bytes + C::b_bytes));
        else at.wait(empty);
        load_stage<C>(shared, at.s, a_map, b_map, tile, k, rank);
        at.advance(C::stages);
      }
    }
    // The block stays until the last commits have arrived.
    for (int s = 0; s < C::stages; s++) {
      at.wait(empty);
      at.advance(C::stages);
    }
  } else if (warp == 1 && rank == 0) {
    Products<C> products(shared);
    Stage at = Stage::to_read(), sums = Stage::to_fill();
#pragma unroll 1
    for (int t = first; t < work.order.total; t += step) {
      sums.wait_warp(sums_empty);
      fence_after_wait();
      products.start(tensor_memory + sums.s * C::tile_n);
#pragma unroll 1
      for (int k = 0; k < work.k_blocks; k++) {
        at.wait_warp(full);
        products.add(at.s);
        commit<C>(shared.empty + at.s);
        at.advance(C::stages);
      }
      commit<C>(shared.sums_full + sums.s);
      sums.advance(C::accumulators);
    }
  } else if (warp >= 2) {
    Stage sums = Stage::to_read();
    const uint32_t sums_empty_there = C::ctas == 1 ? sums_empty : map_shared(sums_empty, 0);
#pragma unroll 1
    for (int t = first; t < work.order.total; t += step) {
      const Tile tile = work.order.at(t);
      sums.wait_warp(sums_full);
      fence_after_wait();
      const auto release = [&] {
        fence_before_signal();
        __syncwarp();
        release_stage(sums_empty_there, sums.s, lane, C::ctas > 1, 1);
      };
      store_tile<C>(tensor_memory + sums.s * C::tile_n, shared.parts, rank, work, epilogue, tile, release);
      sums.advance(C::accumulators);
    }
  }
}

}  // namespace
}  // namespace tilegemm
