// The kernel of sm90_bf16x6_direct.cu, which says what it is about.
#pragma once
#include <algorithm>

#include "bf16_sums.hpp"
#include "epilogue.hpp"
#include "ptx.hpp"

namespace tilegemm {
namespace {

constexpr int shared_bytes_of_block = 227 * 1024;
constexpr int most_stages = 12, most_split = 8;
namespace named_barriers {
constexpr int turn = 1, sums = 3;  // a group's turn, two of them; sums of both groups
}

// Two warp groups multiply. Tall: each has 64 rows of P and all of K. Else they take stages in turns, for 64 rows, and a block
// has one tile. Width: rows of Q in a tile. InRows: K is contiguous in Q, else its rows are. Apart: large and small products of
// a stage have sums of their own.
template <int Width, bool InRows, bool Tall, bool Apart>
struct Config {
  static constexpr int groups = 2, height = Tall ? 128 : 64, width = Width, depth = 32;
  static constexpr bool in_rows = InRows, tall = Tall, apart = Apart;
  static constexpr int consumers = 4 * groups, splitters = 3, threads = 32 * (consumers + 1 + splitters);
  static constexpr int p_bytes = height * depth * 4, q_bytes = width * depth * 4, raw_bytes = p_bytes + q_bytes;
  static constexpr int part_bytes = width * depth * 2, plane_bytes = 3 * part_bytes, plane_stages = 2 * splitters;
  static constexpr int items = width / 8;  // of a stage of Q, to split at a time: 32 chunks of eight numbers
  static constexpr int turns = tall ? 1 : groups;  // stages of which a group takes one

  // On their way out sums are fragments, of 16 rows of P and 8 of Q: a float4 per lane. Or, where TMA stores them, strips.
  static constexpr int columns = width / 8, fragments = height / 16 * columns, fragment_bytes = 32 * 16;
  static constexpr int out_bytes = turns * fragments * fragment_bytes, strip_bytes = width / 32 * panel_bytes;
  static_assert(!tall || consumers * strip_bytes == out_bytes);

  // A slot of a stage and of its planes always has the same splitter and, where these take turns, the same group: nobody waits
  // for a phase of a barrier while the one before may still last.
  static constexpr int unit = splitters * turns;
  static constexpr int barriers_bytes = 8 * (2 * most_stages + 2 * plane_stages + 1);
  static constexpr int fixed_bytes = plane_stages * plane_bytes + out_bytes + barriers_bytes;
  static constexpr int stages = std::min(most_stages, (shared_bytes_of_block - fixed_bytes) / raw_bytes) / unit * unit;
  static constexpr int shared_bytes = stages * raw_bytes + fixed_bytes;
  static_assert(stages >= unit && plane_stages % unit == 0 && fragments % most_split == 0);
  static_assert(tall || !apart);
  // Where swizzles begin: planes in rows of 64 bytes, the rest in rows of 128.
  static_assert(raw_bytes % 1024 == 0 && p_bytes % 1024 == 0 && part_bytes % 512 == 0 && plane_stages * plane_bytes % 1024 == 0);
};

struct Place {
  tg_matrix a, b, d;            // as they were given
  int m, n, k, batch1;
  int p_tiles, q_tiles, tiles;  // of a matrix along P and Q; of all matrices
  int q_rows;                   // of a tile
  int split_log2;               // blocks that split K
  int prefetch;                 // stages of P, to go to L2 before the kernel before this one ends
  uint64_t p_policy;
  bool exchanged;               // P is B, and Q is A
  bool whole;                   // D is the product alone, and TMA can store it: not split, not exchanged
};

// A tile's first row of P and of Q.
struct Tile {
  int p, q, batch0, batch1;
  template <class C>
  __device__ static Tile of(const Place& place, int t) {
    const int line = t / place.q_tiles, batch = line / place.p_tiles, batch0 = batch / place.batch1;
    return {(line - batch * place.p_tiles) * C::height, (t - line * place.q_tiles) * place.q_rows, batch0,
            batch - batch0 * place.batch1};
  }
};

// A warp's lanes bring a stage of Q to the planes, in their order (bf16_parts.hpp), a chunk of eight numbers each at a time. Of Q
// with contiguous K they have all four chunks of eight rows, in such an order that neither side has bank conflicts; else one
// chunk of 32 rows.
template <class C>
class Splitter {
 public:
  __device__ explicit Splitter(int lane) {
    if constexpr (C::in_rows) {
      const int j = lane / 4, c = lane % 4, row = 2 * (j % 4) + ((j & 1) ^ (j >> 2));
#pragma unroll
      for (int t = 0; t < 4; t++) from_[t] = row * 128 + c % 2 * 8 + (((2 * t + c / 2) ^ row) << 4);
      to_ = row * 64 + ((c ^ (row / 2)) << 4);
    } else {
      from_[0] = lane * 4, from_[1] = lane / 2 % 4, to_ = lane * 64;
    }
  }

  __device__ __forceinline__ void operator()(uint32_t raw, uint32_t planes, int items) const {
    constexpr int at_once = std::min(C::items, 4);
#pragma unroll
    for (int first = 0; first < C::items; first += at_once) {
      if (first >= items) break;
      float x[at_once][8];
#pragma unroll
      for (int u = 0; u < at_once; u++) load(x[u], raw, first + u);
#pragma unroll
      for (int u = 0; u < at_once; u++) store(x[u], planes, first + u);
    }
  }

 private:
  uint32_t from_[4], to_;

  __device__ __forceinline__ void load(float (&x)[8], uint32_t raw, int item) const {
    if constexpr (C::in_rows) {
#pragma unroll
      for (int t = 0; t < 4; t++) {
        const float2 v = load_shared_2(raw + from_[t] + item * 1024);
        x[2 * t] = v.x, x[2 * t + 1] = v.y;
      }
    } else {
      const uint32_t at = raw + from_[0] + first_element(item % 4) * (C::width * 4) + item / 4 * 128;
#pragma unroll
      for (int i = 0; i < 8; i++) x[i] = __uint_as_float(load_shared(at + (i / 2 * 8 + i % 2) * (C::width * 4)));
    }
  }

  __device__ __forceinline__ void store(const float (&x)[8], uint32_t planes, int item) const {
    uint32_t parts[3][4];
#pragma unroll
    for (int i = 0; i < 4; i++) split(x[2 * i], x[2 * i + 1], parts[0][i], parts[1][i], parts[2][i]);
    const uint32_t to = planes + to_ + (C::in_rows ? item * 512 : item / 4 * 2048 + ((item % 4 ^ from_[1]) << 4));
#pragma unroll
    for (int part = 0; part < 3; part++) store_shared_4(to + part * C::part_bytes, parts[part]);
  }
};

// A warp's 16 rows of a tile to D by way of its strip and TMA, which runs on by itself.
template <class C>
__device__ __forceinline__ void store_whole(const float (&sum)[C::width / 2], const CUtensorMap& d_map, const Place& place,
                                            const Tile& tile, uint32_t strip) {
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, row = tile.p + warp * 16;
  const bool strange = any_strange(sum);
  if (lane == 0) tma_store_wait_read();
  __syncwarp();
  store_strip(sum, strip, lane / 4, lane % 4);
  __syncwarp();
  if (strange) {
    mend_strip<C::width / 32>(strip, row, tile.q, place.m, place.n, [&](int m, int n) {
      return strict(place.a, place.b, place.k, m, n, tile.batch0, tile.batch1);
    });
  }
  fence_proxy_async();
  __syncwarp();
  if (lane == 0 && row < place.m) {
#pragma unroll
    for (int panel = 0; panel < C::width / 32; panel++) {
      const int column = tile.q + panel * 32;
      if (column < place.n) tma_store(&d_map, strip + panel * panel_bytes, column, row, tile.batch1, tile.batch0);
    }
    tma_store_commit();
  }
}

// A warp's sums to D through the epilogue, of which the way by `out` makes a loop. Of a cluster of `split` blocks, block
// f % split adds up and stores fragment f of the tile, in the order of the parts, which are those of the blocks and of their
// groups: in its `out` there is a slot for each of its fragments and each of the parts.
template <class C>
__device__ __forceinline__ void store_fragments(const float (&sum)[C::width / 2], const Place& place,
                                                const Epilogue<float, float>& epilogue, const Tile& tile, uint32_t out,
                                                uint32_t arrived, int rank) {
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
  const int split_log2 = place.split_log2, split = 1 << split_log2, slots = C::fragments >> split_log2;
  const int parts = split * C::turns, part = rank * C::turns + (C::tall ? 0 : warp / 4);
  const auto at = [&](int part, int slot) { return out + ((part * slots + slot) * 32 + lane) * 16; };
#pragma unroll
  for (int j = 0; j < C::columns; j++) {
    const float4 v = make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]);
    const int f = (C::tall ? warp : warp % 4) * C::columns + j, owner = f & (split - 1);
    const uint32_t to = at(part, f >> split_log2);
    if (split == 1) store_shared_4(to, v);
    else store_async(map_shared(to, owner), map_shared(arrived, owner), v);
  }
  if (split > 1) mbarrier_wait(arrived, 0);
  else if (parts > 1) bar_sync(named_barriers::sums, 32 * C::consumers);
  else __syncwarp();

  const int p_count = place.exchanged ? place.n : place.m;
  const int q_count = min(place.exchanged ? place.m : place.n, tile.q + place.q_rows);
  float* const d = static_cast<float*>(place.d.ptr) + tile.batch0 * place.d.batch_stride[0] +
                   tile.batch1 * place.d.batch_stride[1];
  const int mine = parts == 1 ? warp * C::columns : warp, step = parts == 1 ? 1 : C::consumers;
  const int end = parts == 1 ? mine + C::columns : slots;
#pragma unroll 1
  for (int slot = mine; slot < end; slot += step) {
    const int f = (slot << split_log2) + rank;
    const int p0 = tile.p + f / C::columns * 16 + g, q0 = tile.q + f % C::columns * 8 + 2 * q;
    const float4 v = load_shared_4_ordered(at(0, slot));
    float x[4] = {v.x, v.y, v.z, v.w};
    if (parts > 1) {
      double all[4] = {x[0], x[1], x[2], x[3]};
      for (int other = 1; other < parts; other++) {
        const float4 y = load_shared_4_ordered(at(other, slot));
        all[0] += y.x, all[1] += y.y, all[2] += y.z, all[3] += y.w;
      }
#pragma unroll
      for (int e = 0; e < 4; e++) x[e] = float(fma(all[e], double(given_back), all[e]));
    }
    int m[4], n[4];
    bool inside[4];
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int at_p = p0 + e / 2 * 8, at_q = q0 + e % 2;
      inside[e] = at_p < p_count && at_q < q_count;
      m[e] = place.exchanged ? at_q : at_p, n[e] = place.exchanged ? at_p : at_q;
      if (inside[e] && is_strange(x[e])) x[e] = strict(place.a, place.b, place.k, m[e], n[e], tile.batch0, tile.batch1);
    }
    epilogue.each(x, m, n, inside, tile.batch0, tile.batch1);
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (inside[e]) d[m[e] * place.d.row_stride + n[e] * place.d.col_stride] = x[e];
    }
  }
  __syncwarp();
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    multiply(const __grid_constant__ CUtensorMap p_map, const __grid_constant__ CUtensorMap q_map,
             const __grid_constant__ CUtensorMap d_map, const __grid_constant__ Place place,
             const __grid_constant__ Epilogue<float, float> epilogue) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int split_log2 = place.split_log2;
  const bool is_split = split_log2 > 0;
  const uint32_t raw = uint32_t(__cvta_generic_to_shared(shared)), planes = raw + C::stages * C::raw_bytes;
  const uint32_t out = planes + C::plane_stages * C::plane_bytes;
  const uint32_t full = out + C::out_bytes, empty = full + 8 * C::stages, plane_full = empty + 8 * C::stages;
  const uint32_t plane_empty = plane_full + 8 * C::plane_stages;
  const uint32_t arrived = plane_empty + 8 * C::plane_stages;  // the parts of our fragments
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
  const int rank = is_split ? int(cluster_rank()) : 0;
  const int k_blocks = (place.k + C::depth - 1) / C::depth;
  const int k_first = (k_blocks * rank) >> split_log2, k_count = ((k_blocks * (rank + 1)) >> split_log2) - k_first;
  const int first = int(blockIdx.x) >> split_log2, step = int(gridDim.x) >> split_log2;

  if (warp == C::consumers && lane == 0) {
    prefetch_tensor_map(&p_map);
    prefetch_tensor_map(&q_map);
    if (place.whole) prefetch_tensor_map(&d_map);
    for (int s = 0; s < C::stages; s++) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, C::consumers / C::turns + 1);
    }
    for (int s = 0; s < C::plane_stages; s++) {
      mbarrier_init(plane_full + 8 * s, 1);
      mbarrier_init(plane_empty + 8 * s, C::consumers / C::turns);
    }
    mbarrier_init(arrived, 1);
    if (is_split) mbarrier_arrive_expect(arrived, C::out_bytes);
    fence_mbarrier_init();
  }
  __syncwarp();
  // Without a cluster its barrier is that of the block, where nobody arrives without waiting.
  if (is_split) cluster_arrive_relaxed();
  else __syncthreads();

  if (group == C::groups) {
    setmaxnreg_dec<96>();
    if (warp == C::consumers) {
      if (lane == 0) {
        if (place.prefetch > 0) {
          const Tile tile = Tile::of<C>(place, first);
          for (int i = 0; i < min(place.prefetch, k_count); i++) {
            tma_prefetch(&p_map, (k_first + i) * C::depth, tile.p, tile.batch1, tile.batch0);
          }
        }
        griddepcontrol_wait();
        const uint32_t bytes = C::p_bytes + (C::in_rows ? place.q_rows * 128 : C::q_bytes);
        int s = 0, parity = 1;
        for (int t = first; t < place.tiles; t += step) {
          const Tile tile = Tile::of<C>(place, t);
          for (int i = 0; i < k_count; i++) {
            const uint32_t p = raw + s * C::raw_bytes, q = p + C::p_bytes, barrier = full + 8 * s;
            const int k = (k_first + i) * C::depth;
            mbarrier_wait(empty + 8 * s, parity);
            mbarrier_arrive_expect(barrier, bytes);
            tma_load(&p_map, p, barrier, k, tile.p, tile.batch1, tile.batch0, place.p_policy);
            if constexpr (C::in_rows) tma_load(&q_map, q, barrier, k, tile.q, tile.batch1, tile.batch0, evict_normal);
            else tma_load(&q_map, q, barrier, tile.q, k, tile.batch1, tile.batch0, evict_normal);
            if (++s == C::stages) s = 0, parity ^= 1;
          }
        }
        launch_dependents();  // earlier, the next kernel would take a share of the multiprocessors from this one
      }
      __syncwarp();
      if (is_split) cluster_wait();
      return;
    }
    if (is_split) cluster_wait();

    // The splitters take stages in turns.
    const int items = C::in_rows ? (place.q_rows + 7) / 8 : C::items;
    const Splitter<C> split_q(lane);
    int s = 0, parity = 0, plane = 0, plane_parity = 1, turn = C::consumers + 1;
    for (int t = first; t < place.tiles; t += step) {
      for (int i = 0; i < k_count; i++) {
        if (turn == warp) {
          mbarrier_wait(full + 8 * s, parity);
          mbarrier_wait(plane_empty + 8 * plane, plane_parity);
          split_q(raw + s * C::raw_bytes + C::p_bytes, planes + plane * C::plane_bytes, items);
          fence_proxy_async();
          __syncwarp();
          if (lane == 0) mbarrier_arrive(plane_full + 8 * plane), mbarrier_arrive(empty + 8 * s);
        }
        if (++turn == C::consumers + 1 + C::splitters) turn = C::consumers + 1;
        if (++plane == C::plane_stages) plane = 0, plane_parity ^= 1;
        if (++s == C::stages) s = 0, parity ^= 1;
      }
    }
    return;
  }

  setmaxnreg_inc<200>();
  if (is_split) cluster_wait();
  griddepcontrol_wait();  // of the threads that read C and the bias and write D
  constexpr int size = C::width / 2;
  float sum[size], d[size];
  [[maybe_unused]] float large[size];  // where these are apart
  const int g = lane / 4, q = lane % 4, mine = C::tall ? 0 : group;
  const uint32_t p_row = raw + ((C::tall ? warp : warp % 4) * 16 + g) * 128;
  const uint64_t q0 = wgmma_descriptor_64(planes);
  int s = mine, parity = 0, plane = mine, plane_parity = 0;
  int taken = 0;  // sums, from the tensor cores
  const auto load = [&](Fragments& f, int j) __attribute__((always_inline)) {
    load_fragments(f, p_row + s * C::raw_bytes + (((2 * q + j) ^ g) << 4));
  };
  // This warp has read P's stage.
  const auto release = [&] {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * s);
    s += C::turns;
    if (s >= C::stages) s -= C::stages, parity ^= 1;
  };
  const auto release_plane = [&] {
    if (lane == 0) mbarrier_arrive(plane_empty + 8 * plane);
    plane += C::turns;
    if (plane >= C::plane_stages) plane -= C::plane_stages, plane_parity ^= 1;
  };
  // The first of a sum's products is added to what the addition of the sum before lost, or to nothing.
  const auto product = [&](float (&d)[size], const Fragments& f, int j, int p, int add) __attribute__((always_inline)) {
    multiply_parts<C::width, C::part_bytes>(d, f, q0 + uint32_t(plane * C::plane_bytes >> 4), j, p, add);
  };
  const auto small_products = [&](float (&d)[size], const Fragments& f, int j, int add) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 5; i++) product(d, f, j, i, i > 0 || add);
  };
  // Groups of tall tiles take turns at the tensor cores, so that one adds up while the other multiplies.
  const bool in_turns = C::tall && k_blocks >= 4;
  const auto begin_turn = [&] {
    if (in_turns) bar_sync(named_barriers::turn + group, 32 * C::consumers);
  };
  const auto end_turn = [&] {
    if (in_turns) bar_arrive(named_barriers::turn + (group ^ 1), 32 * C::consumers);
  };
  if (in_turns && group == 1) bar_arrive(named_barriers::turn, 32 * C::consumers);

  for (int t = first; t < place.tiles; t += step) {
    taken = 0;
    Fragments two[2][2];
    if (mine < k_count) {
      mbarrier_wait(full + 8 * s, parity);
      load(two[0][0], 0), load(two[0][1], 1);
      release();
    }
    // Meanwhile the fragments of the next stage are split.
    const auto block = [&](Fragments (&f)[2], Fragments (&next)[2], bool more) __attribute__((always_inline)) {
      mbarrier_wait(plane_full + 8 * plane, plane_parity);
      begin_turn();
      wgmma_pin(d);
      if constexpr (C::apart) wgmma_pin(large);
      wgmma_fence();
      small_products(d, f[0], 0, taken > (C::apart ? 0 : 1)), small_products(d, f[1], 1, 1);
      if constexpr (C::apart) product(large, f[0], 0, 5, 0), product(large, f[1], 1, 5, 1);
      else product(d, f[0], 0, 5, 1), product(d, f[1], 1, 5, 1);
      wgmma_commit();
      end_turn();
      if (more) {
        mbarrier_wait(full + 8 * s, parity);
        load(next[0], 0), load(next[1], 1);
        release();
      }
      wgmma_wait();
      release_plane();
      // To the sum; what that loses is where the next small products start.
      float(&first)[size] = C::apart ? large : d;
      wgmma_pin(first);
      if (taken++ == 0) {
#pragma unroll
        for (int i = 0; i < size; i++) sum[i] = first[i];
        wgmma_pin(sum);
      } else if constexpr (C::apart) {
        wgmma_pin(d);
#pragma unroll
        for (int i = 0; i < size; i++) d[i] += add_whole(sum[i], large[i]);
        wgmma_pin(sum);
        wgmma_pin(d);
      } else {
        add_exactly(sum, d);
      }
    };
    for (int i = mine; i < k_count; i += 2 * C::turns) {
      block(two[0], two[1], i + C::turns < k_count);
      if (i + C::turns >= k_count) break;
      block(two[1], two[0], i + 2 * C::turns < k_count);
    }
    if (taken < (C::apart ? 1 : 2)) {  // nothing was lost
      if (taken == 0) {
#pragma unroll
        for (int i = 0; i < size; i++) sum[i] = 0;
      }
#pragma unroll
      for (int i = 0; i < size; i++) d[i] = 0;
    }
    // Apart, d holds the last two thirds of a number's digits: what is given back is rounded where these end.
    constexpr float given = C::apart ? given_back * (1 - 0x1p-6f) : given_back;
    const bool one_part = C::tall && !is_split;
#pragma unroll
    for (int i = 0; i < size; i++) sum[i] = __fadd_rn(sum[i], one_part ? __fmaf_rn(sum[i], given, d[i]) : d[i]);

    const Tile tile = Tile::of<C>(place, t);
    if constexpr (C::tall) {
      if (place.whole) {
        store_whole<C>(sum, d_map, place, tile, out + warp * C::strip_bytes);
        continue;
      }
    }
    store_fragments<C>(sum, place, epilogue, tile, out, arrived, rank);
  }
  if (place.whole && lane == 0) tma_store_wait_read();
  __syncwarp();
}

}  // namespace
}  // namespace tilegemm
