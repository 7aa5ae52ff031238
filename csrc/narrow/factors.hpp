// The warp that copies factors and zeros of W to shared memory, a line of each group for the rows of a tile. Lines at
// multiples of 16 bytes are copied 16 bytes at a time; others, of any strides, number by number.
//
// `P`: what the kernel knows of the problem: the call's arguments, and of their factors the bytes of one
// (`factor_bytes`), the bits of one where there are none (`factor_one`), the numbers of K and rows of W that share one
// (`group`, `of_block`), and whether lines are at multiples of 16 bytes (`vectors`).
#pragma once
#include "common/pipeline.hpp"
#include "narrow/wgmma_shape.hpp"

namespace tilegemm::narrow {
namespace {

// The factor of row n of W and of a group along K.
template <class P>
__device__ __forceinline__ int64_t place_of_factor(const P& p, int group, int n) {
  return group * p.args.b_scale.row_stride + p.of_block.quotient(n) * p.args.b_scale.col_stride;
}

__device__ __forceinline__ uint32_t factor_bits(const void* factors, int bytes, int64_t at) {
  if (bytes == 4) return static_cast<const uint32_t*>(factors)[at];
  if (bytes == 2) return static_cast<const uint16_t*>(factors)[at];
  return static_cast<const uint8_t*>(factors)[at];
}

template <class S, class P>
class FactorCopier {
  static constexpr int in_flight = 4;  // loads of a lane

  const P& p_;
  uint32_t ring_;
  int lane_;

  __device__ __forceinline__ int group_of(int stage, int unit) const {
    return p_.group.quotient(min((stage * S::units + unit) * S::unit, int(p_.args.k) - 1));
  }

  // The lines of a stage, with numbers of `bytes` bytes, `line` bytes apart there.
  __device__ __forceinline__ void copy_lines(uint32_t to, int line, const void* matrix, int bytes, int stage,
                                             int n0) const {
    const int pieces = S::height * bytes / 16, shift = 31 - __clz(pieces);
#pragma unroll 1
    for (int i = lane_; i < S::units * pieces; i += 32) {
      const int unit = i >> shift, piece = i & (pieces - 1);
      const uint8_t* const from = static_cast<const uint8_t*>(matrix) +
                                  (group_of(stage, unit) * p_.args.b_scale.row_stride + n0) * bytes + 16 * piece;
      copy_async_16(to + unit * line + 16 * piece, from, 16, evict_first);
    }
  }
  // The same of numbers of four bytes at any strides: copies do not wait for each other, as loads do.
  __device__ __forceinline__ void copy_words(uint32_t to, int line, const void* matrix, int stage, int n0) const {
#pragma unroll 1
    for (int unit = 0; unit < S::units; unit++) {
      const int group = group_of(stage, unit);
#pragma unroll
      for (int first = 0; first < S::height; first += 32) {
        const int n = min(n0 + first + lane_, int(p_.args.n) - 1);
        const uint32_t* const from = static_cast<const uint32_t*>(matrix) + place_of_factor(p_, group, n);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to + unit * line + (first + lane_) * 4), "l"(from)
                     : "memory");
      }
    }
  }
  // The same of any bytes; a null pointer: ones. Rows behind the end of W get any numbers.
  __device__ __forceinline__ void copy_numbers(uint32_t to, int line, const void* matrix, int bytes, int stage,
                                               int n0) const {
#pragma unroll 1
    for (int unit = 0; unit < S::units; unit++) {
      const int group = group_of(stage, unit);
#pragma unroll
      for (int first = 0; first < S::height; first += 32 * in_flight) {
        uint32_t bits[in_flight];
#pragma unroll
        for (int r = 0; r < in_flight; r++) {
          const int n = min(n0 + first + 32 * r + lane_, int(p_.args.n) - 1);
          bits[r] = matrix ? factor_bits(matrix, bytes, place_of_factor(p_, group, n)) : p_.factor_one;
        }
#pragma unroll
        for (int r = 0; r < in_flight; r++) {
          const uint32_t there = to + unit * line + (first + 32 * r + lane_) * bytes;
          if (bytes == 4) store_shared(there, __uint_as_float(bits[r]));
          else if (bytes == 2) asm volatile("st.shared.u16 [%0], %1;" ::"r"(there), "h"(uint16_t(bits[r])) : "memory");
          else store_shared_8(there, uint8_t(bits[r]));
        }
      }
    }
  }

 public:
  // `ring`: the factors of the first stage.
  __device__ FactorCopier(const P& p, uint32_t ring, int lane) : p_(p), ring_(ring), lane_(lane) {}

  // Stages [begin, end) of K for the rows of W from n0 on. `scale`: of the matrix. Each lane arrives at a stage's
  // barrier.
  __device__ __forceinline__ void run(const tg_scale& scale, int n0, int begin, int end, Stage& at, uint32_t full,
                                      uint32_t empty) const {
    const bool whole = p_.vectors && n0 + S::height <= p_.args.n;
    const bool words = S::gathers && p_.factor_bytes == 4 && scale.ptr && !scale.zeros;
#pragma unroll 1
    for (int stage = begin; stage < end; stage++) {
      at.wait_warp(empty);
      const uint32_t to = ring_ + at.s * S::f_bytes;
      if (whole) {
        copy_lines(to, S::factor_line, scale.ptr, p_.factor_bytes, stage, n0);
        if (S::has_zeros && scale.zeros) copy_lines(to + S::zeros_at, S::height, scale.zeros, 1, stage, n0);
        mbarrier_arrive_after_copies(full + 8 * at.s);
      } else if (words) {
        copy_words(to, S::factor_line, scale.ptr, stage, n0);
        mbarrier_arrive_after_copies(full + 8 * at.s);
      } else {
        copy_numbers(to, S::factor_line, scale.ptr, p_.factor_bytes, stage, n0);
        if (S::has_zeros && scale.zeros) copy_numbers(to + S::zeros_at, S::height, scale.zeros, 1, stage, n0);
        mbarrier_arrive(full + 8 * at.s);
      }
      at.advance(S::w_stages);
    }
    // A block ends no earlier than its copies.
    copy_async_commit();
    copy_async_wait<0>();
  }
};

}  // namespace
}  // namespace tilegemm::narrow
