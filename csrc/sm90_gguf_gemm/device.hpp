// The kernel: one or two warp groups multiply 64 rows of W each, and a thread loads the activations. Two parts of K are
// the blocks of a cluster; the sums of more parts go to the workspace.
#pragma once
#include "common/add_parts.hpp"
#include "gguf/half.hpp"
#include "sm90_gguf_gemm/store.hpp"

namespace tilegemm {
namespace {

// So many parts of K are the blocks of a cluster. Larger clusters find no place on parts of an H100, and wait.
constexpr int most_in_cluster = 2;

// Tiles of up to so many rows of A have W and A in f16. With 256, f16 takes more power than bf16, and more time
// (docs/gguf.md).
constexpr int most_half = 192;

// Bytes of the factors of a tile's rows of A in shared memory.
template <int WIDTH>
constexpr int factor_bytes = WIDTH <= most_half ? 4 * WIDTH : 0;

template <tg_format F, int WIDTH>
struct Shape : gguf::WgmmaShape<F, WIDTH, factor_bytes<WIDTH>> {
  using Base = gguf::WgmmaShape<F, WIDTH, factor_bytes<WIDTH>>;
  static constexpr bool is_half = WIDTH <= most_half;
  using Multiplier = std::conditional_t<is_half, gguf::Multiplier<Base, gguf::HalfWeights>, gguf::Multiplier<Base>>;
  static constexpr int x_factors_at = Base::shared_bytes, shared_bytes = x_factors_at + factor_bytes<WIDTH>;
};

// `factors`: of the rows of A, where A is in f16. A warp takes them to shared memory while others multiply.
template <class S>
__global__ void __launch_bounds__(S::threads, S::blocks)
    sm90_gguf_gemm(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ tg_gemm_args args,
                   const float* factors, int spans_of_part, tg_format out) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const gguf::XRing x = gguf::XRing::of(shared, S{});
  float* const x_factors = reinterpret_cast<float*>(shared + S::x_factors_at);
  const uint32_t x_factors_known = x.sums + 8;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_m = blockIdx.x * S::width, first_n = blockIdx.y * S::height;
  const int k = int(args.k), spans = (k + gguf::span - 1) / gguf::span;
  const int begin = blockIdx.z * spans_of_part, end = min(begin + spans_of_part, spans);
  constexpr int columns = S::width / 8, fragments = S::warps * columns, fragment_bytes = 32 * 16;
  const int split = gridDim.z;
  const bool is_whole = split <= most_in_cluster;
  if (threadIdx.x == 0) {
    init_ring(x.full, x.empty, S::x_stages, S::warps);
    mbarrier_init(x.sums, 1);
    mbarrier_init(x_factors_known, 32);
    fence_mbarrier_init();
    if (split > 1 && is_whole)
      mbarrier_arrive_expect(x.sums, (fragments - int(blockIdx.z) + split - 1) / split * split * fragment_bytes);
  }
  __syncthreads();

  if (warp >= S::warps) {
    setmaxnreg_dec<S::of_loads>();
    if (warp == S::warps && lane == 0) {
      prefetch_tensor_map(&x_map);
      griddepcontrol_wait();
      Stage at = Stage::to_fill();
      for (int from = begin * gguf::span; from < end * gguf::span; from += S::depth) {
        const uint32_t barrier = at.acquire(x.full, x.empty, S::x_bytes);
        tma_load(&x_map, x.stages + at.s * S::x_bytes, barrier, from, first_m, 0, evict_normal);
        at.advance(S::x_stages);
      }
      launch_dependents();
    }
    if (S::is_half && warp == S::warps + 1) {
      griddepcontrol_wait();
      for (int i = lane; i < S::width; i += 32) x_factors[i] = first_m + i < args.m ? factors[first_m + i] : 0.0f;
      mbarrier_arrive(x_factors_known);
    }
    return;
  }
  setmaxnreg_inc<S::registers>();

  const int first_row = first_n + warp * gguf::rows_of_warp;
  typename S::Multiplier own(shared, warp, lane);
  gguf::Ring<typename S::Ring> ring(args, 0, first_row, begin, own.ring_of_warp);
  own.start(ring, begin, end);
  float sum[S::width / 2];  // ((2,2,width/8)), of D^T
  own.template multiply<S::width>(sum, ring, k, begin, end);
  if constexpr (S::is_half) {
    mbarrier_wait_warp(x_factors_known, 0);
#pragma unroll
    for (int j = 0; j < columns; j++) {
      const float2 of_rows = *reinterpret_cast<const float2*>(x_factors + 8 * j + 2 * t);
      sum[4 * j] *= of_rows.x, sum[4 * j + 1] *= of_rows.y, sum[4 * j + 2] *= of_rows.x, sum[4 * j + 3] *= of_rows.y;
    }
  }

  const float alpha = is_whole ? float(args.alpha) : 1.0f;
  const Place place{args, warp, lane, first_m, first_n, alpha};
  // Block f % split of the cluster adds up fragment f, a warp's rows of W by eight columns, from its ring, which has a
  // slot for each part.
  const auto store_together = [&](auto* d, int64_t stride) {
    cluster_sync();  // all rings are free
    const int part = blockIdx.z, slots = (fragments + split - 1) / split;
    int slot = warp * columns / split, owner = warp * columns - slot * split;
#pragma unroll
    for (int j = 0; j < columns; j++) {
      store_async(map_shared(x.stages + (part * slots + slot) * fragment_bytes + lane * 16, owner),
                  map_shared(x.sums, owner), fragment(sum, j));
      if (++owner == split) owner = 0, slot++;
    }
    mbarrier_wait_warp(x.sums, 0);
    // `use` gets the slot, the first row of W, and the first row of A of each fragment that the warp adds up: in turn
    // those of other rows of A, so that no warp has all results of one that overflows (gguf/exact.hpp).
    const auto each_fragment = [&](const auto& use) {
      for (int turn = 0; turn * S::warps < slots; turn++) {
        const int mine = turn * S::warps + (warp + turn) % S::warps, f = mine * split + part;
        if (mine < slots && f < fragments)
          use(mine, first_n + f / columns * gguf::rows_of_warp, first_m + f % columns * 8);
      }
    };
    bool are_finite = true;
    each_fragment([&](int mine, int of_n, int of_m) {
      float4 v = {};
      for (int i = 0; i < split; i++) {
        const float4 one = load_shared_4_ordered(x.stages + (i * slots + mine) * fragment_bytes + lane * 16);
        v.x += one.x, v.y += one.y, v.z += one.z, v.w += one.w;
      }
      const int m = of_m + 2 * t, n = of_n + 2 * g;
      gguf::Stores stores(args, d, stride, n, int(args.m) - m);
      auto* const to = d + m * stride + n;
      stores.put_rows([&](const auto& put) {
        put(0, to, v.x, v.z, alpha);
        put(1, to + stride, v.y, v.w, alpha);
      });
      are_finite &= stores.are_finite();
    });
    if (!__all_sync(~0u, are_finite)) {
      each_fragment([&](int, int of_n, int of_m) {
        gguf::repair<S::format>(args, 0, of_n, min(8, int(args.m) - of_m), 0, args.k,
                                RowsFrom<std::remove_pointer_t<decltype(d)>>{of_m, d, stride, alpha});
      });
    }
  };
  const auto finish = [&](auto* d, int64_t stride) {
    split > 1 && is_whole ? store_together(d, stride) : store<S>(place, sum, d, stride, begin, end);
  };
  if (is_whole && out == TG_F16) finish(static_cast<__half*>(args.d.ptr), args.d.row_stride);
  else if (is_whole && out == TG_BF16) finish(static_cast<__nv_bfloat16*>(args.d.ptr), args.d.row_stride);
  else
    finish(is_whole ? static_cast<float*>(args.d.ptr) : part_at<float>(args, blockIdx.z, 0, 0, 0),
           is_whole ? args.d.row_stride : args.n);
}

}  // namespace
}  // namespace tilegemm
