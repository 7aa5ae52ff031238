// The main loops of device.hpp: how a thread reads numbers from shared memory, and the order of the thread's
// multiply-adds.
//
// Each quarter of a multiprocessor should start an FMA in every cycle. Registers have two banks, even and odd, and a
// bank gives one register a cycle. An FMA reads three registers: a, b and the sum. So one of the three has to come from
// the reuse cache, and the other two from different banks. A load of 16 bytes fills four neighbouring registers, so the
// place of a number in the load decides the number's bank. The compiler chooses the banks of the sums. The choice is
// good under three conditions: (1) one operand stays for a run of FMAs, (2) neighbours along the other operand are in
// different banks, and (3) nothing else decides the registers of the sums. A store of four sums in 16 bytes would
// decide them: the sums would have to be neighbours. Hence the two orders of FMAs below. And hence every sum is
// multiplied by alpha, or by a 1 that the compiler does not know, and the product is stored.
#pragma once
#include "common/pipeline.hpp"
#include "common/ptx.hpp"

namespace tilegemm {
namespace {

// How an operand lies in memory: in lines along K, or in columns, which are lines along M or N.
enum class Form { lines, columns };

// A thread's part of an operand in columns: fours of neighbours, `lanes` fours apart, among the `size` lines of the
// thread's warp in a tile of `tile` lines.
template <int tile, int size, int lanes>
struct Columns {
  static constexpr int count = size / lanes, fours = count / 4;
  uint32_t base;
  static __device__ __forceinline__ uint32_t offset(int k) { return k * tile * 4; }
  // `first`: the K of a stage with which the thread's part begins.
  __device__ __forceinline__ Columns(uint32_t from, int warp, int lane, int first)
      : base(opaque(from + (warp * size + 4 * lane) * 4 + offset(first))) {}
  __device__ __forceinline__ uint32_t at(uint32_t stage, int k) const { return base + stage + offset(k); }
  // Loads four number `four`, `k` K behind the address `at`.
  static __device__ __forceinline__ void load(float (&x)[count], uint32_t at, int k, int four) {
    const float4 v = load_shared_4(at + offset(k) + four * 4 * lanes * 4);
    x[4 * four] = v.x, x[4 * four + 1] = v.y, x[4 * four + 2] = v.z, x[4 * four + 3] = v.w;
  }
  static __device__ __forceinline__ void load(float (&x)[count], uint32_t at, int k) {
#pragma unroll
    for (int four = 0; four < fours; four++) load(x, at, k, four);
  }
};

// A thread's part of an operand along K: every eighth line, two K at a time. Lines are as long as a stage is deep, 64
// or 128 bytes, and swizzled in pieces of 16, so that eight threads read from different banks.
template <int depth>
struct AlongK {
  uint32_t base;
  __device__ __forceinline__ AlongK(uint32_t from, int warp, int lane, int first)
      : base(opaque(from + (warp * 64 + lane) * depth * 4 + (((depth == 16 ? lane / 2 % 4 : lane) ^ first / 4) << 4))) {
  }
  __device__ __forceinline__ uint32_t at(uint32_t stage, int k) const { return (base + stage) ^ (k / 4 << 4); }
  static __device__ __forceinline__ void load(float (&x)[2], uint32_t at, int k, int line) {
    const float2 v = load_shared_2((at ^ (k / 4 << 4)) + k % 4 * 4 + line * 8 * depth * 4);
    x[0] = v.x, x[1] = v.y;
  }
};

// A consumer's way through the ring, in steps of C::step K.
template <class C>
struct Walk {
  uint32_t full, empty,
      used = 0;  // barriers of stages; `used`: the barrier of a stage that is read by the end of the step, or 0
  Stage at = Stage::to_read();
  int left = 0, step = 0;
  bool ends = false, ready = true;

  __device__ __forceinline__ Walk(uint32_t full, uint32_t empty) : full(opaque(full)), empty(opaque(empty)) {}
  __device__ __forceinline__ uint32_t offset() const { return at.s * C::stage_bytes; }
  __device__ __forceinline__ int k() const { return step * C::step; }

  __device__ __forceinline__ void start(int stages) {
    left = stages, step = 0;
    at.wait_warp(full);
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    if (used && threadIdx.x % 32 == 0) mbarrier_arrive(used);
    used = 0;
  }
  // A stage is released only at the beginning of the next step, after the FMAs with the numbers that were loaded last
  // from the stage: a load that has been issued may not have read shared memory yet.
  __device__ __forceinline__ void begin() {
    release();
    ends = C::steps == 1 || step == C::steps - 1, ready = true;
    if (ends) used = empty + 8 * at.s;
  }
  __device__ __forceinline__ void look_ahead() {
    if (!ends) return;
    at.advance(C::stages);
    ready = --left == 0 || at.try_warp(full);
  }
  // From here on loads belong to the next step. The loads read the next stage even if the numbers of that stage are of
  // no use.
  __device__ __forceinline__ void advance() {
    if (!ready) at.wait_warp(full);
    if (C::steps > 1) step = ends ? 0 : step + 1;
  }
  __device__ __forceinline__ bool goes_on() const { return !ends || left > 0; }
};

// P along K: two K at a time, row by row. A run of FMAs has one number of P and all columns along Q. The next numbers
// of Q are loaded at the same time, one or two fours for each row.
template <class C, class Q>
__device__ __forceinline__ void sum_lines(Walk<C>& walk, const AlongK<C::depth>& p, const Q& q,
                                          float (&sum)[C::rows][C::columns]) {
  constexpr int pair = 2, fours = pair * Q::fours;
  float a[2][pair], b[2][pair][C::columns];  // (PIPE,K) of one row of P, (PIPE,K,Q)
  uint32_t at_p = p.at(walk.offset(), walk.k()), at_q = q.at(walk.offset(), walk.k()), next_p = at_p;
#pragma unroll
  for (int k = 0; k < pair; k++) q.load(b[0][k], at_q, k);
  p.load(a[0], at_p, 0, 0);
#pragma unroll 1
  do {
    walk.begin();
#pragma unroll
    for (int k0 = 0; k0 < C::step; k0 += pair) {
      const bool last = k0 == C::step - pair;
      const int now = k0 / pair & 1, next = last ? 0 : k0 + pair;
      if (last) {
        walk.advance();
        next_p = p.at(walk.offset(), walk.k()), at_q = q.at(walk.offset(), walk.k());
      }
#pragma unroll
      for (int i = 0; i < C::rows; i++) {
        if (k0 == C::step - 2 * pair && i == C::rows / 2) walk.look_ahead();
        if (i < C::rows - 1) p.load(a[(i + 1) & 1], at_p, k0, i + 1);
        else p.load(a[0], last ? next_p : at_p, next, 0);
#pragma unroll
        for (int f = i * fours / C::rows; f < (i + 1) * fours / C::rows; f++) {
          q.load(b[now ^ 1][f / Q::fours], at_q, next + f / Q::fours, f % Q::fours);
        }
#pragma unroll
        for (int k = 0; k < pair; k++) {
#pragma unroll
          for (int j = 0; j < C::columns; j++) sum[i][j] = __fmaf_rn(a[i & 1][k], b[now][k][j], sum[i][j]);
        }
      }
    }
    at_p = next_p;
  } while (walk.goes_on());
}

// Both operands in columns: K by K and column by column. A run of FMAs has one number of Q and all rows, in twos; every
// other run goes through the rows backwards.
template <class C, class P, class Q>
__device__ __forceinline__ void sum_columns(Walk<C>& walk, const P& p, const Q& q, float (&sum)[C::rows][C::columns]) {
  float a[2][C::rows], b[2][C::columns];  // (PIPE,P), (PIPE,Q)
  uint32_t at_p = p.at(walk.offset(), walk.k()), at_q = q.at(walk.offset(), walk.k());
  p.load(a[0], at_p, 0), q.load(b[0], at_q, 0);
#pragma unroll 1
  do {
    walk.begin();
#pragma unroll
    for (int k = 0; k < C::step; k++) {
      if (k == C::step - 2) walk.look_ahead();
      if (k == C::step - 1) {
        walk.advance();
        at_p = p.at(walk.offset(), walk.k()), at_q = q.at(walk.offset(), walk.k());
      }
      const int now = k & 1, next = (k + 1) % C::step;
      p.load(a[now ^ 1], at_p, next), q.load(b[now ^ 1], at_q, next);
#pragma unroll
      for (int j = 0; j < C::columns; j++) {
#pragma unroll
        for (int x = 0; x < C::rows; x++) {
          const int i = (j & 1 ? C::rows - 2 - x / 2 * 2 : x / 2 * 2) + x % 2;
          sum[i][j] = __fmaf_rn(a[now][i], b[now][j], sum[i][j]);
        }
      }
    }
  } while (walk.goes_on());
}

}  // namespace
}  // namespace tilegemm
