// From sums to results in D, or in the part of the workspace for a part of K: a warp's 16 rows of W, by 16 rows of X.
#pragma once
#include "common/ptx.hpp"
#include "common/store.hpp"
#include "common/wgmma.hpp"
#include "narrow/exact.hpp"
#include "sm90_narrow_gemm/problem.hpp"

namespace tilegemm {
namespace {

// v[b] of lane q of a quad goes to v[q] of lane b.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4], int q) {
  const bool odd = q & 1, high = q & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
    v[i] = odd ? got : v[i], v[i + 1] = odd ? v[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
    v[i] = high ? got : v[i], v[i + 2] = high ? v[i + 2] : got;
  }
}

// Where results go: rows up to m_end, columns from n_from on. To D in T, or to a part of the workspace in f32.
template <class T>
struct Results {
  void* d;
  int64_t stride;
  int m_end, n_from, n;
  bool is_part, wide;

  // The row and the column of number e of a lane of two fragments, 16 rows of W from n0 on by 16 rows of X from m0 on.
  __device__ __forceinline__ static int row(int m0, int e) { return m0 + e / 4 * 8 + threadIdx.x % 4 * 2 + e % 2; }
  __device__ __forceinline__ static int column(int n0, int e) { return n0 + threadIdx.x % 32 / 4 + e % 4 / 2 * 8; }
  __device__ __forceinline__ bool has(int m, int n_at) const { return m < m_end && n_at >= n_from && n_at < n; }

  // Stores two fragments. For whole warps.
  __device__ __forceinline__ void put(const float (&x)[8], int n0, int m0) const {
    if (is_part) put_part(x, n0, m0);
    else put_results(x, n0, m0);
  }
  __device__ __forceinline__ void put_part(const float (&x)[8], int n0, int m0) const {
    float* const to = static_cast<float*>(d);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      const int m = row(m0, e), at = column(n0, e);
      if (has(m, at)) to[m * stride + at] = x[e];
    }
  }
  __device__ __forceinline__ void put_results(const float (&x)[8], int n0, int m0) const {
    const int lane = threadIdx.x % 32, q = lane % 4;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = movmatrix(pack<T>(x[2 * i], x[2 * i + 1]));
    transpose_quad(words, q);
    const int m = m0 + q / 2 * 8 + lane / 4, first = n0 + 8 * (q % 2);
    if (!has(m, first)) return;
    T* const to = static_cast<T*>(d) + m * stride + first;
    if (wide && first + 8 <= n) {
      *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
      return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const uint16_t bits = uint16_t(words[i / 2] >> (16 * (i % 2)));
      if (first + i < n) *reinterpret_cast<uint16_t*>(to + i) = bits;
    }
  }
};

// Sums that are not finite, of two fragments in shared memory, once more over k in [begin, end).
template <class S>
__device__ __noinline__ void repair(float* parked, const Problem& p, int n0, int m0, int m_end, int64_t begin,
                                    int64_t end) {
  using At = Results<typename S::Number>;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int e = 0; e < 8; e++) {
    float* const at = parked + e / 4 * 128 + lane * 4 + e % 4;
    const int m = At::row(m0, e), n = At::column(n0, e);
    unsigned left = __ballot_sync(~0u, m < m_end && n < p.args.n && !isfinite(*at));
#pragma unroll 1
    for (; left; left &= left - 1) {
      const int owner = __ffs(left) - 1, of_m = __shfl_sync(~0u, m, owner), of_n = __shfl_sync(~0u, n, owner);
      const float sum = narrow::once_more<S::code, typename S::Number>(p.args, of_m, of_n, begin, end);
      if (lane == owner) *at = sum;
    }
  }
  __syncwarp();
}

// Two fragments from shared memory through the epilogue to D, or to a part of the workspace.
template <class S>
__device__ __forceinline__ void finish(float4* parked, const Problem& p, const Results<typename S::Number>& results,
                                       const Epilogue<typename S::Number, float>& epilogue, int n0, int m0,
                                       int64_t begin, int64_t end) {
  const int lane = threadIdx.x % 32;
  const auto take = [&](float (&x)[8]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const float4 v = parked[i * 32 + lane];
      x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
  };
  float x[8], zero = 0.0f;
  take(x);
#pragma unroll
  for (int e = 0; e < 8; e++) zero = fmaf(x[e], 0.0f, zero);
  if (!__all_sync(~0u, zero == 0.0f)) {
    repair<S>(reinterpret_cast<float*>(parked), p, n0, m0, results.m_end, begin, end);
    take(x);
  }
  if (!results.is_part) {
    int m[8], n[8];
    bool inside[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
      m[e] = results.row(m0, e), n[e] = results.column(n0, e);
      inside[e] = results.has(m[e], n[e]);
    }
    epilogue.each(x, m, n, inside, 0, 0);
  }
  results.put(x, n0, m0);
}

}  // namespace
}  // namespace tilegemm
