// W and A in f16, for tiles of up to 192 rows of A, where the conversion of W takes much of the time: one instruction
// makes two weights of two codes, and results are more exact than in bf16. f16's range is narrow. Each row of A has a
// power of two that brings its largest number to [2^14, 2^15). Each row of W has a power of two that follows the
// largest weight from span to span. Products with powers of two are exact. A number keeps the 11 bits of f16 down to
// 2^-28 of the largest number of its row of A, or of its span of a row of W, and loses a bit with each halving below.
#pragma once
#include <cuda_fp16.h>

#include <type_traits>

#include "gguf/prepare.hpp"
#include "gguf/wgmma.hpp"

namespace tilegemm::gguf {
namespace {

__device__ __forceinline__ __half2 as_half2(uint32_t bits) { return reinterpret_cast<const __half2&>(bits); }
__device__ __forceinline__ uint32_t as_bits(__half2 two) { return reinterpret_cast<const uint32_t&>(two); }
// The same number twice.
__device__ __forceinline__ uint32_t twice(float x) { return as_bits(__floats2half2_rn(x, x)); }
// A power of two by the bits of its exponent; x / y of two powers of two.
__device__ __forceinline__ float power_of(uint32_t exponent) { return __uint_as_float(exponent << 23); }
__device__ __forceinline__ float over(float x, float y) {
  return __uint_as_float(__float_as_uint(x) - __float_as_uint(y) + 0x3f800000);
}
// 2^14 over the power of two in x, which is not infinite: x times this lies in [2^14, 2^15). At most 2^126.
__device__ __forceinline__ uint32_t exponent_to_scale(float x) { return min(268 - (__float_as_uint(x) >> 23), 253u); }

// A code in the last bits of f16's 1024 is the number 1024 + code, exactly. An exact operation makes code - zero of it,
// and a fused multiply-add the weight. A span that K has a part of has zeros behind, in the factors of W and in the
// activations.
template <class S>
struct HalfWeights {
  using Row = typename S::Row;
  using Number = __half;
  using Factor = uint2;  // the scale, and the minimum with the other sign, twice each
  static constexpr int share = S::Factors::count / 2;
  // The largest magnitude of a code less its zero.
  static constexpr float most = Row::unsigned_zero                            ? Row::unsigned_zero
                                : S::format == TG_Q2K                         ? 3
                                : S::format == TG_Q5_1 || S::format == TG_Q5K ? 31
                                                                              : 15;

  float power = 1.0f;  // of row lane / 2 of W

  // All warps of the group wait here, where the last group of steps has been multiplied meanwhile: the instruction has
  // to be the same for all, and rows of one warp alone may change.
  template <int width>
  __device__ __forceinline__ void begin(const typename S::Factors& factors, const Row& row, int lane, int left,
                                        float (&sum)[width / 2]) {
    const float change = fill(factors, row, lane, left / Row::scaled);
    __syncwarp();
    wgmma_wait();
    wgmma_pin(sum);
    if (__any_sync(~0u, change != 1.0f)) scale_rows<width>(sum, lane, change);
  }

  __device__ static void convert(const Row& row, int s, int t, Factor factor, uint32_t& first, uint32_t& second) {
    if constexpr (S::format == TG_MXFP4) {
      row.entries_of(s / 2, t, halves_of_mxfp4).high(s, first, second);
      const auto weights = [&](uint32_t two) { return as_bits(__hmul2(as_half2(two), as_half2(factor.x))); };
      first = weights(first), second = weights(second);
    } else {
      row.pairs(true, s, t, 0x64646464, first, second);
      const auto weights = [&](uint32_t two) {
        const __half2 code = __hadd2(as_half2(two), __float2half2_rn(-float(1024 + Row::unsigned_zero)));
        return as_bits(__hfma2(code, as_half2(factor.x), as_half2(factor.y)));
      };
      first = weights(first), second = weights(second);
    }
  }

  template <int width>
  __device__ __forceinline__ void end(int lane, float (&sum)[width / 2]) const {
    scale_rows<width>(sum, lane, over(1.0f, power));
  }

 private:
  // Two lanes compute the factors of a row of W: `existing` factors, and zeros behind. Returns the change of the row's
  // power, 1 mostly: it changes where a weight of the span would be infinite, or all of them small, with few bits left
  // for some.
  __device__ __forceinline__ float fill(const typename S::Factors& factors, const Row& row, int lane, int existing) {
    float scales[share], minima[share], largest = 0.0f;
    row.each_factor(lane % 2, [&](int i, float scale, float min) {
      if (Row::block.elements < gguf::span && i >= existing) scale = min = 0.0f;
      scales[i % share] = scale, minima[i % share] = min;
      const float weight = fmaf(fabsf(scale), most, fabsf(min));
      largest = fmaxf(largest, weight < INFINITY ? weight : 0.0f);
    });
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    float change = 1.0f;
    if (largest * power > 60000.0f || (largest * power < 0.125f && largest > 0.0f)) {
      uint32_t exponent = exponent_to_scale(largest);
      // Scales of mxfp4 have all exponents, and changes do not: a weight that is infinite then has a wild scale.
      if constexpr (S::format == TG_MXFP4) {
        const uint32_t before = __float_as_uint(power) >> 23, least = before > 114 ? before - 100 : 14;
        exponent = max(min(exponent, min(127u + log2_of_tame, before + 100)), least);
      }
      const float next = power_of(exponent);
      change = over(next, power), power = next;
    }
    uint4* const to = reinterpret_cast<uint4*>(factors.table + lane / 2 * S::Factors::pitch + lane % 2 * share);
#pragma unroll
    for (int i = 0; i < share; i += 2) {
      to[i / 2] = make_uint4(twice(scales[i] * power), twice(-minima[i] * power), twice(scales[i + 1] * power),
                             twice(-minima[i + 1] * power));
    }
    return change;
  }

  // Multiplies the sums of each row of W by the number that the row's lanes have.
  template <int width>
  __device__ __forceinline__ static void scale_rows(float (&sum)[width / 2], int lane, float of_lane) {
    const int g = lane / 4;
    const float first = __shfl_sync(~0u, of_lane, 2 * g), second = __shfl_sync(~0u, of_lane, 2 * g + 16);
#pragma unroll
    for (int i = 0; i < width / 2; i++) sum[i] *= i % 4 < 2 ? first : second;
  }
};

// Prepares rows as gguf_prepare_bf16() does, in f16: times a power of two that brings the largest finite number of a
// row to [2^14, 2^15). `factors`: the inverse. A block has a row, and a thread has quads of neighbouring numbers: as
// many as the thread keeps, or one where each row has a multiprocessor for itself. Threads read the numbers of rows
// that are longer than they keep twice. `WHOLE`: each quad is at a multiple of its size, and K ends with one.
constexpr int half_threads = 1024, kept_quads = 4;

template <class T, class Rows, bool WHOLE>
__global__ void __launch_bounds__(half_threads)
    gguf_prepare_f16(const __grid_constant__ tg_gemm_args args, const __grid_constant__ Rows rows, uint32_t* to,
                     int pitch, float* factors) {
  using Quad = std::conditional_t<sizeof(T) == 4, float4, uint2>;
  __shared__ uint32_t largest_of_warps[half_threads / 32];
  griddepcontrol_wait();
  launch_dependents();  // after the wait: the product reads W before this kernel ends, and W may be of the kernel
                        // before
  const int row = blockIdx.x, thread = threadIdx.x, threads = blockDim.x, warp = thread / 32, lane = thread % 32;
  const int64_t row_of_a = rows(row);
  if (row_of_a < 0) return;
  const T* const from = static_cast<const T*>(args.a.ptr) + row_of_a * args.a.row_stride;
  const int k = int(args.k), quads = pitch / 4;
  // Behind the end of K are zeros.
  const auto load = [&](int quad) {
    Quad loaded = {};
    const int at = 4 * quad;
    if constexpr (WHOLE) {
      if (at < k) loaded = *reinterpret_cast<const Quad*>(from + at);
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (at + i < k) reinterpret_cast<T*>(&loaded)[i] = from[at + i];
      }
    }
    return loaded;
  };
  const auto number = [](const Quad& quad, int i) { return float(reinterpret_cast<const T*>(&quad)[i]); };
  float largest = 0.0f;
  const auto see = [&](const Quad& quad) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float size = fabsf(number(quad, i));
      largest = fmaxf(largest, size < INFINITY ? size : 0.0f);
    }
  };
  // All loads come before the first use.
  Quad kept[kept_quads];
#pragma unroll
  for (int i = 0; i < kept_quads; i++) kept[i] = load(thread + i * threads);
#pragma unroll
  for (int i = 0; i < kept_quads; i++) see(kept[i]);
  for (int quad = thread + kept_quads * threads; quad < quads; quad += threads) see(load(quad));
  __syncwarp();
  // Floats that are not negative are in the order of their bits.
  const uint32_t of_warp = __reduce_max_sync(~0u, __float_as_uint(largest));
  if (lane == 0) largest_of_warps[warp] = of_warp;
  __syncthreads();
  const uint32_t of_lane = lane < threads / 32 ? largest_of_warps[lane] : 0;
  __syncwarp();
  const uint32_t exponent = exponent_to_scale(__uint_as_float(__reduce_max_sync(~0u, of_lane)));
  const float power = power_of(exponent);
  if (thread == 0) factors[row] = power_of(254 - exponent);
  // Two lanes write two neighbouring words each, of the four that are theirs.
  uint32_t* const out = to + int64_t(row) * (pitch / 2);
  const auto put = [&](int quad, const Quad& x) {
    const uint32_t first = as_bits(__floats2half2_rn(number(x, 0) * power, number(x, 1) * power));
    const uint32_t second = as_bits(__floats2half2_rn(number(x, 2) * power, number(x, 3) * power));
    const bool is_odd = lane % 2;
    const uint32_t other = __shfl_xor_sync(~0u, is_odd ? first : second, 1);
    uint2* const at = reinterpret_cast<uint2*>(out + quad / 4 * 8 + quad % 4 / 2 * 2 + (is_odd ? 4 : 0));
    if (quad < quads) *at = is_odd ? make_uint2(other, second) : make_uint2(first, other);
  };
#pragma unroll
  for (int i = 0; i < kept_quads; i++) {
    if ((i * threads + thread - lane) < quads) put(thread + i * threads, kept[i]);
  }
  for (int quad = thread + kept_quads * threads; quad - lane < quads; quad += threads) put(quad, load(quad));
}

template <class T, class Rows>
tg_status launch_prepare_half(const tg_gemm_args& args, const Rows& rows, int64_t count, void* to, float* factors) {
  const int64_t pitch = pitch_of(args.k), warps = ceil_div(pitch / 4, 32 * (count > args.sm_count ? kept_quads : 1));
  const bool is_whole =
      args.k % 4 == 0 && args.a.row_stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.a.ptr) % (4 * sizeof(T)) == 0;
  const auto kernel = is_whole ? gguf_prepare_f16<T, Rows, true> : gguf_prepare_f16<T, Rows, false>;
  const dim3 grid(static_cast<unsigned>(count)),
      block(unsigned(32 * (warps < half_threads / 32 ? warps : half_threads / 32)));
  return Launch(args, grid, block, 0)(kernel, args, rows, static_cast<uint32_t*>(to), int(pitch), factors);
}

}  // namespace
}  // namespace tilegemm::gguf
