// The kernel. Two warp groups multiply 64 rows of W each, or four, two of which share rows and have a part of K each;
// one warp loads codes, one X, and one factors. A block goes over several tiles where K is whole.
#pragma once
#include "narrow/factors.hpp"
#include "narrow/multiply.hpp"
#include "narrow/parked.hpp"
#include "sm90_narrow_gemm/store.hpp"

namespace tilegemm {
namespace {

// The numbers of K of a block, in batches and in stages of codes.
struct Range {
  int begin, end, stage_begin, stage_end;
};

// The thread that loads codes.
template <class S>
__device__ __forceinline__ void load_codes(const CUtensorMap& w_map, const Problem& p, const narrow::Rings& rings,
                                           const Range& k) {
  const int ahead = min(k.stage_end - k.stage_begin, 2) * S::k_parts, n0 = place_of<S>(p, blockIdx.x).n0;
  for (int i = 0; i < ahead; i++) tma_prefetch(&w_map, (k.stage_begin * S::k_parts + i) * narrow::w_row, n0, 0);
  griddepcontrol_wait();
  const uint64_t policy = p.m_tiles == 1 ? evict_first : evict_normal;
  Stage w = Stage::to_fill();
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Place place = place_of<S>(p, tile);
    for (int stage = k.stage_begin; stage < k.stage_end; stage++) {
      const uint32_t barrier = w.acquire(rings.w_full, rings.w_empty, S::w_bytes);
#pragma unroll
      for (int i = 0; i < S::k_parts; i++)
        tma_load(&w_map, rings.w + w.s * S::w_bytes + i * S::w_box_bytes, barrier,
                 (stage * S::k_parts + i) * narrow::w_row, place.n0, 0, policy);
      w.advance(S::w_stages);
    }
  }
  launch_dependents();
}

// The thread that loads X: for a stage some batches of each part of K, as far as they are.
template <class S>
__device__ __forceinline__ void load_x(const CUtensorMap& x_map, const Problem& p, const narrow::Rings& rings,
                                       const Range& k) {
  griddepcontrol_wait();
  Stage x = Stage::to_fill();
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const int m0 = place_of<S>(p, tile).m0;
    for (int b = k.begin; b < k.end; b += S::batches) {
      for (int i = 0; i < min(S::own_batches, k.end - b); i += S::x_own) {
        const auto each = [&](const auto& use) {
#pragma unroll
          for (int part = 0; part < S::k_parts; part++) {
#pragma unroll
            for (int j = 0; j < S::x_own; j++) {
              const int of_stage = part * S::own_batches + i + j;
              if (b + of_stage < k.end) use(part * S::x_own + j, (b + of_stage) * narrow::batch);
            }
          }
        };
        int count = 0;
        each([&](int, int) { count++; });
        const uint32_t barrier = x.acquire(rings.x_full, rings.x_empty, count * p.x_box * 128);
        each([&](int box, int from) {
          tma_load(&x_map, rings.x + x.s * S::x_bytes + box * S::x_box_bytes, barrier, from, m0, 0, evict_normal);
        });
        x.advance(S::x_stages);
      }
    }
  }
}

template <class S>
__global__ void __launch_bounds__(S::threads, 1)
    sm90_narrow_gemm(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ Problem p,
                     const __grid_constant__ Epilogue<typename S::Number, float> epilogue) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const narrow::Rings rings = narrow::Rings::of(shared, S{});
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, part = blockIdx.y;
  const int k_batches = (int(p.args.k) + narrow::batch - 1) / narrow::batch, begin = part * p.batches_of_part;
  const int end = min(begin + p.batches_of_part, k_batches);
  const Range k{begin, end, begin / S::batches, (end + S::batches - 1) / S::batches};
  constexpr int loader_w = S::warps, loader_x = S::warps + 1, loader_f = S::warps + 2;

  if (warp == loader_x && lane == 0) {
    prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&x_map);
    init_ring(rings.x_full, rings.x_empty, S::x_stages, S::warps);
    init_ring(rings.w_full, rings.w_empty, S::w_stages, S::warps, S::is_late ? 1 : 1 + 32);
    fence_mbarrier_init();
  }
  __syncthreads();

  if (warp >= S::warps) {
    setmaxnreg_dec<S::loads_registers>();
    if (warp == loader_w && lane == 0) load_codes<S>(w_map, p, rings, k);
    if (warp == loader_x && lane == 0) load_x<S>(x_map, p, rings, k);
    if (warp == loader_f && !S::is_late) {
      const narrow::FactorCopier<S, Problem> copier(p, rings.factors, lane);
      griddepcontrol_wait();
      Stage f = Stage::to_fill();
      for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x)
        copier.run(p.args.b_scale, place_of<S>(p, tile).n0, k.stage_begin, k.stage_end, f, rings.w_full, rings.w_empty);
    }
    return;
  }
  setmaxnreg_inc<S::registers>();

  const int row_warp = warp % S::row_warps, k_part = warp / S::row_warps;
  // No stride of B is odd.
  narrow::Multiplier<S> own(p, rings, row_warp, k_part, lane, uint32_t(p.args.b.col_stride) & 1);
  const int64_t k_begin = int64_t(begin) * narrow::batch, k_end = min(int64_t(end) * narrow::batch, p.args.k);
  float4* const parked = reinterpret_cast<float4*>(shared + S::parked_at) + row_warp * S::parked * 32;
  for (int tile = blockIdx.x; tile < p.tiles; tile += gridDim.x) {
    const Place place = place_of<S>(p, tile);
    const int n0 = place.n0 + row_warp * 16, m0 = place.m0;
    float late[2] = {1.0f, 1.0f};
    if constexpr (S::is_late) {
      if (p.args.b_scale.ptr) {
        griddepcontrol_wait();
#pragma unroll
        for (int r = 0; r < 2; r++) {
          const int n = min(n0 + lane / 4 + 8 * r, int(p.args.n) - 1);
          late[r] = narrow::factor_at(p.args.b_scale.format, p.args.b_scale.ptr, narrow::place_of_factor(p, 0, n));
        }
      }
    }
    own.multiply(begin, end);
    if constexpr (S::k_parts > 1) {
      // The sums of the second part of K come to those of the first.
      float4* const slots = reinterpret_cast<float4*>(shared + S::parked_at) + row_warp * S::columns * 32 + lane;
      if (tile != blockIdx.x) bar_sync(narrow::parts_barrier, 32 * S::warps);  // the slots are free
      if (k_part > 0) {
#pragma unroll
        for (int j = 0; j < S::columns; j++) slots[j * 32] = fragment(own.sum, j);
      }
      bar_sync(narrow::parts_barrier, 32 * S::warps);
      if (k_part > 0) continue;
#pragma unroll
      for (int j = 0; j < S::columns; j++) {
        const float4 v = slots[j * 32];
        own.sum[4 * j] += v.x, own.sum[4 * j + 1] += v.y, own.sum[4 * j + 2] += v.z, own.sum[4 * j + 3] += v.w;
      }
      __syncwarp();
    }
    if constexpr (S::is_late) own.scale(late[0], late[1]);
    griddepcontrol_wait();
    // The compiler would load what only the epilogue needs ahead of the products.
    const Epilogue<typename S::Number, float>* of_results = &epilogue;
    const Problem* of_problem = &p;
    asm volatile("" : "+l"(of_results), "+l"(of_problem));
    const int m_end = min(m0 + p.x_box, int(p.args.m)), n = int(p.args.n);
    const bool is_part = gridDim.y > 1;
    void* const d = is_part ? static_cast<float*>(p.args.workspace) + int64_t(part) * p.args.m * n : p.args.d.ptr;
    const Results<typename S::Number> results{d,     is_part ? n : p.args.d.row_stride, m_end, place.n_from, n, is_part,
                                              p.wide};
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
        for (int e = 0; e < 8; e++) x[e] = epilogue.alpha * own.sum[4 * j + e];
        results.put(x, n0, m0 + j * 8);
      }
    } else {
      narrow::each_parked<S>(parked, own.sum, [&](float4* pair, int i) {
        if (m0 + 16 * i < m_end) finish<S>(pair, *of_problem, results, *of_results, n0, m0 + 16 * i, k_begin, k_end);
      });
    }
  }
}

}  // namespace
}  // namespace tilegemm
