// Data-centre Blackwell: what a row of the table says about its kernel.
#pragma once
#include <cuda_fp16.h>
#include <cudaTypedefs.h>

#include <algorithm>
#include <cute/atom/mma_traits_sm100.hpp>
#include <cute/tensor.hpp>

#include "common/fp8.hpp"
#include "common/kernel.hpp"

namespace tilegemm {

// The steps from a plain kernel to the fastest one. Each rung adds one thing to the rung before.
//
//     naive        a warp loads a stage, waits for the stage and multiplies; four warps store numbers one by one
//     prefetch     the loads run ahead of the products, by all stages but two
//     subtiles     D passes through shared memory in parts of 64 columns, and leaves in pieces of 16 bytes
//     two_ctas     two thread blocks share a tile of 256 x 256, and a warp has one task: load, multiply or store
//     persistent   (no word in the row) a block goes on to further tiles; stores run beside the next tile's products
enum class Rung { naive, prefetch, subtiles, two_ctas, persistent, none = persistent };

// The type by which CuTe knows a format.
template <tg_format> struct umma_type;
template <> struct umma_type<TG_F16> {
  using type = cute::half_t;
};
template <> struct umma_type<TG_BF16> {
  using type = cute::bfloat16_t;
};
template <> struct umma_type<TG_F8E4M3> {
  using type = cute::float_e4m3_t;
};

// CuTe's instruction: tcgen05.mma of one block, or of a pair of blocks, with A and B in shared memory and the sums in
// tensor memory.
template <class T, int ctas, int m, int n, cute::UMMA::Major a, cute::UMMA::Major b>
constexpr auto instruction() {
  using namespace cute;
  if constexpr (sizeof(T) == 1) {
    using Of = std::conditional_t<ctas == 1, SM100_MMA_F8F6F4_SS, SM100_MMA_F8F6F4_2x1SM_SS>;
    using Plain = cute::integral_constant<UMMA::ScaleIn, UMMA::ScaleIn::One>;
    using MajorA = cute::integral_constant<UMMA::Major, a>;
    using MajorB = cute::integral_constant<UMMA::Major, b>;
    return MMA_Traits<Of, T, T, float, Int<m>, Int<n>, MajorA, MajorB, Plain, Plain>{};
  } else if constexpr (ctas == 1) {
    return SM100_MMA_F16BF16_SS<T, T, float, m, n, a, b>{};
  } else {
    return SM100_MMA_F16BF16_2x1SM_SS<T, T, float, m, n, a, b>{};
  }
}

template <class Row>
struct Config {
  using T = typename umma_type<Row::dtype>::type;
  using Number = typename scalar<Row::dtype>::type;
  using Out = typename scalar<Row::out>::type;
  static constexpr Rung rung = Row::rung;
  static constexpr bool specialised = rung >= Rung::two_ctas, persistent = rung == Rung::persistent;
  static constexpr int ctas = Row::cluster_m;  // thread blocks that share a tile
  static constexpr int tile_m = Row::tile_m, tile_n = Row::tile_n, tile_k = Row::tile_k;
  static_assert(Row::cluster_n == 1 && (ctas == 1 || ctas == 2) && (ctas == 1 || specialised));
  static_assert(tile_m == 128 * ctas, "a block has 128 rows of D, one for each lane of tensor memory");

  // A block's part of a stage: half of the rows of A and half of the rows of B (columns in memory) where two blocks
  // share a tile. A stage is a line of 128 bytes along K, the width of the swizzle. An operand that is contiguous along
  // M or N lies in boxes of 128 bytes of such a line by `tile_k` lines.
  static constexpr int a_rows = tile_m / ctas, b_rows = tile_n / ctas, line = 128 / int(sizeof(T));
  static_assert(tile_k == line);
  static constexpr int a_bytes = a_rows * 128, b_bytes = b_rows * 128, box_bytes = tile_k * 128;
  static constexpr bool a_k_major = a_is_k_major(Row::layout), b_k_major = b_is_k_major(Row::layout);
  static_assert((a_k_major || a_rows % line == 0) && (b_k_major || b_rows % line == 0), "whole boxes");

  // CuTe's product, and the layouts of the stages that the product reads. The order of the atoms is the order in which
  // TMA stores boxes; layout.cu compares the two.
  template <bool k_major>
  static constexpr cute::UMMA::Major major = k_major ? cute::UMMA::Major::K : cute::UMMA::Major::MN;
  using Mma =
      decltype(cute::make_tiled_mma(instruction<T, ctas, tile_m, tile_n, major<a_k_major>, major<b_k_major>>()));
  template <bool k_major>
  using Atom = std::conditional_t<k_major, cute::UMMA::Layout_K_SW128_Atom<T>, cute::UMMA::Layout_MN_SW128_Atom<T>>;
  template <bool k_major>
  using Order =
      std::conditional_t<k_major, cute::Step<cute::_1, cute::_2, cute::_3>, cute::Step<cute::_2, cute::_1, cute::_3>>;
  using ShapeA = decltype(cute::partition_shape_A(Mma{}, cute::Shape<cute::Int<tile_m>, cute::Int<tile_k>>{}));
  using ShapeB = decltype(cute::partition_shape_B(Mma{}, cute::Shape<cute::Int<tile_n>, cute::Int<tile_k>>{}));
  using Sums = decltype(cute::partition_shape_C(Mma{}, cute::Shape<cute::Int<tile_m>, cute::Int<tile_n>>{}));

  // Tensor memory has 128 lanes of 512 columns. A tile of sums takes a column for each column of D.
  static constexpr int accumulators = persistent ? 2 : 1, columns = accumulators * tile_n;
  static_assert(columns >= 32 && columns <= 512 && (columns & (columns - 1)) == 0);

  // Warps: four store, a quarter of the lanes of tensor memory each. Specialised blocks have two more.
  static constexpr int storing_warps = 4, threads = 32 * (storing_warps + (specialised ? 2 : 0));
  static constexpr int part = 64;  // columns of D that a warp stores at a time
  static_assert(tile_n % part == 0);

  // As many stages as fit, beside the parts of D on their way.
  static constexpr int shared_most = 227 * 1024, rest_bytes = 1024;
  static constexpr int parts_bytes = rung >= Rung::subtiles ? storing_warps * 32 * part * int(sizeof(float)) : 0;
  static constexpr int stages =
      Row::stages ? Row::stages : (shared_most - rest_bytes - parts_bytes) / (a_bytes + b_bytes);
  static_assert(stages >= 3);
  template <class Shape, bool k_major>
  using Ring = decltype(cute::UMMA::tile_to_mma_shape(Atom<k_major>{}, cute::append(Shape{}, cute::Int<stages>{}),
                                                      Order<k_major>{}));
  using RingA = Ring<ShapeA, a_k_major>;
  using RingB = Ring<ShapeB, b_k_major>;

  struct Shared {
    alignas(1024) T a[stages * a_bytes / int(sizeof(T))];  // RingA: (MMA,MMA_M,MMA_K,PIPE)
    alignas(1024) T b[stages * b_bytes / int(sizeof(T))];  // RingB: (MMA,MMA_N,MMA_K,PIPE)
    alignas(1024) char parts[parts_bytes ? parts_bytes : 16];
    alignas(16) uint64_t full[stages], empty[stages];  // a stage has arrived; the products of a stage have ended
    uint64_t sums_full[accumulators],
        sums_empty[accumulators];  // the products of a tile have ended; the sums have been read
    uint32_t tensor_memory;        // the address of the first column
  };
  static_assert(cute::cosize_v<RingA> * sizeof(T) == sizeof(Shared::a) &&
                cute::cosize_v<RingB> * sizeof(T) == sizeof(Shared::b));
  // src/family/sm100_gemm.rs computes the same number.
  static constexpr int shared_bytes = stages * (a_bytes + b_bytes) + parts_bytes + rest_bytes;
  static_assert(int(sizeof(Shared)) <= shared_bytes && shared_bytes <= shared_most);
};

}  // namespace tilegemm

// The rows have rungs for schedules; the fields that no kernel here reads are left out.
#undef TG_KERNEL
#define TG_KERNEL(NAME, ARCH, DTYPE, B, OUT, MATH, LAYOUT, TILE_M, TILE_N, TILE_K, CLUSTER_M, CLUSTER_N, SPLIT, \
                  STAGES, WARPS, ALIGN, RUNG, ...)                                                              \
  namespace tilegemm {                                                                                          \
  struct NAME##_row {                                                                                           \
    static constexpr tg_format dtype = DTYPE, out = OUT;                                                        \
    static constexpr tg_layout layout = LAYOUT;                                                                 \
    static constexpr int tile_m = TILE_M, tile_n = TILE_N, tile_k = TILE_K;                                     \
    static constexpr int cluster_m = CLUSTER_M, cluster_n = CLUSTER_N, stages = STAGES;                         \
    static constexpr Rung rung = Rung::RUNG;                                                                    \
  };                                                                                                            \
  }                                                                                                             \
  TG_DESCRIBE(NAME, DTYPE, B, OUT, MATH, LAYOUT, TILE_M, TILE_N, TILE_K, CLUSTER_M, CLUSTER_N, ALIGN,           \
              tilegemm::launch<tilegemm::NAME##_row>)
