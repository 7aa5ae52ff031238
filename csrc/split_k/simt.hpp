// Tiles of f32 and f64 through shared memory, on the CUDA cores. A thread owns 4 x 4 elements of D; groups of threads
// that have the same elements share the k's of a chunk.
#pragma once
#include "split_k/block.hpp"

namespace tilegemm {
namespace {

// Four numbers of shared memory at a multiple of four.
template <class Acc>
__device__ void read_four(const Acc* from, Acc (&to)[4]) {
  struct alignas(16) Vector {
    Acc numbers[16 / sizeof(Acc)];
  };
  constexpr int width = 16 / sizeof(Acc);
#pragma unroll
  for (int v = 0; v < 4 / width; v++) {
    const Vector vector = reinterpret_cast<const Vector*>(from)[v];
#pragma unroll
    for (int i = 0; i < width; i++) to[v * width + i] = vector.numbers[i];
  }
}

template <class T, class Acc, int TM, int TN>
struct Tile {
  static constexpr int depth = TM == 64 && TN == 64 ? 16 : TM == 16 && TN == 16 ? 64 : 32;
  static constexpr int columns = TN / 4, sharers = TM * TN / 16, groups = threads / sharers;
  static constexpr int steps = depth / groups;                // k's that a group has of a chunk, one after the other
  static constexpr int most = sizeof(Acc) == 8 ? 64 : chain;  // short chains would take registers that f64 lacks
  static constexpr int chunks_of_a_chain = steps < most ? most / steps : 1;
  using A = Loader<T, Acc, TM, depth, false>;
  using B = Loader<T, Acc, TN, depth, false>;
  static constexpr int a_size = A::size, stage = a_size + B::size;
  static constexpr int shared = 2 * stage > groups* TM* TN ? 2 * stage : (groups > 1 ? groups * TM * TN : 0);
  static constexpr int residents = 2;  // blocks of a multiprocessor
  static_assert(threads % sharers == 0 && depth % groups == 0);
};

template <class T, class Out, class Acc, int TM, int TN>
__global__ void __launch_bounds__(threads, Tile<T, Acc, TM, TN>::residents)
    split_k_tile(const __grid_constant__ tg_gemm_args args, const __grid_constant__ Grid grid,
                 const __grid_constant__ Epilogue<Out, Acc> epilogue) {
  using C = Tile<T, Acc, TM, TN>;
  __shared__ __align__(16) Acc shared[C::shared];
  launch_dependents();
  const Place place(args, grid, TM, TN);
  const int64_t depth_of_part = place.k_end - place.k_begin;
  typename C::A a(place.of<const T>(args.a), place.m0, args.m, place.k_begin, args.a.row_stride, args.a.col_stride);
  typename C::B b(place.of<const T>(args.b), place.n0, args.n, place.k_begin, args.b.col_stride, args.b.row_stride);
  griddepcontrol_wait();

  const int group = threadIdx.x / C::sharers, sharer = threadIdx.x % C::sharers;
  const int i0 = sharer / C::columns * 4, j0 = sharer % C::columns * 4;
  const int64_t chunks = (depth_of_part + C::depth - 1) / C::depth;
  Total<Acc> total[4][4];  // (M,N) of a thread
  Acc sum[4][4] = {};      // (M,N) of a thread
  const auto flush = [&] {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int j = 0; j < 4; j++) total[i][j].add(sum[i][j]), sum[i][j] = Acc(0);
    }
  };

  if (chunks > 0) {
    a.load(depth_of_part), b.load(depth_of_part);
    a.store(shared), b.store(shared + C::a_size);
  }
  __syncthreads();
  for (int64_t chunk = 0; chunk < chunks; chunk++) {
    const int64_t left = depth_of_part - (chunk + 1) * C::depth;
    if (left > 0) a.load(left), b.load(left);
    const Acc* const from = shared + chunk % 2 * C::stage;
#pragma unroll
    for (int step = 0; step < C::steps; step++) {
      const int k = group * C::steps + step;
      Acc x[4], y[4];
      read_four(from + k * C::A::pitch + i0, x);
      read_four(from + C::a_size + k * C::B::pitch + j0, y);
#pragma unroll
      for (int i = 0; i < 4; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
      }
    }
    if ((chunk + 1) % C::chunks_of_a_chain == 0) flush();
    if (left > 0) {
      Acc* const to = shared + (chunk + 1) % 2 * C::stage;
      a.store(to), b.store(to + C::a_size);
    }
    __syncthreads();
  }
  flush();

  const auto emit = [&](Acc value, int i, int j) {
    if (place.m0 + i < args.m && place.n0 + j < args.n)
      place.emit(value, place.m0 + i, place.n0 + j, args, grid, epilogue);
  };
  if constexpr (C::groups == 1) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int j = 0; j < 4; j++) emit(total[i][j].value(), i0 + i, j0 + j);
    }
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) {
#pragma unroll
      for (int j = 0; j < 4; j++) shared[(group * TM + i0 + i) * TN + j0 + j] = total[i][j].value();
    }
    __syncthreads();
    for (int index = threadIdx.x; index < TM * TN; index += threads) {
      Total<Acc> value;
#pragma unroll
      for (int g = 0; g < C::groups; g++) value.add(shared[g * TM * TN + index]);
      emit(value.value(), index / TN, index % TN);
    }
  }
}

}  // namespace
}  // namespace tilegemm
