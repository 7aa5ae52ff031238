// Tiles of 16 bits through shared memory, on tensor cores (`mma.sync`, from sm80 on), whatever the alignment of the
// operands: numbers get to shared memory one by one. Warps have 16 rows and 16 or 32 columns each; groups of warps that
// cover the tile share the k's of a chunk.
#pragma once
#include "common/mma.hpp"
#include "split_k/block.hpp"

namespace tilegemm {
namespace {

template <class T, int TM, int TN>
struct MmaTile {
  static constexpr int depth = TM == 64 && TN == 64 ? 32 : TM == 16 && TN == 16 ? 128 : 64;
  static constexpr int warps_m = TM / 16, warp_n = TN >= 64 ? 32 : 16, warps_n = TN / warp_n;
  static constexpr int groups = warps / (warps_m * warps_n), fragments = warp_n / 8;
  static constexpr int steps = depth / (16 * groups);          // products of 16 k's that a group has of a chunk
  static constexpr int chunks_of_a_chain = 64 / (16 * steps);  // tensor cores add 16 products at a time: four of those
  using A = Loader<T, T, TM, depth, true>;
  using B = Loader<T, T, TN, depth, true>;
  static constexpr int stage = A::size + B::size;
  static constexpr int stage_bytes = 2 * stage * int(sizeof(T)), sum_bytes = groups * TM * TN * int(sizeof(float));
  static constexpr int shared_bytes = groups > 1 && sum_bytes > stage_bytes ? sum_bytes : stage_bytes;
  static_assert(groups * warps_m * warps_n == warps && steps > 0 && chunks_of_a_chain > 0);
};

template <class T, class Out, int TM, int TN>
__global__ void __launch_bounds__(threads, 3)
    split_k_mma(const __grid_constant__ tg_gemm_args args, const __grid_constant__ Grid grid,
                const __grid_constant__ Epilogue<Out, float> epilogue) {
  using C = MmaTile<T, TM, TN>;
  __shared__ __align__(16) uint8_t shared[C::shared_bytes];
  T* const stages = reinterpret_cast<T*>(shared);
  launch_dependents();
  const Place place(args, grid, TM, TN);
  const int64_t k_of_part = place.k_end - place.k_begin;
  typename C::A a(place.of<const T>(args.a), place.m0, args.m, place.k_begin, args.a.row_stride, args.a.col_stride);
  typename C::B b(place.of<const T>(args.b), place.n0, args.n, place.k_begin, args.b.col_stride, args.b.row_stride);
  griddepcontrol_wait();

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = warp / (C::warps_m * C::warps_n);
  const int row = warp % C::warps_m * 16 + lane / 4;
  const int column = warp / C::warps_m % C::warps_n * C::warp_n, pair = lane % 4 * 2;
  float total[C::fragments][4] = {}, sum[C::fragments][4] = {};  // (MMA_N,MMA)
  const auto flush = [&] {
#pragma unroll
    for (int f = 0; f < C::fragments; f++) {
#pragma unroll
      for (int i = 0; i < 4; i++) total[f][i] += sum[f][i], sum[f][i] = 0;
    }
  };
  const auto word = [](const T* at) { return *reinterpret_cast<const uint32_t*>(at); };

  const int64_t chunks = (k_of_part + C::depth - 1) / C::depth;
  if (chunks > 0) {
    a.load(k_of_part), b.load(k_of_part);
    a.store(stages), b.store(stages + C::A::size);
  }
  __syncthreads();
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const int64_t left = k_of_part - (chunk + 1) * C::depth;
    if (left > 0) a.load(left), b.load(left);
    const T *const from_a = stages + chunk % 2 * C::stage, *const from_b = from_a + C::A::size;
#pragma unroll
    for (int step = 0; step < C::steps; step++) {
      const int k = (step * C::groups + group) * 16 + pair;
      const uint32_t x[4] = {word(from_a + C::A::at(row, k)), word(from_a + C::A::at(row + 8, k)),
                             word(from_a + C::A::at(row, k + 8)), word(from_a + C::A::at(row + 8, k + 8))};
#pragma unroll
      for (int f = 0; f < C::fragments; f++) {
        const int n = column + f * 8 + lane / 4;
        mma_16<T>(sum[f], x, word(from_b + C::B::at(n, k)), word(from_b + C::B::at(n, k + 8)));
      }
    }
    if ((chunk + 1) % C::chunks_of_a_chain == 0) flush();
    if (left > 0) {
      T* const to = stages + (chunk + 1) % 2 * C::stage;
      a.store(to), b.store(to + C::A::size);
    }
    __syncthreads();
  }
  flush();

  // Element e of fragment f of a lane.
  const auto row_of = [&](int e) { return row + e / 2 * 8; };
  const auto column_of = [&](int f, int e) { return column + f * 8 + pair + e % 2; };
  const auto emit = [&](float value, int i, int j) {
    if (place.m0 + i < args.m && place.n0 + j < args.n)
      place.emit(value, place.m0 + i, place.n0 + j, args, grid, epilogue);
  };
  if constexpr (C::groups == 1) {
#pragma unroll
    for (int f = 0; f < C::fragments; f++) {
#pragma unroll
      for (int e = 0; e < 4; e++) emit(total[f][e], row_of(e), column_of(f, e));
    }
  } else {
    float* const sums = reinterpret_cast<float*>(shared);
#pragma unroll
    for (int f = 0; f < C::fragments; f++) {
#pragma unroll
      for (int e = 0; e < 4; e++) sums[(group * TM + row_of(e)) * TN + column_of(f, e)] = total[f][e];
    }
    __syncthreads();
    for (int index = threadIdx.x; index < TM * TN; index += threads) {
      float value = sums[index];
#pragma unroll
      for (int g = 1; g < C::groups; g++) value += sums[g * TM * TN + index];
      emit(value, index / TN, index % TN);
    }
  }
}

}  // namespace
}  // namespace tilegemm
