// A warp's 16 of 64 rows of wgmma with operand A in registers, as the PTX ISA has the fragments.
#pragma once
#include "common/wgmma.hpp"
namespace tilegemm::narrow {
template <class T, int rows> inline void wgmma(float (&d)[rows / 2], const uint32_t (&p)[4], uint64_t q, int add) {
  const auto& all = emu::exchange({p[0], p[1], p[2], p[3], q, 0, 0, 0});
  const int lane = emu::current % 32, g = lane / 4, t = lane % 4;
  for (int i = 0; i < 32; i++) if (all[i][4] != q) emu::fail("descriptors differ");
  const auto number = [](uint32_t bits) { const uint16_t half = uint16_t(bits); T x; memcpy(&x, &half, 2); return float(x); };
  float a[2][16];  // rows g and g + 8
  for (int r = 0; r < 2; r++) for (int k = 0; k < 16; k++) a[r][k] = number(uint32_t(all[4 * g + k % 8 / 2][r + k / 8 * 2]) >> 16 * (k % 2));
  const uint32_t base = uint32_t(q & 0x3fff) << 4;
  for (int j = 0; j < rows / 8; j++) for (int e = 0; e < 4; e++) {
    const int n = 8 * j + 2 * t + e % 2; double sum = 0;
    for (int k = 0; k < 16; k++) { uint32_t at = base + n / 8 * 1024 + n % 8 * 128 + k * 2; at ^= (at >> 7 & 7) << 4; sum += double(a[e / 2][k]) * number(emu::load<uint16_t>(at)); }
    d[4 * j + e] = float((add ? double(d[4 * j + e]) : 0.0) + sum);
  }
  emu::exchange(0);  // all lanes have read: a wait of one of them is for all
}
}  // namespace tilegemm::narrow
