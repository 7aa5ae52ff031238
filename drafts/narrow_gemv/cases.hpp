// The cases that a driver checks.
#pragma once
#include "driver.hpp"

inline std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const tg_format codes[] = {TG_U4, TG_F8E4M3, TG_F4E2M1, TG_I8, TG_U8}, types[] = {TG_BF16, TG_F16, TG_F32};
  const int rows[] = {1, 2, 3, 5, 7, 8, 9, 12, 15, 16}, columns[] = {1, 7, 8, 24, 33, 129, 320, 1000, 2250};
  const int depths[] = {512, 128, 100, 32, 2880, 1030, 17, 4096, 256, 129};
  struct Factors { bool scaled; tg_format format; uint32_t group, rows; bool zeros; };
  const auto factors_of = [](tg_format b) {
    std::vector<Factors> f = {
        {true, TG_F16, 128, 1, false},      {true, TG_F8E8M0, 32, 1, false}, {true, TG_F32, 128, 128, false},
        {true, TG_F32, all_of, 1, false},   {true, TG_BF16, 64, 1, false},   {true, TG_F32, all_of, all_of, false},
        {true, TG_BF16, 96, 64, false},     {true, TG_BF16, all_of, 1, false}, {true, TG_F8E4M3, 16, 1, false},
        {true, TG_F32, 256, 1, false},      {true, TG_F8E4M3, 128, 1, false}, {false, TG_F32, all_of, all_of, false},
        {true, TG_F16, 32, 1, false},       {true, TG_F8E8M0, 128, 32, false}};
    if (b == TG_U4 || b == TG_U8) {
      const size_t count = f.size() - 2;
      for (size_t i = 0; i < count; i++)
        if (f[i].scaled) f.push_back({true, f[i].format, f[i].group, f[i].rows, true});
    }
    return f;
  };
  int at = 0;
  for (const tg_format b : codes) {
    const auto factors = factors_of(b);
    for (size_t f = 0; f < factors.size(); f++) {
      for (int variant = 0; variant < 9; variant++, at++) {
        Case c;
        c.b = b, c.a = types[variant % 3], c.d = c.a;
        c.m = rows[(at * 7 + variant) % 10], c.n = columns[(at + variant * 2) % 9], c.k = depths[(at * 3 + variant) % 10];
        c.scaled = factors[f].scaled, c.factor = factors[f].format, c.group = factors[f].group, c.rows = factors[f].rows, c.zeros = factors[f].zeros;
        c.overlap = variant & 1;
        if (variant == 1) c.special = true;
        if (variant == 2) c.wild_x = true;
        if (variant == 3) c.pad_x = 8, c.gap = 1, c.bias = true, c.activation = TG_SILU;
        if (variant == 4) c.beta = 0.5, c.bias = true, c.in_place = true, c.alpha = 0.75;
        if (variant == 5) c.special = c.wild_x = true, c.pad_x = 3;
        if (variant == 6) c.x_offset = 1, c.pad_x = 1, c.activation = TG_GELU_ERF;
        if (variant == 7) c.beta = 0.5, c.gate = TG_GATE_C, c.activation = TG_SILU, c.bias = true;
        if (variant == 8) c.x_size = c.a == TG_F16 ? 1000 : 1e-36f, c.activation = TG_RELU;
        cases.push_back(c);
      }
    }
  }
  // Deep and wide; results that overflow f16.
  for (const tg_format b : codes) {
    const auto deep = [&](int m, int n, int k, auto change) {
      Case c;
      c.b = b, c.m = m, c.n = n, c.k = k;
      change(c);
      cases.push_back(c);
    };
    const auto groups32 = [](Case& c) { c.group = 32, c.factor = TG_F8E8M0; };
    const auto tensor = [](Case& c) { c.group = c.rows = all_of, c.factor = TG_F32; };
    deep(1, 40, 14336, groups32), deep(8, 40, 8192, tensor), deep(16, 1100, 2880, groups32), deep(3, 14336, 4096, tensor);
    deep(16, 4097, 4096, [](Case&) {}), deep(9, 9000, 1024, [](Case& c) { c.special = true; }), deep(2, 70001, 96, groups32);
    deep(5, 300, 4096, [](Case& c) { c.a = c.d = TG_F16, c.x_size = 3000, c.group = c.rows = all_of, c.factor = TG_F32; });
    deep(4, 4096, 14336, [](Case&) {}), deep(16, 33000, 512, tensor);
  }
  return cases;
}
