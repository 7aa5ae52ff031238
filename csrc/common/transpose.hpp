// Copies an operand to the workspace in another order, for kernels that cannot read the operand in place: from lines
// along M or N to lines along K, or from lines along K to lines along M or N.
#pragma once
#include <algorithm>

#include "common/launch.hpp"
#include "common/ptx.hpp"
#include "common/tensor_map.hpp"

namespace tilegemm {
namespace {

// Turns each matrix [k][rows], with lines `stride` apart, into [rows][pitch], one matrix behind the other; the rest of
// a row is zero.
struct Transpose {
  const float* from;
  int64_t stride, batch_stride[2];
  float* to;
  int rows, k, pitch, batch1;  // pitch: k rounded up to a multiple of transpose_side
  bool wide;                   // 16 bytes of a line can be read at once
  unsigned squares;            // squares of transpose_side by transpose_side, in all matrices
};

constexpr int transpose_side = 32, transpose_threads = 256;

// Loads four neighbours of a line that has `left` numbers left; zeros beyond the end of the line.
__device__ __forceinline__ float4 load_four(const float* from, int left, bool wide) {
  if (wide && left >= 4) return __ldg(reinterpret_cast<const float4*>(from));
  const auto get = [&](int i) { return i < left ? __ldg(from + i) : 0; };
  return make_float4(get(0), get(1), get(2), get(3));
}

// A warp transposes a square in registers. Lane 8 r + q loads the four columns from 4 q on, of the lines 4 r + e and
// 16 + 4 r + e, and so has four neighbours along K. The warp reads and writes whole sectors.
__device__ __forceinline__ void transpose_square(const Transpose& t, unsigned square) {
  const int across = (t.rows + 31) / 32, in_matrix = across * (t.pitch / 32), z = square / in_matrix, z0 = z / t.batch1;
  const int in = square - z * in_matrix, q = threadIdx.x % 8, r = threadIdx.x % 32 / 8;
  const int k0 = in / across * 32 + 4 * r, row = in % across * 32 + 4 * q;
  const float* const from = t.from + z0 * t.batch_stride[0] + (z - z0 * t.batch1) * t.batch_stride[1] + row;
  float4 x[2][4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int k = k0 + 16 * h + e;
      x[h][e] = load_four(from + k * t.stride, k < t.k ? t.rows - row : 0, t.wide);
    }
  }
  float* const to = t.to + (int64_t(z) * t.rows + row) * t.pitch + k0;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const float4(&y)[4] = x[h];
    const float4 lines[4] = {{y[0].x, y[1].x, y[2].x, y[3].x},
                             {y[0].y, y[1].y, y[2].y, y[3].y},
                             {y[0].z, y[1].z, y[2].z, y[3].z},
                             {y[0].w, y[1].w, y[2].w, y[3].w}};
#pragma unroll
    for (int e = 0; e < 4; e++) {
      if (row + e < t.rows) __stcg(reinterpret_cast<float4*>(to + e * int64_t(t.pitch) + 16 * h), lines[e]);
    }
  }
}

// Transposes all squares with the blocks of a grid, `transpose_threads` threads in each.
__device__ __forceinline__ void transpose_all(const Transpose& t) {
  constexpr unsigned warps = transpose_threads / 32;
  for (unsigned i = blockIdx.x * warps + threadIdx.x / 32; i < t.squares; i += gridDim.x * warps)
    transpose_square(t, i);
}

// Transposes one operand, or two operands.
__global__ void __launch_bounds__(transpose_threads)
    transpose(const __grid_constant__ Transpose t, const __grid_constant__ Transpose other) {
  launch_dependents();
  transpose_all(t);
  transpose_all(other);
}

// The transposition of the matrices of `of` to `to`. `differ`: the number of different matrices along each dimension of
// the batch.
inline Transpose transpose_of(const Lines& of, void* to, const int64_t (&differ)[2]) {
  const auto is_multiple = [](int64_t elements) { return elements % 4 == 0; };
  const bool wide = reinterpret_cast<uintptr_t>(of.ptr) % 16 == 0 && is_multiple(of.stride) &&
                    is_multiple(of.batch_stride[0]) && is_multiple(of.batch_stride[1]);
  const int64_t across = ceil_div(of.length, transpose_side), along = ceil_div(of.lines, transpose_side);
  return {static_cast<const float*>(of.ptr),
          of.stride,
          {of.batch_stride[0], of.batch_stride[1]},
          static_cast<float*>(to),
          int(of.length),
          int(of.lines),
          int(along * transpose_side),
          int(differ[1]),
          wide,
          unsigned(across * along * differ[0] * differ[1])};
}

// Plans the transposition of `q`, and replaces `q` by the copy in the workspace. False: the workspace is too small.
inline bool move_to_workspace(const tg_gemm_args& args, Lines* q, Transpose* t) {
  const int64_t differ[] = {q->batch_stride[0] ? q->batch[0] : 1, q->batch_stride[1] ? q->batch[1] : 1};
  *t = transpose_of(*q, args.workspace, differ);
  const int64_t plane = q->length * t->pitch, bytes = plane * differ[0] * differ[1] * int64_t(sizeof(float));
  if (!args.workspace || uint64_t(bytes) > args.workspace_bytes) return false;
  const int64_t outer = differ[0] > 1 ? differ[1] * plane : 0, inner = differ[1] > 1 ? plane : 0;
  *q = {args.workspace, q->lines, q->length, t->pitch, {q->batch[0], q->batch[1]}, {outer, inner}};
  return true;
}

// Launches the transposition before the product; the product may start while the transposition runs.
inline tg_status launch_transpose(const tg_gemm_args& args, const Transpose& t, const Transpose& other = {}) {
  // The transposition starts when the kernel before has ended. With an earlier start, the blocks would crowd on the
  // multiprocessors that are free first, which takes longer (3 % of a TF32 product of 2048^3 on an H100). The product
  // overlaps the transposition's end.
  tg_gemm_args after = args;
  after.overlap = 0;
  const int64_t blocks = ceil_div(std::max(t.squares, other.squares), transpose_threads / 32);
  const dim3 grid(unsigned(std::min<int64_t>(blocks, 4 * args.sm_count)));
  return Launch(after, grid, dim3(transpose_threads), 0)(transpose, t, other);
}

}  // namespace
}  // namespace tilegemm
