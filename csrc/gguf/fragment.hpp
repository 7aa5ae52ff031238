// Blocks of GGUF as operand A of matrix instructions: codes, and the factors that 16 or 32 of them share.
//
// A span is 256 numbers of a row: a block of 256, or eight blocks of 32. Step s of a span is the numbers 16 s ... 16 s
// + 15. Lane (g, t) of a warp holds numbers 4 t ... 4 t + 3 of a step, of rows g and g + 8: in bytes, the registers of
// mma.m16n8k16, and of two steps those of mma.m16n8k32.
//
// A number of the row is `scale * (code - zero) - min`, with scales and minima in f32.
#pragma once
#include "gguf/blocks.hpp"

namespace tilegemm::gguf {
namespace {

constexpr int span = 256, step = 16, steps = span / step;

// Bytes of a row from a multiple of `MULTIPLE` bytes on: 1, 2 or 4. A word may touch the 4 bytes behind itself and the
// 3 bytes before.
template <int MULTIPLE>
struct Image {
  const uint8_t* at;

  // `offset` is a multiple, too, of 2 or 4.
  __device__ uint32_t word(int offset) const {
    if constexpr (MULTIPLE == 4) return *reinterpret_cast<const uint32_t*>(at + offset);
    if constexpr (MULTIPLE == 1) {
      // As below, from one of four places that depend on the address.
      const int behind = offset % 4;
      const uint32_t odd = uint32_t(reinterpret_cast<uintptr_t>(at)) + behind;
      const uint32_t* const words = reinterpret_cast<const uint32_t*>(at + behind - odd % 4 + (offset - behind));
      return __funnelshift_r(words[0], words[1], 8 * odd);  // modulo 32
    }
    // Two aligned words at a place that does not depend on the address, so that a compiler adds constants to one
    // register.
    const bool is_odd = reinterpret_cast<uintptr_t>(at) & 2;
    const int behind = offset % 4;
    const uint32_t* const words = reinterpret_cast<const uint32_t*>(at - (is_odd ? 2 : 0) + offset - behind);
    return __funnelshift_rc(words[0], words[1], (is_odd ? 16 : 0) + 8 * behind);
  }
  __device__ float half(int offset) const { return __half2float(*reinterpret_cast<const __half*>(at + offset)); }
};

// 2^23 + byte i of a word: the byte lies in the last bits of the float.
__device__ inline float with_byte(uint32_t word, int i) {
  return __uint_as_float(__byte_perm(word, 0x4b000000, 0x7650 + i));
}

// The factor times byte i of a word, less `zero`.
__device__ inline float times_byte(float factor, uint32_t word, int i, int zero = 0) {
  const float shifted = with_byte(word, i);
  return zero ? factor * (shifted - float((1 << 23) + zero))
              : fmaf(shifted, factor, -float(1 << 23) * factor);  // exact but for one rounding
}

// A span of a row in one format.
template <tg_format F>
struct Row {
  static constexpr Block block = block_of(F);
  static constexpr int blocks = span / block.elements, bytes = blocks * block.bytes;
  // Of bytes, from block to block.
  static constexpr int multiple = block.bytes % 4 == 0 ? 4 : block.bytes % 2 == 0 ? 2 : 1;
  // Whether codes are places in a table.
  static constexpr bool has_book = F == TG_MXFP4 || F == TG_IQ4_NL || F == TG_IQ4_XS;
  // Numbers that share a scale.
  static constexpr int scaled = F == TG_Q2K || F == TG_Q3K || F == TG_Q6K ? 16 : 32;
  static constexpr bool has_min = F == TG_Q4_1 || F == TG_Q5_1 || F == TG_Q2K || F == TG_Q4K || F == TG_Q5K;
  // The code of 0.
  static constexpr uint32_t zero = F == TG_Q4_0    ? 8
                                   : F == TG_Q5_0  ? 16
                                   : F == TG_Q3K   ? 4
                                   : F == TG_Q6K   ? 32
                                   : F == TG_MXFP4 ? 12
                                                   : 0;

  Image<multiple> row;
  float d, m;  // of the block of 256

  __device__ explicit Row(const uint8_t* at) : row{at}, d(0), m(0) {
    if constexpr (F == TG_Q2K) d = row.half(80), m = row.half(82);
    if constexpr (F == TG_Q3K) d = row.half(108);
    if constexpr (F == TG_Q4K || F == TG_Q5K) d = row.half(0), m = row.half(2);
    if constexpr (F == TG_Q6K) d = row.half(208);
    if constexpr (F == TG_IQ4_XS) d = row.half(0);
  }

  // The codes of a lane's four numbers of step s, a byte each: of a format with a table, the entries and the zero.
  __device__ uint32_t codes(int s, int t) const {
    if constexpr (has_book) return entries(s / 2, t, zero).of_step(s);
    const int b = s / 2 * block.bytes, h = s % 2,
              at = 16 * h + 4 * t;          // the block of 32, its half, and the place in 32 bytes
    const int part = s / 8, r = s / 2 % 4;  // of 128 numbers; of rows of 32 numbers
    if constexpr (F == TG_Q4_0) return row.word(b + 2 + 4 * t) >> 4 * h & 0x0f0f0f0f;
    if constexpr (F == TG_Q4_1) return row.word(b + 4 + 4 * t) >> 4 * h & 0x0f0f0f0f;
    if constexpr (F == TG_Q5_0 || F == TG_Q5_1) {
      constexpr int high = F == TG_Q5_0 ? 2 : 4;
      const uint32_t low = row.word(b + high + 4 + 4 * t) >> 4 * h & 0x0f0f0f0f;
      // Bits i = 0 ... 3 go to bits 8 i + 4.
      return low | ((row.word(b + high) >> (16 * h + 4 * t) & 15) * 0x02040810 & 0x10101010);
    }
    if constexpr (F == TG_Q8_0) return row.word(b + 2 + at);
    if constexpr (F == TG_Q2K) return row.word(16 + 32 * part + at) >> 2 * r & 0x03030303;
    if constexpr (F == TG_Q3K) {
      const uint32_t low = row.word(32 + 32 * part + at) >> 2 * r & 0x03030303;
      return low | (row.word(at) >> (4 * part + r) & 0x01010101) << 2;
    }
    if constexpr (F == TG_Q4K || F == TG_Q5K) {
      const uint32_t low = row.word((F == TG_Q4K ? 16 : 48) + 32 * (s / 4) + at) >> 4 * (s / 2 % 2) & 0x0f0f0f0f;
      return F == TG_Q4K ? low : low | (row.word(16 + at) >> s / 2 & 0x01010101) << 4;
    }
    if constexpr (F == TG_Q6K) {
      const uint32_t low = row.word(64 * part + 32 * (r % 2) + at) >> 4 * (r / 2) & 0x0f0f0f0f;
      return low | (row.word(128 + 32 * part + at) >> 2 * r & 0x03030303) << 4;
    }
    return 0;
  }

  // The same as bytes without a sign: 128 more where codes have one.
  static constexpr bool is_signed = F == TG_Q8_0 || F == TG_IQ4_NL || F == TG_IQ4_XS;
  __device__ uint32_t unsigned_codes(int s, int t) const {
    if constexpr (has_book) return entries(s / 2, t, unsigned_zero).of_step(s);
    return is_signed ? codes(s, t) ^ 0x80808080u : codes(s, t);
  }
  static constexpr uint32_t unsigned_zero = is_signed ? 128 : zero;

  // The same, each below a byte of `above`, two to a word.
  __device__ void pairs(bool is_unsigned, int s, int t, uint32_t above, uint32_t& first, uint32_t& second) const {
    if constexpr (has_book) {
      entries(s / 2, t, is_unsigned ? unsigned_zero : zero).pairs(s, above, first, second);
    } else {
      const uint32_t four = is_unsigned ? unsigned_codes(s, t) : codes(s, t);
      first = __byte_perm(four, above, 0x4140), second = __byte_perm(four, above, 0x4342);
    }
  }

  // Entries of a lane's eight numbers of steps 2 b and 2 b + 1: the first two numbers of either step by turns, and the
  // others.
  struct Entries {
    uint32_t first, last;

    __device__ uint32_t of_step(int s) const { return __byte_perm(first, last, s % 2 ? 0x7531 : 0x6420); }
    __device__ void pairs(int s, uint32_t above, uint32_t& two, uint32_t& others) const {
      const int select = s % 2 ? 0x4341 : 0x4240;
      two = __byte_perm(first, above, select), others = __byte_perm(last, above, select);
    }
    // Each above a byte of zeros.
    __device__ void high(int s, uint32_t& two, uint32_t& others) const {
      const int select = s % 2 ? 0x3414 : 0x2404;
      two = __byte_perm(first, 0, select), others = __byte_perm(last, 0, select);
    }
  };
  // Of the format's table, with so much added to each.
  __device__ Entries entries(int b, int t, int more) const {
    constexpr Codebook book = codebook_of(F);
    return entries_of(b, t, {book.plus(false, more), book.plus(true, more)});
  }
  // What both steps need is the same code, so that a compiler makes it once.
  __device__ Entries entries_of(int b, int t, Codebook book) const {
    constexpr int at = F == TG_MXFP4 ? 1 : F == TG_IQ4_NL ? 2 : 8, bytes = F == TG_IQ4_XS ? 16 : block.bytes;
    const uint32_t nibbles = row.word(at + b * bytes + 4 * t);
    // Bit 3 of a code chooses between the halves of the table.
    const uint32_t places = nibbles & 0x77777777, halves = 0x32103210 | (nibbles & 0x88888888) >> 1;
    const auto four = [&](int bits) {
      return __byte_perm(__byte_perm(uint32_t(book.low), uint32_t(book.low >> 32), places >> bits),
                         __byte_perm(uint32_t(book.high), uint32_t(book.high >> 32), places >> bits), halves >> bits);
    };
    return {four(0), four(16)};
  }

  // The scale and the minimum of the numbers `scaled * i` and following.
  __device__ float scale(int i) const {
    if constexpr (F == TG_MXFP4) return scale_of_mxfp4(row.at[i * block.bytes]);
    if constexpr (block.elements == 32) return row.half(i * block.bytes);
    return times_byte(d, scales(i / 4), i % 4, zero_of_scales);
  }
  __device__ float min(int i) const {
    if constexpr (F == TG_Q4_1 || F == TG_Q5_1) return -row.half(i * block.bytes + 2);
    return has_min ? times_byte(m, minima(i / 4), i % 4) : 0.0f;
  }

  // Calls `put`(i, scale, minimum) for half of the row's scales, in order: the first half, or the second.
  static constexpr int scale_count = span / scaled;
  template <class Put>
  __device__ void each_factor(bool second, const Put& put) const {
#pragma unroll
    for (int c = 0; c < scale_count / 2; c += 4) {
      const int first = c + (second ? scale_count / 2 : 0);
      const uint32_t of_scales = block.elements == 32 ? 0 : scales(c / 4 + (second ? scale_count / 8 : 0));
      const uint32_t of_minima = has_min && block.elements == 256 ? minima(c / 4 + (second ? scale_count / 8 : 0)) : 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if constexpr (block.elements == 32) put(first + i, scale(first + i), min(first + i));
        else put(first + i, times_byte(d, of_scales, i, zero_of_scales), has_min ? times_byte(m, of_minima, i) : 0.0f);
      }
    }
  }

 private:
  static constexpr int zero_of_scales = F == TG_Q3K || F == TG_IQ4_XS ? 32 : F == TG_Q6K ? 128 : 0;

  // Scales and minima 4 i ... 4 i + 3 of a block of 256, a byte each.
  __device__ uint32_t scales(int i) const {
    if constexpr (F == TG_Q2K) return row.word(4 * i) & 0x0f0f0f0f;
    if constexpr (F == TG_Q3K)
      return (row.word(96 + i % 2 * 4) >> i / 2 * 4 & 0x0f0f0f0f) | (row.word(104) >> 2 * i & 0x03030303) << 4;
    if constexpr (F == TG_Q6K) return row.word(192 + 4 * i) ^ 0x80808080;
    if constexpr (F == TG_IQ4_XS) {
      // Four nibbles of the low bits, and four pairs of high bits, go to a byte each.
      const uint32_t low = row.word(4) >> 16 * i & 0xffff, high = row.word(0) >> (16 + 8 * i) & 0xff;
      const uint32_t pairs = (low | low << 8) & 0x00ff00ff, fours = (high | high << 12) & 0x000f000f;
      return ((pairs | pairs << 4) & 0x0f0f0f0f) | ((fours | fours << 6) & 0x03030303) << 4;
    }
    const uint32_t first = row.word(4);  // of q4k and q5k
    return i == 0 ? first & 0x3f3f3f3f : (row.word(12) & 0x0f0f0f0f) | (first >> 2 & 0x30303030);
  }
  __device__ uint32_t minima(int i) const {
    if constexpr (F == TG_Q2K) return row.word(4 * i) >> 4 & 0x0f0f0f0f;
    const uint32_t first = row.word(8);  // of q4k and q5k
    return i == 0 ? first & 0x3f3f3f3f : (row.word(12) >> 4 & 0x0f0f0f0f) | (first >> 2 & 0x30303030);
  }
};

}  // namespace
}  // namespace tilegemm::gguf
