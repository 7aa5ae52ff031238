#include "draft.hpp"
ENTRY(mx_016_k2, Code::e2m1, bf16, 16, 2, 2, 1, Scaling::folded, Parts::apart, 32, Factor::e8m0)
ENTRY(mx_064, Code::e2m1, bf16, 64, 2, 1, 1, Scaling::folded, Parts::apart, 32, Factor::e8m0)
ENTRY(mx_256, Code::e2m1, bf16, 256, 2, 1, 1, Scaling::folded, Parts::apart, 32, Factor::e8m0)
ENTRY(nv_016_k2, Code::e2m1, bf16, 16, 2, 2, 1, Scaling::folded, Parts::apart, 16, Factor::e4m3)
