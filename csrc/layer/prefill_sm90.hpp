// The kernel of prefill_sm90.cu.
//
// A block has a producer, which loads Q, K and V by TMA, and two or three warp groups with 64 rows of Q each. A warp
// group keeps S, P and O in registers. It starts the next block's S = Q @ K^T, then O += P @ V of this block, and
// computes the next block's softmax while O is on its way; so, too, from a tile's last block to the next tile's first.
// With ping-pong, warp groups take turns at the tensor cores, so that one's softmax runs under another's products.
// Blocks of keys go from the last to the first.
#pragma once
#include "common/pipeline.hpp"
#include "common/tensor_map.hpp"
#include "layer/prefill.hpp"
#include "layer/wgmma.hpp"

namespace tilegemm {
namespace {

// When O is rescaled: behind P @ V (`skip`: unless no row of the warp has a new maximum), or ahead of it, under the
// next Q @ K^T.
enum class Rescale { after, before, skip };

// Polynomials: how many of eight weights the FMA units compute. Cluster: blocks with heads of the same K and V, which
// share loads. HoldsQ: in registers.
template <class T, int Head, int Groups, int Keys, int Stages, bool PingPong, Rescale When = Rescale::after,
          int Polynomials = 0, int Cluster = 1, bool HoldsQ = false>
struct Config {
  using Element = T;
  static constexpr int head = Head, groups = Groups, keys = Keys, stages = Stages;  // keys: of a block
  static constexpr bool ping_pong = PingPong;
  static constexpr Rescale rescale = When;
  static constexpr int polynomials = Polynomials, cluster = Cluster;
  static constexpr bool holds_q = HoldsQ;
  static constexpr int rows = 64 * Groups, warps = 4 * Groups, threads = 128 * (Groups + 1);
  // Panels are boxes of TMA: columns in rows of 128 or 64 bytes, swizzled.
  static constexpr int columns = Head % 64 == 0 ? 64 : 32, panels = Head / columns, row_bytes = 2 * columns;
  static constexpr int group_panel = 64 * row_bytes, group_bytes = panels * group_panel;    // 64 rows of Q
  static constexpr int block_panel = Keys * row_bytes, block_bytes = panels * block_panel;  // a block of K or of V
  static constexpr int q_bytes = Groups * group_bytes, ring_bytes = 2 * Stages * block_bytes;
  static constexpr int barriers_bytes = 8 * (2 + 4 * Stages + 4) + 8;
  static constexpr int ring_at = q_bytes, barriers_at = ring_at + ring_bytes;
  static constexpr int shared_bytes = barriers_at + barriers_bytes;
  static constexpr int producer_registers = Groups == 3 ? 32 : 40, registers = Groups == 3 ? 160 : 232;
  static_assert((Groups == 2 || Groups == 3) && Keys % (8 * Cluster) == 0);
  static_assert(Head % columns == 0 && Keys % 16 == 0 && Keys <= 256 && shared_bytes <= 227 * 1024);
};

// Of clusters: this one and how many; and the block's place in it.
template <class C>
struct Place {
  static __device__ __forceinline__ int index() { return int(blockIdx.x) / C::cluster; }
  static __device__ __forceinline__ int count() { return int(gridDim.x) / C::cluster; }
  static __device__ __forceinline__ int rank() { return int(blockIdx.x) % C::cluster; }
  // Round r of a cluster that is dealt tiles: there and back, so that long and short tiles add up.
  static __device__ __forceinline__ int dealt(int round) {
    return round * count() + (round & 1 ? count() - 1 - index() : index());
  }
};

struct Barriers {
  uint32_t q_full, q_empty, k_full, k_empty, v_full, v_empty, next_full, next_empty, next;
  template <class C>
  static __device__ __forceinline__ Barriers of(uint32_t at, C) {
    Barriers b;
    b.q_full = at, b.q_empty = at + 8, b.k_full = at + 16, b.k_empty = b.k_full + 8 * C::stages;
    b.v_full = b.k_empty + 8 * C::stages, b.v_empty = b.v_full + 8 * C::stages;
    b.next_full = b.v_empty + 8 * C::stages, b.next_empty = b.next_full + 16, b.next = b.next_empty + 16;
    return b;
  }
};

// ---- The producer ---------------------------------------------------------------------------------------------------

struct Maps {
  CUtensorMap q, k, v;  // (head,heads,tokens), (head,positions,kv_heads)
};

template <class C>
__device__ __forceinline__ void produce(const Maps& maps, const Work& w, const Barriers& b, uint32_t shared) {
  using Here = Place<C>;
  Stage k = Stage::to_fill(), v = Stage::to_fill(), q = Stage::to_fill(), next = Stage::to_fill();
  // The block's part of a block of keys, for all blocks of the cluster.
  const auto load = [&](const CUtensorMap* map, uint32_t full, uint32_t empty, Stage& at, uint32_t ring, int block,
                        int head) {
    constexpr int keys = C::keys / C::cluster;
    const uint32_t barrier = at.acquire(full, empty, C::block_bytes), to = ring + at.s * C::block_bytes;
    const int part = Here::rank() * keys;
#pragma unroll
    for (int p = 0; p < C::panels; p++) {
      const uint32_t panel = to + p * C::block_panel + part * C::row_bytes;
      const int first = block * C::keys + part;
      if constexpr (C::cluster == 1) tma_load(map, panel, barrier, p * C::columns, first, head, evict_normal);
      else tma_load_multicast(map, panel, barrier, p * C::columns, first, head, evict_normal, (1 << C::cluster) - 1);
    }
    at.advance(C::stages);
  };
  const uint32_t k_ring = shared + C::ring_at, v_ring = k_ring + C::stages * C::block_bytes;
  uint32_t ticket = 0;
  const auto draw = [&] { ticket = Here::rank() == 0 ? atomicAdd(w.counter, 1) : 0; };
  for (int i = Here::index(), round = 0; i < w.total;) {
    const Tile t = tile_at<C::rows, C::keys>(w, i);
    const int kv_head = t.head / w.ratio;
    load(&maps.k, b.k_full, b.k_empty, k, k_ring, t.end - 1, kv_head);
    const uint32_t barrier = q.acquire(b.q_full, b.q_empty, C::q_bytes);
    q.advance(1);
#pragma unroll
    for (int g = 0; g < C::groups; g++) {
#pragma unroll
      for (int p = 0; p < C::panels; p++) {
        tma_load(&maps.q, shared + g * C::group_bytes + p * C::group_panel, barrier, p * C::columns,
                 t.head * C::cluster + Here::rank(), t.first + 64 * g, evict_normal);
      }
    }
    for (int n = t.end - 1; n > t.begin; n--) {
      load(&maps.k, b.k_full, b.k_empty, k, k_ring, n - 1, kv_head);
      if (n == t.begin + 1 && w.taken) draw();  // late, so that tiles go to blocks that are free
      load(&maps.v, b.v_full, b.v_empty, v, v_ring, n, kv_head);
    }
    if (w.taken) {
      if (t.end == t.begin + 1) draw();
      const uint32_t full = b.next_full + 8 * next.s, slot = b.next + 4 * next.s;
      if (Here::rank() == 0) {
        if (ticket == uint32_t(w.total) - 1) *w.counter = 0;  // the last of all tickets
        i = Here::count() + int(ticket);
        next.wait(b.next_empty);
      }
      if constexpr (C::cluster == 1) {  // a block alone has no cluster to store to
        store_shared(slot, __int_as_float(i));
        mbarrier_arrive(full);
      } else {
        mbarrier_arrive_expect(full, 4);
        if (Here::rank() == 0) {
          for (int r = 0; r < C::cluster; r++) store_async(map_shared(slot, r), map_shared(full, r), __int_as_float(i));
        } else {
          mbarrier_wait(full, next.parity ^ 1);
          i = int(load_shared(slot));
          mbarrier_arrive_cluster(map_shared(b.next_empty, 0) + 8 * next.s);
        }
      }
      next.advance(2);
    } else {
      i = Here::dealt(++round);
    }
    load(&maps.v, b.v_full, b.v_empty, v, v_ring, t.begin, kv_head);
  }
}

// ---- Consumers ------------------------------------------------------------------------------------------------------

template <class C>
struct State {
  float s[C::keys / 2];         // ((2,2,keys/8)), of a lane
  uint32_t p[C::keys / 16][4];  // the same, in pairs
  float o[C::head / 2];         // ((2,2,head/8))
  uint32_t q[C::holds_q ? C::head / 16 : 1][4];
  float factor[2];
  Softmax softmax;
};

template <class C>
struct Consumer {
  using Element = typename C::Element;
  const Work& w;
  const Barriers& b;
  const int group, lane, row;  // row: the lane's first row within the tile
  const uint32_t k_empty, v_empty;
  uint64_t q, k_ring, v_ring;
  Stage k = Stage::to_read(), v = Stage::to_read();

  __device__ __forceinline__ Consumer(const Work& w, const Barriers& b, uint32_t shared, int warp, int lane)
      : w(w), b(b), group(warp / 4), lane(lane), row(16 * warp + lane / 4),
        k_empty(C::cluster > 1 ? map_shared(b.k_empty, lane % C::cluster) : b.k_empty),
        v_empty(C::cluster > 1 ? map_shared(b.v_empty, lane % C::cluster) : b.v_empty) {
    q = swizzled_descriptor<C::row_bytes>(shared + group * C::group_bytes);
    k_ring = swizzled_descriptor<C::row_bytes>(shared + C::ring_at);
    v_ring = swizzled_descriptor<C::row_bytes>(shared + C::ring_at + C::stages * C::block_bytes, C::block_panel);
  }

  // S = Q @ K^T for the ring's next block.
  __device__ __forceinline__ void start_scores(State<C>& x) const {
    const uint64_t block = further(k_ring, k.s * C::block_bytes);
    constexpr int steps = C::columns / 16;
#pragma unroll
    for (int i = 0; i < C::panels * steps; i++) {
      const uint64_t of_k = further(block, i / steps * C::block_panel + i % steps * 32);
      const uint64_t of_q = further(q, i / steps * C::group_panel + i % steps * 32);
      if constexpr (C::holds_q) wgmma_fragments<Element, C::keys, false>(x.s, x.q[i], of_k, i > 0);
      else if (i == 0) wgmma_scores<Element, C::keys, false>(x.s, of_q, of_k);
      else wgmma_scores<Element, C::keys, true>(x.s, of_q, of_k);
    }
    wgmma_commit();
  }

  // Loads a warp's rows of Q.
  __device__ __forceinline__ void hold_q(State<C>& x, uint32_t shared) const {
    const int i = lane / 8, at = row / 16 % 4 * 16 + i % 2 * 8 + lane % 8;
    const int turn = C::row_bytes == 128 ? at & 7 : at >> 1 & 3;
#pragma unroll
    for (int j = 0; j < C::head / 16; j++) {
      constexpr int pieces = C::columns / 8;
      const int piece = 2 * j + i / 2;
      ldmatrix(x.q[j], shared + group * C::group_bytes + 2 * j / pieces * C::group_panel + at * C::row_bytes +
                           ((piece % pieces) ^ turn) * 16);
    }
  }

  // O = (add ? O : 0) + P @ V for the ring's next block.
  __device__ __forceinline__ void start_values(float (&o)[C::head / 2], const uint32_t (&p)[C::keys / 16][4],
                                               int add) const {
    const uint64_t block = further(v_ring, v.s * C::block_bytes);
    wgmma_fragments<Element, C::head, true>(o, p[0], block, add);
#pragma unroll
    for (int i = 1; i < C::keys / 16; i++) {
      wgmma_fragments<Element, C::head, true>(o, p[i], further(block, i * 16 * C::row_bytes), 1);
    }
    wgmma_commit();
  }

  // `empty`: of K or of V, in the block whose number in the cluster is the lane's.
  __device__ __forceinline__ void release(uint32_t empty, Stage& at) const {
    release_stage(empty, at.s, lane, C::cluster > 1, C::cluster);
    at.advance(C::stages);
  }

  __device__ __forceinline__ void mask_block(float (&s)[C::keys / 2], const Tile& t, int n) const {
    const int at = w.past + t.first, from = n * C::keys;
    if (is_masked(w, at + 64 * group, 64, from, C::keys)) mask(w, s, at + row, from);
  }

  // Warp groups take turns: the barrier of a group is 1 + its number.
  __device__ __forceinline__ void await_turn() const {
    if constexpr (C::ping_pong) bar_sync(1 + group, 256);
  }
  __device__ __forceinline__ void end_turn() const {
    if constexpr (C::ping_pong) bar_arrive(group + 1 == C::groups ? 1 : 2 + group, 256);
  }

  // The tile behind round `round`; a count of tiles from w.total on: none.
  __device__ __forceinline__ int next_tile(int round, Stage& next) const {
    if (!w.taken) return Place<C>::dealt(round);
    next.wait_warp(b.next_full);
    const int i = __shfl_sync(~0u, int(load_shared(b.next + 4 * next.s)), 0);  // known to be uniform
    if (lane == 0) {
      if constexpr (C::cluster == 1) mbarrier_arrive(b.next_empty + 8 * next.s);
      else mbarrier_arrive_cluster(map_shared(b.next_empty, 0) + 8 * next.s);
    }
    next.advance(2);
    return i;
  }

  // A warp's rows of O over their sums; or O and sums of a part of the keys. The four lanes of a row exchange words
  // until each has 16 bytes.
  __device__ __forceinline__ void store(const Tile& t, float (&o)[C::head / 2], const Softmax& softmax) const {
    const int q = lane % 4, head = t.head * C::cluster + Place<C>::rank();
    if (w.parts > 1) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int at = t.first + row + 8 * r;
        const int64_t place = (int64_t(t.part) * w.tokens + at) * (w.heads * C::cluster) + head;
        const float all = softmax.total(r);
        if (at >= w.tokens) continue;
        if (q == 0) w.rows[place] = make_float2(softmax.high[r], all);
#pragma unroll
        for (int j = 0; j < C::head / 8; j++) {
          *reinterpret_cast<float2*>(w.values + place * C::head + 8 * j + 2 * q) =
              make_float2(o[4 * j + 2 * r], o[4 * j + 2 * r + 1]);
        }
      }
      return;
    }
    softmax.finish(o, w, head);
    const auto exchange = [](uint32_t& x, uint32_t& y, bool upper, int with) {
      const uint32_t got = __shfl_xor_sync(~0u, upper ? x : y, with);
      (upper ? x : y) = got;
    };
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int at = t.first + row + 8 * r;
      Element* const to = static_cast<Element*>(w.o) + at * w.o_row + head * w.o_head + 8 * q;
#pragma unroll
      for (int j = 0; j < C::head / 8; j += 4) {  // word i of part e: columns 8 (j + e) + 2 i
        uint32_t x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) x[e] = pack<Element>(o[4 * (j + e) + 2 * r], o[4 * (j + e) + 2 * r + 1]);
        exchange(x[0], x[1], q & 1, 1), exchange(x[2], x[3], q & 1, 1);
        exchange(x[0], x[2], q & 2, 2), exchange(x[1], x[3], q & 2, 2);
        if (at < w.tokens) *reinterpret_cast<uint4*>(to + 8 * j) = make_uint4(x[0], x[1], x[2], x[3]);
      }
    }
  }

  // O = (add ? O : 0) + P @ V for the block before, and P of block n. O is to be multiplied by `factor` then.
  __device__ __forceinline__ void step(State<C>& x, const Tile& t, int n, int add) {
    k.wait(b.k_full);
    await_turn();
    wgmma_pin(x.o);
    wgmma_fence();
    start_scores(x);
    if constexpr (C::rescale == Rescale::before) {
      if (add) multiply_rows(x.o, x.factor);
      wgmma_pin(x.o);
      wgmma_fence();
    }
    v.wait(b.v_full);
    start_values(x.o, x.p, add);
    end_turn();
    wgmma_wait_for<1>();
    wgmma_pin(x.s);
    release(k_empty, k);
    // Always so. In a basic block of its own: otherwise ptxas moves the wait for O ahead of the softmax.
    if (n > w.never) {
      mask_block(x.s, t, n);
      x.softmax.template weigh<C::polynomials>(x.s, x.factor, w.scale);
    }
    wgmma_pin(x.s);
    wgmma_wait_for<0>();
    wgmma_pin(x.o);
    release(v_empty, v);
    rounded<Element>(x.p, x.s);
  }

  __device__ __forceinline__ void wait_for_q(State<C>& x, Stage& at, uint32_t shared) const {
    at.wait_warp(b.q_full);
    at.advance(1);
    if constexpr (C::holds_q) {
      hold_q(x, shared);
      __syncwarp();
      if (lane == 0) mbarrier_arrive(b.q_empty);
    }
  }

  __device__ __forceinline__ void run(uint32_t shared) {
    Stage q_at = Stage::to_read(), next = Stage::to_read();
    Tile t = tile_at<C::rows, C::keys>(w, Place<C>::index());
    State<C> x;
    x.softmax.start();
    if (group + 1 == C::groups) end_turn();  // the first turn is the first group's
    wait_for_q(x, q_at, shared);
    k.wait(b.k_full);
    wgmma_fence();
    start_scores(x);
    wgmma_wait_for<0>();
    wgmma_pin(x.s);
    release(k_empty, k);
    mask_block(x.s, t, t.end - 1);
    x.softmax.template weigh<C::polynomials>(x.s, x.factor, w.scale);
    rounded<Element>(x.p, x.s);
    for (int round = 1;; round++) {
      int add = 0;
#pragma unroll 1
      for (int n = t.end - 2; n >= t.begin; n--) {
        step(x, t, n, add);
        add = 1;
        if constexpr (C::rescale == Rescale::after) multiply_rows(x.o, x.factor);
        if constexpr (C::rescale == Rescale::skip) {
          if (!__all_sync(~0u, x.factor[0] == 1 && x.factor[1] == 1)) multiply_rows(x.o, x.factor);
        }
      }
      if (!C::holds_q && lane == 0) mbarrier_arrive(b.q_empty);  // all scores of the tile are there
      const int i = next_tile(round, next);
      if (i >= w.total) {
        if constexpr (C::rescale == Rescale::before) {
          if (add) multiply_rows(x.o, x.factor);
        }
        v.wait(b.v_full);
        wgmma_pin(x.o);
        wgmma_fence();
        start_values(x.o, x.p, add);
        wgmma_wait_for<0>();
        wgmma_pin(x.o);
        store(t, x.o, x.softmax);
        return;
      }
      const Tile now = tile_at<C::rows, C::keys>(w, i);
      const Softmax before = x.softmax;
      x.softmax.start();
      wait_for_q(x, q_at, shared);
      step(x, now, now.end - 1, add);
      store(t, x.o, before);
      t = now;
    }
  }
};

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    layer_prefill_sm90(const __grid_constant__ Maps maps, const __grid_constant__ Work w) {
  extern __shared__ __align__(1024) uint8_t shared_bytes[];
  const uint32_t shared = uint32_t(__cvta_generic_to_shared(shared_bytes));
  const Barriers b = Barriers::of(shared + C::barriers_at, C{});
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&maps.q), prefetch_tensor_map(&maps.k), prefetch_tensor_map(&maps.v);
    mbarrier_init(b.q_full, 1), mbarrier_init(b.q_empty, C::warps);
    init_ring(b.k_full, b.k_empty, C::stages, C::warps * C::cluster);
    init_ring(b.v_full, b.v_empty, C::stages, C::warps * C::cluster);
    init_ring(b.next_full, b.next_empty, 2, (C::warps + 1) * C::cluster - 1);  // all readers but the first producer
    fence_mbarrier_init();
  }
  if constexpr (C::cluster > 1) cluster_sync();
  else __syncthreads();
  if (warp >= C::warps) {
    setmaxnreg_dec<C::producer_registers>();
    if (warp == C::warps && lane == 0) {
      griddepcontrol_wait();
      produce<C>(maps, w, b, shared);
      launch_dependents();
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<C::registers>();
    Consumer<C>(w, b, shared, warp, lane).run(shared);
  }
  if constexpr (C::cluster > 1) cluster_sync();  // no block writes to another any more
}

}  // namespace
}  // namespace tilegemm
