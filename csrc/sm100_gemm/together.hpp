// Data-centre Blackwell, the first three rungs: one block for each tile, and one warp that loads and multiplies by
// turns.
//
//     naive      load 0 | wait | multiply 0   load 1 | wait | multiply 1   ...   the tensor cores wait for every load
//     prefetch   load 0, load 1 | load 2, wait 0, multiply 0 | load 3, wait 1, multiply 1 | ...
//     subtiles   the same loop; the store is the one of the later rungs
#pragma once
#include "sm100_gemm/store.hpp"

namespace tilegemm {
namespace {

template <class C>
__device__ __forceinline__ void load_and_multiply(typename C::Shared& shared, const CUtensorMap& a_map,
                                                  const CUtensorMap& b_map, const Work& work, const Tile& tile,
                                                  uint32_t tensor_memory, int lane) {
  constexpr int ahead = C::rung == Rung::naive ? 0 : C::stages - 2;
  const uint32_t full = cute::cast_smem_ptr_to_uint(shared.full), empty = cute::cast_smem_ptr_to_uint(shared.empty);
  Stage fill = Stage::to_fill(), read = Stage::to_read();
  const auto load = [&](int k_block) {
    if (k_block >= work.k_blocks) return;
    if (lane == 0) {
      fill.acquire(full, empty, C::a_bytes + C::b_bytes);
      load_stage<C>(shared, fill.s, a_map, b_map, tile, k_block, 0);
    }
    __syncwarp();
    fill.advance(C::stages);
  };

  Products<C> products(shared);
  products.start(tensor_memory);
#pragma unroll 1
  for (int k = 0; k < ahead; k++) load(k);
#pragma unroll 1
  for (int k = 0; k < work.k_blocks; k++) {
    load(k + ahead);
    read.wait_warp(full);
    products.add(read.s);
    commit<C>(shared.empty + read.s);
    read.advance(C::stages);
  }
  commit<C>(shared.sums_full);
}

template <class C>
__device__ __forceinline__ void run_together(typename C::Shared& shared, const CUtensorMap& a_map,
                                             const CUtensorMap& b_map, const Work& work,
                                             const Epilogue<typename C::Out, float>& epilogue, uint32_t tensor_memory,
                                             int warp, int lane) {
  const Tile tile = work.order.at(int(blockIdx.x));
  if (warp == 0) load_and_multiply<C>(shared, a_map, b_map, work, tile, tensor_memory, lane);
  mbarrier_wait_warp(cute::cast_smem_ptr_to_uint(shared.sums_full), 0);
  fence_after_wait();
  store_tile<C>(tensor_memory, shared.parts, 0, work, epilogue, tile, [] {});
}

}  // namespace
}  // namespace tilegemm
