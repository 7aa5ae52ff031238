#include "draft.hpp"
ENTRY(i8_016_k2, Code::i8, bf16, 16, 2, 2, 1, Scaling::late, Parts::apart, 128, Factor::f32)
ENTRY(i8h_064, Code::i8, half_t, 64, 2, 1, 1, Scaling::sums, Parts::in_place, 64, Factor::f16)
ENTRY(u8_032_k2, Code::u8, bf16, 32, 2, 2, 1, Scaling::sums, Parts::apart, 128, Factor::f16)
ENTRY(u8h_128, Code::u8, half_t, 128, 2, 1, 1, Scaling::late, Parts::apart, 128, Factor::f16)
