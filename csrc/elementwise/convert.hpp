// Copies of rows in another format: of f32, f16 and the blocks of GGUF files in bf16; convert_narrow.hpp has others.
#pragma once
#include <type_traits>

#include "common/launch.hpp"
#include "common/ptx.hpp"
#include "gguf/bf16.hpp"
#include "gguf/fragment.hpp"
#include "gguf/numbers.hpp"

namespace tilegemm {
namespace {

constexpr int convert_threads = 128;

// Rows of blocks.
template <tg_format F>
struct Blocks {
  using Row = gguf::Row<F>;
  static constexpr gguf::Block block = gguf::block_of(F);
  static constexpr int width = gguf::step;
  const uint8_t* from;
  int64_t stride, k, last_row;

  explicit Blocks(const tg_gemm_args& args)
      : from(static_cast<const uint8_t*>(args.a.ptr)), stride(args.a.row_stride / block.elements * block.bytes),
        k(args.k), last_row(args.m - 1) {}

  __device__ void load(int64_t row, int64_t at, float (&x)[width]) const {
    const uint8_t* const line = from + row * stride;
    const int64_t span = at / gguf::span;
    const int in_span = int(at % gguf::span), s = in_span / gguf::step;
#pragma unroll
    for (int i = 0; i < width; i++) x[i] = 0;
    if (at >= k) return;
    const auto exactly = [&] {
#pragma unroll 1
      for (int i = 0; i < width; i++) {
        const float number = gguf::number(F, line + at / block.elements * block.bytes, int(at % block.elements) + i);
#pragma unroll
        for (int j = 0; j < width; j++) x[j] = i == j ? number : x[j];
      }
    };
    // A word at no multiple of 4 bytes touches bytes behind the row.
    if (Row::multiple < 4 && row == last_row && (span + 1) * gguf::span >= k) return exactly();
    const Row of(line + span * Row::bytes);
    const int group = in_span / Row::scaled;
    const float scale = of.scale(group), least = of.min(group);
    if (!isfinite(scale) || !isfinite(least)) return exactly();
    constexpr float base = float((1 << 23) + int(Row::unsigned_zero));
#pragma unroll
    for (int t = 0; t < 4; t++) {
      const uint32_t codes = of.unsigned_codes(s, t);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        x[4 * t + i] = fmaf(gguf::with_byte(codes, i) - base, scale, -least);
      }
    }
  }
};

// A finite number that bf16 has no place for stays finite; one that f16 has none for is infinite.
template <class Out>
__device__ Out rounded(float x) {
  if constexpr (std::is_same_v<Out, __half>) return __float2half_rn(x);
  else return to_bf16(x);
}

template <class Out> struct alignas(8) Four {
  Out x[4];
};

// `segments`: blocks of threads for a row.
template <class Out, class Source>
__global__ void __launch_bounds__(convert_threads)
    convert_rows(const Source source, Out* to, int64_t stride, int64_t length, int segments) {
#if __CUDA_ARCH__ >= 900
  launch_dependents();
#endif
  constexpr int width = Source::width;
  const int row = blockIdx.x / segments;
  const int64_t at = (int64_t(blockIdx.x - row * segments) * convert_threads + threadIdx.x) * width;
  if (at >= length) return;
  float x[width];
  source.load(row, at, x);
  Out* const here = to + row * stride + at;
  uint2 words[width / 4];
#pragma unroll
  for (int i = 0; i < width / 4; i++) {
    const Four<Out> four{rounded<Out>(x[4 * i]), rounded<Out>(x[4 * i + 1]), rounded<Out>(x[4 * i + 2]),
                         rounded<Out>(x[4 * i + 3])};
    words[i] = reinterpret_cast<const uint2&>(four);
  }
  constexpr int bytes = width * 2 < 16 ? width * 2 : 16;
  if (at + width <= length && reinterpret_cast<uintptr_t>(here) % bytes == 0) {
#pragma unroll
    for (int i = 0; i < width / 4; i += bytes / 8) {
      if constexpr (bytes == 8) *reinterpret_cast<uint2*>(here) = words[0];
      else *reinterpret_cast<uint4*>(here + 4 * i) = make_uint4(words[i].x, words[i].y, words[i + 1].x, words[i + 1].y);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < width; i++) {
    if (at + i < length) here[i] = rounded<Out>(x[i]);
  }
}

template <class Out, class Source>
tg_status launch_convert(const tg_gemm_args& args) {
  const int64_t segments = ceil_div(args.n, Source::width * convert_threads), blocks = segments * args.m;
  if (blocks > INT32_MAX) return TG_UNSUPPORTED;
  if (blocks == 0) return TG_OK;
  Out* const to = static_cast<Out*>(args.d.ptr);
  return launch_plainly(args, dim3(unsigned(blocks)), dim3(convert_threads), 0, convert_rows<Out, Source>, Source(args),
                        to, args.d.row_stride, args.n, int(segments));
}

// Whether there is one matrix A and D, with contiguous rows.
inline bool is_one_of_rows(const tg_gemm_args& args) {
  return args.batch[0] == 1 && args.batch[1] == 1 && (args.a.col_stride == 1 || args.k <= 1) &&
         (args.d.col_stride == 1 || args.n <= 1);
}

// D in bf16 = A in `format`, one matrix with contiguous rows.
inline tg_status convert_to_bf16(tg_format format, const tg_gemm_args& args) {
  if (!is_one_of_rows(args)) return TG_UNSUPPORTED;
  switch (format) {
    case TG_F32: return launch_convert<__nv_bfloat16, Numbers<float>>(args);
    case TG_F16: return launch_convert<__nv_bfloat16, Numbers<__half>>(args);
    case TG_Q4_0: return launch_convert<__nv_bfloat16, Blocks<TG_Q4_0>>(args);
    case TG_Q4_1: return launch_convert<__nv_bfloat16, Blocks<TG_Q4_1>>(args);
    case TG_Q5_0: return launch_convert<__nv_bfloat16, Blocks<TG_Q5_0>>(args);
    case TG_Q5_1: return launch_convert<__nv_bfloat16, Blocks<TG_Q5_1>>(args);
    case TG_Q8_0: return launch_convert<__nv_bfloat16, Blocks<TG_Q8_0>>(args);
    case TG_Q2K: return launch_convert<__nv_bfloat16, Blocks<TG_Q2K>>(args);
    case TG_Q3K: return launch_convert<__nv_bfloat16, Blocks<TG_Q3K>>(args);
    case TG_Q4K: return launch_convert<__nv_bfloat16, Blocks<TG_Q4K>>(args);
    case TG_Q5K: return launch_convert<__nv_bfloat16, Blocks<TG_Q5K>>(args);
    case TG_Q6K: return launch_convert<__nv_bfloat16, Blocks<TG_Q6K>>(args);
    case TG_MXFP4: return launch_convert<__nv_bfloat16, Blocks<TG_MXFP4>>(args);
    case TG_IQ4_NL: return launch_convert<__nv_bfloat16, Blocks<TG_IQ4_NL>>(args);
    case TG_IQ4_XS: return launch_convert<__nv_bfloat16, Blocks<TG_IQ4_XS>>(args);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace
}  // namespace tilegemm
