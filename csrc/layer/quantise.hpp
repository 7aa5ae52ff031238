// X in e4m3 or int8 with factors: of the tensor (given), of each row, or of each block of 128 numbers of a row.
//
// The factor is the largest magnitude / 448, or / 127, of zeros 1; a code is x / factor, rounded to nearest even, and
// finite numbers saturate. In e4m3 NaN stays NaN and has no part in the magnitude; a row (block) with an infinity is
// NaN, its factor too; with a given factor, an infinity becomes NaN. In int8 the factor of a row with a NaN or an
// infinity is NaN. The sign of a zero may get lost.
#pragma once
#include <cuda_fp8.h>

#include <algorithm>
#include <cfloat>
#include <type_traits>

#include "layer/gate.hpp"

namespace tilegemm {
namespace {

struct Quantised {
  uint8_t* codes;
  float* factors;  // of row i and block j at i * row_step + j * block_step; of a tensor, read
  int64_t stride, row_step, block_step;
  int rows, columns;
};

// `width` neighbouring numbers of a row, from `column` on, of which `count` exist; the others are zeros.
template <class T>
struct PlainRows {
  const T* x;
  int64_t stride;

  template <int width>
  __device__ __forceinline__ void load(float (&v)[width], int row, int column, int count) const {
    const T* const from = x + row * stride + column;
    if constexpr (width > 1) {
      constexpr int words = width * int(sizeof(T)) / 16, in_word = 16 / int(sizeof(T));
#pragma unroll
      for (int i = 0; i < words; i++) {
        T part[in_word] = {};
        if (count > 0) {
          const uint4 word = __ldcs(reinterpret_cast<const uint4*>(from) + i);
          memcpy(part, &word, 16);
        }
#pragma unroll
        for (int e = 0; e < in_word; e++) v[i * in_word + e] = to_float(part[e]);
      }
    } else {
      v[0] = count > 0 ? to_float(*from) : 0.0f;
    }
  }
};

// function(gate) * number in T, of rows with the gates first.
template <class T>
struct GatedRows {
  PlainRows<T> gates;
  tg_gate_function function;
  int columns;

  template <tg_gate_function FUNCTION, int width>
  __device__ __forceinline__ static void multiply(float (&gate)[width], const float (&number)[width]) {
#pragma unroll
    for (int e = 0; e < width; e++) gate[e] = to_float(from_float<T>(gate_of<FUNCTION>(gate[e]) * number[e]));
  }

  template <int width>
  __device__ __forceinline__ void load(float (&v)[width], int row, int column, int count) const {
    float number[width];
    gates.load(v, row, column, count);
    gates.load(number, row, columns + column, count);
    switch (function) {
      case TG_SWIGLU: return multiply<TG_SWIGLU>(v, number);
      case TG_GEGLU_TANH: return multiply<TG_GEGLU_TANH>(v, number);
      case TG_GEGLU_ERF: return multiply<TG_GEGLU_ERF>(v, number);
      default: return multiply<TG_RELU2>(v, number);
    }
  }
};

// The largest magnitude that a code has.
template <class Code>
constexpr float most_of = std::is_same_v<Code, int8_t> ? 127.0f : 448.0f;

template <class Code>
__device__ __forceinline__ float factor_of(float most) {
  if (isinf(most)) return __int_as_float(0x7fc00000);
  return most == 0 ? 1.0f : fmaxf(__fdiv_rn(most, most_of<Code>), FLT_MIN);
}

// Divides by a number that is the same for many dividends, with the one rounding of a division: the quotient by way of
// the reciprocal, and the remainder's share (Markstein, "Computation of elementary functions on the IBM RISC
// System/6000 processor", 1990). Where the number is not the largest magnitude's, quotients may be large, and the
// remainder's share could overflow; such quotients need none.
template <bool may_be_large>
struct Quotient {
  float by, reciprocal;
  bool plain;  // the reciprocal is a normal number
  __device__ explicit Quotient(float by)
      : by(by), reciprocal(1.0f / by), plain(fabsf(by) > 1e-37f && fabsf(by) < 1e37f) {}
  __device__ __forceinline__ float operator()(float x) const {
    if (!plain) return __fdiv_rn(x, by);
    const float q = x * reciprocal, better = fmaf(fmaf(-q, by, x), reciprocal, q);
    return !may_be_large || fabsf(q) < 1024.0f ? better : q;
  }
};

// Two codes.
template <class Code>
__device__ __forceinline__ uint32_t two_codes(float x, float y) {
  if constexpr (std::is_same_v<Code, int8_t>) {
    const auto code = [](float x) { return uint32_t(max(-127, min(127, __float2int_rn(x)))) & 0xff; };
    return code(x) | code(y) << 8;
  } else {
    return __nv_cvt_float2_to_fp8x2(make_float2(x, y), __NV_SATFINITE, __NV_E4M3);
  }
}

template <class Code, int width, bool may_be_large>
__device__ __forceinline__ void store_codes(uint8_t* to, const float (&v)[width],
                                            const Quotient<may_be_large>& quotient, int count) {
  if constexpr (width > 1) {
    uint32_t words[width / 4];
#pragma unroll
    for (int i = 0; i < width / 4; i++) {
      const auto two = [&](int e) { return two_codes<Code>(quotient(v[e]), quotient(v[e + 1])); };
      words[i] = two(4 * i) | two(4 * i + 2) << 16;
    }
    if (count > 0) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
  } else {
    if (count > 0) *to = uint8_t(two_codes<Code>(quotient(v[0]), 0.0f));
  }
}

// NaN has no part, or, in int8, which has no NaN, counts as an infinity.
template <class Code, int width>
__device__ __forceinline__ float largest(const float (&v)[width], float most) {
#pragma unroll
  for (int e = 0; e < width; e++) {
    const bool spoils = std::is_same_v<Code, int8_t> && isnan(v[e]);
    most = fmaxf(most, spoils ? __int_as_float(0x7f800000) : fabsf(v[e]));
  }
  return most;
}
template <int lanes>
__device__ __forceinline__ float largest_of(float most) {
#pragma unroll
  for (int d = lanes / 2; d > 0; d /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, d));
  return most;
}

// A block for each row. A thread keeps `each` pieces of `width` numbers: piece j of thread t is piece t + j * threads.
// Rows that are longer are read twice.
template <class Code, class Rows, int width, int each>
__global__ void __launch_bounds__(1024)
    layer_quantise_rows(const __grid_constant__ Rows x, const __grid_constant__ Quantised to) {
  __shared__ float partial[32];
  griddepcontrol_wait();
  launch_dependents();
  const int row = blockIdx.x, lane = threadIdx.x % 32, step = blockDim.x * width;
  const bool twice = to.columns > each * step;
  float v[each][width], most = 0;
  for (int first = threadIdx.x * width; first < to.columns; first += each * step) {
#pragma unroll
    for (int j = 0; j < each; j++) x.load(v[j], row, first + j * step, to.columns - (first + j * step));
#pragma unroll
    for (int j = 0; j < each; j++) most = largest<Code>(v[j], most);
  }
  most = largest_of<32>(most);
  if (lane == 0) partial[threadIdx.x / 32] = most;
  __syncthreads();
  most = largest_of<32>(lane < blockDim.x / 32 ? partial[lane] : 0.0f);
  const float factor = factor_of<Code>(most);
  if (threadIdx.x == 0) to.factors[row * to.row_step] = factor;
  const Quotient<false> quotient(factor);
  uint8_t* const codes = to.codes + row * to.stride;
  for (int first = threadIdx.x * width; first < to.columns; first += each * step) {
#pragma unroll
    for (int j = 0; j < each; j++) {
      const int column = first + j * step;
      if (twice) x.load(v[j], row, column, to.columns - column);
      store_codes<Code>(codes + column, v[j], quotient, to.columns - column);
    }
  }
}

// Blocks of 128 numbers, or any pieces with a given factor. `width` 8: sixteen lanes have a block; 1: a warp has a
// block, four numbers to a lane. grid.y: rows.
template <class Rows, int width, int each, tg_factors kind>
__global__ void __launch_bounds__(256)
    layer_quantise_blocks(const __grid_constant__ Rows x, const __grid_constant__ Quantised to) {
  using Code = __nv_fp8_e4m3;
  griddepcontrol_wait();
  launch_dependents();
  const int first = (blockIdx.x * blockDim.x * each + threadIdx.x) * width, step = blockDim.x * width;
  const int row_step = gridDim.y;
  const float given = kind == TG_FACTOR_OF_TENSOR ? to.factors[0] : 1.0f;
  for (int row = blockIdx.y; row < to.rows; row += row_step) {
    float v[each][width];
    int column[each];
#pragma unroll
    for (int j = 0; j < each; j++) {
      column[j] = width > 1 ? first + j * step
                            : (blockIdx.x * int(blockDim.x / 32) + int(threadIdx.x / 32)) * 128 + j * 32 +
                                  int(threadIdx.x % 32);
      x.load(v[j], row, column[j], to.columns - column[j]);
    }
    uint8_t* const codes = to.codes + row * to.stride;
    if constexpr (kind == TG_FACTOR_OF_TENSOR) {
      const Quotient<true> quotient(given);
#pragma unroll
      for (int j = 0; j < each; j++) {
#pragma unroll
        for (int e = 0; e < width; e++) v[j][e] = isinf(v[j][e]) ? __int_as_float(0x7fc00000) : v[j][e];
        store_codes<Code>(codes + column[j], v[j], quotient, to.columns - column[j]);
      }
    } else if constexpr (width > 1) {
#pragma unroll
      for (int j = 0; j < each; j++) {
        const float factor = factor_of<Code>(largest_of<16>(largest<Code>(v[j], 0.0f)));
        const int count = to.columns - column[j];
        if (threadIdx.x % 16 == 0 && count > 0)
          to.factors[row * to.row_step + column[j] / 128 * to.block_step] = factor;
        store_codes<Code>(codes + column[j], v[j], Quotient<false>(factor), count);
      }
    } else {
      float most = 0;
#pragma unroll
      for (int j = 0; j < each; j++) most = largest<Code>(v[j], most);
      const float factor = factor_of<Code>(largest_of<32>(most));
      const Quotient<false> quotient(factor);
      if (threadIdx.x % 32 == 0 && column[0] < to.columns)
        to.factors[row * to.row_step + column[0] / 128 * to.block_step] = factor;
#pragma unroll
      for (int j = 0; j < each; j++) store_codes<Code>(codes + column[j], v[j], quotient, to.columns - column[j]);
    }
  }
}

template <class Code, class Rows, int width>
tg_status quantise_rows(const Rows& x, const Quantised& to, const tg_launch& launch) {
  const int pieces = (to.columns + width - 1) / width;
  // Few rows: as many threads as there are pieces. Many rows: blocks of fewer threads, so that a multiprocessor has
  // rows in all stages.
  const int wanted = to.rows <= 2 * multiprocessors_of(launch) ? 1024 : 256;
  int each = width > 1 ? 1 : 4;
  while (each < 4 && (pieces + each - 1) / each > wanted) each *= 2;
  const int threads = std::min(1024, ((pieces + each - 1) / each + 31) / 32 * 32);
  const dim3 grid{unsigned(to.rows)};
  if constexpr (width > 1) {
    if (each == 1) return start(launch, grid, threads, 0, 1, layer_quantise_rows<Code, Rows, width, 1>, x, to);
    if (each == 2) return start(launch, grid, threads, 0, 1, layer_quantise_rows<Code, Rows, width, 2>, x, to);
  }
  return start(launch, grid, threads, 0, 1, layer_quantise_rows<Code, Rows, width, 4>, x, to);
}

template <tg_factors kind, class Rows, int width>
tg_status quantise_blocks(const Rows& x, const Quantised& to, const tg_launch& launch) {
  if constexpr (width == 1) {
    const int blocks = (to.columns + 127) / 128, warps = std::min(8, blocks);
    const dim3 grid{unsigned((blocks + warps - 1) / warps), unsigned(std::min(to.rows, 65535))};
    return start(launch, grid, 32 * warps, 0, 1, layer_quantise_blocks<Rows, 1, 4, kind>, x, to);
  } else {
    const int pieces = (to.columns + width - 1) / width;
    const auto of_each = [&](auto each) {
      const int threads = std::min(256, ((pieces + each - 1) / each + 31) / 32 * 32);
      const dim3 grid{unsigned((pieces + threads * each - 1) / (threads * each)), unsigned(std::min(to.rows, 65535))};
      return start(launch, grid, threads, 0, 1, layer_quantise_blocks<Rows, width, each, kind>, x, to);
    };
    if (int64_t(to.rows) * pieces <= 256 * 8 * int64_t(multiprocessors_of(launch)))
      return of_each(std::integral_constant<int, 1>{});
    return of_each(std::integral_constant<int, 2>{});
  }
}

// `width`: 8 where pieces of eight numbers lie at multiples of 16 bytes, and codes at multiples of 8; else 1.
template <class Rows, int width>
tg_status quantise(tg_factors kind, bool whole_numbers, const Rows& x, const Quantised& to, const tg_launch& launch) {
  if (whole_numbers) {
    return kind == TG_FACTORS_OF_ROWS ? quantise_rows<int8_t, Rows, width>(x, to, launch) : TG_UNSUPPORTED;
  }
  switch (kind) {
    case TG_FACTOR_OF_TENSOR: return quantise_blocks<TG_FACTOR_OF_TENSOR, Rows, width>(x, to, launch);
    case TG_FACTORS_OF_ROWS: return quantise_rows<__nv_fp8_e4m3, Rows, width>(x, to, launch);
    case TG_FACTORS_OF_BLOCKS: return quantise_blocks<TG_FACTORS_OF_BLOCKS, Rows, width>(x, to, launch);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace
}  // namespace tilegemm
