// Rows of K and V on their way through shared memory, a step ahead.
//
// A warp copies its own rows by cp.async, so nobody waits for another warp, and loads go on while the warps of a block
// add up a unit of work: the next step may be of the next unit.
#pragma once
#include "layer/decode.hpp"

namespace tilegemm {
namespace {

// A part of a sequence for one kv head.
struct Unit {
  int sequence, kv_head, part, parts, size, start, end;

  __device__ int first() const { return start + part * size; }
  __device__ int last_row() const { return min(end, first() + size); }
  template <class C>
  __device__ int steps() const {
    return (last_row() - first() + C::step - 1) / C::step;
  }
  __device__ bool has_newest() const { return part == parts - 1; }
};

// All units, in order of sequences, kv heads and parts. For whole warps; lanes keep what the first 32 sequences are.
struct Units {
  const Decode& a;
  int slot, length, up_to, count;  // of sequence `lane`; units up to it; all units
  Cut own;

  __device__ explicit Units(const Decode& a) : a(a) {
    const int lane = threadIdx.x % 32;
    slot = lane < a.sequences ? slot_of(a, lane) : -1, length = length_of(a, lane, slot);
    own = cut(a, length);
    count = scan(own, lane, up_to);
    for (int base = 32; base < a.sequences; base += 32) {
      int unused;
      count += scan(cut(a, length_of(a, base + lane)), base + lane, unused);
    }
  }
  // Units of 32 sequences, and up to sequence `mine`.
  __device__ int scan(const Cut& x, int mine, int& up_to) const {
    const int lane = threadIdx.x % 32;
    up_to = mine < a.sequences ? x.parts * a.kv_heads : 0;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int below = __shfl_up_sync(all, up_to, d);
      if (lane >= d) up_to += below;
    }
    return __shfl_sync(all, up_to, 31);
  }
  // The unit of a number below `count`.
  __device__ Unit find(int number) const {
    const int lane = threadIdx.x % 32;
    Cut x = own;
    int base = 0, end = up_to, here = __shfl_sync(all, up_to, 31);
    while (number >= here) {
      number -= here, base += 32;
      x = cut(a, length_of(a, base + lane));
      here = scan(x, base + lane, end);
    }
    const int which = __popc(__ballot_sync(all, end <= number));
    const int before = which > 0 ? __shfl_sync(all, end, max(which - 1, 0)) : 0;
    Unit unit;
    unit.parts = __shfl_sync(all, x.parts, which), unit.size = __shfl_sync(all, x.size, which);
    unit.start = __shfl_sync(all, x.first, which), unit.end = __shfl_sync(all, x.end, which);
    unit.sequence = base + which;
    unit.kv_head = (number - before) / unit.parts;
    unit.part = (number - before) - unit.kv_head * unit.parts;
    return unit;
  }
  __device__ int slot_of_sequence(int sequence) const {
    return sequence < 32 ? __shfl_sync(all, slot, sequence) : slot_of(a, sequence);
  }
  // The next unit.
  __device__ void advance(Unit& unit) const {
    if (++unit.part < unit.parts) return;
    unit.part = 0;
    if (++unit.kv_head < a.kv_heads) return;
    unit.kv_head = 0;
    const int sequence = ++unit.sequence;
    const Cut x = cut(a, sequence < 32 ? __shfl_sync(all, length, sequence) : length_of(a, sequence));
    unit.parts = x.parts, unit.size = x.size, unit.start = x.first, unit.end = x.end;
  }
};

// How rows lie in shared memory: a step has its K, its V, and the scales of both. Pieces of 16 bytes lie where eight
// neighbouring lanes of Worker::take_k and take_v find them in different banks.
template <class C>
struct Step {
  static constexpr int row = C::head * C::bytes, pieces = row / 16;
  static constexpr int v = C::step * row, scales = 2 * v, bytes = scales + (C::fp8 ? 8 * C::step : 0);

  __device__ static int k_piece(int row, int piece) { return Step::row % 128 ? piece : piece ^ (row % 2 * 4); }
  __device__ static int v_piece(int row, int piece) {
    return piece < Step::row / 128 * 8 ? piece ^ (row / 2 % 4 * 2) : piece;
  }
};

// Reads a lane's words of a row, as load_share() does.
template <int words, int lanes>
__device__ __forceinline__ void take_share(uint32_t* to, uint32_t row, int lane, int turn) {
  constexpr int whole = words / 4, rest = words % 4;
#pragma unroll
  for (int i = 0; i < whole; i++) {
    const float4 x = load_shared_4_ordered(row + ((16 * lanes * i + 16 * lane) ^ turn));
    to[4 * i] = __float_as_uint(x.x), to[4 * i + 1] = __float_as_uint(x.y);
    to[4 * i + 2] = __float_as_uint(x.z), to[4 * i + 3] = __float_as_uint(x.w);
  }
  if constexpr (rest >= 2) {
    to[4 * whole] = load_shared(row + 16 * lanes * whole + 8 * lane);
    to[4 * whole + 1] = load_shared(row + 16 * lanes * whole + 8 * lane + 4);
  }
  if constexpr (rest % 2) to[words - 1] = load_shared(row + 4 * lanes * (words - 1) + 4 * lane);
}

// K of a step, and the scales; then V. `at`: the step in shared memory.
template <class C>
__device__ __forceinline__ void take_k(Worker<C>& w, uint32_t at, int r, int c) {
#pragma unroll
  for (int t = 0; t < C::tiles; t++) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const int row = 16 * t + 8 * h + r;
      take_share<C::k_words, 4>(w.k[t][h], at + row * Step<C>::row, c, Step<C>::row % 128 ? 0 : r % 2 * 64);
      if constexpr (C::fp8) {
        w.k_scale[t][h] = __uint_as_float(load_shared(at + Step<C>::scales + 4 * row));
        w.v_scale[t][h] = __uint_as_float(load_shared(at + Step<C>::scales + 4 * (C::step + row)));
      }
    }
  }
}
template <class C>
__device__ __forceinline__ void take_v(Worker<C>& w, uint32_t at, int r, int c) {
#pragma unroll
  for (int t = 0; t < C::tiles; t++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int row = 16 * t + 2 * c + (i & 1) + 4 * (i & 2);
      take_share<C::v_words, 8>(w.v[t][i], at + Step<C>::v + row * Step<C>::row, r, 32 * c);
    }
  }
}

// The warp's next step, on its way.
template <class C>
struct Ahead {
  const Units& units;
  const int end, warp, lane;
  const uint32_t memory;
  Unit unit;  // of the step to copy next, which is `step` of unit `number`
  Rows<C> rows;
  int number, step, slot;
  float scales[C::tiles];

  __device__ Ahead(const Units& units, const Unit& unit, int number, int end, uint32_t memory)
      : units(units), end(end), warp(threadIdx.x / 32), lane(threadIdx.x % 32), memory(memory + warp * Step<C>::bytes),
        unit(unit), rows(units.a, units.slot_of_sequence(unit.sequence), unit.kv_head, unit.first(), unit.last_row()),
        number(number), step(warp), slot(units.slot_of_sequence(unit.sequence)) {
    find_step();
  }

  __device__ __forceinline__ void find_step() {
    while (number < end && step >= rows.steps()) {
      step = warp;
      if (++number == end) return;
      const int before = unit.sequence;
      units.advance(unit);
      if (unit.sequence != before) slot = units.slot_of_sequence(unit.sequence);
      rows = Rows<C>(units.a, slot, unit.kv_head, unit.first(), unit.last_row());
    }
  }
  // Whether the step to copy has a sequence's last row, which is new.
  __device__ bool is_new() const { return number < end && unit.has_newest() && step == rows.steps() - 1; }

  // Copies K, then V, over those of the step before, which the warp has taken. Rows behind the last one are copies of
  // it: their P is 0.
  __device__ __forceinline__ void copy_k() {
    if (number < end) {
      copy(rows.k, memory, [](int row, int piece) { return Step<C>::k_piece(row, piece); });
      if constexpr (C::fp8) {
#pragma unroll
        for (int i = 0; i < C::tiles; i++) {
          const int row = 32 * i + lane;  // of the scales of K, and then of V
          const char* from = row < C::step ? rows.k_scale : rows.v_scale;
          // cp.async of 4 bytes could find old scales in L1.
          load<1, true>(reinterpret_cast<uint32_t*>(&scales[i]),
                        from + 4 * min(step * C::step + row % C::step, rows.last));
        }
      }
    }
    copy_async_commit();
  }
  __device__ __forceinline__ void copy_v() {
    if (number < end) {
      copy(rows.v, memory + Step<C>::v, [](int row, int piece) { return Step<C>::v_piece(row, piece); });
      if constexpr (C::fp8) {
#pragma unroll
        for (int i = 0; i < C::tiles; i++) store_shared(memory + Step<C>::scales + 4 * (32 * i + lane), scales[i]);
      }
      step += C::warps;
      find_step();
    }
    copy_async_commit();
  }
  template <class Place>
  __device__ __forceinline__ void copy(const char* from, uint32_t to, Place place) {
    constexpr int pieces = Step<C>::pieces, count = C::step * pieces / 32;
    const int first = step * C::step;
    if (32 % pieces == 0 && first + C::step - 1 <= rows.last) {
      const char* at = from + (first + lane / pieces) * rows.stride + 16 * (lane % pieces);
#pragma unroll
      for (int i = 0; i < count; i++, at += 32 / pieces * rows.stride) {
        const int row = 32 / pieces * i + lane / pieces;
        copy_async_16(to + row * Step<C>::row + 16 * place(row, lane % pieces), at, 16, evict_first);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < count; i++) {
      const int row = (32 * i + lane) / pieces, piece = (32 * i + lane) % pieces;
      copy_async_16(to + row * Step<C>::row + 16 * place(row, piece),
                    from + min(first + row, rows.last) * rows.stride + 16 * piece, 16, evict_first);
    }
  }
  // Waits for the older of the two copies on their way, of K or of V; for whole warps.
  __device__ __forceinline__ void wait() const {
    copy_async_wait<1>();
    __syncwarp();
  }
};

}  // namespace
}  // namespace tilegemm
