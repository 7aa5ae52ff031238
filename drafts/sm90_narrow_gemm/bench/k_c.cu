#include "draft.hpp"
ENTRY(u4_032_k2, Code::u4, bf16, 32, 2, 2, 1, Scaling::sums, Parts::apart, 128, Factor::f16)
ENTRY(u4_128, Code::u4, bf16, 128, 2, 1, 1, Scaling::sums, Parts::apart, 128, Factor::f16)
ENTRY(u4_256fold, Code::u4, bf16, 256, 2, 1, 1, Scaling::folded, Parts::apart, 128, Factor::f16)
ENTRY(u4_016_b2, Code::u4, bf16, 16, 2, 1, 2, Scaling::sums, Parts::apart, 128, Factor::f16)
ENTRY(u4_128late, Code::u4, bf16, 128, 2, 1, 1, Scaling::late, Parts::apart, 128, Factor::f16)
