// The warp that copies factors and zero points of W to shared memory, a line of each group for the rows of a tile. Lines
// at multiples of 16 bytes are copied 16 bytes at a time; others, of any strides, number by number.
#pragma once
#include "common/pipeline.hpp"
#include "sm90_narrow_gemm/problem.hpp"

namespace tilegemm {
namespace {

template <class S>
class FactorCopier {
  const Problem& p_;
  uint32_t ring_;
  int lane_;

  // A line of `BYTES` bytes for each row of W from n0 on. Rows after the end of W get any numbers.
  template <int BYTES>
  __device__ __forceinline__ void copy_line(uint32_t to, const void* matrix, int64_t group, int n0, bool whole) const {
    constexpr int pieces = S::height * BYTES / 16;
    if (whole) {
      const uint8_t* const from = static_cast<const uint8_t*>(matrix) + (group * p_.w.stride_k + n0) * BYTES;
#pragma unroll
      for (int first = 0; first < pieces; first += 32) {
        const int i = first + lane_;
        if (pieces % 32 == 0 || i < pieces) copy_async_16(to + 16 * i, from + 16 * i, 16, evict_first);
      }
      return;
    }
#pragma unroll
    for (int r = 0; r < S::height / 32; r++) {
      const int n = min(n0 + lane_ + 32 * r, int(p_.args.n) - 1);
      const int64_t at = group * p_.w.stride_k + n / p_.w.rows * p_.w.stride_n;
      const uint32_t bits = narrow::factor_bits(matrix, BYTES, at), there = to + (lane_ + 32 * r) * BYTES;
      if constexpr (BYTES == 4) store_shared(there, __uint_as_float(bits));
      else if constexpr (BYTES == 2) asm volatile("st.shared.u16 [%0], %1;" ::"r"(there), "h"(uint16_t(bits)) : "memory");
      else store_shared_8(there, uint8_t(bits));
    }
  }

 public:
  // `ring`: the factors of the first stage.
  __device__ FactorCopier(const Problem& p, uint32_t ring, int lane) : p_(p), ring_(ring), lane_(lane) {}

  // Stages [begin, end) of K for the rows of W from n0 on. Each lane arrives at a stage's barrier.
  __device__ __forceinline__ void run(int n0, int begin, int end, Stage& at, uint32_t full, uint32_t empty) const {
    const bool whole = p_.vectors && n0 + S::height <= p_.args.n;
#pragma unroll 1
    for (int stage = begin; stage < end; stage++) {
      at.wait_warp(empty);
      const uint32_t to = ring_ + at.s * S::f_bytes;
#pragma unroll
      for (int u = 0; u < S::units; u++) {
        const int k = min((stage * S::units + u) * S::unit, int(p_.args.k) - 1), group = p_.group.quotient(k);
        copy_line<S::factor_bytes>(to + u * S::factor_line, p_.w.factors, group, n0, whole);
        if constexpr (S::has_zeros) {
          if (p_.w.zeros) copy_line<1>(to + S::zeros_at + u * S::height, p_.w.zeros, group, n0, whole);
        }
      }
      if (whole) mbarrier_arrive_after_copies(full + 8 * at.s);
      else mbarrier_arrive(full + 8 * at.s);
      at.advance(S::w_stages);
    }
    // A block ends no earlier than its copies.
    copy_async_commit();
    copy_async_wait<0>();
  }
};

}  // namespace
}  // namespace tilegemm
