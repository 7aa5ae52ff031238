// A warp that multiplies: 16 rows of W of the 64 of its warp group. It reads codes from shared memory, and makes
// numbers of 16 bits of them in registers, those of a round at a time. A warp group stands still while its wgmma are
// issued, since operand A is in registers. So two warp groups take turns: one converts while the other's wgmma run.
#pragma once
#include "common/pipeline.hpp"
#include "narrow/wgmma.hpp"
#include "sm90_narrow_gemm/problem.hpp"

namespace tilegemm {
namespace {

// The rings in shared memory.
struct Rings {
  uint32_t x, w, factors, x_full, x_empty, w_full, w_empty;

  template <class S>
  __device__ static Rings of(uint8_t* shared, S) {
    const uint32_t at = uint32_t(__cvta_generic_to_shared(shared)), barriers = at + S::barriers_at;
    constexpr int step = 8 * S::most_stages;
    return {at, at + S::w_at, at + S::f_at, barriers, barriers + step, barriers + 2 * step, barriers + 3 * step};
  }
};

// Numbers of the block's barriers (bar_sync).
constexpr int parts_barrier = 1, turns_barrier = 2;

template <class S>
class Multiplier {
  using T = typename S::Number;
  static constexpr int batches = S::round_batches, steps = batch / 16;
  static constexpr int words = S::has_nibbles ? 4 : 4 * steps;  // registers of a batch of codes

  const Rings& rings_;
  typename S::Codes codes_;
  uint32_t lane_at_;  // of row g of the warp's rows, and of t, in a stage of codes, and of the first own batch
  uint32_t row_;      // g of the warp's rows
  int lane_, k_part_, group_, factor_bytes_;
  tg_format factor_format_;
  bool has_zeros_;
  Stage x_ = Stage::to_read(), w_ = Stage::to_read();
  float now_[2], next_[2];  // factors of rows g and g + 8, of the sums of this round and of the next
  uint32_t zeros_[2];

 public:
  float sum[S::width / 2];  // ((2,2,width/8)), of D^T

 private:
  float part_[S::has_sums ? S::width / 2 : 1];

  __device__ __forceinline__ static uint32_t load_byte(uint32_t from) {
    uint32_t bits;
    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(bits) : "r"(from) : "memory");
    return bits;
  }
  __device__ __forceinline__ uint32_t table() const { return rings_.factors + w_.s * S::f_bytes; }
  __device__ __forceinline__ int first_unit() const { return k_part_ * (S::units / S::k_parts); }
  // The bits of the factor, and the zero, of row g + 8 r, in own unit u of the stage.
  __device__ __forceinline__ uint32_t factor_at(int u, int r) const {
    const uint32_t at = table() + (first_unit() + u) * S::factor_line + (row_ + 8 * r) * factor_bytes_;
    if constexpr (S::most_factor == 1) return load_byte(at);
    else if constexpr (S::most_factor == 2) return load_shared_16(at);
    else return factor_bytes_ == 4 ? load_shared(at) : load_shared_16(at);
  }
  __device__ __forceinline__ void take_zero(int u, int r) {
    if constexpr (S::has_zeros) {
      if (!has_zeros_) return;
      const uint32_t at = table() + S::zeros_at + (first_unit() + u) * S::height + row_ + 8 * r;
      zeros_[r] = S::Codes::zero_of(load_byte(at));
    }
  }

  // The codes of own batch b of the stage.
  __device__ __forceinline__ void load_codes(uint32_t (&to)[words], int b) const {
    const uint32_t at = rings_.w + w_.s * S::w_bytes + (lane_at_ ^ (b << (S::has_nibbles ? 5 : 6)));
    if constexpr (S::has_nibbles) {
#pragma unroll
      for (int i = 0; i < 4; i++) to[i] = load_shared((at ^ (i / 2 << 4)) + i % 2 * 8 * w_row);
    } else {
#pragma unroll
      for (int i = 0; i < 4 * steps; i++)
        to[i] = load_shared_16((at ^ (i / 4 << 4)) + i % 2 * 8 * w_row + i % 4 / 2 * 8);
    }
  }

  // Numbers of own batch b of the stage.
  __device__ __forceinline__ void convert(uint32_t (*to)[4], const uint32_t (&from)[words], int b) {
    constexpr int steps_of_unit = S::unit < batch ? S::unit / 16 : steps;
    typename S::Folded folded[2];
    // Folded: the factor of row r from step `step` on.
    const auto begin = [&](int step, int r) {
      if constexpr (S::is_folded) {
        const int u = (b * steps + step) / (S::unit / 16);
        folded[r].set(factor_format_, factor_at(u, r));
        take_zero(u, r);
      }
    };
    const auto fold = [&](uint32_t number, int r) {
      if constexpr (S::is_folded) return folded[r](number);
      else return number;
    };
#pragma unroll
    for (int s = 0; s < steps; s++) {
      if constexpr (S::has_nibbles) {
        // A word has 32 of K of a row.
        const int j = s / 2, r = s % 2;
        uint32_t pairs[4];
        if (2 * j % steps_of_unit == 0) begin(2 * j, r);
        codes_.convert(from[2 * j + r], zeros_[r], pairs);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          if (i > 0 && (2 * j + 1) % steps_of_unit == 0) begin(2 * j + 1, r);
          to[2 * j + i][r] = fold(pairs[2 * i], r), to[2 * j + i][2 + r] = fold(pairs[2 * i + 1], r);
        }
      } else {
        if (s % steps_of_unit == 0) begin(s, 0), begin(s, 1);
#pragma unroll
        for (int e = 0; e < 4; e++) to[s][e] = fold(codes_.pair(from[4 * s + e], zeros_[e % 2]), e % 2);
      }
    }
  }

  // Round q of the stage: its first loads, and its numbers.
  struct Next {
    uint32_t codes[batches][words];
  };
  __device__ __forceinline__ void begin_round(Next& next, int q) {
    if (q == 0) w_.wait_warp(rings_.w_full);
    load_codes(next.codes[0], q * batches);
    if constexpr (S::has_sums) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        next_[r] = narrow::factor_of(factor_format_, factor_at(q, r));
        take_zero(q, r);
      }
    }
  }
  __device__ __forceinline__ void end_round(uint32_t (&a)[batches * steps][4], Next& next, int q, bool is_last) {
#pragma unroll
    for (int b = 0; b < batches; b++) {
      if (b + 1 < batches) load_codes(next.codes[b + 1], q * batches + b + 1);
      convert(a + b * steps, next.codes[b], q * batches + b);
    }
    if (q + 1 < S::own_rounds && !is_last) return;
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(rings_.w_empty + 8 * w_.s);
    w_.advance(S::w_stages);
  }

  __device__ __forceinline__ void issue(const uint32_t (&a)[batches * steps][4]) {
    wgmma_fence();
#pragma unroll
    for (int b = 0; b < batches; b++) {
      const uint64_t x = wgmma_descriptor(rings_.x + x_.s * S::x_bytes + (k_part_ * batches + b) * S::x_box_bytes);
#pragma unroll
      for (int s = 0; s < steps; s++) {
        if constexpr (S::has_sums) narrow::wgmma<T, S::width>(part_, a[b * steps + s], x + 2 * s, b + s > 0);
        else narrow::wgmma<T, S::width>(sum, a[b * steps + s], x + 2 * s, 1);
      }
    }
    wgmma_commit();
  }

 public:
  // `row_warp`: of the block's rows of W. `zero` is zero.
  __device__ Multiplier(const Problem& p, const Rings& rings, int row_warp, int k_part, int lane, uint32_t zero)
      : rings_(rings), codes_(zero), row_(row_warp * 16 + lane / 4), lane_(lane), k_part_(k_part), group_(row_warp / 4),
        factor_bytes_(p.factor_bytes), factor_format_(p.factor_format), has_zeros_(p.args.b_scale.zeros != nullptr) {
    const uint32_t at = row_ * w_row + (lane / 4 << 4) + lane % 4 * (S::has_nibbles ? 4 : 2);
    lane_at_ = at + k_part * S::w_box_bytes;
    zeros_[0] = zeros_[1] = S::Codes::zero_of(narrow::usual_zero(S::code));
    if (S::takes_turns && group_ == 1) bar_arrive(turns_barrier, 256);
  }
  __device__ __forceinline__ void scale(float first, float second) {
#pragma unroll
    for (int i = 0; i < S::width / 2; i++) sum[i] *= i % 4 < 2 ? first : second;
  }

  // So many rounds of a tile, at least one.
  __device__ __forceinline__ void multiply(int rounds) {
    wgmma_zero(sum);
    uint32_t a[batches * steps][4];  // (MMA_K,MMA), of W
    Next next;
    int q = 0;
    begin_round(next, q);
    end_round(a, next, q, rounds == 1);
#pragma unroll 1
    for (int left = rounds; left > 0; left--) {
      if constexpr (S::has_sums) now_[0] = next_[0], now_[1] = next_[1];
      x_.wait_warp(rings_.x_full);
      if (S::takes_turns) bar_sync(turns_barrier + group_, 256);
      issue(a);
      if (S::takes_turns) bar_arrive(turns_barrier + (group_ ^ 1), 256);
      if (++q == S::own_rounds) q = 0;
      if (left > 1) begin_round(next, q);
      wgmma_wait();
      if constexpr (S::has_sums) wgmma_pin(part_);
      else wgmma_pin(sum);
      if (lane_ == 0) mbarrier_arrive(rings_.x_empty + 8 * x_.s);
      x_.advance(S::x_stages);
      if constexpr (S::has_sums) {
#pragma unroll
        for (int i = 0; i < S::width / 2; i++) sum[i] = fmaf(part_[i], now_[i % 4 / 2], sum[i]);
      }
      if (left > 1) end_round(a, next, q, left == 2);
    }
    if constexpr (S::is_folded && S::Folded::left != 1.0f) scale(S::Folded::left, S::Folded::left);
  }
};

}  // namespace
}  // namespace tilegemm
