// Narrow weights number by number, as tilegemm.h defines them: codes of B, or of both operands, and factors and zeros
// in matrices of their own. Any bytes are valid codes and factors.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm::narrow {

// Whether the codes are of 4 bits, 32 in 16 bytes.
constexpr __host__ __device__ bool is_packed(tg_format format) { return format == TG_U4 || format == TG_F4E2M1; }

constexpr __host__ __device__ bool is_narrow(tg_format format) {
  return is_packed(format) || format == TG_F8E4M3 || format == TG_I8 || format == TG_U8;
}

// The zero of codes for which there are no zeros.
constexpr __host__ __device__ int usual_zero(tg_format format) {
  return format == TG_U4 ? 8 : format == TG_U8 ? 128 : 0;
}

// Bytes of so many numbers, which are whole blocks.
constexpr __host__ __device__ int64_t bytes_of(tg_format format, int64_t numbers) {
  return is_packed(format) ? numbers / 2 : numbers;
}

__host__ __device__ inline float from_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// An exponent of fewer bits is the lowest bits of f32's, and a factor adds the difference of the biases: so subnormal
// numbers come out right.
__host__ __device__ inline float e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7f;
  return magnitude == 0x7f ? from_bits(0x7fc00000) : from_bits((code & 0x80) << 24 | magnitude << 20) * 0x1p120f;
}
__host__ __device__ inline float e2m1(uint32_t code) {
  return from_bits((code & 8) << 28 | (code & 7) << 22) * 0x1p126f;
}
__host__ __device__ inline float e8m0(uint32_t code) {
  return from_bits(code == 0 ? 0x00400000 : code == 255 ? 0x7fc00000 : code << 23);
}

// What a code means, before its zero is subtracted.
__host__ __device__ inline float value(tg_format format, uint32_t code) {
  switch (format) {
    case TG_F8E4M3: return e4m3(code);
    case TG_F4E2M1: return e2m1(code);
    case TG_I8: return float(int8_t(code));
    default: return float(code);  // TG_U4, TG_U8
  }
}

// The code of number k of a row of W.
__host__ __device__ inline uint32_t code_at(tg_format format, const uint8_t* row, int64_t k) {
  if (!is_packed(format)) return row[k];
  const int i = int(k % 32), nibble = i / 8 + i % 2 * 4;
  return row[k / 32 * 16 + i / 2 % 4 * 4 + nibble / 2] >> nibble % 2 * 4 & 15;
}

__host__ __device__ inline float factor_at(tg_format format, const void* factors, int64_t at) {
  switch (format) {
    case TG_F32: return static_cast<const float*>(factors)[at];
    case TG_F16: return __half2float(static_cast<const __half*>(factors)[at]);
    case TG_BF16: return __bfloat162float(static_cast<const __nv_bfloat16*>(factors)[at]);
    case TG_F8E4M3: return e4m3(static_cast<const uint8_t*>(factors)[at]);
    default: return e8m0(static_cast<const uint8_t*>(factors)[at]);  // TG_F8E8M0
  }
}

constexpr __host__ __device__ int bytes_of_factor(tg_format format) {
  return format == TG_F32 ? 4 : format == TG_F16 || format == TG_BF16 ? 2 : 1;
}

// Which of a scale's groups of rows or columns has this one.
__host__ __device__ inline int64_t group_of(int64_t index, uint32_t shared) {
  return shared == UINT32_MAX ? 0 : index / shared;
}

// Numbers along k, times their factors. Each is rounded once, to f32.
class Line {
 public:
  __host__ __device__ float operator[](int64_t k) const {
    const float x = value(format_, code_at(format_, codes_, k * stride_));
    if (!scale_.ptr) return x - float(usual_zero(format_));
    const int64_t at = first_ + group_of(k, shared_) * factor_stride_;
    const int zero = scale_.zeros ? scale_.zeros[at] : usual_zero(format_);
    return (x - float(zero)) * factor_at(scale_.format, scale_.ptr, at);
  }

 protected:
  // `first`: the first number in the matrix. `stride`: between numbers; packed codes lie at consecutive k.
  __host__ __device__ Line(tg_format format, const tg_matrix& of, int64_t first, int64_t stride, const tg_scale& scale)
      : format_(format), scale_(scale), stride_(is_packed(format) ? 1 : stride),
        codes_(static_cast<const uint8_t*>(of.ptr) + bytes_of(format, first)) {}
  // The first factor, how many numbers share one, and the distance to the next one.
  __host__ __device__ void set_factors(int64_t first, uint32_t shared, int64_t stride) {
    first_ = first, shared_ = shared, factor_stride_ = stride;
  }
  __host__ __device__ static int64_t of_batch(const int64_t (&strides)[2], int64_t outer, int64_t inner) {
    return outer * strides[0] + inner * strides[1];
  }

 private:
  tg_format format_;
  tg_scale scale_;
  int64_t stride_, first_, factor_stride_;
  uint32_t shared_;
  const uint8_t* codes_;
};

// A column of B, which is a row of W. `inner`: the matrix of the inner batch dimension, or of a group of rows.
struct Column : Line {
  __host__ __device__ Column(const tg_gemm_args& args, int64_t outer, int64_t inner, int64_t column)
      : Line(args.types.b, args.b, of_batch(args.b.batch_stride, outer, inner) + column * args.b.col_stride,
             args.b.row_stride, args.b_scale) {
    const tg_scale& scale = args.b_scale;
    const int64_t first = of_batch(scale.batch_stride, outer, inner);
    set_factors(first + group_of(column, scale.columns) * scale.col_stride, scale.rows, scale.row_stride);
  }
};

// A row of A.
struct Row : Line {
  __host__ __device__ Row(const tg_gemm_args& args, int64_t outer, int64_t inner, int64_t row)
      : Line(args.types.a, args.a, of_batch(args.a.batch_stride, outer, inner) + row * args.a.row_stride,
             args.a.col_stride, args.a_scale) {
    const tg_scale& scale = args.a_scale;
    const int64_t first = of_batch(scale.batch_stride, outer, inner);
    set_factors(first + group_of(row, scale.rows) * scale.row_stride, scale.columns, scale.col_stride);
  }
};

}  // namespace tilegemm::narrow
