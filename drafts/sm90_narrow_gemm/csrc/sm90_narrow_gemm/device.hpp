// The kernel. One or two warp groups and more multiply 64 rows of W each; one warp loads codes, one X, and one factors.
// Blocks of a cluster share tiles of X, or have parts of K, whose sums meet in distributed shared memory. A block goes
// over several tiles where K is whole.
#pragma once
#include "sm90_narrow_gemm/factors.hpp"
#include "sm90_narrow_gemm/multiply.hpp"
#include "sm90_narrow_gemm/store.hpp"

namespace tilegemm {
namespace {

template <class S>
__global__ void __launch_bounds__(S::threads, S::blocks)
    sm90_narrow_gemm(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ Problem p, const __grid_constant__ Epilogues<typename S::Number> epilogues) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const Rings rings = Rings::of(shared, S{});
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int share = p.share, split = p.split, in_cluster = p.in_cluster ? split : 1;
  const bool clustered = share * in_cluster > 1;
  const int rank = clustered ? int(cluster_rank()) : 0, at = rank % share;  // shares are 1 or 2
  const int first_rank = rank - at;
  const int part = p.in_cluster ? rank / share : int(blockIdx.y);
  const int first_tile = blockIdx.x / (share * in_cluster), step = gridDim.x / (share * in_cluster);
  const int k_batches = (int(p.args.k) + batch - 1) / batch;
  const int begin = part * p.batches_of_part, end = min(begin + p.batches_of_part, k_batches);
  const int stage_begin = begin / S::batches, stage_end = (end + S::batches - 1) / S::batches;
  constexpr int loader_w = S::warps, loader_x = S::warps + 1, loader_f = S::warps + 2;

  if (warp == loader_x && lane == 0) {
    prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&x_map);
    init_ring(rings.x_full, rings.x_empty, S::x_stages, S::warps * share);
    init_ring(rings.w_full, rings.w_empty, S::w_stages, S::warps, S::is_late ? 1 : 1 + 32);
    mbarrier_init(rings.sums, 1);
    fence_mbarrier_init();
  }
  __syncwarp();
  if (clustered) cluster_sync();
  else __syncthreads();

  if (warp >= S::warps) {
    if constexpr (S::registers > S::at_launch) setmaxnreg_dec<S::loads_registers>();
    if (warp == loader_w && lane == 0) {
      const Place first = place_of<S>(p, first_tile, at);
      for (int i = 0; i < min(stage_end - stage_begin, 2) * S::k_parts; i++)
        tma_prefetch(&w_map, (stage_begin * S::k_parts + i) * w_row, first.n0, 0);
      griddepcontrol_wait();
      const uint64_t policy = p.m_tiles == 1 ? evict_first : evict_normal;
      Stage w = Stage::to_fill();
      for (int tile = first_tile; tile < p.tiles; tile += step) {
        const Place place = place_of<S>(p, tile, at);
        for (int stage = stage_begin; stage < stage_end; stage++) {
          const uint32_t barrier = w.acquire(rings.w_full, rings.w_empty, S::w_bytes);
#pragma unroll
          for (int i = 0; i < S::k_parts; i++)
            tma_load(&w_map, rings.w + w.s * S::w_bytes + i * S::w_box_bytes, barrier, (stage * S::k_parts + i) * w_row,
                     place.n0, 0, policy);
          w.advance(S::w_stages);
        }
      }
      launch_dependents();
    } else if (warp == loader_x && lane == 0) {
      griddepcontrol_wait();
      const uint16_t sharing = uint16_t(3 << first_rank);
      const int rows = p.x_box / share;
      Stage x = Stage::to_fill();
      for (int tile = first_tile; tile < p.tiles; tile += step) {
        const Place place = place_of<S>(p, tile, at);
        for (int b = begin; b < end; b += S::batches) {
          for (int i = 0; i < min(S::own_batches, end - b); i += S::x_own) {
            // Some batches of each part of K, as far as they are.
            const auto each = [&](const auto& use) {
#pragma unroll
              for (int part = 0; part < S::k_parts; part++) {
#pragma unroll
                for (int j = 0; j < S::x_own; j++) {
                  const int of_stage = part * S::own_batches + i + j;
                  if (b + of_stage < end) use(part * S::x_own + j, (b + of_stage) * batch);
                }
              }
            };
            int count = 0;
            each([&](int, int) { count++; });
            const uint32_t barrier = x.acquire(rings.x_full, rings.x_empty, count * p.x_box * 128);
            each([&](int box, int k) {
              const uint32_t to = rings.x + x.s * S::x_bytes + box * S::x_box_bytes + at * rows * 128;
              const int m = place.m0 + at * rows;
              if (share > 1) tma_load_multicast(&x_map, to, barrier, k, m, 0, evict_normal, sharing);
              else tma_load(&x_map, to, barrier, k, m, 0, evict_normal);
            });
            x.advance(S::x_stages);
          }
        }
      }
    } else if (warp == loader_f) {
      if constexpr (!S::is_late) {
        const FactorCopier<S> copier(p, rings.factors, lane);
        griddepcontrol_wait();
        Stage f = Stage::to_fill();
        for (int tile = first_tile; tile < p.tiles; tile += step)
          copier.run(place_of<S>(p, tile, at).n0, stage_begin, stage_end, f, rings.w_full, rings.w_empty);
      }
    }
    __syncwarp();
    if (clustered) {
      if (in_cluster > 1) cluster_sync();
      cluster_sync();
    }
    return;
  }
  if constexpr (S::registers > S::at_launch) setmaxnreg_inc<S::registers>();

  // Lane t signals a free stage to the t-th of the blocks that share X.
  const uint32_t empty_there = share > 1 && lane < share ? map_shared(rings.x_empty, first_rank + lane) : rings.x_empty;
  const int row_warp = warp % S::row_warps, k_part = warp / S::row_warps;
  Multiplier<S> own(rings, row_warp, k_part, lane, empty_there, share, p.w.zeros != nullptr,
                    uint32_t(p.w.row_bytes) & 1);
  const int64_t k_begin = int64_t(begin) * batch, k_end = min(int64_t(end) * batch, p.args.k);
  float4* const parked = reinterpret_cast<float4*>(shared + S::parked_at) + row_warp * S::parked * 32;
  for (int tile = first_tile; tile < p.tiles; tile += step) {
    const Place place = place_of<S>(p, tile, at);
    const int n0 = place.n0 + row_warp * 16, m0 = place.m0;
    float late[2] = {1.0f, 1.0f};
    if constexpr (S::is_late) {
      griddepcontrol_wait();
      uint32_t zeros[2];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int64_t factor = narrow::place_of_factor(p.w, min(n0 + lane / 4 + 8 * r, int(p.args.n) - 1), 0);
        late[r] = narrow::number_of(S::factor, narrow::factor_bits(p.w.factors, S::factor_bytes, factor));
        zeros[r] = S::has_zeros && p.w.zeros ? uint32_t(p.w.zeros[factor]) : narrow::usual_zero(S::code);
      }
      own.set_zeros(zeros[0], zeros[1]);
    }
    own.multiply(begin, end);
    if constexpr (S::k_parts > 1) {
      // The sums of the other parts of K, part by part.
      float4* const slots = reinterpret_cast<float4*>(shared + S::parked_at) + lane;
      const auto slot = [&](int part, int j) -> float4& {
        return slots[(((part - 1) * S::row_warps + row_warp) * S::columns + j) * 32];
      };
      if (tile != first_tile) bar_sync(parts_barrier, 32 * S::warps);  // the slots are free
      if (k_part > 0) {
#pragma unroll
        for (int j = 0; j < S::columns; j++) slot(k_part, j) = fragment(own.sum, j);
      }
      bar_sync(parts_barrier, 32 * S::warps);
      if (k_part == 0) {
#pragma unroll
        for (int part = 1; part < S::k_parts; part++) {
#pragma unroll
          for (int j = 0; j < S::columns; j++) {
            const float4 v = slot(part, j);
            own.sum[4 * j] += v.x, own.sum[4 * j + 1] += v.y, own.sum[4 * j + 2] += v.z, own.sum[4 * j + 3] += v.w;
          }
        }
        __syncwarp();
      }
    }
    if constexpr (S::is_late) own.scale(late[0], late[1]);
    griddepcontrol_wait();
    // The compiler would load what only the epilogue needs ahead of the products.
    const Epilogues<typename S::Number>* of_results = &epilogues;
    const Problem* of_problem = &p;
    asm volatile("" : "+l"(of_results), "+l"(of_problem));
    const int m_end = min(m0 + p.x_box, int(p.args.m));
    const bool is_part = split > in_cluster;
    void* d = p.args.d.ptr;
    if (is_part) d = static_cast<float*>(p.args.workspace) + int64_t(part) * p.args.m * p.args.n;
    const Results<typename S::Number> results{d,       is_part ? p.args.n : p.args.d.row_stride, m_end, place.n_from,
                                              int(p.args.n), is_part || p.is_f32,               p.wide};
    if (in_cluster == 1) {
      if (k_part > 0) continue;
      bool finite = true;
      if (p.plain) {
        float zero = 0.0f;
#pragma unroll
        for (int i = 0; i < S::width / 2; i++) {
          // Columns after the last row of X have sums of any numbers.
          if (i / 4 * 8 + lane % 4 * 2 + i % 2 + m0 < m_end) zero = fmaf(own.sum[i], 0.0f, zero);
        }
        finite = __all_sync(~0u, zero == 0.0f);
      }
      if (p.plain && finite) {
#pragma unroll
        for (int j = 0; j < S::columns; j += 2) {
          if (m0 + j * 8 >= m_end) break;
          float x[8];
#pragma unroll
          for (int e = 0; e < 8; e++) x[e] = epilogues.of_f32.alpha * own.sum[4 * j + e];
          results.put(x, n0, m0 + j * 8);
        }
      } else {
        each_parked<S>(parked, own.sum, [&](float4* pair, int i) {
          if (m0 + 16 * i < m_end) finish<S>(pair, *of_problem, results, *of_results, n0, m0 + 16 * i, k_begin, k_end);
        });
      }
    } else {
      // Block i % split of the parts adds up and stores pair i of fragments, in the place of the rings, which has a slot
      // for each part.
      constexpr int pairs = S::columns / 2, pair_bytes = 2 * 512;
      const int slots = (S::row_warps * pairs + split - 1) / split;
      if (threadIdx.x == 0) {
        const int mine = (S::row_warps * pairs - part + split - 1) / split;
        mbarrier_arrive_expect(rings.sums, mine * split * pair_bytes);
      }
      cluster_sync();  // all rings are free
      int slot = row_warp * pairs / split, owner = row_warp * pairs - slot * split;
#pragma unroll
      for (int j = 0; j < pairs && k_part == 0; j++) {
        const int there = owner * share + at;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int f = 2 * j + i;
          store_async(map_shared(rings.x + (part * slots + slot) * pair_bytes + i * 512 + lane * 16, there),
                      map_shared(rings.sums, there), fragment(own.sum, f));
        }
        if (++owner == split) owner = 0, slot++;
      }
      mbarrier_wait_warp(rings.sums, 0);
      float4* const all = reinterpret_cast<float4*>(shared);
      for (int mine = warp, pair; mine < slots && (pair = mine * split + part) < S::row_warps * pairs; mine += S::warps) {
        float4* const first = all + mine * (pair_bytes / 16);
        const int of_n = place.n0 + pair / pairs * 16, of_m = m0 + pair % pairs * 16;
        if (of_m >= m_end) continue;
        float4 v[2] = {};
#pragma unroll 1
        for (int i = 0; i < split; i++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float4 one = first[i * slots * (pair_bytes / 16) + e * 32 + lane];
            v[e].x += one.x, v[e].y += one.y, v[e].z += one.z, v[e].w += one.w;
          }
        }
        first[lane] = v[0], first[32 + lane] = v[1];
        __syncwarp();
        finish<S>(first, *of_problem, results, *of_results, of_n, of_m, 0, p.args.k);
      }
    }
  }
  if (clustered) cluster_sync();
}

}  // namespace
}  // namespace tilegemm
