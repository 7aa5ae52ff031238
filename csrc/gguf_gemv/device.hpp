// The kernel: each warp of a block has a span of K, whose activations stay in registers, and multiplies the span by 16
// rows of W after 16 rows.
#pragma once
#include "common/add_parts.hpp"
#include "gguf/few_rows.hpp"

namespace tilegemm {
namespace {

// `overlap` of a product that may run beside the kernel before: a product of this family of the same A, which calls
// launch_dependents() behind its wait. So what comes before that kernel has ended when this one starts. This one waits
// in the end, for the sake of the kernels behind it. With parts of K there is a workspace, and a wait at the start.
constexpr int beside = 2;
__device__ __forceinline__ bool is_beside(const tg_gemm_args& args) { return args.overlap == beside && gridDim.y == 1; }
__device__ __forceinline__ void wait_at_start(const tg_gemm_args& args) {
  if (is_beside(args)) __threadfence();
  else griddepcontrol_wait();
}
__device__ __forceinline__ void wait_at_end(const tg_gemm_args& args) {
  if (is_beside(args)) griddepcontrol_wait();
}

// Stores a sum: a result, or of a part of K.
template <class T>
__device__ __forceinline__ void store_sum(const tg_gemm_args& args, const GatingEpilogue<T, float>& epilogue, int i,
                                          int j, float sum) {
  if (gridDim.y > 1) *part_at<float>(args, blockIdx.y, 0, i, j) = sum;
  else static_cast<T*>(args.d.ptr)[i * args.d.row_stride + j] = epilogue(sum, i, j, 0, 0);
}

// Adds the sums of a block's warps, of `batch` units of 16 rows of W from `first_unit` on, and stores them.
template <class S, class T>
__device__ __forceinline__ void store_sums(const tg_gemm_args& args, const gguf::Sums<S>& all,
                                           const GatingEpilogue<T, float>& epilogue, int parity, int batch,
                                           int first_unit, int first_m) {
  for (int index = threadIdx.x; index < batch * S::sums; index += 32 * all.warps) {
    const int of_batch = index / S::sums, element = index % S::sums;
    const int i = first_m + all.m(element), j = (first_unit + of_batch) * gguf::rows_of_warp + all.n(element);
    if (i >= args.m || j >= args.n) continue;
    const float sum = all.add(parity, of_batch, element);
    store_sum(args, epilogue, i, j, sum);
  }
}

// Behind all sums: those that infinite or NaN operands have made wrong, once more. The warps' spans begin with
// `first_span`, the columns with unit `first`.
template <class S, class T>
__device__ __forceinline__ void repair(const tg_gemm_args& args, const gguf::Sums<S>& all,
                                       const GatingEpilogue<T, float>& epilogue, int first, int last, int first_m,
                                       int first_span) {
  if (*all.wrong == 0) return;
  const int64_t begin = first_span * int64_t(gguf::span), end = min(begin + all.warps * int64_t(gguf::span), args.k);
  gguf::repair<S::format>(
      args, *all.wrong, 0, first * gguf::rows_of_warp, min(last * gguf::rows_of_warp, int(args.n)), begin, end,
      all.warps, [&](int r) { return first_m + r; },
      [&](int r, int n, float sum) { store_sum(args, epilogue, first_m + r, n, sum); });
}

// A block has up to 16 rows of A, `units` times 16 rows of W, and a part of K.
template <class S, class T>
__global__ void __launch_bounds__(32 * S::warps, 1)
    gguf_gemv(const __grid_constant__ tg_gemm_args args, int units,
              const __grid_constant__ GatingEpilogue<T, float> epilogue) {
  using Row = typename S::Row;
  extern __shared__ __align__(16) uint8_t shared[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first = blockIdx.x * units, last = min(first + units, int(ceil_div(args.n, gguf::rows_of_warp)));
  const int first_span = blockIdx.y * warps, span = first_span + warp, first_m = blockIdx.z * gguf::most_m;
  // The last warps of the last parts of K may have no span: they multiply the first span by zeros.
  const bool has_span = span * gguf::span < args.k;
  uint8_t* const ring = shared + warp * S::ring_bytes;
  gguf::Loader<S> loader(args, 0, first * gguf::rows_of_warp, has_span ? span : 0, ring);
  if (has_span) loader.prefetch(S::stages);
  // Two tiles leave no registers for more.
  if constexpr (S::tiles == 1) wait_at_start(args);
  else griddepcontrol_wait();
  launch_dependents();
  gguf::Span<S> of_x(shared, warp, warps);
  const auto activations = [&](int tile) {
    const int row = first_m + 8 * tile + g;
    const T* const from = static_cast<const T*>(args.a.ptr) + row * args.a.row_stride + span * gguf::span + 4 * t;
    return gguf::Activations<S, T>(from, row < args.m ? int(args.k) - span * gguf::span : 0);
  };
  const auto load_first_rows = [&] {
#pragma unroll
    for (int i = 0; i < S::stages - 1; i++) {
      if (first + i < last) loader.load(i * S::stage_bytes);
      copy_async_commit();
    }
  };
  if constexpr (S::tiles == 1) {
    // Loads of activations behind the loads of W would arrive after W.
    const auto loaded = activations(0);
    load_first_rows();
    of_x.take(0, loaded, g, t);
  } else {
    // Activations of two tiles on their way leave no registers for the loop.
    load_first_rows();
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) of_x.take(tile, activations(tile), g, t);
  }

  const gguf::Sums<S> all(shared, warps);
  const int existing = has_span ? min(S::scales, int(args.k - int64_t(span) * gguf::span) / Row::scaled) : 0;
  const int places[2] = {loader.place(g), loader.place(g + 8)}, place_of_factors = loader.place(lane / 2);
  int stage = 0, free = (S::stages - 1) * S::stage_bytes, batch = 0, parity = 0;
  for (int unit = first; unit < last; unit++) {
    __syncwarp();  // all lanes have read the stage that is free
    if (unit + S::stages - 1 < last) loader.load(free);
    copy_async_commit();
    copy_async_wait<S::stages - 1>();
    __syncwarp();
    float total[S::tiles][4];  // (MMA_N,MMA), of D^T
    of_x.times(ring + stage, places, place_of_factors, existing, total, lane);
    all.put(total, parity, batch, warp, lane);
    free = stage;
    stage = stage == (S::stages - 1) * S::stage_bytes ? 0 : stage + S::stage_bytes;

    if (++batch < S::batch && unit + 1 < last) continue;
    __syncthreads();
    store_sums(args, all, epilogue, parity, batch, unit + 1 - batch, first_m);
    batch = 0, parity ^= 1;
  }
  __syncthreads();
  repair(args, all, epilogue, first, last, first_m, first_span);
  if constexpr (S::tiles == 1) wait_at_end(args);
}

}  // namespace
}  // namespace tilegemm
