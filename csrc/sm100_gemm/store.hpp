// Data-centre Blackwell: sums from tensor memory to D.
//
// A lane of tensor memory is a row of D. A warp reads the 32 lanes of its quarter only: warp w those from 32 * (w % 4)
// on. The lane t of the warp gets columns of row t.
#pragma once
#include <utility>

#include "common/store.hpp"
#include "sm100_gemm/parts.hpp"

namespace tilegemm {
namespace {

// Loads neighbouring columns of the thread's row. The sums are in the registers when the function returns; the compiler
// does not know that they are not there before the wait.
template <int count, int... i>
__device__ __forceinline__ void load_sums(float (&x)[count], uint32_t from, std::integer_sequence<int, i...>) {
  uint32_t words[count];
  if constexpr (count == 8) cute::SM100_TMEM_LOAD_32dp32b8x::copy(from, words[i]...);
  else cute::SM100_TMEM_LOAD_32dp32b64x::copy(from, words[i]...);
  cutlass::arch::fence_view_async_tmem_load();
#pragma unroll
  for (int e = 0; e < count; e++) {
    asm volatile("" : "+r"(words[e])::"memory");
    x[e] = __uint_as_float(words[e]);
  }
}
template <int count>
__device__ __forceinline__ void load_sums(float (&x)[count], uint32_t from) {
  static_assert(count == 8 || count == 64);
  load_sums(x, from, std::make_integer_sequence<int, count>{});
}

// The epilogue of eight neighbouring columns of row i, and their store. `bare`: D is the product times alpha.
template <class C, bool bare>
__device__ __forceinline__ void finish(float (&x)[8], int i, int j, int count, bool vectors, const Work& work,
                                       const Epilogue<typename C::Out, float>& epilogue, const Tile& tile,
                                       typename C::Out* d) {
  using Out = typename C::Out;
  if constexpr (bare) {
#pragma unroll
    for (int e = 0; e < 8; e++) x[e] *= epilogue.alpha;
  } else {
    int is[8], js[8];
    bool inside[8];
#pragma unroll
    for (int e = 0; e < 8; e++) is[e] = i, js[e] = j + e, inside[e] = e < count;
    epilogue.each(x, is, js, inside, tile.batch0, tile.batch1);
  }
  Out out[8];
#pragma unroll
  for (int e = 0; e < 8; e++) out[e] = Out(x[e]);
  store_row(d + i * work.d.row_stride + j, 1, out, count, vectors);
}

// The rungs `naive` and `prefetch`: eight columns at a time. A thread stores the numbers of its row one by one, so the
// 32 stores of a warp go to 32 rows.
template <class C>
__device__ __forceinline__ void store_numbers(uint32_t sums, int row, int column, const Work& work,
                                              const Epilogue<typename C::Out, float>& epilogue, const Tile& tile,
                                              typename C::Out* d) {
  const int i = row + int(threadIdx.x) % 32;
#pragma unroll 1
  for (int j = 0; j < C::tile_n; j += 8) {
    float x[8];
    __syncwarp();  // all lanes load together
    load_sums(x, sums + j);
    const int count = i < work.m ? min(work.n - column - j, 8) : 0;
    if (count <= 0) continue;
    if (work.bare) finish<C, true>(x, i, column + j, count, false, work, epilogue, tile, d);
    else finish<C, false>(x, i, column + j, count, false, work, epilogue, tile, d);
  }
}

// The other rungs: 64 columns at a time. The 32 rows of a part pass through shared memory, so that eight lanes have 64
// neighbouring columns of a row. A row has 16 pieces of 16 bytes, and all rows begin at the same bank. Piece p of row r
// lies at place (p ^ p / 8 ^ r) % 8 of its half: stores of a piece of eight rows, and loads of every other piece of a
// row, meet eight different groups of banks.
CUTE_HOST_DEVICE int place_of(int row, int piece) { return row * 16 + (piece & 8) + ((piece ^ piece >> 3 ^ row) & 7); }

// `release` runs when the sums are in registers.
template <class C, class Release>
__device__ __forceinline__ void store_parts(uint32_t sums, char* parts, int row, int column, const Work& work,
                                            const Epilogue<typename C::Out, float>& epilogue, const Tile& tile,
                                            typename C::Out* d, const Release& release) {
  const int warp = int(threadIdx.x) / 32 % 4, lane = int(threadIdx.x) % 32;
  float4* const own = reinterpret_cast<float4*>(parts) + warp * (32 * C::part / 4);
#pragma unroll 1
  for (int part = 0; part < C::tile_n; part += C::part) {
    float x[C::part];
    __syncwarp();  // all lanes have read the part before, and load together
    load_sums(x, sums + part);
    if (part + C::part == C::tile_n) release();
#pragma unroll
    for (int p = 0; p < C::part / 4; p++)
      own[place_of(lane, p)] = make_float4(x[4 * p], x[4 * p + 1], x[4 * p + 2], x[4 * p + 3]);
    __syncwarp();
    const int j = column + part + lane % 8 * 8, count = min(work.n - j, 8);
    if (count <= 0) continue;
    const int rows = min(work.m - row, 32);
    const auto finish_row = [&](int r, auto bare) {
      const float4 low = own[place_of(r, lane % 8 * 2)], high = own[place_of(r, lane % 8 * 2 + 1)];
      float y[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      finish<C, decltype(bare)::value>(y, row + r, j, count, work.vectors, work, epilogue, tile, d);
    };
    if (work.bare) {
#pragma unroll 4
      for (int r = lane / 8; r < rows; r += 4) finish_row(r, std::true_type{});
    } else {
#pragma unroll 1
      for (int r = lane / 8; r < rows; r += 4) finish_row(r, std::false_type{});
    }
  }
}

// A warp's 32 rows of a tile. `row`, `column`: the first ones of the block's part of the tile.
template <class C, class Release>
__device__ __forceinline__ void store_tile(uint32_t tensor_memory, char* parts, int rank, const Work& work,
                                           const Epilogue<typename C::Out, float>& epilogue, const Tile& tile,
                                           const Release& release) {
  const int quarter = int(threadIdx.x) / 32 % 4 * 32;
  const int row = tile.m * C::tile_m + rank * C::a_rows + quarter, column = tile.n * C::tile_n;
  typename C::Out* const d = matrix_of<typename C::Out>(work.d, int64_t(tile.batch0), int64_t(tile.batch1));
  const uint32_t sums = tensor_memory + (uint32_t(quarter) << 16);
  if constexpr (C::rung >= Rung::subtiles) {
    store_parts<C>(sums, parts, row, column, work, epilogue, tile, d, release);
  } else {
    store_numbers<C>(sums, row, column, work, epilogue, tile, d);
  }
}

}  // namespace
}  // namespace tilegemm
