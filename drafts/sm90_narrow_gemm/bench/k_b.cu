#include "draft.hpp"
ENTRY(f8_016_k2, Code::f8e4m3, bf16, 16, 2, 2, 1, Scaling::late, Parts::apart, 128, Factor::f32)
ENTRY(f8_064, Code::f8e4m3, bf16, 64, 2, 1, 1, Scaling::late, Parts::apart, 128, Factor::f32)
ENTRY(f8_128, Code::f8e4m3, bf16, 128, 2, 1, 1, Scaling::late, Parts::apart, 128, Factor::f32)
ENTRY(f8_256, Code::f8e4m3, bf16, 256, 2, 1, 1, Scaling::late, Parts::apart, 128, Factor::f32)
