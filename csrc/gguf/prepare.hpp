// Activations in bf16, in the order of K that weights have in the registers of wgmma (gguf/values.hpp): rows of a
// multiple of 64 numbers in the workspace.
#pragma once
#include "common/launch.hpp"
#include "common/ptx.hpp"
#include "common/tensor_map.hpp"
#include "gguf/bf16.hpp"
#include "gguf/numbers.hpp"

namespace tilegemm::gguf {
namespace {

constexpr int preparing_threads = 256;

// Elements of a prepared row.
constexpr int64_t pitch_of(int64_t k) { return ceil_div(k, 64) * 64; }

// The row of A of each prepared row: the same.
struct SameRow {
  __device__ int64_t operator()(int64_t row) const { return row; }
};

// `count` rows. A thread has four neighbouring numbers of a row. Behind the end of K are zeros. A row that `rows` gives
// a negative number stays as the row is.
template <class T, class Rows>
__global__ void __launch_bounds__(preparing_threads)
    gguf_prepare_bf16(const __grid_constant__ tg_gemm_args args, const __grid_constant__ Rows rows, int64_t count,
                      uint32_t* to, int pitch) {
  griddepcontrol_wait();
  launch_dependents();  // after the wait: the product reads W before this kernel ends, and W may be of the kernel
                        // before
  const int quads = pitch / 4;
  const int64_t index = int64_t(blockIdx.x) * preparing_threads + threadIdx.x;
  if (index >= count * quads) return;
  const int64_t row = index / quads, from = rows(row);
  if (from < 0) return;
  const int quad = int(index - row * quads), k = 4 * quad;
  float x[Numbers<T>::width];
  Numbers<T>(args).load(from, k, x);
  const __nv_bfloat162 pairs[2] = {{to_bf16(x[0]), to_bf16(x[1])}, {to_bf16(x[2]), to_bf16(x[3])}};
  uint32_t* const step = to + row * (pitch / 2) + quad / 4 * 8 + quad % 4;
  step[0] = reinterpret_cast<const uint32_t&>(pairs[0]);
  step[4] = reinterpret_cast<const uint32_t&>(pairs[1]);
}

template <class T, class Rows>
tg_status launch_prepare(const tg_gemm_args& args, const Rows& rows, int64_t count, void* to) {
  const int64_t pitch = pitch_of(args.k), blocks = ceil_div(count * (pitch / 4), preparing_threads);
  if (blocks > INT_MAX) return TG_UNSUPPORTED;
  return Launch(args, dim3(unsigned(blocks)), dim3(preparing_threads), 0)(gguf_prepare_bf16<T, Rows>, args, rows, count,
                                                                          static_cast<uint32_t*>(to), int(pitch));
}

// The tensor map of `count` prepared rows, in boxes of 64 numbers of `rows` rows.
inline bool prepared_map(CUtensorMap* map, void* x, int64_t count, int64_t k, int rows) {
  const cuuint64_t pitch = cuuint64_t(pitch_of(k)), extents[3] = {pitch, cuuint64_t(count), 1},
                   strides[2] = {pitch * 2, cuuint64_t(count) * pitch * 2};
  const cuuint32_t box[3] = {64, cuuint32_t(rows), 1};
  return tensor_map<3>(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, x, extents, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace
}  // namespace tilegemm::gguf
