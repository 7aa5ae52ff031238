// From a warp's sums to rows of D: 16 rows of W by a tile's rows of A.
#pragma once
#include "common/store.hpp"
#include "common/wgmma.hpp"
#include "narrow/results.hpp"
#include "sm90_fp8_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// The lane's two rows of W, which are columns of D, where the warp's first one is `n`.
struct Columns {
  int first, step;  // the second one is first + step
  __device__ __forceinline__ Columns(const Problem& p, int n, int lane)
      : first(n + lane / 4 * (p.neighbours ? 2 : 1)), step(p.neighbours ? 1 : 8) {}
};

// Stores to device memory, where `place`, in bytes, is one.
__device__ __forceinline__ void store_two(uint8_t* d, int64_t place, float x, float y, float) {
  asm volatile("{\n .reg .pred p;\n setp.ge.s64 p, %1, 0;\n @p st.global.v2.f32 [%0], {%2, %3};\n}" ::"l"(d + place),
               "l"(place), "f"(x), "f"(y)
               : "memory");
}
template <class T>
__device__ __forceinline__ void store_two(uint8_t* d, int64_t place, float x, float y, T) {
  asm volatile("{\n .reg .pred p;\n setp.ge.s64 p, %1, 0;\n @p st.global.b32 [%0], %2;\n}" ::"l"(d + place), "l"(place),
               "r"(pack<T>(x, y))
               : "memory");
}

// Stores sums times the factors of their rows. A lane has rows 2 q and 2 q + 1 of each eight of A by two neighbouring
// rows of W: eight lanes write 16 numbers of a row.
template <class T, class S, int width>
__device__ __forceinline__ void put_as(const float (&sum)[width / 2], const Problem& p, const typename S::Places& tile,
                                       int n, int lane) {
  const int column = Columns(p, n, lane).first;
  if (column >= int(p.args.n)) return;
  uint8_t* const d = reinterpret_cast<uint8_t*>(static_cast<T*>(p.args.d.ptr) + column);
  const float alpha = p.alpha;
#pragma unroll
  for (int j = 0; j < width / 8; j++) {
    if (8 * j >= tile.height) break;
    const int at = 8 * j + 2 * (lane % 4);
    const longlong2 places = *reinterpret_cast<const longlong2*>(tile.places + at);
    float2 scale = *reinterpret_cast<const float2*>(tile.scales + at);
    scale.x *= alpha, scale.y *= alpha;
    store_two(d, places.x, sum[4 * j] * scale.x, sum[4 * j + 2] * scale.x, T());
    store_two(d, places.y, sum[4 * j + 1] * scale.y, sum[4 * j + 3] * scale.y, T());
  }
}

template <class S, int width>
__device__ __forceinline__ void put(const float (&sum)[width / 2], const Problem& p, const typename S::Places& tile,
                                    int n, int lane) {
  switch (p.args.types.d) {
    case TG_BF16: put_as<__nv_bfloat16, S, width>(sum, p, tile, n, lane); break;
    case TG_F16: put_as<__half, S, width>(sum, p, tile, n, lane); break;
    default: put_as<float, S, width>(sum, p, tile, n, lane);
  }
}

// A fragment from shared memory through the epilogue to D, rows of the tile from `first` on.
template <class S>
__device__ __noinline__ void finish_fragment(const float4* fragment, int first, const Problem& p,
                                             const Results& results, const typename S::Places& tile, int n) {
  const int lane = threadIdx.x % 32;
  const Columns columns(p, n, lane);
#pragma unroll 1
  for (int e = 0; e < 4; e++) {
    const int i = first + 2 * (lane % 4) + e % 2, column = columns.first + e / 2 * columns.step, row = tile.rows[i];
    const float sum = reinterpret_cast<const float*>(fragment + lane)[e];
    if (row >= 0 && column < p.args.n) results.store(sum, row, column, tile.group, tile.scales[i]);
  }
}

// Sums through the epilogue, a fragment at a time: code that is unrolled over all registers would be too large.
template <class S, int width>
__device__ __forceinline__ void finish(const float (&sum)[width / 2], float4* parked, const Problem& p,
                                       const Results& results, const typename S::Places& tile, int n, int lane) {
#pragma unroll 1
  for (int at = 0; at < tile.height; at += 8) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < width / 8; j++) {
      if (8 * j == at) parked[lane] = fragment(sum, j);
    }
    __syncwarp();
    finish_fragment<S>(parked, at, p, results, tile, n);
  }
}

}  // namespace
}  // namespace tilegemm
