// Copies of rows between any two addresses, at the speed of memory.
//
// A row may start at any multiple of 2 bytes, in the source and in the copy. A lane writes words of 16 bytes of the
// copy. The bytes of such a word lie in two neighbouring words of the source: the lane loads the first word, gets the
// second word from the next lane, and shifts both words.
#pragma once
#include <algorithm>

#include "common/kernel.hpp"
#include "common/launch.hpp"
#include "common/ptx.hpp"

namespace tilegemm {
namespace {

// Matrices of rows. Distances are in bytes.
struct Rows {
  char* at;
  int64_t stride, batch_stride[2];

  __device__ char* row(int64_t i, int64_t outer, int64_t inner) const {
    return at + i * stride + outer * batch_stride[0] + inner * batch_stride[1];
  }
};
struct RowCopy {
  Rows from, to;
  const char* end;        // of the source
  int64_t bytes, length;  // of a row of the source, and of the copy: the rest is zero
  Divisor rows, inner_batch, segments;
  int count;  // of segments, in all matrices
};

// A warp copies a segment of a row at a time: `copy_words` words for each lane, 512 bytes apart.
constexpr int copy_threads = 256, copy_words = 4, copy_segment = copy_words * 512;

// The word at `from`, a multiple of 16 bytes, as far as the row goes; bytes outside of the row have no meaning.
__device__ __forceinline__ uint4 load_of_row(const char* from, const char* row, const char* row_end, const char* end) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (from + 16 <= row || from >= row_end) return v;
  if (from + 16 <= end) return *reinterpret_cast<const uint4*>(from);
  uint64_t halves[2] = {0, 0};
#pragma unroll 1
  for (int e = 0; e < 8 && from + 2 * e < end; e++) {
    const uint64_t bits = uint64_t(*reinterpret_cast<const uint16_t*>(from + 2 * e)) << (e % 4 * 16);
    if (e < 4) halves[0] |= bits;
    else halves[1] |= bits;
  }
  return make_uint4(uint32_t(halves[0]), uint32_t(halves[0] >> 32), uint32_t(halves[1]), uint32_t(halves[1] >> 32));
}

// The 16 bytes that begin `skip` numbers of 2 bytes after the beginning of `x`, which `y` follows.
__device__ __forceinline__ uint4 shifted(const uint4& x, const uint4& y, int skip) {
  uint32_t v[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
  for (int e = 0; e < 6; e++) v[e] = skip & 4 ? v[e + 2] : v[e];
#pragma unroll
  for (int e = 0; e < 5; e++) v[e] = skip & 2 ? v[e + 1] : v[e];
#pragma unroll
  for (int e = 0; e < 4; e++) v[e] = __funnelshift_r(v[e], v[e + 1], skip % 2 * 16);
  return make_uint4(v[0], v[1], v[2], v[3]);
}

// Stores the word of the copy whose first byte is byte `begin` of the row.
__device__ __forceinline__ void store_of_row(char* row, int64_t begin, const uint4& word, const RowCopy& of) {
  uint32_t v[4] = {word.x, word.y, word.z, word.w};
  const int left = int(max(min(of.bytes - begin, int64_t(16)), int64_t(0))) / 2;
#pragma unroll
  for (int e = 0; e < 4; e++) v[e] = left >= 2 * e + 2 ? v[e] : left == 2 * e + 1 ? v[e] & 0xffff : 0;
  if (begin >= 0 && begin + 16 <= of.length) {
    *reinterpret_cast<uint4*>(row + begin) = make_uint4(v[0], v[1], v[2], v[3]);
    return;
  }
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const int64_t at = begin + 2 * e;
    if (at >= 0 && at < of.length) *reinterpret_cast<uint16_t*>(row + at) = uint16_t(v[e / 2] >> (e % 2 * 16));
  }
}

__global__ void __launch_bounds__(copy_threads) copy_rows(const __grid_constant__ RowCopy of) {
#if __CUDA_ARCH__ >= 900
  launch_dependents();  // the product on the copies may prefetch an operand, and waits for the end of this kernel
#endif
  const int lane = threadIdx.x % 32, warps = gridDim.x * (copy_threads / 32);
#pragma unroll 1
  for (int segment = blockIdx.x * (copy_threads / 32) + threadIdx.x / 32; segment < of.count; segment += warps) {
    const int line = of.segments.quotient(segment), matrix = of.rows.quotient(line),
              outer = of.inner_batch.quotient(matrix);
    const int64_t i = line - matrix * int64_t(of.rows.value), inner = matrix - outer * int64_t(of.inner_batch.value);
    const char* const from = of.from.row(i, outer, inner);
    char* const to = of.to.row(i, outer, inner);
    const char* const from_end = from + of.bytes;
    // The first byte of the lane's first word of the copy, which is negative where the row begins inside of a word.
    const int64_t place = int64_t(segment - line * int(of.segments.value)) * copy_segment;
    const int before = int(reinterpret_cast<uintptr_t>(to) % 16);
    const int64_t begin = place - before + 16 * lane;
    const int skip = int(reinterpret_cast<uintptr_t>(from + begin) % 16) / 2;  // equal for all lanes
    const char* const first = from + begin - 2 * skip;

    uint4 word[copy_words + 1];
    // Whether all words of the copy lie inside of the row. A word of the source then begins less than 16 bytes before
    // the row at most.
    const bool inside = (place > 0 || before == 0) && place + copy_segment <= of.bytes;
    if (inside) {
#pragma unroll
      for (int w = 0; w < copy_words; w++) word[w] = *reinterpret_cast<const uint4*>(first + 512 * w);
    } else {
#pragma unroll
      for (int w = 0; w < copy_words; w++) word[w] = load_of_row(first + 512 * w, from, from_end, of.end);
    }
    // The word behind the segment's words: lane 0 loads this word for the last lane.
    word[copy_words] = lane == 0 ? load_of_row(first + copy_segment, from, from_end, of.end) : make_uint4(0, 0, 0, 0);
    const auto next = [&](uint32_t x, uint32_t y) { return __shfl_sync(~0u, lane == 0 ? y : x, (lane + 1) % 32); };
#pragma unroll
    for (int w = 0; w < copy_words; w++) {
      const uint4 &x = word[w], &y = word[w + 1];
      const uint4 copy =
          skip == 0 ? x : shifted(x, make_uint4(next(x.x, y.x), next(x.y, y.y), next(x.z, y.z), next(x.w, y.w)), skip);
      if (inside) *reinterpret_cast<uint4*>(to + begin + 512 * w) = copy;
      else store_of_row(to, begin + 512 * w, copy, of);
    }
  }
}

// Copies A to D, whose rows are contiguous: `m` rows of `k` elements of `size` bytes, with zeros up to `n` elements.
inline tg_status launch_copy_rows(const tg_gemm_args& args, int64_t size) {
  const auto rows_of = [size](const tg_matrix& of) {
    return Rows{
        static_cast<char*>(of.ptr), of.row_stride * size, {of.batch_stride[0] * size, of.batch_stride[1] * size}};
  };
  const Rows from = rows_of(args.a), to = rows_of(args.d);
  const int64_t bytes = args.k * size, length = args.n * size, matrices = args.batch[0] * args.batch[1];
  if (length == 0 || args.m == 0 || matrices == 0) return TG_OK;
  const auto is_multiple = [](int64_t x) { return x % 16 == 0; };
  const bool aligned = is_multiple(int64_t(reinterpret_cast<uintptr_t>(to.at))) && is_multiple(to.stride) &&
                       is_multiple(to.batch_stride[0]) && is_multiple(to.batch_stride[1]);
  const int64_t segments = ceil_div(length + (aligned ? 0 : 14), copy_segment);
  // The strides of a source are not negative: the last row of the last matrix ends last.
  if (args.m > INT32_MAX / 8 / segments / matrices || bytes > length || from.stride < 0 || from.batch_stride[0] < 0 ||
      from.batch_stride[1] < 0 || size % 2 != 0 || reinterpret_cast<uintptr_t>(from.at) % 2 != 0 ||
      reinterpret_cast<uintptr_t>(to.at) % 2 != 0) {
    return TG_UNSUPPORTED;
  }
  const char* const end = from.at + (args.m - 1) * from.stride + (args.batch[0] - 1) * from.batch_stride[0] +
                          (args.batch[1] - 1) * from.batch_stride[1] + bytes;
  const RowCopy copy{from,
                     to,
                     end,
                     bytes,
                     length,
                     Divisor(args.m),
                     Divisor(args.batch[1]),
                     Divisor(segments),
                     int(args.m * segments * matrices)};
  const int64_t blocks = ceil_div(copy.count, copy_threads / 32), most = 16 * std::max(1, args.sm_count);
  return launch_plainly(args, dim3(unsigned(std::min(blocks, most))), dim3(copy_threads), 0, copy_rows, copy);
}

}  // namespace
}  // namespace tilegemm
