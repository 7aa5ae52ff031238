#pragma once
#include <cuda.h>
#include "common/launch.hpp"
#include "common/ptx.hpp"
namespace tilegemm {
template <int rank> bool tensor_map(CUtensorMap* map, CUtensorMapDataType, void* ptr, const cuuint64_t (&extents)[rank], const cuuint64_t (&strides)[rank - 1], const cuuint32_t (&box)[rank], CUtensorMapSwizzle) {
  if (reinterpret_cast<uintptr_t>(ptr) % 16 || strides[0] % 16 || strides[1] % 16 || box[0] > 256 || box[1] > 256) return false;
  Map m{static_cast<const uint8_t*>(ptr), {extents[0], extents[1], extents[2]}, {strides[0], strides[1]}, {box[0], box[1], box[2]}};
  memcpy(map, &m, sizeof m); return true;
}
}  // namespace tilegemm
