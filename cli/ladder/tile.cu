// cuTile C++: a block is one thread of control over tiles; the compiler makes threads, stages and copies of it.
//
// Four ideas, one after the other. The product itself is the same all along; what changes is what the compiler knows:
//   naive             where the matrices begin and how large they are, both at run time;
//   + assume_aligned  that they begin at 16 bytes. A row of unknown length still ends anywhere, so loads stay 2 bytes;
//   + static extents  how large they are, hence that every row begins at 16 bytes too: now it uses TMA, and whole tiles
//                     need no mask. Without the alignment this changes nothing either: it takes both (nvcc 13.5);
//   + tuned tile      (two rungs) a tile that feeds the tensor cores, and how many CTAs and warps to compute it with.
// csrc/tile_gemm/tile_gemm.cu has TMA with run-time extents as well: assume_divisible says of them what is needed.
#include <cuda_fp16.h>

#include "cuda_tile.h"
#include "launched.hpp"

namespace {

namespace ct = cuda::tiles;
using namespace ct::literals;

// A block's tile of D. An extent is an int, or an integral_constant.
template <int TILE_M, int TILE_N, int TILE_K, class M, class N, class K>
__tile__ void multiply(const half* a, const half* b, float* d, M m, N n, K k) {
  const auto a_tiles = ct::partition_view{ct::tensor_span{a, ct::extents{m, k}}, ct::shape<TILE_M, TILE_K>{}};
  const auto b_tiles = ct::partition_view{ct::tensor_span{b, ct::extents{n, k}}, ct::shape<TILE_N, TILE_K>{}};
  const auto d_tiles = ct::partition_view{ct::tensor_span{d, ct::extents{m, n}}, ct::shape<TILE_M, TILE_N>{}};
  const auto [col, row, unused] = ct::bid();

  auto sums = ct::zeros<ct::tile<float, ct::shape<TILE_M, TILE_N>>>();
  for (int i : ct::irange(0, (int(k) + TILE_K - 1) / TILE_K)) {
    sums = ct::mma(a_tiles.load_masked(row, i), ct::transpose(b_tiles.load_masked(col, i)), sums);
  }
  d_tiles.store_masked(sums, row, col);
}

__tile_global__ void naive(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ d, int m, int n,
                           int k) {
  multiply<32, 32, 16>(a, b, d, m, n, k);
}

__tile_global__ void aligned(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ d, int m,
                             int n, int k) {
  a = ct::assume_aligned(a, 16_ic);
  b = ct::assume_aligned(b, 16_ic);
  d = ct::assume_aligned(d, 16_ic);
  multiply<32, 32, 16>(a, b, d, m, n, k);
}

template <int TILE_M, int TILE_N, int TILE_K, int SIZE>
__tile__ void multiply_square(const half* a, const half* b, float* d) {
  constexpr ct::integral_constant<SIZE> size;
  a = ct::assume_aligned(a, 16_ic);
  b = ct::assume_aligned(b, 16_ic);
  d = ct::assume_aligned(d, 16_ic);
  multiply<TILE_M, TILE_N, TILE_K>(a, b, d, size, size, size);
}

template <int SIZE>
__tile_global__ void static_extents(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ d) {
  multiply_square<32, 32, 16, SIZE>(a, b, d);
}

// Small enough for 1024^3 to fill an H100: 128 tiles for 132 SMs.
template <int SIZE>
[[using cutile: hint(900, num_cta_in_cga = 1, occupancy = 1, num_worker_warps_per_cta = 4)]]
__tile_global__ void tile_64x128(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ d) {
  multiply_square<64, 128, 64, SIZE>(a, b, d);
}

// As many sums as the registers of two SMs hold: the two CTAs share the tile, and what one loads the other need not.
template <int SIZE>
[[using cutile: hint(900, num_cta_in_cga = 2, occupancy = 1, num_worker_warps_per_cta = 8)]]
__tile_global__ void tile_256x256(const half* __restrict__ a, const half* __restrict__ b, float* __restrict__ d) {
  multiply_square<256, 256, 64, SIZE>(a, b, d);
}

using RuntimeKernel = void (*)(const half*, const half*, float*, int, int, int);
using StaticKernel = void (*)(const half*, const half*, float*);

// A tile kernel is launched with one thread per block.
template <RuntimeKernel KERNEL>
int launch(const void* a, const void* b, void* d, int m, int n, int k, void* stream) {
  const dim3 grid((n + 31) / 32, (m + 31) / 32);
  KERNEL<<<grid, 1, 0, cudaStream_t(stream)>>>(static_cast<const half*>(a), static_cast<const half*>(b),
                                               static_cast<float*>(d), m, n, k);
  return launched();
}

template <int TILE_M, int TILE_N, StaticKernel FOR_1024, StaticKernel FOR_4096>
int launch(const void* a, const void* b, void* d, int m, int n, int k, void* stream) {
  if (m != n || n != k || (m != 1024 && m != 4096)) return TG_RUNG_UNSUPPORTED;
  const dim3 grid(n / TILE_N, m / TILE_M);
  const StaticKernel kernel = m == 1024 ? FOR_1024 : FOR_4096;
  kernel<<<grid, 1, 0, cudaStream_t(stream)>>>(static_cast<const half*>(a), static_cast<const half*>(b),
                                               static_cast<float*>(d));
  return launched();
}

}  // namespace

const tg_rung tg_rung_tile_naive = {
    "cuTile 32x32x16", "tiles instead of threads: the compiler shares operands in a block",
    {32, 32, 16}, launch<naive>};
const tg_rung tg_rung_tile_aligned = {
    "cuTile + assume_aligned", "pointers are known to be 16-byte aligned; rows are not, yet",
    {32, 32, 16}, launch<aligned>};
const tg_rung tg_rung_tile_static = {
    "cuTile + static extents", "rows are known to be aligned and tiles to be whole: TMA",
    {32, 32, 16}, launch<32, 32, static_extents<1024>, static_extents<4096>>};
const tg_rung tg_rung_tile_64x128 = {
    "cuTile + tuned tile, small", "reuse that feeds WGMMA, in tiles enough for 1024^3",
    {64, 128, 64}, launch<64, 128, tile_64x128<1024>, tile_64x128<4096>>};
const tg_rung tg_rung_tile_256x256 = {
    "cuTile + tuned tile, large", "two CTAs of 8 warps share a tile: the most reuse, for 4096^3",
    {256, 256, 64}, launch<256, 256, tile_256x256<1024>, tile_256x256<4096>>};
