// What the epilogue of wave.hpp adds to the sums: numbers of C and of the bias, loaded ahead of the sums.
#pragma once
#include "sm90_wave/store.hpp"

namespace tilegemm {
namespace {

// Loads eight numbers of a row, `left` numbers at most, as `put` stores them.
template <class T>
__device__ __forceinline__ void get(uint32_t (&v)[4], const T* from, bool wide, int left) {
  if (wide && left >= 8) {
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "l"(from));
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    if (i < left) v[i / 2] |= load_bits(from + i) << (16 * (i % 2));
  }
}

// Where the numbers are. Null pointers: nothing is added.
template <class Out>
struct Addends {
  Part<Out> c;      // the part of C, like the part of D
  const Out* bias;  // a row, whose numbers are contiguous
  bool wide_bias;   // whether the row is aligned to 16 bytes
};

// The numbers for a group of fragments: of C where `store` stores a lane's numbers of D, since C may be D and the lane
// that stores an element has to load the element; of the bias, if its columns are along the group.
template <class C>
struct GroupAdded {
  using T = typename C::Out;
  static constexpr int pieces = sizeof(T) == 2 && C::swap_ab ? 1 : 2, bias_pieces = C::swap_ab ? 0 : 1;
  uint32_t words[pieces + bias_pieces][4];

  // Loads the numbers for the fragments from j on, as far as they are before `end`.
  __device__ __forceinline__ void load(int j, int end, const Addends<T>& from) {
    const int lane = threadIdx.x % 32, q = lane % 4;
    const Part<T>& c = from.c;
    const auto has_column = [&](int column) { return column >= c.n_from && column < c.n; };
#pragma unroll
    for (auto& piece : words) piece[0] = piece[1] = piece[2] = piece[3] = 0;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
      for (int e = 0; e < 8; e++) {  // as store_f32
        const int row = c.q0 + 8 * (j + e / 4) + q * 2 + e % 2, column = c.p0 + lane / 4 + e % 4 / 2 * 8;
        if (c.d && j + e / 4 < end && row < c.m_end && has_column(column)) {
          words[e / 4][e % 4] = load_bits(c.d + row * c.stride + column);
        }
      }
    } else if constexpr (C::swap_ab) {
      const int i = q / 2, row = c.q0 + 8 * (j + i) + lane / 4, column = c.p0 + 8 * (q % 2);
      if (c.d && j + i < end && row < c.m_end && has_column(column)) {
        get(words[0], c.d + row * c.stride + column, c.wide, c.n - column);
      }
    } else {
      const int row = c.p0 + lane / 4, column = c.q0 + 8 * (j + q);
      if (j + q >= end || !has_column(column)) return;
      const T* const at = c.d + row * c.stride + column;
      if (c.d && row < c.m_end) get(words[0], at, c.wide, c.n - column);
      if (c.d && row + 8 < c.m_end) get(words[1], at + 8 * c.stride, c.wide, c.n - column);
      if (from.bias) get(words[2], from.bias + column, from.wide_bias, c.n - column);
    }
  }

  // Moves the numbers to the lanes that have the sums: the moves of `store`, which are their own inverses. For whole
  // warps.
  __device__ __forceinline__ void turn() {
    if constexpr (sizeof(T) == 2) {
      quad_transpose(words, threadIdx.x % 4);
      if constexpr (C::swap_ab) {
#pragma unroll
        for (uint32_t& word : words[0]) word = movmatrix(word);
      }
    }
  }

  // The number of C, and of the bias, for element e of the group's sums.
  __device__ __forceinline__ float c(int e) const {
    if constexpr (sizeof(T) == 4) return number_of<T>(words[e / 4][e % 4]);
    else if constexpr (C::swap_ab) return number_of<T>(words[0][e / 2] >> (16 * (e % 2)));
    else return number_of<T>(words[e % 4 / 2][e / 4] >> (16 * (e % 2)));
  }
  __device__ __forceinline__ float bias(int e) const { return number_of<T>(words[pieces][e / 4] >> (16 * (e % 2))); }
};

// The numbers for the next two groups of a warp, and with swap_ab a lane's two numbers of the bias.
template <class C>
struct Added {
  using T = typename C::Out;
  static constexpr int ahead = 2;
  GroupAdded<C> groups[ahead];
  uint32_t bias[2];

  __device__ __forceinline__ void load(int j, int end, const Addends<T>& from) {
#pragma unroll
    for (int i = 0; i < ahead; i++) groups[i].load(j + i * C::group, end, from);
    if constexpr (C::swap_ab) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int n = from.c.p0 + threadIdx.x % 32 / 4 + 8 * i;
        bias[i] = from.bias && n < from.c.n ? load_bits(from.bias + n) : 0;
      }
    }
  }

  // Takes the numbers for the group of fragments from j on, for its sums: of C to `c`, of the bias to `b`. Loads those
  // for the group after the next.
  __device__ __forceinline__ void take(float (&c)[4 * C::group], float (&b)[4 * C::group], int j, int end,
                                       const Addends<T>& from) {
    GroupAdded<C> group = groups[0];
#pragma unroll
    for (int i = 1; i < ahead; i++) groups[i - 1] = groups[i];
    if (j + ahead * C::group < end) groups[ahead - 1].load(j + ahead * C::group, end, from);
    group.turn();
#pragma unroll
    for (int e = 0; e < 4 * C::group; e++) {
      c[e] = group.c(e);
      if constexpr (C::swap_ab) b[e] = number_of<T>(bias[e % 4 / 2]);
      else b[e] = group.bias(e);
    }
  }
};

// Stores fragments `from` to `end` - 1 from shared memory through the epilogue to D, in a loop: an epilogue unrolled
// over the registers would be too large. `ahead`: `added` has the numbers of the first fragments.
template <class C>
__device__ __forceinline__ void finish_all(const float4* parked, int from, int end, const Part<typename C::Out>& part,
                                           const Epilogue<typename C::Out, float>& epilogue, int batch0, int batch1,
                                           bool ahead, Added<C>& added, const Addends<typename C::Out>& addends) {
  constexpr int count = 4 * C::group;
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int j = from; j < end && reaches<C>(j, part); j += C::group) {
    float x[count];
#pragma unroll
    for (int i = 0; i < C::group; i++) {
      const float4 v = j + i < end ? parked[(j + i - from) * 32] : make_float4(0, 0, 0, 0);
      x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
    if (ahead) {
      float c[count], bias[count];
      added.take(c, bias, j, end, addends);
#pragma unroll
      for (int e = 0; e < count; e++) {
        x[e] *= epilogue.alpha;
        if (epilogue.bias.ptr) x[e] += bias[e];
        if (epilogue.beta != 0) x[e] += epilogue.beta * c[e];
      }
    } else {
      int m[count], n[count];
      bool inside[count];
#pragma unroll
      for (int e = 0; e < count; e++) {
        const int i = e / 4, p = part.p0 + lane / 4 + (e % 4 / 2) * 8, q = part.q0 + 8 * (j + i) + lane % 4 * 2 + e % 2;
        m[e] = C::swap_ab ? q : p, n[e] = C::swap_ab ? p : q;
        inside[e] = j + i < end && m[e] < part.m_end && n[e] >= part.n_from && n[e] < part.n;
      }
      epilogue.each(x, m, n, inside, batch0, batch1);
    }
    float4 v[C::group];
#pragma unroll
    for (int i = 0; i < C::group; i++) v[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    store<C, 1>(v, min(end - j, C::group), j, part);
  }
}

}  // namespace
}  // namespace tilegemm
