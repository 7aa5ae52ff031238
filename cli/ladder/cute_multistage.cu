// CuTe multistage: what Ampere made of a GEMM, mma.sync fed by cp.async through a ring of shared-memory stages.
//
// A block computes 128 x 128 of D with 2 x 2 warps, each of which owns 64 x 64: 64 FLOP per byte that the block loads.
// The copies of the next k-tiles are under way while this one is multiplied, and while one k-block is multiplied the
// next one goes from shared memory to registers. Shared memory is swizzled, so that neither the 16-byte pieces that
// cp.async writes nor the 8 x 8 matrices that ldmatrix reads meet in a bank.
#include <cute/tensor.hpp>

#include "launched.hpp"

namespace cute_multistage {

using namespace cute;

// --- Tile, stages, copies, product ----------------------------------------------------------------------------------

using BLK_M = _128;
using BLK_N = _128;
using BLK_K = _64;
constexpr int stages = 3;

// 8 rows of 64 f16, 128 bytes each: all banks. Swizzle<3,3,3> xors the row into the number of the 16-byte piece.
using SwizzledRows = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, _64>, Stride<_64, _1>>{}));
using SmemA = decltype(tile_to_shape(SwizzledRows{}, Shape<BLK_M, BLK_K, Int<stages>>{}));
using SmemB = decltype(tile_to_shape(SwizzledRows{}, Shape<BLK_N, BLK_K, Int<stages>>{}));
constexpr int smem_bytes = (cosize_v<SmemA> + cosize_v<SmemB>) * int(sizeof(half_t));

// 2 x 2 warps. The 32 of N give a warp two atoms that are neighbours in a fragment, which one ldmatrix.x4 then fills.
using Mma = TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>, Layout<Shape<_2, _2, _1>>, Tile<_32, _32, _16>>;
constexpr int threads = int(size(Mma{}));

// 8 threads copy a row of 64 f16, 16 bytes each, past L1.
using GmemCopy = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>, half_t>{},
                                          Layout<Shape<Int<threads / 8>, _8>, Stride<_8, _1>>{},
                                          Layout<Shape<_1, _8>>{}));
using SmemCopy = Copy_Atom<SM75_U32x4_LDSM_N, half_t>;  // ldmatrix.x4

// --- On the device --------------------------------------------------------------------------------------------------

__global__ __launch_bounds__(threads, 2) void multistage(const half_t* a, const half_t* b, float* d, int m, int n,
                                                         int k) {
  Tensor mA = make_tensor(make_gmem_ptr(a), make_shape(m, k), make_stride(k, _1{}));        // (M,K)
  Tensor mB = make_tensor(make_gmem_ptr(b), make_shape(n, k), make_stride(k, _1{}));        // (N,K)
  Tensor mD = make_tensor(make_gmem_ptr(d), make_shape(m, n), make_stride(n, _1{}));        // (M,N)
  Tensor gA = local_tile(mA, Shape<BLK_M, BLK_K>{}, make_coord(blockIdx.y, _));             // (BLK_M,BLK_K,k)
  Tensor gB = local_tile(mB, Shape<BLK_N, BLK_K>{}, make_coord(blockIdx.x, _));             // (BLK_N,BLK_K,k)
  Tensor gD = local_tile(mD, Shape<BLK_M, BLK_N>{}, make_coord(blockIdx.y, blockIdx.x));    // (BLK_M,BLK_N)

  extern __shared__ __align__(128) half_t smem[];
  Tensor sA = make_tensor(make_smem_ptr(smem), SmemA{});                                    // (BLK_M,BLK_K,PIPE)
  Tensor sB = make_tensor(make_smem_ptr(smem + cosize_v<SmemA>), SmemB{});                  // (BLK_N,BLK_K,PIPE)

  const auto gmem_copy = GmemCopy{}.get_slice(threadIdx.x);
  Tensor tAgA = gmem_copy.partition_S(gA);                                                  // (CPY,CPY_M,CPY_K,k)
  Tensor tAsA = gmem_copy.partition_D(sA);                                                  // (CPY,CPY_M,CPY_K,PIPE)
  Tensor tBgB = gmem_copy.partition_S(gB);                                                  // (CPY,CPY_N,CPY_K,k)
  Tensor tBsB = gmem_copy.partition_D(sB);                                                  // (CPY,CPY_N,CPY_K,PIPE)

  const auto mma = Mma{}.get_slice(threadIdx.x);
  Tensor tCrA = mma.partition_fragment_A(sA(_, _, 0));                                      // (MMA,MMA_M,MMA_K)
  Tensor tCrB = mma.partition_fragment_B(sB(_, _, 0));                                      // (MMA,MMA_N,MMA_K)
  Tensor tCgD = mma.partition_C(gD);                                                        // (MMA,MMA_M,MMA_N)
  Tensor sums = mma.make_fragment_C(tCgD);                                                  // (MMA,MMA_M,MMA_N)
  clear(sums);

  const auto copy_a = make_tiled_copy_A(SmemCopy{}, Mma{}).get_slice(threadIdx.x);
  const auto copy_b = make_tiled_copy_B(SmemCopy{}, Mma{}).get_slice(threadIdx.x);
  Tensor tXsA = copy_a.partition_S(sA);                                                     // (CPY,MMA_M,MMA_K,PIPE)
  Tensor tXrA = copy_a.retile_D(tCrA);                                                      // (CPY,MMA_M,MMA_K)
  Tensor tXsB = copy_b.partition_S(sB);                                                     // (CPY,MMA_N,MMA_K,PIPE)
  Tensor tXrB = copy_b.retile_D(tCrB);                                                      // (CPY,MMA_N,MMA_K)

  // A k-tile on its way to a stage, as one group of cp.async; an empty group keeps the count where there is none left.
  const int k_tiles = size<3>(tAgA);
  const auto start_copy = [&](int k_tile, int stage) {
    if (k_tile < k_tiles) {
      copy(GmemCopy{}, tAgA(_, _, _, k_tile), tAsA(_, _, _, stage));
      copy(GmemCopy{}, tBgB(_, _, _, k_tile), tBsB(_, _, _, stage));
    }
    cp_async_fence();
  };
  const auto wait_for_next = [] {
    cp_async_wait<stages - 2>();
    __syncthreads();
  };
  const auto load_fragments = [&](int k_block, int stage) {
    copy(SmemCopy{}, tXsA(_, _, k_block, stage), tXrA(_, _, k_block));
    copy(SmemCopy{}, tXsB(_, _, k_block, stage), tXrB(_, _, k_block));
  };

  for (int stage = 0; stage < stages - 1; stage++) start_copy(stage, stage);
  wait_for_next();
  load_fragments(0, 0);

  int read = 0, write = stages - 1;
  constexpr int k_blocks = size<2>(decltype(tCrA){});
  CUTE_NO_UNROLL
  for (int k_tile = 0; k_tile < k_tiles; k_tile++) {
    const int next_read = read + 1 == stages ? 0 : read + 1;
    CUTE_UNROLL
    for (int k_block = 0; k_block < k_blocks; k_block++) {
      // `write` was read in the iteration before, and everybody has passed the barrier since.
      if (k_block == 0) start_copy(k_tile + stages - 1, write);
      if (k_block == k_blocks - 1) wait_for_next();
      load_fragments((k_block + 1) % k_blocks, k_block == k_blocks - 1 ? next_read : read);
      gemm(Mma{}, tCrA(_, _, k_block), tCrB(_, _, k_block), sums);
    }
    write = read;
    read = next_read;
  }

  // A thread holds pairs of neighbours in N: 8-byte stores, and four lanes of a warp fill a sector.
  copy(AutoVectorizingCopyWithAssumedAlignment<64>{}, sums, tCgD);
}

// --- On the host ----------------------------------------------------------------------------------------------------

int launch(const void* a, const void* b, void* d, int m, int n, int k, void* stream) {
  if (m % BLK_M{} != 0 || n % BLK_N{} != 0 || k % BLK_K{} != 0) return TG_RUNG_UNSUPPORTED;
  // More shared memory than a kernel gets unasked; two blocks fit an SM.
  const auto error = cudaFuncSetAttribute(multistage, cudaFuncAttributeMaxDynamicSharedMemorySize, smem_bytes);
  if (error != cudaSuccess) return TG_RUNG_CUDA_ERROR;
  const dim3 grid(n / BLK_N{}, m / BLK_M{});
  multistage<<<grid, threads, smem_bytes, cudaStream_t(stream)>>>(
      static_cast<const half_t*>(a), static_cast<const half_t*>(b), static_cast<float*>(d), m, n, k);
  return launched();
}

}  // namespace cute_multistage

const tg_rung tg_rung_cute_multistage = {
    "CuTe multistage", "cp.async, a swizzled ring of stages, ldmatrix: loads hide under mma.sync", {128, 128, 64},
    cute_multistage::launch};
