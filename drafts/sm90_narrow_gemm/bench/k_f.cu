#include "draft.hpp"
ENTRY(mxh_016_k2, Code::e2m1, half_t, 16, 2, 2, 1, Scaling::folded, Parts::apart, 32, Factor::e8m0)
ENTRY(nvh_064, Code::e2m1, half_t, 64, 2, 1, 1, Scaling::folded, Parts::apart, 16, Factor::e4m3)
ENTRY(u4g32_016_k2, Code::u4, bf16, 16, 2, 2, 1, Scaling::folded, Parts::apart, 32, Factor::f16)
ENTRY(u4hg32_032_k2, Code::u4, half_t, 32, 2, 2, 1, Scaling::folded, Parts::apart, 32, Factor::f16)
ENTRY(u4h_016_k2, Code::u4, half_t, 16, 2, 2, 1, Scaling::sums, Parts::apart, 128, Factor::f16)
ENTRY(u4g64_128, Code::u4, bf16, 128, 2, 1, 1, Scaling::sums, Parts::apart, 64, Factor::bf16)
