#pragma once
#include "common/ptx.hpp"
namespace tilegemm {
inline uint64_t wgmma_descriptor(uint32_t address) { return (uint64_t(1) << 62) | (uint64_t(1024 >> 4) << 32) | (uint64_t(1) << 16) | ((address & 0x3FFFF) >> 4); }
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int size> inline void wgmma_pin(float (&)[size]) {}
template <int size> inline void wgmma_zero(float (&d)[size]) { for (float& x : d) x = 0; }
template <int size> inline float4 fragment(const float (&s)[size], int j) { return make_float4(s[4 * j], s[4 * j + 1], s[4 * j + 2], s[4 * j + 3]); }
}  // namespace tilegemm
