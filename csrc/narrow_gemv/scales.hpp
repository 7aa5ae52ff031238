// The factors and zeros of a warp's rows: a lane loads those of a row for the next slot into registers, and stores them
// when the warp has used those of the slot before: factors in f32, zeros as Product has them.
#pragma once
#include "narrow_gemv/loader.hpp"

namespace tilegemm {
namespace {

// The factor of weights without factors.
__device__ const float no_factor = 1.0f;

__device__ __forceinline__ const void* factors_of(const tg_gemm_args& args) {
  return args.b_scale.ptr ? args.b_scale.ptr : &no_factor;
}
__device__ __forceinline__ tg_format format_of_factors(const tg_gemm_args& args) {
  return args.b_scale.ptr ? args.b_scale.format : TG_F32;
}

// Calls `with`(to_float), which makes a factor's bits a number.
template <class With>
__device__ __forceinline__ void with_factors(tg_format format, const With& with) {
  switch (format) {
    case TG_F32: with([](uint32_t bits) { return __uint_as_float(bits); }); break;
    case TG_F16: with([](uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits))); }); break;
    case TG_BF16: with([](uint32_t bits) { return __uint_as_float(bits << 16); }); break;
    case TG_F8E4M3: with([](uint32_t bits) { return narrow::e4m3(bits); }); break;
    default: with([](uint32_t bits) { return narrow::e8m0(bits); }); break;  // TG_F8E8M0
  }
}

template <class S>
class ScaleLoader {
  static constexpr int at_once = 32 / S::rows;  // factors of a row
  // As bytes, four rows in a word; the words of a factor of all rows.
  static constexpr bool has_bytes = S::way == Way::groups_of_16;
  static constexpr int of_lane = S::scales ? S::scales / at_once : 1, words = S::scales * S::rows / 128;
  static constexpr int of_word = S::rows / 4;
  const tg_gemm_args& args_;
  const GemvShape& shape_;
  const uint8_t *of_row_ = nullptr, *zeros_of_row_ = nullptr;
  int all_ = 0;  // factors of the lane's row; 0: no row
  uint32_t pending_[has_bytes ? words : of_lane], zeros_[S::has_zeros ? of_lane : 1];

  __device__ __forceinline__ bool in_words() const { return has_bytes && shape_.scales_in_words; }

  __device__ __forceinline__ const uint8_t* at(int scale) const {
    return of_row_ + uint64_t(uint32_t(shape_.by_group.quotient(scale))) * shape_.scale_stride;
  }

  template <class Bits>
  __device__ __forceinline__ void load_each(int first) {
#pragma unroll
    for (int i = 0; i < of_lane; i++) {
      const int scale = first + i * at_once;
      pending_[i] = scale < all_ ? uint32_t(*reinterpret_cast<const Bits*>(at(scale))) : 0;
    }
  }

 public:
  __device__ __forceinline__ ScaleLoader(const tg_gemm_args& args, const GemvShape& shape)
      : args_(args), shape_(shape) {}

  __device__ __forceinline__ void begin_pass(const PassRows& rows) {
    const int row = in_words() ? threadIdx.x % of_word * 4 : threadIdx.x % S::rows;
    const bool exists = row < rows.existing;
    all_ = exists ? int(ceil_div(args_.k, S::scaled)) : 0;
    const int64_t at = exists ? shape_.by_rows.quotient(rows.first + row) * args_.b_scale.col_stride : 0;
    const int bytes = narrow::bytes_of_factor(format_of_factors(args_));
    of_row_ = static_cast<const uint8_t*>(factors_of(args_)) + at * bytes;
    if constexpr (S::has_zeros) zeros_of_row_ = args_.b_scale.zeros ? args_.b_scale.zeros + at : nullptr;
  }

  // Loads those of a slot of K.
  __device__ __forceinline__ void load(int slot) {
    if constexpr (S::scales > 0) {
      const int lane = threadIdx.x % 32, first = slot * S::scales + lane / S::rows;
      if constexpr (has_bytes) {
        if (!in_words()) return;
#pragma unroll
        for (int i = 0; i < words; i++) {
          const int scale = slot * S::scales + lane / of_word + i * (32 / of_word);
          pending_[i] = scale < all_ ? *reinterpret_cast<const uint32_t*>(at(scale)) : 0;
        }
      } else {
        switch (format_of_factors(args_)) {
          case TG_F32: load_each<uint32_t>(first); break;
          case TG_F16:
          case TG_BF16: load_each<uint16_t>(first); break;
          default: load_each<uint8_t>(first); break;
        }
        if constexpr (S::has_zeros) {
#pragma unroll
          for (int i = 0; i < of_lane; i++) {
            const int scale = first + i * at_once;
            zeros_[i] = narrow::usual_zero(S::codes);
            if (scale < all_ && zeros_of_row_)
              zeros_[i] = zeros_of_row_[shape_.by_group.quotient(scale) * args_.b_scale.row_stride];
          }
        }
      }
    }
  }

  // Stores them: (SCALE,GROUP,ROW), rows of a lane side by side.
  __device__ __forceinline__ void store(uint8_t* scales, uint8_t* zeros, int slot) {
    if constexpr (S::scales > 0) {
      const int lane = threadIdx.x % 32;
      if constexpr (has_bytes) {
        if (in_words()) {
          const int row = lane % of_word * 4;
          // Rows row to row + 3: groups two apart.
          uint8_t* const to = scales + lane / of_word * S::rows + place_of<S>(row);
#pragma unroll
          for (int i = 0; i < words; i++) {
#pragma unroll
            for (int r = 0; r < 4; r++) to[i * 128 + r * 2 * S::rows_of_lane] = uint8_t(pending_[i] >> 8 * r);
          }
          return;
        }
#pragma unroll 1
        for (int i = lane; i < S::scales * S::rows; i += 32) {
          const int scale = slot * S::scales + i / S::rows;
          scales[i / S::rows * S::rows + place_of<S>(i % S::rows)] = scale < all_ ? *at(scale) : 0;
        }
      } else {
        const int place = lane / S::rows * S::rows + place_of<S>(lane % S::rows);
        with_factors(format_of_factors(args_), [&](auto to_float) {
#pragma unroll
          for (int i = 0; i < of_lane; i++) reinterpret_cast<float*>(scales)[place + i * 32] = to_float(pending_[i]);
        });
        if constexpr (S::has_zeros) {
#pragma unroll
          for (int i = 0; i < of_lane; i++)
            reinterpret_cast<uint32_t*>(zeros)[place + i * 32] = narrow::less_zero(zeros_[i]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace tilegemm
