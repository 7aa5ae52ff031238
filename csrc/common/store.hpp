// Neighbouring numbers of a row of D: packed, and stored.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm {

// Two 16-bit numbers in a word.
template <class T>
__device__ __forceinline__ uint32_t pack(float x, float y) {
  const T both[2] = {T(x), T(y)};
  uint32_t word;
  memcpy(&word, both, 4);
  return word;
}

// Stores the first `count` of `size` numbers. `vectors`: whether pieces of 16 bytes are aligned and contiguous;
// otherwise numbers are `stride` apart.
template <class Out, int size>
__device__ __forceinline__ void store_row(Out* to, int64_t stride, const Out (&x)[size], int count, bool vectors) {
  constexpr int in_piece = 16 / int(sizeof(Out));
  static_assert(size % in_piece == 0, "whole pieces");
#pragma unroll
  for (int at = 0; at < size; at += in_piece) {
    if (vectors && count >= at + in_piece) {
      uint4 piece;
      memcpy(&piece, x + at, sizeof piece);
      *reinterpret_cast<uint4*>(to + at) = piece;
    } else {
#pragma unroll
      for (int e = at; e < at + in_piece; e++) {
        if (e < count) to[e * stride] = x[e];
      }
    }
  }
}

}  // namespace tilegemm
