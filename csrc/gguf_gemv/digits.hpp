// The kernel for one or two rows of A on Hopper: mma.sync of bytes. Codes of weights are operand A. An activation is a
// whole number of four digits to the base 256, times a power of two that 32 neighbours share; the digits of a row of A
// are four columns of operand B. So codes become no floats, and one instruction multiplies 16 rows of W by 32 numbers.
//
// As in bulk.hpp, one warp loads rows of W by bulk copies for all warps. All blocks have the same number of rows of W,
// and go through them up to 16 at a time. Where K has more spans than a block has warps, K is split.
#pragma once
#include "gguf_gemv/bulk.hpp"

namespace tilegemm {
namespace {

// The most rows of A, as far as products are faster so.
constexpr int most_m_of_digits(int arch, tg_format a, tg_format b) {
  const bool is_fast = b == TG_Q4_0 || b == TG_Q8_0 || b == TG_Q4K || b == TG_IQ4_NL || b == TG_IQ4_XS;
  return arch == 90 && a != TG_F16 && is_fast ? 2 : 0;
}

// The shape of a block.
template <tg_format F>
struct DigitRows {
  using Row = gguf::Row<F>;
  static constexpr tg_format format = F;
  static constexpr int most_warps = 16, threads = 32 * (most_warps + 1), most_stages = 3;
  static constexpr int blocks = gguf::span / 32;                  // of a span, that share a power of two
  static constexpr int batch = 4, sums = 2 * gguf::rows_of_warp;  // units whose sums the block adds at a time
  // Blocks of 256 numbers have packed scales: two lanes unpack a row's for all lanes.
  static constexpr bool has_table = Row::block.elements > 32;
  static_assert(Row::scaled == 32 && (has_table || !Row::has_min));

  // Of a warp: a row of A as digits, and its powers; in their place the factors of 16 rows of W.
  static constexpr int numbers_bytes = gguf::span * 4, factors = gguf::rows_of_warp * blocks;
  static constexpr int powers_at = most_warps * numbers_bytes, powers_bytes = 2 * 2 * blocks * 4;
  static constexpr int sums_at = powers_at + most_warps * powers_bytes;
  static_assert(2 * factors * int(sizeof(float)) <= numbers_bytes);
  static constexpr int barriers_at = sums_at + 2 * batch * most_warps * sums * int(sizeof(float));
  static constexpr int wrong_at = barriers_at + 2 * 8 * most_stages + 8;
  static constexpr int ring_at = barriers_at + 2 * 8 * most_stages + 16;
  static_assert(ring_at % 16 == 0);

  static constexpr int pitch(int warps) { return gguf::shared_pitch(warps * Row::bytes); }
  static constexpr int bytes(int warps, int of_unit, int stages) {
    return ring_at + stages * of_unit * pitch(warps) + Row::bytes + 16;
  }
  // With more bytes under way, the first rows arrive later; three stages are as fast as more.
  static constexpr int useful = 112 * 1024;
  static constexpr int stages(int warps, int of_unit, int units) {
    const int fit = useful / (of_unit * pitch(warps)), stages = fit < 2 ? 2 : fit < most_stages ? fit : most_stages;
    return stages < units ? stages : units;
  }
  static constexpr int shared_bytes = bytes(most_warps, gguf::rows_of_warp, 2) > bytes(0, 0, 0) + useful
                                          ? bytes(most_warps, gguf::rows_of_warp, 2)
                                          : bytes(0, 0, 0) + useful;
  static_assert(shared_bytes <= 227 * 1024);
};

__device__ __forceinline__ void multiply_bytes(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], int c,
                                               bool is_signed) {
  if (is_signed)
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
  else
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
}

// A warp's span: the digits of the activations, operand B. A lane has digit g % 4 of row g / 4 of A.
template <class S>
struct Digits {
  using Row = typename S::Row;
  // Codes of a zero that is not 0 are shifted so that this zero is 128, the bit of the sign.
  static constexpr int shift = Row::zero == 0 ? 0 : Row::zero == 8 ? 4 : 3;
  static constexpr bool is_signed = Row::zero != 0 || Row::is_signed;
  static_assert(Row::zero << shift == (Row::zero ? 128u : 0u));
  // Sums are of numbers 2^-16 times as large: codes times large activations do not overflow.
  static constexpr float to_sums = 1.0f / (gguf::from_sums * float(1 << shift));
  // 1.5 * 2^23: the sum of products, added to these bits, is added to the float.
  static constexpr float magic = 12582912.0f;
  uint32_t digits[S::blocks][2];
  float powers[S::blocks], sums[Row::has_min ? S::blocks : 1];  // of row t / 2 of A

  // Takes a row of A, of whose numbers `x` the lane has four at 4 lane and four at 128 + 4 lane. Numbers of a block of
  // 32 become multiples of a power of two, some 2^-30 of the largest.
  __device__ __forceinline__ void take(int row, const float (&x)[2][4], uint32_t* numbers, float* of_powers, int lane) {
    const int g = lane / 4, t = lane % 4;
    __syncwarp();
#pragma unroll
    for (int j = 0; j < 2; j++) {
      uint32_t most = 0;  // the largest bits: those of a NaN, of an infinity, or of the largest number
      float sum = 0;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        most = max(most, __float_as_uint(x[j][e]) & 0x7fffffff);
        if constexpr (Row::has_min) sum += x[j][e] / gguf::from_sums;
      }
#pragma unroll
      for (int bit = 1; bit < 8; bit *= 2) {
        most = max(most, __shfl_xor_sync(~0u, most, bit));
        if constexpr (Row::has_min) sum += __shfl_xor_sync(~0u, sum, bit);
      }
      const uint32_t exponent = max(most >> 23, 30u);
      const float to_whole = __uint_as_float((283 - exponent) << 23);
      uint32_t whole[4];
#pragma unroll
      for (int e = 0; e < 4; e++)  // the digits are signed bytes
        whole[e] = (uint32_t(__float2int_rn(x[j][e] * to_whole)) + 0x80808080u) ^ 0x80808080u;
      const uint32_t low[2] = {__byte_perm(whole[0], whole[1], 0x5140), __byte_perm(whole[2], whole[3], 0x5140)},
                     high[2] = {__byte_perm(whole[0], whole[1], 0x7362), __byte_perm(whole[2], whole[3], 0x7362)};
      reinterpret_cast<uint4*>(numbers)[32 * j + lane] = {
          __byte_perm(low[0], low[1], 0x5410), __byte_perm(low[0], low[1], 0x7632),
          __byte_perm(high[0], high[1], 0x5410), __byte_perm(high[0], high[1], 0x7632)};
      if (lane % 8 == 0) {
        of_powers[4 * j + lane / 8] = to_sums * __uint_as_float(exponent < 255 ? (exponent - 29) << 23 : 0x7fffffff);
        if constexpr (Row::has_min) of_powers[S::blocks + 4 * j + lane / 8] = sum;
      }
    }
    __syncwarp();
#pragma unroll
    for (int b = 0; b < S::blocks; b++) {
      uint32_t digit[2];
#pragma unroll
      for (int h = 0; h < 2; h++) digit[h] = numbers[(8 * b + 4 * h + t) * 4 + g % 4];
      if constexpr (Row::has_book) {  // in the order of the entries
        const uint32_t other = __byte_perm(digit[0], digit[1], 0x7362);
        digit[0] = __byte_perm(digit[0], digit[1], 0x5140), digit[1] = other;
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        if (row == 0) digits[b][h] = g < 4 ? digit[h] : 0;
        else if (g >= 4) digits[b][h] = digit[h];
      }
      if (row == 0 || t / 2 == row) {
        powers[b] = of_powers[b];
        // The first digit's column has the minima.
        if constexpr (Row::has_min) sums[b] = t % 2 ? 0.0f : of_powers[S::blocks + b];
      }
    }
  }

  // The factors of 16 rows of W, in the order of pairs of blocks.
  __device__ __forceinline__ void fill(const uint8_t* row_at, float* table, int lane) const {
    float2 scales, minima;
    Row(row_at).each_factor(lane / 16, [&](int i, float scale, float min) {
      if (i % 2 == 0) {
        scales.x = scale, minima.x = -min;
      } else {
        scales.y = scale, minima.y = -min;
        float* const to = table + i / 2 * 32 + lane % 16 * 2;
        *reinterpret_cast<float2*>(to) = scales;
        if constexpr (Row::has_min) *reinterpret_cast<float2*>(to + S::factors) = minima;
      }
    });
  }

  // Adds the products of rows g and g + 8 of W, at `row_at`, with the digits of columns 2 t and 2 t + 1. Blocks from
  // `existing` on do not exist.
  __device__ __forceinline__ void times(const uint8_t* const (&row_at)[2], const float* table, int existing,
                                        float (&total)[4], int lane) const {
    const int g = lane / 4, t = lane % 4;
    const Row rows[2] = {Row(row_at[0]), Row(row_at[1])};
    float2 scales[2], minima[2];
#pragma unroll
    for (int b = 0; b < S::blocks; b++) {
      uint32_t codes[4];
#pragma unroll
      for (int r = 0; r < 2; r++) {
        if constexpr (Row::has_book) {
          const auto eight = rows[r].entries(b, t, 0);
          codes[r] = eight.first, codes[2 + r] = eight.last;
        } else {
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const uint32_t four = rows[r].codes(2 * b + h, t);
            codes[2 * h + r] = shift ? (four << shift) ^ 0x80808080u : four;
          }
        }
        if constexpr (S::has_table) {
          const float* const from = table + b / 2 * 32 + (g + 8 * r) * 2;
          if (b % 2 == 0) {
            scales[r] = *reinterpret_cast<const float2*>(from);
            if constexpr (Row::has_min) minima[r] = *reinterpret_cast<const float2*>(from + S::factors);
          }
        }
      }
      int sum[4];
      multiply_bytes(sum, codes, digits[b], __float_as_int(magic), is_signed);
      const float power = powers[b], less = -magic * power;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        float scale;
        if constexpr (S::has_table) scale = b % 2 ? scales[r].y : scales[r].x;
        else scale = b < existing ? rows[r].scale(b) : 0.0f;
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float exact = fmaf(__int_as_float(sum[2 * r + e]), power, less);
          total[2 * r + e] = fmaf(scale, exact, total[2 * r + e]);
        }
        if constexpr (Row::has_min) total[2 * r] = fmaf(b % 2 ? minima[r].y : minima[r].x, sums[b], total[2 * r]);
      }
    }
  }
};

// A block has some rows of W, and a part of K.
template <class S, class T>
__global__ void __launch_bounds__(S::threads, 1)
    gguf_gemv_digits(const __grid_constant__ tg_gemm_args args, int of_unit, int stages,
                     const __grid_constant__ GatingEpilogue<T, float> epilogue) {
  using Row = typename S::Row;
  extern __shared__ __align__(16) uint8_t shared[];
  const int warps = blockDim.x / 32 - 1, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32,
            g = lane / 4, t = lane % 4;
  const int first = int(args.n * blockIdx.x / gridDim.x), last = int(args.n * (blockIdx.x + 1) / gridDim.x),
            units = int(ceil_div(last - first, of_unit));
  const int first_span = blockIdx.y * warps, span = first_span + warp;
  const int pitch = S::pitch(warps), stage_bytes = of_unit * pitch;
  const uint32_t full = uint32_t(__cvta_generic_to_shared(shared)) + S::barriers_at, empty = full + 8 * S::most_stages;
  const uint32_t taken = empty + 8 * S::most_stages;  // barrier: all warps have their activations
  unsigned* const wrong = reinterpret_cast<unsigned*>(shared + S::wrong_at);
  const PartOfRows<S::format> rows(args, first_span, warps);
  if (threadIdx.x == 32 * warps) {
    init_ring(full, empty, stages, warps, gguf::rows_of_warp);
    mbarrier_init(taken, warps);
    fence_mbarrier_init();
    *wrong = 0;
  }
  __syncthreads();

  if (warp == warps) {
    const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)) + S::ring_at + lane * pitch;
    const auto row_of = [&](int unit) {
      const int row = first + unit * of_unit + lane;
      return lane < of_unit && row < last ? row : int(args.n);
    };
    for (int unit = 0; unit < units && unit < stages; unit++) rows.prefetch(row_of(unit));
    wait_at_start(args);
    launch_dependents();
    Stage at = Stage::to_fill();
#pragma unroll 1
    for (int unit = 0; unit < units; unit++) {
      // Behind the second unit, the activations would arrive late.
      if (unit == 2) mbarrier_wait_warp(taken, 0);
      at.wait_warp(empty);
      if (lane < gguf::rows_of_warp) rows.load(row_of(unit), ring + at.s * stage_bytes, full + 8 * at.s);
      at.advance(stages);
    }
    wait_at_end(args);
    return;
  }

  const int64_t k = int64_t(span) * gguf::span;
  wait_at_start(args);
  launch_dependents();
  uint32_t* const numbers = reinterpret_cast<uint32_t*>(shared + warp * S::numbers_bytes);
  float* const powers = reinterpret_cast<float*>(shared + S::powers_at + warp * S::powers_bytes);
  Digits<S> of_x;
  {
    // All loads before the first use.
    using Four = std::conditional_t<sizeof(T) == 4, uint4, uint2>;
    Four loaded[2][2] = {};
    const T* const a = static_cast<const T*>(args.a.ptr);
    const bool is_aligned = (reinterpret_cast<uintptr_t>(a) | args.a.row_stride * sizeof(T)) % sizeof(Four) == 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int j = 0; j < 2; j++) {
        const int64_t at = k + 128 * j + 4 * lane;  // four numbers exist, or none
        if (i >= args.m || at >= args.k) continue;
        const T* const from = a + i * args.a.row_stride + at;
        if (is_aligned) {
          loaded[i][j] = *reinterpret_cast<const Four*>(from);
        } else {
          alignas(Four) const T four[4] = {from[0], from[1], from[2], from[3]};
          loaded[i][j] = reinterpret_cast<const Four&>(four);
        }
      }
    }
    float x[2][2][4];
#pragma unroll
    for (int e = 0; e < 16; e++)
      x[e / 8][e / 4 % 2][e % 4] = float(reinterpret_cast<const T*>(loaded[e / 8] + e / 4 % 2)[e % 4]);
    of_x.take(0, x[0], numbers, powers, lane);
    // Without a second row its digits are zeros.
    if (args.m > 1) of_x.take(1, x[1], numbers, powers + 2 * S::blocks, lane);
  }
  __syncwarp();
  if (lane == 0) mbarrier_arrive(taken);

  float* const table = reinterpret_cast<float*>(numbers);
  float* const sums = reinterpret_cast<float*>(shared + S::sums_at);
  const bool has_span = k < args.k;
  const int existing = has_span ? min(S::blocks, int(args.k - k) / 32) : 0;
  // Rows that a unit does not have are its last row: behind that lies the next stage.
  const int rows_of_lane[2] = {min(g, of_unit - 1), min(g + 8, of_unit - 1)},
            row_of_factors = min(lane % gguf::rows_of_warp, of_unit - 1);
  Stage at = Stage::to_read();
  int batch = 0, parity = 0;
#pragma unroll 1
  for (int unit = 0; unit < units; unit++) {
    const int row = first + unit * of_unit;
    const uint8_t* const ring = shared + S::ring_at + at.s * stage_bytes + warp * Row::bytes;
    float total[4] = {};  // (MMA_N,MMA), of D^T
    at.wait_warp(full);
    if (has_span) {
      const auto place = [&](int i) { return ring + i * pitch + rows.odd(row + i); };
      if constexpr (S::has_table) {
        of_x.fill(place(row_of_factors), table, lane);
        __syncwarp();
      }
      of_x.times({place(rows_of_lane[0]), place(rows_of_lane[1])}, table, existing, total, lane);
    }
    __syncwarp();  // all lanes have read the stage and the factors
    release_stage(empty, at.s, lane, false, 1);
    at.advance(stages);
    // Four digits are a number of A; two lanes have them.
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float sum = fmaf(total[2 * r + 1], 256.0f, total[2 * r]);
      if (t % 2 == 1) sum *= 65536.0f;
      sum += __shfl_xor_sync(~0u, sum, 1);
      if (t % 2 == 0)
        sums[((parity * S::batch + batch) * S::most_warps + warp) * S::sums + t / 2 * 16 + g + 8 * r] = sum;
    }

    if (++batch < S::batch && unit + 1 < units) continue;
    bar_sync(1, 32 * warps);
    for (int index = threadIdx.x; index < batch * S::sums; index += 32 * warps) {
      const int of_batch = index / S::sums, i = index / 16 % 2, of_row = index % 16;
      const int j = first + (unit + 1 - batch + of_batch) * of_unit + of_row;
      if (i >= args.m || of_row >= of_unit || j >= last) continue;
      const float* const from = sums + (parity * S::batch + of_batch) * S::most_warps * S::sums + index % S::sums;
      float sum = 0;
#pragma unroll 8
      for (int w = 0; w < warps; w++) sum += from[w * S::sums];
      sum *= gguf::from_sums;
      if (!isfinite(sum)) atomicOr(wrong, 1u << i);
      store_sum(args, epilogue, i, j, sum);
    }
    batch = 0, parity ^= 1;
  }
  bar_sync(1, 32 * warps);
  if (*wrong == 0) return;
  const int64_t begin = first_span * int64_t(gguf::span), end = min(begin + warps * int64_t(gguf::span), args.k);
  gguf::repair<S::format>(
      args, *wrong, 0, first, last, begin, end, warps, [](int r) { return r; },
      [&](int r, int j, float sum) { store_sum(args, epilogue, r, j, sum); }, gguf::MostOfF32{});
}

}  // namespace
}  // namespace tilegemm
