// Data-centre Blackwell: the parts that every rung is made of.
//
// tcgen05.mma is asynchronous, and one thread issues the products of a block, or of a pair of blocks. CuTe's functions
// elect the thread: whole warps call the functions, and every call elects the same thread. A commit makes a barrier
// count one arrival when all products that the thread has issued before have ended.
#pragma once
#include <cutlass/arch/barrier.h>

#include <cute/arch/copy_sm100.hpp>
#include <cute/arch/copy_sm100_tma.hpp>
#include <cute/arch/tmem_allocator_sm100.hpp>

#include "common/epilogue.hpp"
#include "common/pipeline.hpp"
#include "common/tensor_map.hpp"
#include "common/tile_order.hpp"
#include "sm100_gemm/config.hpp"

namespace tilegemm {

// TMA moves numbers of 8 bits as bytes.
template <>
constexpr CUtensorMapDataType tensor_map_type<__nv_fp8_e4m3> = CU_TENSOR_MAP_DATA_TYPE_UINT8;

namespace {

// The arguments of a launch.
struct Work {
  int m, n, k_blocks;
  TileOrder order;
  tg_matrix d;
  bool bare;     // D is the product times alpha
  bool vectors;  // D can be stored 16 bytes at a time
};

// ---- Tensor memory --------------------------------------------------------------------------------------------------
//
// A barrier alone does not order accesses of tensor memory by different threads: the first fence comes before the
// thread signals, the second fence after the thread has waited (PTX ISA, "tcgen05.fence"). A commit contains the first
// fence.

__device__ __forceinline__ void fence_before_signal() {
  asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}
__device__ __forceinline__ void fence_after_wait() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }

// The blocks that share a tile wait for each other.
template <class C>
__device__ __forceinline__ void sync_all() {
  __syncwarp();
  if constexpr (C::ctas > 1) cluster_sync();
  else __syncthreads();
}

template <class C>
using Allocator = std::conditional_t<C::ctas == 1, cute::TMEM::Allocator1Sm, cute::TMEM::Allocator2Sm>;

// Sets the barriers up and allocates tensor memory; returns the address of tensor memory. Blocks that share a tile
// allocate together, when both have started, and the address is the same in both.
template <class C>
__device__ __forceinline__ uint32_t begin(typename C::Shared& shared, const CUtensorMap& a_map,
                                          const CUtensorMap& b_map, int warp, int lane) {
  if (warp == 0 && lane == 0) {
    prefetch_tensor_map(&a_map);
    prefetch_tensor_map(&b_map);
    init_ring(cute::cast_smem_ptr_to_uint(shared.full), cute::cast_smem_ptr_to_uint(shared.empty), C::stages, 1);
    init_ring(cute::cast_smem_ptr_to_uint(shared.sums_full), cute::cast_smem_ptr_to_uint(shared.sums_empty),
              C::accumulators, C::storing_warps * C::ctas);
    fence_mbarrier_init();
  }
  if constexpr (C::ctas > 1) sync_all<C>();
  if (warp == 1) {
    Allocator<C> allocator;
    allocator.allocate(C::columns, &shared.tensor_memory);
    allocator.release_allocation_lock();
  }
  fence_before_signal();
  __syncthreads();
  fence_after_wait();
  launch_dependents();  // early: blocks of the next kernel find no room beside the blocks of this kernel
  griddepcontrol_wait();
  return load_shared(cute::cast_smem_ptr_to_uint(&shared.tensor_memory));
}

// Frees tensor memory when all warps have read their sums. No block leaves while the other block may signal one of its
// barriers.
template <class C>
__device__ __forceinline__ void end(uint32_t tensor_memory, int warp) {
  fence_before_signal();
  sync_all<C>();
  fence_after_wait();
  if (warp == 1) Allocator<C>().free(tensor_memory, C::columns);
}

// ---- Loads ----------------------------------------------------------------------------------------------------------

// Where two blocks share a tile, the barrier of the first block counts the bytes of both: CuTe's copy clears the bit of
// the address that names the block.
template <class C>
__device__ __forceinline__ void load_box(const CUtensorMap& map, void* to, uint64_t* barrier, int x, int y,
                                         const Tile& tile) {
  if constexpr (C::ctas == 1) {
    tma_load(&map, cute::cast_smem_ptr_to_uint(to), cute::cast_smem_ptr_to_uint(barrier), x, y, tile.batch1,
             tile.batch0, evict_normal);
  } else {
    cute::SM100_TMA_2SM_LOAD_4D::copy(&map, barrier, evict_normal, to, x, y, tile.batch1, tile.batch0);
  }
}

// `rows` rows of an operand from `row` on, and a stage's k's from `k` on. Numbers outside of the matrix arrive as
// zeros.
template <class C, bool k_major, int rows>
__device__ __forceinline__ void load_operand(const CUtensorMap& map, typename C::T* to, uint64_t* barrier, int row,
                                             int k, const Tile& tile) {
  if constexpr (k_major) {
    load_box<C>(map, to, barrier, k, row, tile);
  } else {
#pragma unroll
    for (int i = 0; i < rows / C::line; i++)
      load_box<C>(map, to + i * (C::box_bytes / int(sizeof(typename C::T))), barrier, row + i * C::line, k, tile);
  }
}

// A block's part of stage s: block `rank` of a pair has the rows of A and of B that follow the rows of the first block.
template <class C>
__device__ __forceinline__ void load_stage(typename C::Shared& shared, int s, const CUtensorMap& a_map,
                                           const CUtensorMap& b_map, const Tile& tile, int k_block, int rank) {
  const int k = k_block * C::tile_k;
  load_operand<C, C::a_k_major, C::a_rows>(a_map, shared.a + s * (C::a_bytes / int(sizeof(typename C::T))),
                                           shared.full + s, tile.m * C::tile_m + rank * C::a_rows, k, tile);
  load_operand<C, C::b_k_major, C::b_rows>(b_map, shared.b + s * (C::b_bytes / int(sizeof(typename C::T))),
                                           shared.full + s, tile.n * C::tile_n + rank * C::b_rows, k, tile);
}

// ---- Products -------------------------------------------------------------------------------------------------------

// The products of a tile, for the warp that multiplies. CuTe makes the descriptors of the stages.
template <class C>
struct Products {
  using TensorA = decltype(C::Mma::make_fragment_A(
      cute::make_tensor(cute::make_smem_ptr(static_cast<typename C::T*>(nullptr)), typename C::RingA{})));
  using TensorB = decltype(C::Mma::make_fragment_B(
      cute::make_tensor(cute::make_smem_ptr(static_cast<typename C::T*>(nullptr)), typename C::RingB{})));
  typename C::Mma mma;
  TensorA a;                                                   // (MMA,MMA_M,MMA_K,PIPE), descriptors
  TensorB b;                                                   // (MMA,MMA_N,MMA_K,PIPE), descriptors
  decltype(C::Mma::make_fragment_C(typename C::Sums{})) sums;  // (MMA,MMA_M,MMA_N), in tensor memory

  __device__ explicit Products(typename C::Shared& shared)
      : a(C::Mma::make_fragment_A(cute::make_tensor(cute::make_smem_ptr(shared.a), typename C::RingA{}))),
        b(C::Mma::make_fragment_B(cute::make_tensor(cute::make_smem_ptr(shared.b), typename C::RingB{}))),
        sums(C::Mma::make_fragment_C(typename C::Sums{})) {}

  // Sums from here on begin with zero and lie at this address of tensor memory.
  __device__ __forceinline__ void start(uint32_t tensor_memory) {
    sums.data() = tensor_memory;
    mma.accumulate_ = cute::UMMA::ScaleOut::Zero;
  }

  __device__ __forceinline__ void add(int stage) {
#pragma unroll
    for (int j = 0; j < cute::size<2>(a); j++) {
      cute::gemm(mma, a(cute::_, cute::_, j, stage), b(cute::_, cute::_, j, stage), sums);
      mma.accumulate_ = cute::UMMA::ScaleOut::One;
    }
  }
};

// `barrier`, in all blocks that share a tile, counts an arrival when the products so far have ended.
template <class C>
__device__ __forceinline__ void commit(uint64_t* barrier) {
  if constexpr (C::ctas == 1) cutlass::arch::umma_arrive(barrier);
  else cutlass::arch::umma_arrive_multicast_2x1SM(barrier, 3);
}

}  // namespace
}  // namespace tilegemm
