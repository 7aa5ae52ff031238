// Tensor maps, the operands' descriptions for TMA, made on the host.
#pragma once
#include <cudaTypedefs.h>

#include <type_traits>

#include "common/kernel.hpp"

namespace tilegemm {

// For a rehearsal: makes no map, and refuses the arguments that cuTensorMapEncodeTiled is documented to refuse.
inline CUresult check_tensor_map(CUtensorMap*, CUtensorMapDataType type, cuuint32_t rank, void* ptr,
                                 const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box,
                                 const cuuint32_t* steps, CUtensorMapInterleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  int bytes = 4;
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: bytes = 1; break;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:  // CUTLASS's type for 16 bits
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: bytes = 2; break;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: bytes = 8; break;
    default: break;
  }
  const int inner = int(box[0]) * bytes;
  bool fits = rank >= 1 && rank <= 5 && reinterpret_cast<uintptr_t>(ptr) % 16 == 0 && inner % 16 == 0;
  fits = fits && (swizzle != CU_TENSOR_MAP_SWIZZLE_128B || inner <= 128) &&
         (swizzle != CU_TENSOR_MAP_SWIZZLE_64B || inner <= 64) && (swizzle != CU_TENSOR_MAP_SWIZZLE_32B || inner <= 32);
  for (cuuint32_t i = 0; i < rank && fits; i++) {
    fits = extents[i] >= 1 && extents[i] <= cuuint64_t(1) << 32 && box[i] >= 1 && box[i] <= 256 && steps[i] >= 1 &&
           steps[i] <= 8;
  }
  for (cuuint32_t i = 0; i + 1 < rank && fits; i++) fits = strides[i] % 16 == 0 && strides[i] < cuuint64_t(1) << 40;
  return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// A function of the driver, looked up once; null: the driver has none. In a rehearsal, the check of the function's
// arguments.
template <class Function>
Function driver_function(const char* name) {
  if constexpr (std::is_same_v<Function, PFN_cuTensorMapEncodeTiled_v12000>) {
    if (Rehearsal::is_on()) return check_tensor_map;
  }
  static const Function function = [name] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<Function>(found);
  }();
  return function;
}

// Merges the two batch dimensions into one dimension. False: the two strides do not form a single run.
inline bool merge_batch_strides(const tg_matrix& matrix, const int64_t (&batch)[2], int64_t* stride) {
  *stride = batch[1] == 1 ? matrix.batch_stride[0] : matrix.batch_stride[1];
  if (batch[0] == 1 && batch[1] == 1) *stride = 0;
  return batch[0] == 1 || batch[1] == 1 || matrix.batch_stride[0] == batch[1] * matrix.batch_stride[1];
}

template <class T>
constexpr CUtensorMapDataType tensor_map_type = std::is_same_v<T, __half>          ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                : std::is_same_v<T, __nv_bfloat16> ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                : std::is_same_v<T, float>         ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                                                   : CU_TENSOR_MAP_DATA_TYPE_FLOAT64;

// A tensor of `rank` dimensions. The first dimension is contiguous; `strides` are the strides of the other dimensions,
// in bytes. `promotion`: the bytes that L2 fetches at a time. More bytes are better for data from memory, fewer for
// data in L2 or data that blocks share. False: TMA cannot address the tensor.
template <int rank>
bool tensor_map(CUtensorMap* map, CUtensorMapDataType type, void* ptr, const cuuint64_t (&extents)[rank],
                const cuuint64_t (&strides)[rank - 1], const cuuint32_t (&box)[rank], CUtensorMapSwizzle swizzle,
                CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  constexpr cuuint32_t steps[] = {1, 1, 1, 1};
  static_assert(rank <= 4);
  const auto encode = driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled");
  return encode && encode(map, type, rank, ptr, extents, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                          promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// A K-major operand: K x rows x batch, in swizzled boxes of 128 bytes x `box_rows`.
template <class T>
bool tensor_map(CUtensorMap* map, const tg_matrix& matrix, int64_t leading, int64_t rows, int64_t k,
                const int64_t (&batch)[2], int box_rows,
                CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
  int64_t batch_stride;
  if (!merge_batch_strides(matrix, batch, &batch_stride)) return false;
  if (rows == 1) leading = (k + 7) / 8 * 8;  // the stride of a single row has no effect
  return tensor_map<3>(map, tensor_map_type<T>, matrix.ptr,
                       {cuuint64_t(k), cuuint64_t(rows), cuuint64_t(batch[0] * batch[1])},
                       {cuuint64_t(leading) * sizeof(T), cuuint64_t(batch_stride) * sizeof(T)},
                       {128 / sizeof(T), cuuint32_t(box_rows), 1}, CU_TENSOR_MAP_SWIZZLE_128B, promotion);
}

// Matrices for TMA: `lines` lines of `length` contiguous elements, `stride` elements apart, in two batch dimensions.
struct Lines {
  void* ptr;
  int64_t length, lines, stride;
  int64_t batch[2], batch_stride[2];
};
inline Lines lines_of(const tg_matrix& matrix, int64_t lines, int64_t length, int64_t stride,
                      const int64_t (&batch)[2]) {
  return {matrix.ptr, length, lines, stride, {batch[0], batch[1]}, {matrix.batch_stride[0], matrix.batch_stride[1]}};
}
// Operands in lines along K (`k_major`), or along M or N; and D in rows.
inline Lines lines_of_a(const tg_gemm_args& args, bool k_major) {
  return k_major ? lines_of(args.a, args.m, args.k, args.a.row_stride, args.batch)
                 : lines_of(args.a, args.k, args.m, args.a.col_stride, args.batch);
}
inline Lines lines_of_b(const tg_gemm_args& args, bool k_major) {
  return k_major ? lines_of(args.b, args.n, args.k, args.b.col_stride, args.batch)
                 : lines_of(args.b, args.k, args.n, args.b.row_stride, args.batch);
}
inline Lines lines_of_d(const tg_gemm_args& args) {
  return lines_of(args.d, args.m, args.n, args.d.row_stride, args.batch);
}

// A map with boxes of `box_length` elements x `box_lines`. False: TMA cannot address the matrices.
template <class T>
bool tensor_map(CUtensorMap* map, const Lines& of, int box_length, int box_lines, CUtensorMapSwizzle swizzle,
                CUtensorMapDataType type = tensor_map_type<T>) {
  constexpr int64_t size = sizeof(T), unit = 16 / size;
  // The stride of a single line or matrix has no effect.
  const int64_t line = of.lines == 1 ? ceil_div(of.length, unit) * unit : of.stride;
  const int64_t inner = of.batch[1] == 1 ? 0 : of.batch_stride[1], outer = of.batch[0] == 1 ? 0 : of.batch_stride[0];
  if (line < of.length || line % unit || inner < 0 || inner % unit || outer < 0 || outer % unit) return false;
  return tensor_map<4>(map, type, of.ptr,
                       {cuuint64_t(of.length), cuuint64_t(of.lines), cuuint64_t(of.batch[1]), cuuint64_t(of.batch[0])},
                       {cuuint64_t(line * size), cuuint64_t(inner * size), cuuint64_t(outer * size)},
                       {cuuint32_t(box_length), cuuint32_t(box_lines), 1, 1}, swizzle);
}

// A map of f32 with swizzled boxes of 128 bytes x `box_lines`. `round`: TMA rounds loaded numbers to TF32, to nearest
// even.
inline bool tensor_map(CUtensorMap* map, const Lines& of, int box_lines, bool round) {
  return tensor_map<float>(map, of, 32, box_lines, CU_TENSOR_MAP_SWIZZLE_128B,
                           round ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32 : CU_TENSOR_MAP_DATA_TYPE_FLOAT32);
}

}  // namespace tilegemm
