// Part of sm90_bf16x6_direct.cu: how a launch is partitioned, and how sums get to D.
#pragma once
#include <algorithm>

#include "common/bf16_sums.hpp"
#include "common/epilogue.hpp"
#include "common/ptx.hpp"

namespace tilegemm {
namespace {

constexpr int shared_bytes_of_block = 227 * 1024;
constexpr int most_stages = 12, most_split = 8;
namespace named_barriers {
constexpr int turn = 1, sums = 3;  // the turn of group 0, and behind it of group 1; the sums of both groups
}

// Two warp groups multiply. Tall: each group has 64 rows of P and all of K. Otherwise both groups have the same 64
// rows, the groups take stages in turns, and a block has one tile. Width: rows of Q in a tile. InRows: K is contiguous
// in Q; otherwise the numbers of one k are contiguous. Apart: large and small products of a stage have separate sums.
template <int Width, bool InRows, bool Tall, bool Apart>
struct Config {
  static constexpr int groups = 2, height = Tall ? 128 : 64, width = Width, depth = 32;
  static constexpr bool in_rows = InRows, tall = Tall, apart = Apart;
  // The fewer splitters, the more stages fit; small tiles have room for a third splitter.
  static constexpr int consumers = 4 * groups, splitters = tall ? 2 : 3, threads = 32 * (consumers + 4);
  static_assert(splitters < 4);
  static constexpr int p_bytes = height * depth * 4, q_bytes = width * depth * 4, raw_bytes = p_bytes + q_bytes;
  static constexpr int part_bytes = width * depth * 2, plane_bytes = 3 * part_bytes, plane_stages = 2 * splitters;
  static constexpr int items = width / 8;  // that a warp splits in a stage of Q: 32 chunks of eight numbers each
  static constexpr int turns = tall ? 1 : groups;  // a group takes every `turns`-th stage

  // On their way to D, sums are fragments of 16 rows of P and 8 rows of Q, a float4 for each lane. Where TMA stores D,
  // sums are strips.
  static constexpr int columns = width / 8, fragments = height / 16 * columns, fragment_bytes = 32 * 16;
  static constexpr int out_bytes = turns * fragments * fragment_bytes, strip_bytes = width / 32 * panel_bytes;
  static_assert(!tall || consumers * strip_bytes == out_bytes);

  // A slot of a stage, and a slot of a stage's planes, always has the same splitter and, where groups take turns, the
  // same group. So no warp waits for a phase of a barrier while the phase before may still last.
  static constexpr int unit = splitters * turns;
  static constexpr int barriers_bytes = 8 * (3 * most_stages + 2 * plane_stages + 1);
  static constexpr int fixed_bytes = plane_stages * plane_bytes + out_bytes + barriers_bytes;
  static constexpr int stages = std::min(most_stages, (shared_bytes_of_block - fixed_bytes) / raw_bytes) / unit * unit;
  static constexpr int shared_bytes = stages * raw_bytes + fixed_bytes;
  static_assert(stages >= unit && plane_stages % unit == 0 && fragments % most_split == 0);
  static_assert(tall || !apart);
  // A swizzle begins at multiples of 512 bytes for planes, in rows of 64 bytes, and of 1024 bytes for memory in rows of
  // 128 bytes.
  static_assert(raw_bytes % 1024 == 0 && p_bytes % 1024 == 0 && part_bytes % 512 == 0 &&
                plane_stages * plane_bytes % 1024 == 0);
};

struct Place {
  tg_matrix a, b, d;  // the caller's matrices
  int m, n, k;
  Divisor p_tiles, q_tiles, batch1;  // tiles of a matrix along P and Q; the inner batch
  int tiles;                         // of all matrices
  int q_rows;                        // of a tile
  int split_log2;                    // blocks that split K
  int stages;                        // of the ring
  int prefetch;                      // stages of P, to prefetch into L2 before the kernel before ends
  uint64_t p_policy;
  bool swap_ab;  // P is B, and Q is A
  bool plain;    // D is the product alone
  bool whole;    // D is the product alone, and TMA can store D: K is not split, and P is A
};

// The first row of P and of Q of a tile.
struct Tile {
  int p, q, batch0, batch1;
  template <class C>
  __device__ static Tile of(const Place& place, int t) {
    const int line = place.q_tiles.quotient(t), batch = place.p_tiles.quotient(line),
              batch0 = place.batch1.quotient(batch);
    return {(line - batch * int(place.p_tiles.value)) * C::height, (t - line * int(place.q_tiles.value)) * place.q_rows,
            batch0, batch - batch0 * int(place.batch1.value)};
  }
};

// Stores a warp's 16 rows of a tile to D through the warp's strip and TMA; the TMA stores complete asynchronously.
template <class C>
__device__ __forceinline__ void store_whole(const float (&sum)[C::width / 2], const CUtensorMap& d_map,
                                            const Place& place, const Tile& tile, uint32_t strip) {
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, row = tile.p + warp * 16;
  const bool strange = any_strange(sum);
  store_strip(sum, strip, lane);
  if (strange) {
    mend_strip<C::width / 32>(strip, row, tile.q, place.m, place.n, [&](int m, int n) {
      return strict(place.a, place.b, place.k, m, n, tile.batch0, tile.batch1);
    });
  }
  tma_store_strip<C::width / 32>(d_map, strip, row, tile.q, place.m, place.n, tile.batch0, tile.batch1, lane);
}

// The elements of a tile by their rows of P and Q: rows and columns of D, addresses in D, and results that are computed
// again.
template <class C>
struct Target {
  const Place& place;
  const Tile& tile;
  int p_count, q_count;        // the ends of P, and of the tile's rows of Q
  int64_t p_stride, q_stride;  // strides of D along P and along Q
  float* d;                    // the first element of the tile

  __device__ Target(const Place& place, const Tile& tile)
      : place(place), tile(tile), p_count(place.swap_ab ? place.n : place.m),
        q_count(min(place.swap_ab ? place.m : place.n, tile.q + place.q_rows)),
        p_stride(place.swap_ab ? place.d.col_stride : place.d.row_stride),
        q_stride(place.swap_ab ? place.d.row_stride : place.d.col_stride),
        d(static_cast<float*>(place.d.ptr) + tile.batch0 * place.d.batch_stride[0] +
          tile.batch1 * place.d.batch_stride[1] + tile.p * p_stride + tile.q * q_stride) {}

  // Rows p of P and q of Q are counted from the tile's first rows.
  __device__ float* at(int p, int q) const { return d + p * p_stride + q * q_stride; }
  __device__ bool has(int p, int q) const { return tile.p + p < p_count && tile.q + q < q_count; }
  __device__ int row(int p, int q) const { return place.swap_ab ? tile.q + q : tile.p + p; }
  __device__ int column(int p, int q) const { return place.swap_ab ? tile.p + p : tile.q + q; }
  __device__ float again(int p, int q) const {
    return strict(place.a, place.b, place.k, row(p, q), column(p, q), tile.batch0, tile.batch1);
  }
};

// Stores a warp's sums of a tall tile to D through the epilogue. Passing the sums through `out` makes the epilogue a
// loop.
template <class C>
__device__ __forceinline__ void store_fragments(const float (&sum)[C::width / 2], const Place& place,
                                                const Epilogue<float, float>& epilogue, const Tile& tile,
                                                uint32_t out) {
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const uint32_t at = out + (warp * C::columns * 32 + lane) * 16;
#pragma unroll
  for (int j = 0; j < C::columns; j++) {
    store_shared_4(at + j * C::fragment_bytes, fragment(sum, j));
  }
  __syncwarp();
  const Target<C> target(place, tile);
  const int p = warp * 16 + lane / 4;
#pragma unroll 1
  for (int j = 0; j < C::columns; j++) {
    const int q = j * 8 + lane % 4 * 2;
    const float4 v = load_shared_4_ordered(at + j * C::fragment_bytes);
    float x[4] = {v.x, v.y, v.z, v.w};
    int m[4], n[4];
    bool inside[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int at_p = p + e / 2 * 8, at_q = q + e % 2;
      m[e] = target.row(at_p, at_q), n[e] = target.column(at_p, at_q), inside[e] = target.has(at_p, at_q);
      if (inside[e] && is_strange(x[e])) x[e] = target.again(at_p, at_q);
    }
    epilogue.each(x, m, n, inside, tile.batch0, tile.batch1);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (inside[e]) *target.at(p + e / 2 * 8, q + e % 2) = x[e];
    }
  }
  __syncwarp();
}

// The meeting of the sums of all parts of K. Each group of each of the `split` blocks of a cluster has a part of K.
// Each block owns neighbouring fragments of the tile, as many as every other block: the block adds up the parts of
// these fragments, and stores the totals. The block's `out` has a slot for each part of each fragment. Parts come in
// the order of blocks, and of the groups of a block; a part has its slots one after the other. The constructor computes
// all numbers that do not depend on sums: nothing hides the time of instructions after the products.
template <class C>
class Meeting {
 public:
  __device__ Meeting(uint32_t out, uint32_t arrived, int split_log2, int rank)
      : out_(out), arrived_(arrived), parts_(C::turns << split_log2), slots_log2_(fragments_log2 - split_log2),
        rank_(rank) {
    const int part = rank * C::turns + warp() / 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {  // a warp's fragments go to two blocks at most
      const int f = warp() % 4 * C::columns + h * half, owner = f >> slots_log2_, slot = f & ((1 << slots_log2_) - 1);
      const uint32_t to = out + (((part << slots_log2_) + slot) * 32 + lane()) * 16;
      to_[h] = is_split() ? map_shared(to, owner) : to;
      barrier_[h] = is_split() ? map_shared(arrived, owner) : 0;
    }
  }

  __device__ __forceinline__ void send(const float (&sum)[C::width / 2]) const {
    const auto each = [&](const auto& put) {
#pragma unroll
      for (int j = 0; j < C::columns; j++) {
        put(to_[j / half] + j % half * C::fragment_bytes, barrier_[j / half], fragment(sum, j));
      }
    };
    if (is_split()) each([](uint32_t to, uint32_t barrier, const float4& v) { store_async(to, barrier, v); });
    else each([](uint32_t to, uint32_t, const float4& v) { store_shared_4(to, v); });
  }

  // Stores the sums to D through the epilogue.
  __device__ __forceinline__ void store(const Place& place, const Epilogue<float, float>& epilogue,
                                        const Tile& tile) const {
    if (slots_log2_ > 1) store_slots<4>(place, epilogue, tile);
    else store_slots<1>(place, epilogue, tile);
  }

 private:
  static constexpr int half = C::columns / 2, most_parts = C::turns * most_split;
  static constexpr int fragments_log2 = C::columns == 2 ? 3 : C::columns == 4 ? 4 : 5;
  static_assert(C::tall || (C::fragments == 1 << fragments_log2 && C::consumers == 8));
  uint32_t out_, arrived_, to_[2], barrier_[2];
  int parts_, slots_log2_, rank_;

  // A warp takes slots one after the other. Where slots are few, a warp takes a quarter of a slot, so that more warps
  // add up.
  template <int count>
  __device__ __forceinline__ void store_slots(const Place& place, const Epilogue<float, float>& epilogue,
                                              const Tile& tile) const {
    const Target<C> target(place, tile);
    constexpr int quarters = 4 / count, step = C::consumers / quarters;
    const int quarter = warp() % quarters, p0 = lane() / 4, q0 = lane() % 4 * 2;
    const auto f_of = [&](int slot) { return (rank_ << slots_log2_) + slot; };
    const auto p_of = [&](int slot, int e) { return f_of(slot) / C::columns * 16 + p0 + (quarter + e) / 2 * 8; };
    const auto q_of = [&](int slot, int e) { return f_of(slot) % C::columns * 8 + q0 + (quarter + e) % 2; };
    const int first = warp() / quarters;
    float* to[count];
    const auto point = [&](int slot) {
#pragma unroll
      for (int e = 0; e < count; e++) to[e] = target.at(p_of(slot, e), q_of(slot, e));
    };
    point(first);
    const uint32_t from = out_ + lane() * 16 + quarter * 4;

    if (is_split()) mbarrier_wait(arrived_, 0);
    else bar_sync(named_barriers::sums, 32 * C::consumers);
#pragma unroll 1
    for (int slot = first; slot < 1 << slots_log2_;) {
      struct Numbers {
        float x[count];
      };
      const auto numbers = [&](int part) {
        const uint32_t at = from + ((part << slots_log2_) + slot) * C::fragment_bytes;
        if constexpr (count == 1) return Numbers{{__uint_as_float(load_shared(at))}};
        else {
          const float4 v = load_shared_4_ordered(at);
          return Numbers{{v.x, v.y, v.z, v.w}};
        }
      };
      double all[count];
      const Numbers first_part = numbers(0);
#pragma unroll
      for (int e = 0; e < count; e++) all[e] = first_part.x[e];
#pragma unroll
      for (int part = 1; part < most_parts; part += part < 4 ? part : 4) {  // the number of parts is a power of two
        if (part >= parts_) break;
        Numbers y[4];
#pragma unroll
        for (int i = 0; i < (part < 4 ? part : 4); i++) y[i] = numbers(part + i);
#pragma unroll
        for (int i = 0; i < (part < 4 ? part : 4); i++) {
#pragma unroll
          for (int e = 0; e < count; e++) all[e] += y[i].x[e];
        }
      }
      float x[count];
      bool inside[count], strange = false;
#pragma unroll
      for (int e = 0; e < count; e++) {
        x[e] = float(fma(all[e], double(given_back), all[e]));
        inside[e] = target.has(p_of(slot, e), q_of(slot, e));
        strange |= inside[e] && is_strange(x[e]);
      }
      if (strange) {
#pragma unroll 1
        for (int e = 0; e < count;
             e++) {  // each number comes to x[0] in turn: the code is there once, and out of the way
          float y = x[0];
          if (is_strange(y) && target.has(p_of(slot, e), q_of(slot, e))) y = target.again(p_of(slot, e), q_of(slot, e));
#pragma unroll
          for (int i = 1; i < count; i++) x[i - 1] = x[i];
          x[count - 1] = y;
        }
      }
      if (!place.plain) {
        int m[count], n[count];
#pragma unroll
        for (int e = 0; e < count; e++) {
          const int p = p_of(slot, e), q = q_of(slot, e);
          m[e] = target.row(p, q), n[e] = target.column(p, q);
        }
        epilogue.each(x, m, n, inside, tile.batch0, tile.batch1);
      }
#pragma unroll
      for (int e = 0; e < count; e++) {
        if (inside[e]) *to[e] = x[e];
      }
      slot += step;
      point(slot);
    }
  }

  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ bool is_split() const { return parts_ > C::turns; }
};

}  // namespace
}  // namespace tilegemm
