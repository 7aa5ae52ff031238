// What a launch by wgmma makes of a call: which factors a tile takes, how a kernel reads them, and the map of the
// codes.
#pragma once
#include <algorithm>

#include "common/tensor_map.hpp"
#include "narrow/numbers.hpp"
#include "narrow/wgmma_shape.hpp"

namespace tilegemm::narrow {
namespace {

// Whether the tile's unit and its arithmetic admit the factors.
template <class S, int UNIT>
bool takes_factors(const tg_gemm_args& args) {
  const tg_scale& scale = args.b_scale;
  const bool is_row = scale.rows >= args.k, in_units = is_row || scale.rows % UNIT == 0;
  if (!scale.ptr) return true;
  if constexpr (S::is_late) return is_row;
  if (!in_units) return false;
  switch (scale.format) {
    case TG_F32: return UNIT == 128;
    case TG_F16:
    case TG_BF16: return S::code != TG_F4E2M1;
    case TG_F8E8M0: return S::code == TG_F4E2M1 && UNIT == 32;
    default: return S::code == TG_F4E2M1 && UNIT == 16;
  }
}

// What a kernel reads as factors: ones, where there are none.
struct FactorFormat {
  tg_format format;
  int bytes;
  uint32_t one;
};
template <class S, int UNIT>
FactorFormat factor_format(const tg_scale& scale) {
  if (scale.ptr) return {scale.format, bytes_of_factor(scale.format), 0};
  if (S::code == TG_F4E2M1 && UNIT == 16) return {TG_F8E4M3, 1, 0x38};
  if (S::code == TG_F4E2M1 && UNIT == 32) return {TG_F8E8M0, 1, 127};
  return {TG_BF16, 2, 0x3f80};
}

// Whether lines of factors and of zeros can be copied in pieces of 16 bytes.
inline bool has_vectors(const tg_gemm_args& args) {
  const tg_scale& scale = args.b_scale;
  const int64_t stride = scale.rows >= args.k ? 0 : scale.row_stride,
                matrix = args.groups.count > 1 ? scale.batch_stride[1] : 0;
  const auto whole = [&](const void* from, int bytes) {
    return reinterpret_cast<uintptr_t>(from) % 16 == 0 && stride * bytes % 16 == 0 && matrix * bytes % 16 == 0;
  };
  return scale.ptr && scale.columns == 1 && scale.col_stride == 1 && whole(scale.ptr, bytes_of_factor(scale.format)) &&
         (!scale.zeros || whole(scale.zeros, 1));
}

// The map of codes, with a matrix for each group, in boxes of a tile's rows.
template <class S>
bool codes_map(CUtensorMap* map, const tg_gemm_args& args) {
  const int64_t numbers = is_packed(S::code) ? ceil_div(args.k, 32) * 32 : args.k, length = bytes_of(S::code, numbers);
  // The stride of a single row, and that of a single matrix, have no effect.
  const int64_t row = args.n == 1 ? ceil_div(length, 16) * 16 : bytes_of(S::code, args.b.col_stride);
  const int64_t matrices = args.groups.count > 1 ? args.groups.count : 1,
                matrix = matrices == 1 ? 16 : bytes_of(S::code, args.b.batch_stride[1]);
  return tensor_map<3>(map, CU_TENSOR_MAP_DATA_TYPE_UINT8, args.b.ptr,
                       {cuuint64_t(length), cuuint64_t(args.n), cuuint64_t(matrices)},
                       {cuuint64_t(row), cuuint64_t(matrix)}, {w_row, S::height, 1}, CU_TENSOR_MAP_SWIZZLE_128B);
}

}  // namespace
}  // namespace tilegemm::narrow
