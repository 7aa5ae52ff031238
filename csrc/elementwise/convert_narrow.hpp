// Rows of narrow weights times their factors, as Source of convert_rows.
#pragma once
#include "elementwise/convert.hpp"
#include "narrow/numbers.hpp"

namespace tilegemm {
namespace {

// Eight numbers of a row: 16 bytes of a copy. Of packed codes four lanes read the same block.
template <tg_format F>
struct Narrow {
  static constexpr int width = 8, unit = narrow::is_packed(F) ? 16 : 8;  // bytes that are read at once
  const uint8_t* from;
  int64_t stride, k;
  tg_scale scale;
  Divisor rows, columns;
  bool whole, shared;  // whether units start at multiples of their size; whether eight numbers have one factor

  explicit Narrow(const tg_gemm_args& args)
      : from(static_cast<const uint8_t*>(args.a.ptr)), stride(narrow::bytes_of(F, args.a.row_stride)), k(args.k),
        scale(args.a_scale), rows(by(scale.rows)), columns(by(scale.columns)),
        whole((reinterpret_cast<uintptr_t>(from) | uintptr_t(stride)) % unit == 0),
        shared(scale.columns % width == 0 || scale.columns >= k) {}

  __device__ void load(int64_t row, int64_t at, float (&x)[width]) const {
#pragma unroll
    for (int i = 0; i < width; i++) x[i] = 0;
    if (at >= k) return;
    const uint8_t* const line = from + row * stride;
    uint32_t codes[width];
    read(line, at, codes);
    const int64_t first = scale.ptr ? rows.quotient(int(row)) * scale.row_stride : 0;
#pragma unroll
    for (int i = 0; i < width; i++) {
      if (at + i < k) x[i] = narrow::value(F, codes[i]);
    }
    if (!scale.ptr || shared) {
      apply<width>(x, first, at, 0);
      return;
    }
#pragma unroll
    for (int i = 0; i < width; i++) apply<1>(x, first, at, i);
  }

 private:
  static int64_t by(uint32_t shared) { return shared == 0 || shared > INT32_MAX ? INT32_MAX : shared; }

  // The codes of numbers from `at` on, which is a multiple of eight.
  __device__ void read(const uint8_t* line, int64_t at, uint32_t (&codes)[width]) const {
    if (!whole || (!narrow::is_packed(F) && at + width > k)) {
#pragma unroll
      for (int i = 0; i < width; i++) codes[i] = at + i < k ? narrow::code_at(F, line, at + i) : 0;
    } else if constexpr (narrow::is_packed(F)) {
      const uint4 block = *reinterpret_cast<const uint4*>(line + at / 32 * 16);
      const int nibble = int(at % 32 / 8);
#pragma unroll
      for (int t = 0; t < 4; t++) {
        const uint32_t pair = (t == 0 ? block.x : t == 1 ? block.y : t == 2 ? block.z : block.w) >> 4 * nibble;
        codes[2 * t] = pair & 15, codes[2 * t + 1] = pair >> 16 & 15;
      }
    } else {
      const uint2 pair = *reinterpret_cast<const uint2*>(line + at);
#pragma unroll
      for (int i = 0; i < width; i++) codes[i] = (i < 4 ? pair.x : pair.y) >> 8 * (i % 4) & 255;
    }
  }

  // Subtracts the zero of number at + i from it and the next ones, and multiplies them by its factor.
  template <int count>
  __device__ void apply(float (&x)[width], int64_t first, int64_t at, int i) const {
    if (at + i >= k) return;
    float zero = float(narrow::usual_zero(F)), factor = 1;
    if (scale.ptr) {
      const int64_t place = first + columns.quotient(int(at + i)) * scale.col_stride;
      if (scale.zeros) zero = float(scale.zeros[place]);
      factor = narrow::factor_at(scale.format, scale.ptr, place);
    }
#pragma unroll
    for (int j = i; j < i + count; j++) {
      if (at + j < k) x[j] = (x[j] - zero) * factor;
    }
  }
};

template <tg_format F>
tg_status launch_convert_narrow(const tg_gemm_args& args) {
  // Rows and numbers are divided as numbers of 32 bits.
  if (args.m > INT32_MAX || args.n > INT32_MAX - 8) return TG_UNSUPPORTED;
  return args.types.d == TG_F16 ? launch_convert<__half, Narrow<F>>(args)
                                : launch_convert<__nv_bfloat16, Narrow<F>>(args);
}

// D in bf16 or f16 = A in narrow weights, one matrix with contiguous rows.
inline tg_status convert_narrow(tg_format format, const tg_gemm_args& args) {
  if (!is_one_of_rows(args) || (args.types.d != TG_BF16 && args.types.d != TG_F16)) return TG_UNSUPPORTED;
  switch (format) {
    case TG_F8E4M3: return launch_convert_narrow<TG_F8E4M3>(args);
    case TG_U4: return launch_convert_narrow<TG_U4>(args);
    case TG_F4E2M1: return launch_convert_narrow<TG_F4E2M1>(args);
    case TG_I8: return launch_convert_narrow<TG_I8>(args);
    case TG_U8: return launch_convert_narrow<TG_U8>(args);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace
}  // namespace tilegemm
