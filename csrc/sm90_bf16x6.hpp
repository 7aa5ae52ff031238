// The kernels of sm90_bf16x6.cu, which says what they are about.
#pragma once
#include "bf16_parts.hpp"
#include "epilogue.hpp"
#include "kernel.hpp"
#include "ptx.hpp"
#include "transpose.hpp"
#include "wgmma.hpp"

namespace tilegemm {
namespace {

// Step: sums leave the tensor cores every so many of K. Exact: additions to `sum` are exact, by what they pass on; else there
// are totals.
template <int Width, int Cluster, int Step, bool Exact>
struct Config {
  static constexpr int height = 128, width = Width, depth = 32, cluster = Cluster, step = Step;  // blocks of a cluster share B
  static constexpr bool exact = Exact;
  static constexpr int warp_groups = 2, consumers = 128 * warp_groups, threads = consumers + 128;
  static constexpr int a_bytes = height * depth * 4, part_bytes = width * depth * 2, stage_bytes = a_bytes + 3 * part_bytes;
  static constexpr int stages = width == 128 ? 4 : 6;
  // Of a warp: 16 rows of the tile in panels of 32 columns, on their way out; before, the totals of its lanes.
  static constexpr int panels = width / 32, panel_bytes = 16 * 128, strip_bytes = panels * panel_bytes;
  static constexpr int barriers_bytes = 8 * 2 * stages;
  static constexpr int shared_bytes = stages * stage_bytes + 4 * warp_groups * strip_bytes + barriers_bytes;
  static_assert((width == 64 || width == 128) && (step == 16 || step == 32) && width / cluster % 8 == 0);
  static_assert(stage_bytes % 1024 == 0 && part_bytes % 1024 == 0 && shared_bytes <= 227 * 1024);
  static_assert(width / 2 * 4 * 32 == strip_bytes);
};

struct Place {
  tg_matrix a, b, d;               // as they were given
  int m, n, k, batch1;
  int m_clusters, n_tiles, tiles;  // tiles of clusters; all matrices
  int strip;                       // they go along M in strips this wide along N
  int b_moves[2];                  // distance in matrices of planes along the batch; 0 where B is broadcast
  int sums;                        // in a total
  float one;                       // 1
  bool take_turns;
  bool whole;                      // D is the product alone, and TMA can store it
};

// What tensor cores cut off is in proportion to the result: 3e-8 to 6e-8 of it on average, whatever the signs are. So much can
// be given back without changing a result that was exact: less than half a unit of the last place of any number.
constexpr float given_back = 0x1p-25f * (1 - 0x1p-10f);

template <int size>
__device__ __forceinline__ void add_to(float (&sum)[size], float (&d)[size]) {
  wgmma_pin(d);
#pragma unroll
  for (int i = 0; i < size; i++) sum[i] += d[i];
  wgmma_pin(sum);
}

// The same, and d is what rounding lost, exactly if |sum| >= |d| (Fast2Sum), else no more than it would have been. The sum is
// formed twice, by an addition and by a multiplication with a 1 that the compiler does not know, in one piece: otherwise
// ptxas keeps the old sum beside the new one, in as many registers again.
template <int size>
__device__ __forceinline__ void add_exactly(float (&sum)[size], float (&d)[size], float one) {
  wgmma_pin(d);
#pragma unroll
  for (int i = 0; i < size; i++) {
    asm volatile(
        "{\n .reg .f32 s, t;\n add.rn.f32 s, %0, %1;\n sub.rn.f32 t, s, %0;\n fma.rn.f32 %0, %1, %2, %0;\n"
        " sub.rn.f32 %1, %1, t;\n}"
        : "+f"(sum[i]), "+f"(d[i]) : "f"(one));
  }
  wgmma_pin(sum);
  wgmma_pin(d);
}

// An element of the product, by fused multiply-adds along K.
__device__ __forceinline__ float strict(const Place& p, int row, int column, int batch0, int batch1) {
  const auto line = [&](const tg_matrix& x, int64_t at) {
    return static_cast<const float*>(x.ptr) + at + batch0 * x.batch_stride[0] + batch1 * x.batch_stride[1];
  };
  const float* a = line(p.a, row * p.a.row_stride);
  const float* b = line(p.b, column * p.b.col_stride);
  float sum = 0;
  int k = 0;
  for (; k + 8 <= p.k && sum == sum; k += 8) {
    float x[8], y[8];
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = __ldg(a + (k + i) * p.a.col_stride), y[i] = __ldg(b + (k + i) * p.b.row_stride);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = fmaf(x[i], y[i], sum);
  }
  for (; k < p.k && sum == sum; k++) sum = fmaf(__ldg(a + k * p.a.col_stride), __ldg(b + k * p.b.row_stride), sum);
  return sum;
}

// Where tile t of the clusters is.
struct Tile {
  int m, n, batch0, batch1;
  __device__ Tile(const Place& p, int t) {
    const int in_matrix = p.m_clusters * p.n_tiles, batch = t / in_matrix;
    t -= batch * in_matrix;
    const int first = t / (p.m_clusters * p.strip) * p.strip, wide = min(p.strip, p.n_tiles - first);
    t -= first * p.m_clusters;
    m = t / wide, n = first + t - m * wide;
    batch0 = batch / p.batch1, batch1 = batch - batch0 * p.batch1;
  }
};

// A warp's 16 rows of D from its strip of shared memory: again where it is not finite, and through the epilogue, unless it is
// `whole` and left to TMA.
template <class C>
__device__ __forceinline__ void finish(const Place& p, const Epilogue<float, float>& epilogue, uint32_t strip, int row,
                                       int column, const Tile& tile, bool strange) {
  const int lane = threadIdx.x % 32;
  const auto at = [&](int panel, int i) {
    return strip + panel * C::panel_bytes + i * 128 + ((lane / 4 ^ i % 8) << 4) + lane % 4 * 4;
  };
  const auto get = [](uint32_t from) { return __uint_as_float(load_shared(from)); };
  if (strange) {
#pragma unroll 1
    for (int i = 0; i < 16 * C::panels; i++) {
      const uint32_t here = at(i / 16, i % 16);
      const int m = row + i % 16, n = column + i / 16 * 32 + lane;
      if (!(fabsf(get(here)) <= 3.402823466e38f) && m < p.m && n < p.n) {
        store_shared(here, strict(p, m, n, tile.batch0, tile.batch1));
      }
    }
    __syncwarp();
  }
  if (p.whole) return;
  float* const d =
      static_cast<float*>(p.d.ptr) + tile.batch0 * p.d.batch_stride[0] + tile.batch1 * p.d.batch_stride[1];
#pragma unroll 1
  for (int i = 0; i < 2 * C::panels; i++) {
    float x[8];
    int m[8], n[8];
    bool inside[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
      x[e] = get(at(i / 2, i % 2 * 8 + e));
      m[e] = row + i % 2 * 8 + e, n[e] = column + i / 2 * 32 + lane;
      inside[e] = m[e] < p.m && n[e] < p.n;
    }
    epilogue.each(x, m, n, inside, tile.batch0, tile.batch1);
#pragma unroll
    for (int e = 0; e < 8; e++) {
      if (inside[e]) d[m[e] * p.d.row_stride + n[e] * p.d.col_stride] = x[e];
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    multiply(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
             const __grid_constant__ CUtensorMap d_map, const __grid_constant__ Place p,
             const __grid_constant__ Epilogue<float, float> epilogue) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), strips = ring + C::stages * C::stage_bytes;
  const uint32_t full = strips + 4 * C::warp_groups * C::strip_bytes, empty = full + 8 * C::stages;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
  const int rank = C::cluster > 1 ? int(cluster_rank()) : 0, k_blocks = (p.k + C::depth - 1) / C::depth;
  const int first = blockIdx.x / C::cluster, step = gridDim.x / C::cluster;

  if (threadIdx.x == 0) {
    for (int s = 0; s < C::stages; s++) {
      mbarrier_init(full + 8 * s, 1);
      mbarrier_init(empty + 8 * s, 4 * C::warp_groups * C::cluster);
    }
    fence_mbarrier_init();
  }
  __syncwarp();
  if (C::cluster > 1) {
    cluster_arrive();
    cluster_wait();
  } else {
    __syncthreads();
  }
  griddepcontrol_wait();

  if (group == C::warp_groups) {
    setmaxnreg_dec<24>();
    if (warp == 4 * C::warp_groups && lane == 0) {
      prefetch_tensor_map(&a_map);
      prefetch_tensor_map(&b_map);
      if (p.whole) prefetch_tensor_map(&d_map);
      int s = 0, parity = 1;
      for (int t = first; t < p.tiles; t += step) {
        const Tile tile(p, t);
        const int row = (tile.m * C::cluster + rank) * C::height, column = tile.n * C::width;
        const int planes = 3 * (tile.batch0 * p.b_moves[0] + tile.batch1 * p.b_moves[1]);
        for (int kb = 0; kb < k_blocks; kb++) {
          const uint32_t a = ring + s * C::stage_bytes, b = a + C::a_bytes, barrier = full + 8 * s;
          mbarrier_wait(empty + 8 * s, parity);
          mbarrier_arrive_expect(barrier, C::stage_bytes);
          tma_load(&a_map, a, barrier, kb * C::depth, row, tile.batch1, tile.batch0, evict_normal);
#pragma unroll
          for (int part = 0; part < 3; part++) {
            if constexpr (C::cluster > 1) {
              constexpr int slice = C::width / C::cluster;
              tma_load_multicast(&b_map, b + part * C::part_bytes + rank * slice * (C::depth * 2), barrier, kb * C::depth,
                                 column + rank * slice, planes + part, evict_normal, uint16_t((1 << C::cluster) - 1));
            } else {
              tma_load(&b_map, b + part * C::part_bytes, barrier, kb * C::depth, column, planes + part, evict_normal);
            }
          }
          if (++s == C::stages) s = 0, parity ^= 1;
        }
      }
      launch_dependents();
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<240>();
    constexpr int size = C::width / 2;
    float sum[size], d[size];
#pragma unroll
    for (int i = 0; i < size; i++) asm volatile("mov.f32 %0, 0f00000000;" : "=f"(d[i]));  // not before setmaxnreg
    const int g = lane / 4, q = lane % 4;
    const uint32_t a_row = ring + (group * 64 + warp % 4 * 16 + g) * 128;
    const uint32_t strip = strips + warp * C::strip_bytes, total_at = strip + lane * 16;
    const uint64_t b0 = wgmma_descriptor_64(ring + C::a_bytes);
    const uint32_t empty_there = C::cluster > 1 && lane < C::cluster ? map_shared(empty, lane) : empty;
    int s = 0, parity = 0;
    const auto release = [&](int stage) {
      if constexpr (C::cluster > 1) {
        if (lane < C::cluster) mbarrier_arrive_cluster(empty_there + 8 * stage);
      } else {
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);
      }
    };
    const auto next_stage = [&] {
      if (++s == C::stages) s = 0, parity ^= 1;
    };
    // The parts of A's fragments for half `j` of the stage.
    using Fragments = uint32_t[3][4];
    const auto load = [&](Fragments& f, int j) __attribute__((always_inline)) {
      const uint32_t at = a_row + s * C::stage_bytes + (((2 * q + j) ^ g) << 4);
      const float4 x = load_shared_4_ordered(at), y = load_shared_4_ordered(at + 8 * 128);
      split(x.x, x.y, f[0][0], f[1][0], f[2][0]);
      split(y.x, y.y, f[0][1], f[1][1], f[2][1]);
      split(x.z, x.w, f[0][2], f[1][2], f[2][2]);
      split(y.z, y.w, f[0][3], f[1][3], f[2][3]);
#pragma unroll
      for (int part = 0; part < 3; part++) {
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+r"(f[part][i])::"memory");
      }
    };
    // Products of half `j`: p 0 to 4 the small ones, 5 the large one. `add` to what is in d.
    const auto product = [&](const Fragments& f, uint64_t b, int j, int p, int add) __attribute__((always_inline)) {
      constexpr int of_a[] = {0, 1, 2, 0, 1, 0}, of_b[] = {2, 1, 0, 1, 0, 0};
      wgmma_registers<C::width>(d, f[of_a[p]], b + ((of_b[p] * C::part_bytes + j * 32) >> 4), add);
    };
    const auto begin_turn = [&] {
      if (p.take_turns) bar_sync(1 + group, C::consumers);
      wgmma_fence();
    };
    const auto end_turn = [&] {
      wgmma_commit();
      if (p.take_turns) bar_arrive(2 - group, C::consumers);
    };
    if (p.take_turns && group == 1) bar_arrive(1, C::consumers);

    for (int t = first; t < p.tiles; t += step) {
#pragma unroll
      for (int i = 0; i < size; i++) sum[i] = 0;
      if constexpr (C::exact) {
#pragma unroll
        for (int i = 0; i < size; i++) d[i] = 0;
      }
      [[maybe_unused]] int left = p.sums;
      [[maybe_unused]] bool has_total = false;
      // To the total, exactly: what its rounding loses is the new sum (TwoSum). The last one gives the result.
      const auto to_total = [&](bool last) __attribute__((always_inline)) {
        if (!has_total && !last) {  // the tile before may be on its way out
          if (lane == 0) tma_store_wait_read();
          __syncwarp();
        }
        float total[size];
#pragma unroll
        for (int i = 0; i < size; i += 4) {
          total[i] = total[i + 1] = total[i + 2] = total[i + 3] = 0;
          if (has_total) {
            const float4 v = load_shared_4_ordered(total_at + i * 128);
            total[i] = v.x, total[i + 1] = v.y, total[i + 2] = v.z, total[i + 3] = v.w;
          }
        }
#pragma unroll
        for (int i = 0; i < size; i++) {
          const float old = total[i], x = sum[i];
          total[i] = __fadd_rn(old, x);
          const float of_x = __fsub_rn(total[i], old), of_old = __fsub_rn(total[i], of_x);
          sum[i] = __fadd_rn(__fsub_rn(old, of_old), __fsub_rn(x, of_x));
          if (last) sum[i] = __fadd_rn(total[i], __fmaf_rn(total[i], given_back, sum[i]));
        }
        if (!last) {
#pragma unroll
          for (int i = 0; i < size; i += 4) {
            store_shared_4(total_at + i * 128, make_float4(total[i], total[i + 1], total[i + 2], total[i + 3]));
          }
        }
        wgmma_pin(sum);
        has_total = true;
      };
      // Takes a sum from the tensor cores, where the next one starts with nothing, or with what this one lost.
      const auto take = [&]() __attribute__((always_inline)) {
        if constexpr (C::exact) {
          add_exactly(sum, d, p.one);
        } else {
          add_to(sum, d);
          if (--left == 0) to_total(false), left = p.sums;
        }
      };
      const auto result = [&]() __attribute__((always_inline)) {
        if constexpr (C::exact) {
#pragma unroll
          for (int i = 0; i < size; i++) sum[i] = __fadd_rn(sum[i], __fmaf_rn(sum[i], given_back, d[i]));
        } else {
          to_total(true);
        }
      };

      mbarrier_wait(full + 8 * s, parity);
      if constexpr (C::step == 16) {
        Fragments f[2];
        load(f[0], 0);
        for (int kb = 0; kb < k_blocks; kb++) {
          const uint64_t b = b0 + uint32_t(s * C::stage_bytes >> 4);
          const int now = s;
#pragma unroll
          for (int j = 0; j < 2; j++) {
            begin_turn();
#pragma unroll
            for (int i = 0; i < 6; i++) product(f[j], b, j, i, i > 0 || C::exact);
            end_turn();
            if (j == 0) {
              load(f[1], 1);
            } else {
              next_stage();
              if (kb + 1 < k_blocks) {
                mbarrier_wait(full + 8 * s, parity);
                load(f[0], 0);
              }
            }
            wgmma_wait();
            if (j == 1) release(now);
            take();
          }
        }
      } else {
        Fragments two[2][2];
        load(two[0][0], 0), load(two[0][1], 1);
        const auto block = [&](Fragments (&f)[2], Fragments (&next)[2], bool more) __attribute__((always_inline)) {
          const uint64_t b = b0 + uint32_t(s * C::stage_bytes >> 4);
          const int now = s;
          begin_turn();
#pragma unroll
          for (int i = 0; i < 6; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) product(f[j], b, j, i, i + j > 0 || C::exact);
          }
          end_turn();
          next_stage();
          if (more) {
            mbarrier_wait(full + 8 * s, parity);
            load(next[0], 0), load(next[1], 1);
          }
          wgmma_wait();
          release(now);
          take();
        };
        for (int kb = 0; kb < k_blocks; kb += 2) {
          block(two[0], two[1], kb + 1 < k_blocks);
          if (kb + 1 == k_blocks) break;
          block(two[1], two[0], kb + 2 < k_blocks);
        }
      }
      result();

      float zero = 0;
#pragma unroll
      for (int i = 0; i < size; i++) zero = fmaf(sum[i], 0.0f, zero);
      const bool strange = __any_sync(~0u, zero != 0);  // infinity * 0 and NaN
      if (lane == 0) tma_store_wait_read();
      __syncwarp();
#pragma unroll
      for (int i = 0; i < size; i += 4) {  // odd rows in another order: no bank conflicts
        const int panel = i / 16, c = i / 4 % 4;
        const float* const v = sum + panel * 16;
        const bool odd = g & 1;
        const uint32_t to = strip + panel * C::panel_bytes + g * 128 + (((2 * (odd ? c ^ 2 : c) + q / 2) ^ g) << 4) + q % 2 * 8;
        float x[4];
#pragma unroll
        for (int e = 0; e < 4; e++) x[e] = odd ? v[(c ^ 2) * 4 + e] : v[c * 4 + e];
        store_shared(to, x[0], x[1]);
        store_shared(to + 8 * 128, x[2], x[3]);
      }
      __syncwarp();
      const Tile tile(p, t);
      const int row = (tile.m * C::cluster + rank) * C::height + group * 64 + warp % 4 * 16, column = tile.n * C::width;
      if (strange || !p.whole) finish<C>(p, epilogue, strip, row, column, tile, strange);
      if (p.whole) {
        fence_proxy_async();
        __syncwarp();
        if (lane == 0 && row < p.m) {
#pragma unroll
          for (int panel = 0; panel < C::panels; panel++) {
            if (column + panel * 32 < p.n) {
              tma_store(&d_map, strip + panel * C::panel_bytes, column + panel * 32, row, tile.batch1, tile.batch0);
            }
          }
          tma_store_commit();
        }
      }
      __syncwarp();
    }
    if (lane == 0) tma_store_wait_read();
    __syncwarp();
  }
  if (C::cluster > 1) {  // nobody leaves while others may write here, or arrive
    cluster_arrive();
    cluster_wait();
  }
}

// Of A a copy, if anything; of B planes.
template <bool copies_a>
__global__ void __launch_bounds__(prepare_threads, 4)
    prepare_both(const __grid_constant__ Transpose a, const __grid_constant__ Unprepared b) {
  __shared__ __align__(16) float tile[64 * 64];
  // The workspace may be in use until the kernel before this one has ended, and the operands may be what that writes.
  griddepcontrol_wait();
  launch_dependents();
  if constexpr (copies_a) transpose_all(a);
  prepare(b, tile);
}

}  // namespace
}  // namespace tilegemm
