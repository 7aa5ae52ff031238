// The kernels of sm90_bf16x6.cu; that file describes the algorithm.
#pragma once
#include "common/bf16_sums.hpp"
#include "common/epilogue.hpp"
#include "common/pipeline.hpp"
#include "common/ptx.hpp"
#include "common/tile_order.hpp"
#include "common/transpose.hpp"

namespace tilegemm {
namespace {

// Step: the K after which sums leave the tensor cores. Exact: additions to `sum` are exact, because the next sum in the
// tensor cores starts from the rounding error; otherwise there are totals.
template <int Width, int Cluster, int Step, bool Exact>
struct Config {
  static constexpr int height = 128, width = Width, depth = 32, cluster = Cluster,
                       step = Step;  // blocks of a cluster share B
  static constexpr bool exact = Exact;
  static constexpr int warp_groups = 2, consumers = 128 * warp_groups, threads = consumers + 128;
  static constexpr int a_bytes = height * depth * 4, part_bytes = width * depth * 2,
                       stage_bytes = a_bytes + 3 * part_bytes;
  static constexpr int stages = width == 128 ? 4 : 6;
  // The strip of a warp holds the totals of the warp's lanes, and later 16 rows of the tile, in panels of 32 columns,
  // on their way to D.
  static constexpr int panels = width / 32, strip_bytes = panels * panel_bytes;
  static constexpr int barriers_bytes = 8 * 2 * stages;
  static constexpr int shared_bytes = stages * stage_bytes + 4 * warp_groups * strip_bytes + barriers_bytes;
  static_assert((width == 64 || width == 128) && (step == 16 || step == 32) && width / cluster % 8 == 0);
  static_assert(stage_bytes % 1024 == 0 && part_bytes % 1024 == 0 && shared_bytes <= 227 * 1024);
  static_assert(width / 2 * 4 * 32 == strip_bytes);
};

struct Place {
  tg_matrix a, b, d;  // the caller's matrices
  int m, n, k;
  TileOrder order;  // of clusters
  int b_moves[2];   // distances along the batch, in matrices, between the planes of B; 0 where B is broadcast
  int sums;         // partial sums that are added to `sum` before `sum` goes to the total
  float one;        // 1, unknown to the compiler
  bool take_turns;
  bool whole;  // D is the product alone, and TMA can store D
};

template <int size>
__device__ __forceinline__ void add_to(float (&sum)[size], float (&d)[size]) {
  wgmma_pin(d);
#pragma unroll
  for (int i = 0; i < size; i++) sum[i] += d[i];
  wgmma_pin(sum);
}

// Finishes a warp's 16 rows of D in the warp's strip of shared memory. `strange`: a number is not finite; such numbers
// are computed again. Then the rows go through the epilogue to D, unless TMA stores D (`whole`).
template <class C>
__device__ __forceinline__ void finish(const Place& p, const Epilogue<float, float>& epilogue, uint32_t strip, int row,
                                       int column, const Tile& tile, bool strange) {
  const int lane = threadIdx.x % 32;
  if (strange) {
    mend_strip<C::panels>(strip, row, column, p.m, p.n,
                          [&](int m, int n) { return strict(p.a, p.b, p.k, m, n, tile.batch0, tile.batch1); });
    __syncwarp();
  }
  if (p.whole) return;
  float* const d = matrix_of<float>(p.d, tile.batch0, tile.batch1);
#pragma unroll 1
  for (int i = 0; i < 2 * C::panels; i++) {
    float x[8];
    int m[8], n[8];
    bool inside[8];
#pragma unroll
    for (int e = 0; e < 8; e++) {
      x[e] = __uint_as_float(load_shared(in_strip(strip, i / 2, i % 2 * 8 + e, lane)));
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
    sm90_bf16x6(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                const __grid_constant__ CUtensorMap d_map, const __grid_constant__ Place p,
                const __grid_constant__ Epilogue<float, float> epilogue) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), strips = ring + C::stages * C::stage_bytes;
  const uint32_t full = strips + 4 * C::warp_groups * C::strip_bytes, empty = full + 8 * C::stages;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, group = warp / 4;
  const int rank = C::cluster > 1 ? int(cluster_rank()) : 0, k_blocks = (p.k + C::depth - 1) / C::depth;
  const int first = blockIdx.x / C::cluster, step = gridDim.x / C::cluster;

  if (threadIdx.x == 0) {
    init_ring(full, empty, C::stages, 4 * C::warp_groups * C::cluster);
    fence_mbarrier_init();
  }
  __syncwarp();
  if (C::cluster > 1) cluster_sync();
  else __syncthreads();
  griddepcontrol_wait();

  if (group == C::warp_groups) {
    setmaxnreg_dec<24>();
    if (warp == 4 * C::warp_groups && lane == 0) {
      prefetch_tensor_map(&a_map);
      prefetch_tensor_map(&b_map);
      if (p.whole) prefetch_tensor_map(&d_map);
      Stage at = Stage::to_fill();
      for (int t = first; t < p.order.total; t += step) {
        const Tile tile = p.order.at(t);
        const int row = (tile.m * C::cluster + rank) * C::height, column = tile.n * C::width;
        const int planes = 3 * (tile.batch0 * p.b_moves[0] + tile.batch1 * p.b_moves[1]);
        for (int kb = 0; kb < k_blocks; kb++) {
          const uint32_t a = ring + at.s * C::stage_bytes, b = a + C::a_bytes;
          const uint32_t barrier = at.acquire(full, empty, C::stage_bytes);
          tma_load(&a_map, a, barrier, kb * C::depth, row, tile.batch1, tile.batch0, evict_normal);
#pragma unroll
          for (int part = 0; part < 3; part++) {
            if constexpr (C::cluster > 1) {
              constexpr int slice = C::width / C::cluster;
              tma_load_multicast(&b_map, b + part * C::part_bytes + rank * slice * (C::depth * 2), barrier,
                                 kb * C::depth, column + rank * slice, planes + part, evict_normal,
                                 uint16_t((1 << C::cluster) - 1));
            } else {
              tma_load(&b_map, b + part * C::part_bytes, barrier, kb * C::depth, column, planes + part, evict_normal);
            }
          }
          at.advance(C::stages);
        }
      }
      launch_dependents();
    }
    __syncwarp();
  } else {
    setmaxnreg_inc<240>();
    constexpr int size = C::width / 2;
    float sum[size], d[size];  // ((2,2,width/8)): of the tile; of the products under way
    wgmma_zero(d);
    const int g = lane / 4, q = lane % 4;
    const uint32_t a_row = ring + (group * 64 + warp % 4 * 16 + g) * 128;
    const uint32_t strip = strips + warp * C::strip_bytes, total_at = strip + lane * 16;
    const uint64_t b0 = wgmma_descriptor_64(ring + C::a_bytes);
    const uint32_t empty_there = C::cluster > 1 && lane < C::cluster ? map_shared(empty, lane) : empty;
    Stage at = Stage::to_read();
    const auto release = [&](int stage) { release_stage(empty_there, stage, lane, C::cluster > 1, C::cluster); };
    const auto advance = [&] { at.advance(C::stages); };
    // The parts of A's fragments for half `j` of the stage.
    const auto load = [&](Fragments& f, int j) __attribute__((always_inline)) {
      load_fragments(f, a_row + at.s * C::stage_bytes + (((2 * q + j) ^ g) << 4));
    };
    const auto product = [&](const Fragments& f, uint64_t b, int j, int p, int add) __attribute__((always_inline)) {
      multiply_parts<C::width, C::part_bytes>(d, f, b, j, p, add);
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

    for (int t = first; t < p.order.total; t += step) {
#pragma unroll
      for (int i = 0; i < size; i++) sum[i] = 0;
      if constexpr (C::exact) {
#pragma unroll
        for (int i = 0; i < size; i++) d[i] = 0;
      }
      [[maybe_unused]] int left = p.sums;
      [[maybe_unused]] bool has_total = false;
      // Adds `sum` to the total; `sum` becomes the rounding error of the addition (TwoSum). The last call leaves the
      // result in `sum`.
      const auto to_total = [&](bool last) __attribute__((always_inline)) {
        if (!has_total && !last) {  // TMA may still read the tile before from the strip
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
          sum[i] = add_whole(total[i], sum[i]);
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
      // Adds the sum of the tensor cores to `sum`. The next sum of the tensor cores starts from the rounding error if
      // C::exact, otherwise from zero.
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

      at.wait(full);
      if constexpr (C::step == 16) {
        Fragments f[2];
        load(f[0], 0);
        for (int kb = 0; kb < k_blocks; kb++) {
          const uint64_t b = b0 + uint32_t(at.s * C::stage_bytes >> 4);
          const int now = at.s;
#pragma unroll
          for (int j = 0; j < 2; j++) {
            begin_turn();
#pragma unroll
            for (int i = 0; i < 6; i++) product(f[j], b, j, i, i > 0 || C::exact);
            end_turn();
            if (j == 0) {
              load(f[1], 1);
            } else {
              advance();
              if (kb + 1 < k_blocks) {
                at.wait(full);
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
        const auto block = [&](Fragments(&f)[2], Fragments(&next)[2], bool more) __attribute__((always_inline)) {
          const uint64_t b = b0 + uint32_t(at.s * C::stage_bytes >> 4);
          const int now = at.s;
          begin_turn();
#pragma unroll
          for (int i = 0; i < 6; i++) {
#pragma unroll
            for (int j = 0; j < 2; j++) product(f[j], b, j, i, i + j > 0 || C::exact);
          }
          end_turn();
          advance();
          if (more) {
            at.wait(full);
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

      const bool strange = any_strange(sum);
      store_strip(sum, strip, lane);
      const Tile tile = p.order.at(t);
      const int row = (tile.m * C::cluster + rank) * C::height + group * 64 + warp % 4 * 16, column = tile.n * C::width;
      if (strange || !p.whole) finish<C>(p, epilogue, strip, row, column, tile, strange);
      if (p.whole) tma_store_strip<C::panels>(d_map, strip, row, column, p.m, p.n, tile.batch0, tile.batch1, lane);
      __syncwarp();
    }
    if (lane == 0) tma_store_wait_read();
    __syncwarp();
  }
  if (C::cluster > 1)
    cluster_sync();  // this block stays while another block may signal or store to this block's shared memory
}

// Prepares the operands: the transposed copy of A, if `copies_a`, and the planes of B.
template <bool copies_a>
__global__ void __launch_bounds__(prepare_threads, 4)
    sm90_bf16x6_prepare(const __grid_constant__ Transpose a, const __grid_constant__ Unprepared b) {
  __shared__ __align__(16) float tile[64 * 64];
  // Until the kernel before has ended, that kernel may read the workspace and write the operands.
  griddepcontrol_wait();
  launch_dependents();
  if constexpr (copies_a) transpose_all(a);
  prepare(b, tile);
}

}  // namespace
}  // namespace tilegemm
