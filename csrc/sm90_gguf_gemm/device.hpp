// The kernel: two warp groups multiply 64 rows of W each, and a thread loads the activations.
#pragma once
#include "common/add_parts.hpp"
#include "common/pipeline.hpp"
#include "common/wgmma.hpp"
#include "sm90_gguf_gemm/values.hpp"

namespace tilegemm {
namespace {

// Rows of A of a tile are columns of wgmma.
template <tg_format F, int WIDTH>
struct Shape {
  using Values = gguf::Values<F>;
  using Row = gguf::Row<F>;
  static constexpr tg_format format = F;
  static constexpr int width = WIDTH, height = 128, warps = height / gguf::rows_of_warp, threads = 32 * warps + 128;
  static constexpr int blocks = width > 64 ? 1 : 2;  // of a multiprocessor
  static constexpr int registers = blocks == 1 ? 240 : 104;
  static constexpr int depth = 64, x_bytes = width * depth * 2;  // of a stage
  static constexpr int limit = (blocks == 1 ? 227 : 113) * 1024;
  static constexpr int barriers_bytes = 8 * 2 * 16;
  static constexpr int least_x = width > 128 ? 3 : width == 64 ? 2 : 4;
  static constexpr int w_stages_in(int bytes) {
    const int stages = bytes / (warps * gguf::RingShape<F, 1>::ring_bytes);
    return stages < 4 ? stages : 4;
  }
  using Factors = gguf::Factors<Row>;
  static constexpr int factors_bytes = (warps * Factors::bytes + 1023) / 1024 * 1024;
  static constexpr int w_stages = w_stages_in(limit - 1024 - barriers_bytes - factors_bytes - least_x * x_bytes);
  using Ring = gguf::RingShape<F, w_stages>;
  static constexpr int w_bytes = (warps * Ring::ring_bytes + Ring::bytes_behind + 1023) / 1024 * 1024;
  static constexpr int room = (limit - 1024 - barriers_bytes - factors_bytes - w_bytes) / x_bytes, x_stages = room < 8 ? room : 8;
  static constexpr int shared_bytes = x_stages * x_bytes + w_bytes + factors_bytes + barriers_bytes;
  static_assert(w_stages >= 2 && x_stages >= 2 && shared_bytes <= limit);
};

// d += 64 rows of W times `width` rows of A over 16 of K.
template <int width>
__device__ __forceinline__ void multiply(float (&d)[width / 2], const uint32_t (&p)[4], uint64_t q) {
  constexpr int add = 1;
  if constexpr (width == 192) TG_WGMMA_REGISTERS_ASM(192, 23, 96, 97, 98, 99, 100, 101, "bf16");
  else if constexpr (width == 256) TG_WGMMA_REGISTERS_ASM(256, 31, 128, 129, 130, 131, 132, 133, "bf16");
  else wgmma<__nv_bfloat16, width>(d, p, q);
}

// Whether `holds` for all threads of a warp group: its warps have to execute the same wgmma.
__device__ __forceinline__ bool all_of_group(bool holds, int barrier) {
  int all;
  asm volatile("{\n .reg .pred p, q;\n setp.ne.b32 p, %1, 0;\n barrier.cta.red.and.pred q, %2, 128, p;\n selp.b32 %0, 1, 0, q;\n}"
               : "=r"(all)
               : "r"(int(holds)), "r"(barrier)
               : "memory");
  return all;
}

template <class S>
__global__ void __launch_bounds__(S::threads, S::blocks)
    gguf_gemm(const __grid_constant__ CUtensorMap x_map, const __grid_constant__ tg_gemm_args args, int spans_of_part,
              tg_format out) {
  using Row = typename S::Row;
  using Values = typename S::Values;
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const of_w = shared + S::x_stages * S::x_bytes;
  const uint32_t x_ring = uint32_t(__cvta_generic_to_shared(shared));
  const uint32_t full = x_ring + S::x_stages * S::x_bytes + S::w_bytes + S::factors_bytes, empty = full + 8 * S::x_stages;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_m = blockIdx.x * S::width, first_n = blockIdx.y * S::height;
  const int k = int(args.k), spans = (k + gguf::span - 1) / gguf::span;
  const int begin = blockIdx.z * spans_of_part, end = min(begin + spans_of_part, spans);
  if (threadIdx.x == 0) {
    init_ring(full, empty, S::x_stages, S::warps);
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
        const uint32_t barrier = at.acquire(full, empty, S::x_bytes);
        tma_load(&x_map, x_ring + at.s * S::x_bytes, barrier, from, first_m, 0, evict_normal);
        at.advance(S::x_stages);
      }
      launch_dependents();
    }
    return;
  }
  setmaxnreg_inc<S::registers>();

  uint8_t* const ring_of_warp = of_w + warp * S::Ring::ring_bytes;
  const int first_row = first_n + warp * gguf::rows_of_warp;
  const typename S::Factors factors{reinterpret_cast<float2*>(of_w + S::w_bytes + warp * S::Factors::bytes)};
  gguf::Ring<typename S::Ring> ring(args, first_row, begin, ring_of_warp);
#pragma unroll
  for (int i = 0; i < S::w_stages - 1; i++) {
    if (begin + i < end) ring.load(i);
    copy_async_commit();
  }
  if (begin == 0) ring.load_front(0);

  float sum[S::width / 2];
  wgmma_zero(sum);
  Stage at = Stage::to_read(), done = at;  // the stage to read, and the oldest that is not released
  constexpr int group = 4;                 // steps that wgmma gets at a time
  int stage = 0, free = S::w_stages - 1;
  for (int span = begin; span < end; span++) {
    if (span + S::w_stages - 1 < end) ring.load(free);
    copy_async_commit();
    copy_async_wait<S::w_stages - 1>();
    __syncwarp();
    const uint8_t* const arrived = ring_of_warp + stage * S::Ring::stage_bytes;
    const uint8_t* const lines[2] = {arrived + g * S::Ring::pitch + ring.odd_bytes(g, span),
                                     arrived + (g + 8) * S::Ring::pitch + ring.odd_bytes(g + 8, span)};
    const Row rows[2] = {Row(lines[0]), Row(lines[1])};
    const int steps = min(gguf::steps, (k - span * gguf::span) / gguf::step);
    const Row row_of_factors(arrived + lane / 2 * S::Ring::pitch + ring.odd_bytes(lane / 2, span));
    const auto of = [](float factor, float min) { return make_float2(factor, Values::start_of(factor, min)); };
    const bool is_fast = factors.fill(row_of_factors, lane, steps * gguf::step / Row::scaled, of) && steps == gguf::steps;
    __syncwarp();
    // Multiplies by the steps from s on whose weights `a` has; the steps lie in one stage. All groups but the last are done then.
    const auto multiply_steps = [&](int s, const auto& a) {
      if (s % 4 == 0) at.wait_warp(full);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < int(sizeof(a) / sizeof(a[0])); i++) {
        multiply<S::width>(sum, a[i], wgmma_descriptor(x_ring + at.s * S::x_bytes) + (s + i) % 4 * 2);
      }
      wgmma_commit_and_wait<1>();
    };
    const auto release = [&] {
      if (lane == 0) mbarrier_arrive(empty + 8 * done.s);
      done.advance(S::x_stages);
    };
    if (all_of_group(is_fast, 1 + warp / 4)) {
      float2 of_row[2];
      // Two groups of steps: one in flight, and the next.
      uint32_t a[2][group][4];
      const auto convert = [&](int first) {
        constexpr int steps_of_scale = Row::scaled / gguf::step;
#pragma unroll
        for (int s = first; s < first + group; s++) {
          uint32_t(&to)[4] = a[first / group % 2][s - first];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            if (s % steps_of_scale == 0) of_row[r] = factors.at(g + 8 * r, s / steps_of_scale);
            Values::convert(rows[r], s, t, of_row[r].x, of_row[r].y, to[r], to[2 + r]);
          }
        }
      };
      convert(0);
#pragma unroll
      for (int s = 0; s < gguf::steps; s += group) {
        multiply_steps(s, a[s / group % 2]);
        if (s % 4 == 0 && !(s == 0 && span == begin)) release();
        if (s % 4 + group == 4) at.advance(S::x_stages);
        if (s + group < gguf::steps) convert(s + group);
      }
    } else {
      wgmma_wait();  // the group in flight reads registers
#pragma unroll 1
      for (int s = 0; s < steps; s++) {
        uint32_t a[1][4];
#pragma unroll
        for (int r = 0; r < 2; r++) Values::convert_exactly(lines[r], s, t, a[0][r], a[0][2 + r]);
        multiply_steps(s, a);
        if (s % 4 == 0 && !(s == 0 && span == begin)) release();
        if (s % 4 == 3) at.advance(S::x_stages);
        wgmma_wait();
      }
    }
    __syncwarp();
    if (++stage == S::w_stages) stage = 0;
    if (++free == S::w_stages) free = 0;
  }
  wgmma_wait();
  wgmma_pin(sum);

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
