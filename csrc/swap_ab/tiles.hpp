// What sm90_few_rows and sm90_wave share: tiles of several widths for one row of the table, with B and A swapped or
// not, and the products of a stage. The columns of B are called the rows of W.
#pragma once
#include <algorithm>
#include <climits>
#include <cstring>

#include "common/epilogue.hpp"
#include "common/kernel.hpp"
#include "common/launch.hpp"
#include "common/ptx.hpp"
#include "common/store.hpp"
#include "common/tensor_map.hpp"
#include "common/wgmma.hpp"

namespace tilegemm {

template <int... widths>
constexpr int widest(Widths<widths...>) {
  return std::max({widths...});
}

// Tiles of one row of the table, with one width of the row. P is wgmma's M side, and Q is wgmma's N side, which is
// `Width` wide. P and Q are A and W, or with swap_ab W and A. The widest width of a row is a side of the row's tile: M
// with swap_ab, N without swap_ab.
template <class Row, int Width>
struct Tile {
  using Element = typename scalar<Row::dtype>::type;
  using Out = typename scalar<Row::out>::type;  // C, the bias and D
  static constexpr bool swap_ab = widest(typename Row::widths{}) == Row::tile_m;
  static constexpr int width = Width;
  static constexpr int p_rows = swap_ab ? Row::tile_n : Row::tile_m, q_rows = Width;
  static constexpr int a_rows = swap_ab ? q_rows : p_rows, w_rows = swap_ab ? p_rows : q_rows;
  static constexpr int box = 128 / int(sizeof(Element));  // of K, in one swizzled row
  static_assert(sizeof(Element) == 2 && p_rows % 64 == 0 && (swap_ab || widest(typename Row::widths{}) == Row::tile_n));
  static constexpr bool is(const tg_config& config) {
    return config.tile_m == a_rows && config.tile_n == w_rows && (config.swap_ab != 0) == swap_ab;
  }

  static constexpr int consumer_warps = p_rows / 16, threads = 32 * (consumer_warps + 1);
  // A fragment is a warp's share of 16 rows of P and 8 rows of Q: a float4 per lane.
  static constexpr int columns = q_rows / 8, fragment_bytes = 32 * 16;

  static constexpr int shared_per_block = 227 * 1024;
  static constexpr int most_stages = 16, barriers_bytes = 8 * (2 * most_stages + 1);
  static constexpr int bytes_of_a_stage(int depth) { return (p_rows + q_rows) * depth * int(sizeof(Element)); }
  // The stages of `stage_bytes` that shared memory holds beside an inbox.
  static constexpr int stages_in(int inbox_bytes, int stage_bytes) {
    return std::min(most_stages, (shared_per_block - barriers_bytes - inbox_bytes) / stage_bytes);
  }
};

// Runs a problem with the tiles that its configuration names: run(args, Tiles<Row, width>{}).
template <template <class, int> class Tiles, class Row, int... widths>
tg_status run_width(const tg_gemm_args& args, Widths<widths...>) {
  const tg_config& config = args.config;
  tg_status status = TG_UNSUPPORTED;
  if (config.cluster_m < 1 || config.cluster_m > Row::cluster_m || config.cluster_n != 1 || config.split < 1 ||
      config.split > Row::split) {
    return status;
  }
  ((Tiles<Row, widths>::is(config) && (status = run(args, Tiles<Row, widths>{}), true)) || ...);
  return status;
}

// The parameters that both kernels have.
struct Product {
  tg_matrix d;
  int m, n, k, batch1;
};

// Loads a number of C or of the bias, which the kernel before may have written; the compiler leaves the load where it
// is.
template <class T>
__device__ __forceinline__ uint32_t load_bits(const T* from) {
  uint32_t bits;
  if constexpr (sizeof(T) == 4) {
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(bits) : "l"(from));
  } else {
    uint16_t half;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(half) : "l"(from));
    bits = half;
  }
  return bits;
}

template <class T>
__device__ __forceinline__ float number_of(uint32_t bits) {
  if constexpr (sizeof(T) == 4) return __uint_as_float(bits);
  const uint16_t half = uint16_t(bits);
  return float(reinterpret_cast<const T&>(half));
}

// Adds the products of a stage to the sums: 64 rows of P with all rows of Q. On return the products of the stage before
// have ended, and the products of this stage may be under way.
template <class C>
__device__ __forceinline__ void multiply(float (&sum)[C::width / 2], uint32_t p, uint32_t q) {
  using T = typename C::Element;
  wgmma_pin(sum);
  wgmma_fence();
#pragma unroll
  for (int j = 0; j < C::depth / 16; j++) {
    constexpr int per_box = C::box / 16;
    wgmma<T, C::width>(sum, wgmma_descriptor(p + j / per_box * (C::p_rows * 128) + j % per_box * 32),
                       wgmma_descriptor(q + j / per_box * (C::q_rows * 128) + j % per_box * 32));
  }
  wgmma_commit_and_wait<1>();
  wgmma_pin(sum);
}

}  // namespace tilegemm
