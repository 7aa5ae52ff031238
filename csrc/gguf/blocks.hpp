// The block formats of GGUF files: sizes, and the numbers of a block one by one, as ggml-common.h and ggml-quants.c of
// llama.cpp define them. A block is B's numbers at consecutive k of one column. Any bytes are a valid block.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm::gguf {

struct Block {
  int elements, bytes;
};

constexpr bool is_block(tg_format format) {
  return (format >= TG_Q4_0 && format <= TG_Q6K) || (format >= TG_MXFP4 && format <= TG_IQ4_XS);
}

constexpr __host__ __device__ Block block_of(tg_format format) {
  switch (format) {
    case TG_Q4_0: return {32, 18};
    case TG_Q4_1: return {32, 20};
    case TG_Q5_0: return {32, 22};
    case TG_Q5_1: return {32, 24};
    case TG_Q8_0: return {32, 34};
    case TG_Q2K: return {256, 84};
    case TG_Q3K: return {256, 110};
    case TG_Q4K: return {256, 144};
    case TG_Q5K: return {256, 176};
    case TG_Q6K: return {256, 210};
    case TG_MXFP4: return {32, 17};
    case TG_IQ4_NL: return {32, 18};
    case TG_IQ4_XS: return {256, 136};
    default: return {1, 0};
  }
}

// Whether K and the strides of B are whole blocks; `Limits::check_blocks` in src/kernel/limits.rs has the same rule.
inline bool is_whole(tg_format format, const tg_gemm_args& args) {
  const int64_t elements = block_of(format).elements;
  return args.k % elements == 0 && args.b.row_stride == 1 && args.b.col_stride % elements == 0 &&
         args.b.batch_stride[0] % elements == 0 && args.b.batch_stride[1] % elements == 0;
}

__host__ __device__ inline float half_at(const uint8_t* at) {
  __half_raw raw;
  raw.x = uint16_t(at[0] | at[1] << 8);
  return __half2float(__half(raw));
}

// The numbers that codes of 4 bits stand for, as bytes in two's complement, code 0 in the lowest byte: of iq4_nl and
// iq4_xs, and twice the numbers of mxfp4.
struct Codebook {
  uint64_t low, high;

  // With so much added to each number.
  constexpr __host__ __device__ uint64_t plus(bool is_high, int more) const {
    uint64_t sums = 0;
    for (int i = 0; i < 64; i += 8) sums |= (((is_high ? high : low) >> i) + more & 255) << i;
    return sums;
  }
};
constexpr __host__ __device__ Codebook codebook_of(tg_format format) {
  return format == TG_MXFP4 ? Codebook{0x0c08060403020100, 0xf4f8fafcfdfeff00}
                            : Codebook{0xf6eaddcfbfad9881, 0x7159453526190d01};
}

// The upper bytes of twice the numbers of mxfp4 in f16, whose lower bytes are 0.
constexpr Codebook halves_of_mxfp4 = {0x4a48464442403c00, 0xcac8c6c4c2c0bc80};

// Scales of mxfp4 up to 2^40 leave sums finite, as far as activations do.
constexpr int log2_of_tame = 40;

// Half the power of two of a block of mxfp4, for twice the numbers: 2^-128 of code 0, and NaN of 255.
__host__ __device__ inline float scale_of_mxfp4(uint8_t code) {
  const uint32_t bits = code < 2 ? 0x00200000u << code : code < 255 ? (code - 1u) << 23 : 0x7fc00000u;
  return reinterpret_cast<const float&>(bits);
}

// The scale and the minimum of numbers 32 j ... 32 j + 31 of q4k and q5k: 6 bits each, in 12 bytes.
struct ScaleAndMin {
  int scale, min;
};
__host__ __device__ inline ScaleAndMin scale_and_min(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[j + 4] & 63};
  return {(packed[j + 4] & 15) | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4};
}

// Number i of a block. The f32 operations are those of candle's `to_float`, and of ggml's where candle has no such
// format.
__host__ __device__ inline float number(tg_format format, const uint8_t* block, int i) {
  const int half = i / 16, byte = i % 16;  // of the formats with 32 numbers: two halves of 16
  const int part = i / 128, row = i % 128 / 32,
            at = i % 32;  // of the formats with 256 numbers: two parts of 4 rows of 32
  const auto nibble = [](uint8_t pair, int which) { return pair >> 4 * which & 15; };
  switch (format) {
    case TG_Q4_0: return float(nibble(block[2 + byte], half) - 8) * half_at(block);
    case TG_Q4_1: return float(nibble(block[4 + byte], half)) * half_at(block) + half_at(block + 2);
    case TG_Q5_0:
    case TG_Q5_1: {
      const uint8_t* high = block + (format == TG_Q5_0 ? 2 : 4);
      const int q = nibble(high[4 + byte], half) | (high[i / 8] >> i % 8 & 1) << 4;
      return format == TG_Q5_0 ? float(q - 16) * half_at(block) : float(q) * half_at(block) + half_at(block + 2);
    }
    case TG_Q8_0: return float(int8_t(block[2 + i])) * half_at(block);
    case TG_Q2K: {
      const uint8_t scale = block[i / 16];
      const int q = block[16 + 32 * part + at] >> 2 * row & 3;
      return half_at(block + 80) * float(scale & 15) * float(q) - half_at(block + 82) * float(scale >> 4);
    }
    case TG_Q3K: {
      const uint8_t* scales = block + 96;
      const int s = i / 16, low = nibble(scales[s % 8], s / 8), high = scales[8 + s % 4] >> 2 * (s / 4) & 3;
      const int q = (block[32 + 32 * part + at] >> 2 * row & 3) - (block[at] >> (4 * part + row) & 1 ? 0 : 4);
      return half_at(block + 108) * float((low | high << 4) - 32) * float(q);
    }
    case TG_Q4K:
    case TG_Q5K: {
      const int sub = i / 32;
      const ScaleAndMin packed = scale_and_min(block + 4, sub);
      const uint8_t* low = block + (format == TG_Q4K ? 16 : 48);
      int q = nibble(low[32 * (sub / 2) + at], sub % 2);
      if (format == TG_Q5K) q |= (block[16 + at] >> sub & 1) << 4;
      return half_at(block) * float(packed.scale) * float(q) - half_at(block + 2) * float(packed.min);
    }
    case TG_Q6K: {
      const int low = nibble(block[64 * part + 32 * (row % 2) + at], row / 2);
      const int q = (low | (block[128 + 32 * part + at] >> 2 * row & 3) << 4) - 32;
      return half_at(block + 208) * float(int8_t(block[192 + i / 16])) * float(q);
    }
    case TG_MXFP4:
    case TG_IQ4_NL:
    case TG_IQ4_XS: {
      const bool is_long = format == TG_IQ4_XS;
      const uint8_t* pairs = block + (is_long ? 8 + i / 32 * 16 : format == TG_MXFP4 ? 1 : 2);
      const int code = nibble(pairs[byte], half % 2);
      const Codebook book = codebook_of(format);
      const float q = float(int8_t((code < 8 ? book.low : book.high) >> 8 * (code % 8)));
      if (format == TG_MXFP4) return scale_of_mxfp4(block[0]) * q;
      if (format == TG_IQ4_NL) return half_at(block) * q;
      const int sub = i / 32;
      const int scale = nibble(block[4 + sub / 2], sub % 2) | (block[2 + sub / 4] >> 2 * (sub % 4) & 3) << 4;
      return half_at(block) * float(scale - 32) * q;
    }
    default: return 0.0f;
  }
}

}  // namespace tilegemm::gguf
