// A warp that multiplies: 16 rows of W of the 64 of its warp group. It reads codes from shared memory, makes numbers of
// 16 bits of them in registers, 64 of K at a time, while wgmma multiplies by the 64 before.
#pragma once
#include "common/pipeline.hpp"
#include "narrow/wgmma.hpp"
#include "narrow/wgmma_shape.hpp"

namespace tilegemm::narrow {
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

// Numbers of the block's barriers (bar_sync). Where tiles are short, a warp group may reach the barrier of the next
// tile before the other one has reached this one's: such kernels take two in turns.
constexpr int parts_barrier = 1, stagger_barrier = 2, stagger_barriers_apart = 2;

template <class S>
class Multiplier {
  using T = typename S::Number;
  static constexpr int steps = batch / 16, in_unit = S::unit < batch ? 1 : S::unit / batch;  // batches of a unit
  // Whether the last stage has code of its own, so that in all others a next one is known to come. It gains 3 to 6 %
  // for bytes; nibbles lose by it.
  static constexpr bool peels = !S::has_nibbles;

  const Rings& rings_;
  typename S::Codes codes_;
  uint32_t lane_at_;  // of row g of the warp's rows, and of t, in a stage of codes, and of the first own batch
  uint32_t row_;      // g of the warp's rows
  int lane_, k_part_, group_, factor_bytes_;
  tg_format factor_format_;
  bool has_zeros_;
  int turn_ = 0;  // of the tiles: 0 or 1
  Stage x_ = Stage::to_read(), w_ = Stage::to_read();
  float now_[2];      // factors of rows g and g + 8 of the unit that adds up
  uint32_t next_[2];  // bits of those of the next one
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
  // The bits of the factor, and the zero, of row g + 8 r, in unit u of the stage at `stage`.
  __device__ __forceinline__ uint32_t factor_at(uint32_t stage, int u, int r) const {
    const uint32_t at = stage + u * S::factor_line + (row_ + 8 * r) * factor_bytes_;
    if constexpr (S::most_factor == 1) return load_byte(at);
    else if constexpr (S::most_factor == 2) return load_shared_16(at);
    else return factor_bytes_ == 4 ? load_shared(at) : load_shared_16(at);
  }
  __device__ __forceinline__ void take_zero(uint32_t stage, int u, int r) {
    if constexpr (S::has_zeros) {
      if (has_zeros_) zeros_[r] = S::Codes::zero_of(load_byte(stage + S::zeros_at + u * S::height + row_ + 8 * r));
    }
  }

  // The codes of a batch, on their way from shared memory to numbers, a share at a time.
  struct Next {
    int q;         // of the stage; negative: there is no next batch
    bool is_last;  // of the tile
    uint32_t stage, table;
    uint32_t words[S::has_nibbles ? 4 : steps * 4];
    typename S::Folded folded[2];
  };

  __device__ __forceinline__ int first_unit() const { return k_part_ * (S::units / S::k_parts); }
  __device__ __forceinline__ void begin_next(Next& next) {
    const int q = next.q;
    if (q == 0) w_.wait_warp(rings_.w_full);
    next.stage = rings_.w + w_.s * S::w_bytes, next.table = rings_.factors + w_.s * S::f_bytes;
    const uint32_t at = next.stage + (lane_at_ ^ (q << (S::has_nibbles ? 5 : 6)));
    if constexpr (S::has_nibbles) {
#pragma unroll
      for (int i = 0; i < 4; i++) next.words[i] = load_shared((at ^ (i / 2 << 4)) + i % 2 * 8 * w_row);
    } else {
#pragma unroll
      for (int i = 0; i < 4 * steps; i++)
        next.words[i] = load_shared_16((at ^ (i / 4 << 4)) + i % 2 * 8 * w_row + i % 4 / 2 * 8);
    }
    if constexpr (S::has_sums) {
      if (q % in_unit != 0) return;
      const int unit = first_unit() + q / in_unit;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        next_[r] = factor_at(next.table, unit, r);
        take_zero(next.table, unit, r);
      }
    }
  }

  // Share s of a batch: with nibbles, 32 of K of a row; else a step of both rows.
  __device__ __forceinline__ void convert_share(uint32_t (&a)[steps][4], Next& next, int s) {
    constexpr int steps_of_unit = S::unit < 64 ? S::unit / 16 : 4;
    // Folded: the factor of row r from step `step` on.
    const auto begin_step = [&](int step, int r) {
      if constexpr (S::is_folded) {
        const int u = first_unit() + (next.q * steps + step) / (S::unit / 16);
        next.folded[r].set(factor_format_, factor_at(next.table, u, r));
        take_zero(next.table, u, r);
      }
    };
    const auto fold = [&](uint32_t number, int r) {
      if constexpr (S::is_folded) return next.folded[r](number);
      else return number;
    };
    if constexpr (S::has_nibbles) {
      const int j = s / 2, r = s % 2;
      uint32_t pairs[4];
      if (2 * j % steps_of_unit == 0) begin_step(2 * j, r);
      codes_.convert(next.words[2 * j + r], zeros_[r], pairs);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (i > 0 && (2 * j + 1) % steps_of_unit == 0) begin_step(2 * j + 1, r);
        a[2 * j + i][r] = fold(pairs[2 * i], r), a[2 * j + i][2 + r] = fold(pairs[2 * i + 1], r);
      }
    } else {
      if (s % steps_of_unit == 0) begin_step(s, 0), begin_step(s, 1);
#pragma unroll
      for (int e = 0; e < 4; e++) a[s][e] = fold(codes_.pair(next.words[4 * s + e], zeros_[e % 2]), e % 2);
    }
  }
  __device__ __forceinline__ void end_next(const Next& next) {
    if (next.q == S::own_batches - 1 || next.is_last) release_codes();
  }
  // All of a batch at once.
  __device__ __forceinline__ void convert(uint32_t (&a)[steps][4], int q, bool is_last) {
    Next next;
    next.q = q, next.is_last = is_last;
    begin_next(next);
#pragma unroll
    for (int s = 0; s < steps; s++) convert_share(a, next, s);
    end_next(next);
  }
  __device__ __forceinline__ void release_codes() {
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(rings_.w_empty + 8 * w_.s);
    w_.advance(S::w_stages);
  }

  // Own batch q of a stage of X. `begins`: a unit begins. The products before have ended when those of the first step,
  // or of all steps, are under way: then `done` is called, and the next batch is converted to `to`, a share between two
  // steps. wgmma of a warp wait for each other where the warp issues them.
  template <class Done>
  __device__ __forceinline__ void multiply_batch(const uint32_t (&a)[steps][4], int q, bool begins,
                                                 uint32_t (&to)[steps][4], Next& next, const Done& done) {
    if (begins) begin_unit();
    if (next.q >= 0) begin_next(next);
    const uint64_t x = wgmma_descriptor(rings_.x + x_.s * S::x_bytes + (k_part_ * S::x_own + q) * S::x_box_bytes);
    const auto step = [&](int s) {
      // The address is in the low half, and has no carry.
      const uint64_t of_step = x & 0xffffffff00000000 | uint32_t(uint32_t(x) + 2 * s);
      if constexpr (S::has_sums) narrow::wgmma<T, S::width>(part_, a[s], of_step, !(begins && s == 0));
      else narrow::wgmma<T, S::width>(sum, a[s], of_step, 1);
    };
    if constexpr (S::at_once) {
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < steps; s++) step(s);
      wgmma_commit();
      wait<1>();
      done();
#pragma unroll
      for (int s = 0; s < steps && next.q >= 0; s++) convert_share(to, next, s);
    } else {
#pragma unroll
      for (int s = 0; s < steps; s++) {
        wgmma_fence();
        step(s);
        wgmma_commit();
        if (s == 0) {
          wait<1>();
          done();
        }
        if (next.q >= 0) convert_share(to, next, s);
      }
    }
    if (next.q >= 0) end_next(next);
  }

  template <int pending>
  __device__ __forceinline__ static void wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
  }
  // A unit begins: its factors have come.
  __device__ __forceinline__ void begin_unit() {
#pragma unroll
    for (int r = 0; r < 2; r++) now_[r] = narrow::factor_of(factor_format_, next_[r]);
  }
  // A unit ends: its sums come to the results.
  __device__ __forceinline__ void end_unit() {
    wgmma_pin(part_);
#pragma unroll
    for (int i = 0; i < S::width / 2; i++) sum[i] = fmaf(part_[i], now_[i % 4 / 2], sum[i]);
    wgmma_pin(sum);
  }

  // ptxas keeps registers that have no first value for the tiles of all widths at once.
  __device__ __forceinline__ void begin_registers(uint32_t (&a)[2][steps][4]) {
    if constexpr (S::has_sums) wgmma_zero(part_);
#pragma unroll
    for (int i = 0; i < 8 * steps; i++) asm volatile("mov.b32 %0, 0;" : "=r"(a[i / 4 / steps][i / 4 % steps][i % 4]));
    now_[0] = now_[1] = 0.0f, next_[0] = next_[1] = 0;
  }

  __device__ __forceinline__ int stagger() const {
    return stagger_barrier + (S::is_one_of_several ? stagger_barriers_apart * turn_ : 0);
  }

  // Releases the stage of X before.
  __device__ __forceinline__ void release_before() const {
    if (lane_ == 0) mbarrier_arrive(rings_.x_empty + 8 * (x_.s == 0 ? S::x_stages - 1 : x_.s - 1));
  }

  // A stage of codes, whose first own batch is in a[0]; the first batch of the next stage comes there. With sums apart,
  // wgmma has ended when this returns: ptxas lets no other instruction read sums as long as wgmma of an earlier turn of
  // a loop may write some. `is_first`, `is_last`: of the tile; `count`: own batches of the next stage.
  __device__ __forceinline__ void multiply_stage(uint32_t (&a)[2][steps][4], bool is_first, bool is_last, int count) {
#pragma unroll
    for (int b = 0; b < S::own_batches; b++) {
      const bool begins = b % in_unit == 0, ends = (b + 1) % in_unit == 0, ends_stage = b + 1 == S::own_batches;
      if (b % S::x_own == 0) x_.wait_warp(rings_.x_full);
      if (S::staggers && b == 0 && is_first && group_ == 1) bar_sync(stagger(), 256);
      Next next;
      next.q = !ends_stage ? b + 1 : count > 0 ? 0 : -1;
      next.is_last = ends_stage ? count == 1 : is_last && b + 2 == S::own_batches;
      multiply_batch(a[b % 2], b % S::x_own, begins, a[(b + 1) % 2], next, [&] {
        // The stage of X of the batch before.
        if ((!S::has_sums || !begins) && b % S::x_own == 0 && !(b == 0 && is_first)) release_before();
      });
      if (S::staggers && b == 0 && is_first && group_ == 0) bar_arrive(stagger(), 256);
      if ((b + 1) % S::x_own == 0) x_.advance(S::x_stages);
      if constexpr (S::has_sums) {
        if (!ends) continue;
        wait<0>();
        if ((b + 1) % S::x_own == 0) release_before();
        end_unit();
      }
    }
  }

  // The last stage of codes, which is not whole: `count` own batches, of `most` of the first part.
  __device__ __forceinline__ void multiply_rest(uint32_t (&a)[steps][4], int count, int most) {
    if (count == 0) {
      w_.wait_warp(rings_.w_full);
      release_codes();
    }
#pragma unroll 1
    for (int b = 0; b < most; b++) {
      if (b % S::x_own == 0) x_.wait_warp(rings_.x_full);
      if (b < count) {
        const bool is_last = b + 1 == count;
        Next none;
        none.q = -1;
        multiply_batch(a, b % S::x_own, b % in_unit == 0, a, none, [] {});
        wait<0>();
        if constexpr (!S::has_sums) wgmma_pin(sum);
        if (!is_last) convert(a, b + 1, b + 2 == count);
        if constexpr (S::has_sums) {
          if (is_last || (b + 1) % in_unit == 0) end_unit();
        }
      }
      if (b + 1 == most || (b + 1) % S::x_own == 0) {
        x_.advance(S::x_stages);
        release_before();
      }
    }
  }

 public:
  // `p`: as FactorCopier has it, with the format of factors. `row_warp`: of the block's rows of W. `zero` is zero.
  template <class P>
  __device__ Multiplier(const P& p, const Rings& rings, int row_warp, int k_part, int lane, uint32_t zero)
      : rings_(rings), codes_(zero), row_(row_warp * 16 + lane / 4), lane_(lane), k_part_(k_part), group_(row_warp / 4),
        factor_bytes_(p.factor_bytes), factor_format_(p.factor_format), has_zeros_(p.args.b_scale.zeros != nullptr) {
    const uint32_t at = row_ * w_row + (lane / 4 << 4) + lane % 4 * (S::has_nibbles ? 4 : 2);
    lane_at_ = at + k_part * S::w_box_bytes;
    zeros_[0] = zeros_[1] = S::Codes::zero_of(narrow::usual_zero(S::code));
  }
  // The stages that come next, of X and of codes: where another object goes on. Turns are 0 and 1, one after the other.
  __device__ __forceinline__ void go_on(const Stage (&at)[2], int turn) { x_ = at[0], w_ = at[1], turn_ = turn; }
  __device__ __forceinline__ void tell(Stage (&at)[2]) const { at[0] = x_, at[1] = w_; }
  __device__ __forceinline__ void scale(float first, float second) {
#pragma unroll
    for (int i = 0; i < S::width / 2; i++) sum[i] *= i % 4 < 2 ? first : second;
  }

  // Batches [begin, end) of K, at least one: the own part of each stage.
  __device__ __forceinline__ void multiply(int begin, int end) {
    wgmma_zero(sum);
    uint32_t a[2][steps][4];  // (PIPE,MMA_K,MMA), of W: in flight, and the next
    if constexpr (S::is_one_of_several) begin_registers(a);
    const int stages = (end - begin) / S::batches, of_rest = (end - begin) % S::batches;
    const int most = min(of_rest, S::own_batches),
              rest = max(0, min(of_rest - k_part_ * S::own_batches, S::own_batches));
    const int first = stages > 0 ? S::own_batches : rest;
    if (first > 0) convert(a[0], 0, first == 1);
#pragma unroll 1
    for (int left = stages; left > (peels ? 1 : 0); left--) {
      const bool is_last = !peels && left == 1;
      multiply_stage(a, left == stages, is_last && rest == 0, is_last ? rest : S::own_batches);
    }
    if (peels && stages > 0) multiply_stage(a, stages == 1, rest == 0, rest);
    if constexpr (!S::has_sums) {
      wait<0>();
      wgmma_pin(sum);
      if (stages > 0) release_before();
    }
    if (of_rest > 0) multiply_rest(a[0], rest, most);
    if constexpr (S::is_folded && S::Folded::left != 1.0f) scale(S::Folded::left, S::Folded::left);
  }
};

}  // namespace
}  // namespace tilegemm::narrow
