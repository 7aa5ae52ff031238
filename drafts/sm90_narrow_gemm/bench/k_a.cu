#include "draft.hpp"
ENTRY(u4_016_k2, Code::u4, bf16, 16, 2, 2, 1, Scaling::sums, Parts::apart, 128, Factor::f16)
ENTRY(u4_064, Code::u4, bf16, 64, 2, 1, 1, Scaling::sums, Parts::apart, 128, Factor::f16)
ENTRY(u4_256, Code::u4, bf16, 256, 2, 1, 1, Scaling::sums, Parts::in_place, 128, Factor::f16)
ENTRY(u4_256late, Code::u4, bf16, 256, 2, 1, 1, Scaling::late, Parts::apart, 128, Factor::f16)
