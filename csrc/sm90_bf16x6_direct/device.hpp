// The kernel of sm90_bf16x6_direct.cu; that file describes the algorithm.
#pragma once
#include "common/pipeline.hpp"
#include "sm90_bf16x6_direct/store.hpp"

namespace tilegemm {
namespace {

// A warp splits a stage of Q into planes, in the planes' order of K (common/bf16_parts.hpp). A lane splits a chunk of
// eight numbers at a time. Where K is contiguous in Q, the lanes have the four chunks of each of eight rows, in an
// order without bank conflicts in loads and stores. Where K is not contiguous, the lanes have one chunk of each of 32
// rows.
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

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    sm90_bf16x6_direct(const __grid_constant__ CUtensorMap p_map, const __grid_constant__ CUtensorMap q_map,
                       const __grid_constant__ CUtensorMap d_map, const __grid_constant__ Place place,
                       const __grid_constant__ Epilogue<float, float> epilogue) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int split_log2 = place.split_log2, stages = C::tall ? C::stages : place.stages;
  const bool is_split = split_log2 > 0;
  const uint32_t raw = uint32_t(__cvta_generic_to_shared(shared)), planes = raw + C::stages * C::raw_bytes;
  const uint32_t out = planes + C::plane_stages * C::plane_bytes;
  // Q has barriers of its own: Q usually arrives first, and the planes of Q are then ready when P arrives.
  const uint32_t full = out + C::out_bytes, q_full = full + 8 * C::stages, empty = q_full + 8 * C::stages;
  const uint32_t plane_full = empty + 8 * C::stages;
  const uint32_t plane_empty = plane_full + 8 * C::plane_stages;
  const uint32_t arrived = plane_empty + 8 * C::plane_stages;  // barrier: the parts of this block's fragments
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
      mbarrier_init(q_full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, C::consumers / C::turns + 1);
    }
    init_ring(plane_full, plane_empty, C::plane_stages, C::consumers / C::turns);
    mbarrier_init(arrived, 1);
    if (is_split) mbarrier_arrive_expect(arrived, C::out_bytes);
    fence_mbarrier_init();
  }
  __syncwarp();
  // Without a cluster, the cluster barrier is the block's own, and every arrival needs a wait.
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
        const uint32_t q_bytes = C::in_rows ? place.q_rows * 128 : C::q_bytes;
        Stage at = Stage::to_fill();
        for (int t = first; t < place.tiles; t += step) {
          const Tile tile = Tile::of<C>(place, t);
          for (int i = 0; i < k_count; i++) {
            const uint32_t p = raw + at.s * C::raw_bytes, q = p + C::p_bytes, barrier = full + 8 * at.s;
            const int k = (k_first + i) * C::depth;
            const uint32_t q_barrier = at.acquire(q_full, empty, q_bytes);
            if constexpr (C::in_rows) tma_load(&q_map, q, q_barrier, k, tile.q, tile.batch1, tile.batch0, evict_normal);
            else tma_load(&q_map, q, q_barrier, tile.q, k, tile.batch1, tile.batch0, evict_normal);
            mbarrier_arrive_expect(barrier, C::p_bytes);
            tma_load(&p_map, p, barrier, k, tile.p, tile.batch1, tile.batch0, place.p_policy);
            at.advance(stages);
          }
        }
        launch_dependents();  // earlier, the next kernel would take a share of the multiprocessors from this kernel
      }
      __syncwarp();
      if (is_split) cluster_wait();
      return;
    }
    if (is_split) cluster_wait();
    if (warp > C::consumers + C::splitters) return;

    // The splitters take stages in turns.
    const int items = C::in_rows ? (place.q_rows + 7) / 8 : C::items;
    const Splitter<C> split_q(lane);
    Stage at = Stage::to_read(), plane = Stage::to_fill();
    int turn = C::consumers + 1;
    for (int t = first; t < place.tiles; t += step) {
      for (int i = 0; i < k_count; i++) {
        if (turn == warp) {
          at.wait(q_full);
          plane.wait(plane_empty);
          split_q(raw + at.s * C::raw_bytes + C::p_bytes, planes + plane.s * C::plane_bytes, items);
          fence_proxy_async();
          __syncwarp();
          if (lane == 0) mbarrier_arrive(plane_full + 8 * plane.s), mbarrier_arrive(empty + 8 * at.s);
        }
        if (++turn == C::consumers + 1 + C::splitters) turn = C::consumers + 1;
        plane.advance(C::plane_stages);
        at.advance(stages);
      }
    }
    return;
  }

  setmaxnreg_inc<200>();
  if (is_split) cluster_wait();
  griddepcontrol_wait();  // in the threads that read C and the bias and write D
  constexpr int size = C::width / 2;
  float sum[size], d[size];            // ((2,2,width/8)): of the tile; of the products under way
  [[maybe_unused]] float large[size];  // sums of large products, if C::apart
  const int g = lane / 4, q = lane % 4, mine = C::tall ? 0 : group;
  const uint32_t p_row = raw + ((C::tall ? warp : warp % 4) * 16 + g) * 128;
  const uint64_t q0 = wgmma_descriptor_64(planes);
  Stage at = Stage::to_read(mine), plane = Stage::to_read(mine);
  int taken = 0;                                                              // sums that have left the tensor cores
  [[maybe_unused]] const Meeting<C> meeting(out, arrived, split_log2, rank);  // where K is in parts
  const auto load = [&](Fragments& f, int j) __attribute__((always_inline)) {
    load_fragments(f, p_row + at.s * C::raw_bytes + (((2 * q + j) ^ g) << 4));
  };
  // Releases P's stage, which this warp has read.
  const auto release = [&] {
    __syncwarp();
    release_stage(empty, at.s, lane, false, 1);
    at.advance<C::turns>(stages);
  };
  const auto release_plane = [&] {
    release_stage(plane_empty, plane.s, lane, false, 1);
    plane.advance<C::turns>(C::plane_stages);
  };
  // The first product of a sum is added to the rounding error of the previous addition, or to nothing.
  const auto product = [&](float (&d)[size], const Fragments& f, int j, int p, int add) __attribute__((always_inline)) {
    multiply_parts<C::width, C::part_bytes>(d, f, q0 + uint32_t(plane.s * C::plane_bytes >> 4), j, p, add);
  };
  const auto small_products = [&](float (&d)[size], const Fragments& f, int j, int add) __attribute__((always_inline)) {
#pragma unroll
    for (int i = 0; i < 5; i++) product(d, f, j, i, i > 0 || add);
  };
  // Groups of tall tiles take turns at the tensor cores, so that one group adds up while the other group multiplies.
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
      at.wait(full);
      load(two[0][0], 0), load(two[0][1], 1);
      release();
    }
    // Multiplies a stage. Meanwhile the fragments of the next stage are split.
    const auto block = [&](Fragments(&f)[2], Fragments(&next)[2], bool more) __attribute__((always_inline)) {
      plane.wait(plane_full);
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
        at.wait(full);
        load(next[0], 0), load(next[1], 1);
        release();
      }
      wgmma_wait();
      release_plane();
      // Adds to the sum. The next small products start from the rounding error.
      float (&first)[size] = C::apart ? large : d;
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
    if (taken < (C::apart ? 1 : 2)) {  // d holds no rounding error
      if (taken == 0) {
#pragma unroll
        for (int i = 0; i < size; i++) sum[i] = 0;
      }
#pragma unroll
      for (int i = 0; i < size; i++) d[i] = 0;
    }
    // If C::apart, d holds the last two thirds of a result's digits. The share that is given back is then rounded at
    // the last digit of d, and has to stay below half a unit of the result: so the share is a little smaller.
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
    if constexpr (C::tall) store_fragments<C>(sum, place, epilogue, tile, out);
    else meeting.send(sum), meeting.store(place, epilogue, tile);
  }
  if (place.whole && lane == 0) tma_store_wait_read();
  __syncwarp();
}

}  // namespace
}  // namespace tilegemm
