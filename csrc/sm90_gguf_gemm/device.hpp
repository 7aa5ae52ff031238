// The kernel: two warp groups multiply 64 rows of W each, and a thread loads the activations.
#pragma once
#include "common/add_parts.hpp"
#include "common/gguf_wgmma.hpp"

namespace tilegemm {
namespace {

template <class S>
__global__ void __launch_bounds__(S::threads, S::blocks)
    gguf_gemm(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ tg_gemm_args args, int spans_of_part,
              tg_format out) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const gguf::XRing x = gguf::XRing::of(shared, S{});
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_m = blockIdx.x * S::width, first_n = blockIdx.y * S::height;
  const int k = int(args.k), spans = (k + gguf::span - 1) / gguf::span;
  const int begin = blockIdx.z * spans_of_part, end = min(begin + spans_of_part, spans);
  if (threadIdx.x == 0) {
    init_ring(x.full, x.empty, S::x_stages, S::warps);
    fence_mbarrier_init();
  }
  __syncthreads();

  if (warp >= S::warps) {
    setmaxnreg_dec<24>();
    if (warp == S::warps && lane == 0) {
      prefetch_tensor_map(&x_map);
      griddepcontrol_wait();
      Stage at = Stage::to_fill();
      const int last = min(end * gguf::span, k);
      for (int from = begin * gguf::span; from < last; from += S::depth) {
        const uint32_t barrier = at.acquire(x.full, x.empty, S::x_bytes);
        tma_load(&x_map, x.stages + at.s * S::x_bytes, barrier, from, first_m, 0, evict_normal);
        at.advance(S::x_stages);
      }
      launch_dependents();
    }
    return;
  }
  setmaxnreg_inc<S::registers>();

  const int first_row = first_n + warp * gguf::rows_of_warp;
  gguf::Multiplier<S> own(shared, warp, lane);
  gguf::Ring<typename S::Ring> ring(args, 0, first_row, begin, own.ring_of_warp);
  own.start(ring, begin, end);
  float sum[S::width / 2];
  own.template multiply<S::width>(sum, ring, k, begin, end);

  // A lane's sums: rows g and g + 8 of W, by columns 2 t and 2 t + 1 of each eight.
  const int n = first_row + g, m = first_m + 2 * t, rows_left = int(args.m) - m;
  const float alpha = gridDim.z > 1 ? 1.0f : float(args.alpha);
  const auto store = [&](auto* d, int64_t stride) {
    using Out = std::remove_reference_t<decltype(*d)>;
#pragma unroll
    for (int j = 0; j < S::width / 8; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        if (8 * j + e >= rows_left) continue;
        Out* const row = d + (8 * j + e) * stride;
        if (n < args.n) row[0] = Out(alpha * sum[4 * j + e]);
        if (n + 8 < args.n) row[8] = Out(alpha * sum[4 * j + 2 + e]);
      }
    }
  };
  const int64_t stride = args.d.row_stride, first = m * stride + n;
  if (gridDim.z > 1) store(part_at<float>(args, blockIdx.z, 0, m, n), args.n);
  else if (out == TG_F32) store(static_cast<float*>(args.d.ptr) + first, stride);
  else if (out == TG_F16) store(static_cast<__half*>(args.d.ptr) + first, stride);
  else store(static_cast<__nv_bfloat16*>(args.d.ptr) + first, stride);
}

}  // namespace
}  // namespace tilegemm
