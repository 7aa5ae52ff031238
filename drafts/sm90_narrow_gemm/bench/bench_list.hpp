#include <array>
// The products that the driver times.
#pragma once

Arena make_arena() {
  Arena arena;
  arena.bytes = size_t(480) << 20;
  CHECK(cudaMalloc(&arena.codes, arena.bytes + (64 << 20)));
  fill_random<<<1024, 256>>>(reinterpret_cast<uint32_t*>(arena.codes), arena.bytes / 4, 1);
  without_nan<<<1024, 256>>>(reinterpret_cast<uint32_t*>(arena.codes), arena.bytes / 4);
  CHECK(cudaMalloc(&arena.factors, size_t(160) << 20));
  CHECK(cudaMalloc(&arena.x, size_t(4096) * 16384 * 2));
  CHECK(cudaMalloc(&arena.d, size_t(4096) * 16384 * 4));
  arena.workspace_bytes = size_t(256) << 20;
  CHECK(cudaMalloc(&arena.workspace, arena.workspace_bytes));
  std::vector<uint16_t> x(size_t(4096) * 16384);
  uint32_t s = 1;
  std::normal_distribution<float> normal;
  std::vector<uint16_t> some(1 << 16);
  for (auto& v : some) v = bf16_bits(normal(rng));
  for (auto& v : x) s = s * 1664525 + 1013904223, v = some[s >> 16];
  CHECK(cudaMemcpy(arena.x, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
  return arena;
}

void fill_factors(const Arena& arena, Factor format) {
  static Factor filled;
  static bool first = true;
  if (!first && format == filled) return;
  std::vector<float> f(1 << 20);
  std::vector<int> raw(f.size());
  for (size_t i = 0; i < f.size(); i++)
    f[i] = std::exp2(uniform(-9, -6)), raw[i] = format == Factor::e8m0 ? 116 + rng() % 6 : 0x20 + rng() % 0x50;
  const auto bytes = factor_bytes(format, f, raw);
  for (size_t at = 0; at + bytes.size() <= size_t(160) << 20; at += bytes.size())
    CHECK(cudaMemcpy(arena.factors + at, bytes.data(), bytes.size(), cudaMemcpyHostToDevice));
  filled = format, first = false;
}

// One product, for a profiler: `one NAME m n k share split clusters`.
void one(int argc, char** argv) {
  const Arena arena = make_arena();
  const auto number = [&](int i) { return argc > i ? std::atoi(argv[i]) : 1; };
  for (const Entry& e : entries()) {
    if (std::string(e.name) != argv[2]) continue;
    fill_factors(arena, e.factor);
    const int split = number(7);
    const Cut cut{number(6), std::abs(split), split > 0, argc > 8 ? number(8) : 0};
    std::printf("%s %.1f us\n", e.name, time_entry(e, arena, number(3), number(4), number(5), cut, 3, 1, false));
  }
}

void bench(const std::string& filter) {
  const Arena arena = make_arena();
  const std::vector<std::array<int, 2>> all_shapes = {{14336, 4096}, {4096, 14336}, {8192, 8192}, {6144, 4096}, {2880, 2880}};
  const int count_shapes = std::getenv("SHAPES") ? std::atoi(std::getenv("SHAPES")) : 5;
  const std::vector<std::array<int, 2>> shapes(all_shapes.begin(), all_shapes.begin() + count_shapes);
  const int ms[] = {16, 32, 64, 128, 256, 1024, 4096};
  for (const Entry& e : entries()) {
    if (std::string(e.name).find(filter) == std::string::npos) continue;
    fill_factors(arena, e.factor);
    for (const auto& shape : shapes) {
      const int n = shape[0], k = shape[1];
      const double bytes = double(narrow::code_bytes(e.code, k)) * n;
      for (int m : ms) {
        if (m > 256 ? e.width < 128 : m != e.width && !(m == 256 && e.width == 128)) continue;
        if (m > 256 && n != 14336 && !(n == 8192 && m == 4096)) continue;
        std::string line;
        double best = 1e9;
        for (int share : {1, 2}) {
          for (int split : {1, -2, -3, -4, -8}) {
            const int tiles = (n + e.height - 1) / e.height * ((m + e.width - 1) / e.width), parts = std::abs(split);
            if (parts > 1 && (tiles * parts > 150 * e.blocks || m > 256)) continue;
            if (share * (split > 0 ? split : 1) > 4) continue;
            if (parts == 1 && tiles < 30) continue;
            for (int persist : {0, 1}) {
              if (persist && (tiles <= 132 * e.blocks || split != 1)) continue;
              const Cut cut{share, parts, split > 0, persist ? 132 * e.blocks / share : 0};
              const double us = time_entry(e, arena, m, n, k, cut, m > 256 ? 20 : 36, m > 256 ? 3 : 7);
              if (us < 0) continue;
              char text[64];
              std::snprintf(text, sizeof text, " %d/%d%s %.1f", share, split, persist ? "p" : "", us);
              line += text, best = std::min(best, us);
            }
          }
        }
        std::printf("%s [%d,%d] %dx%dx%d: %.1f (%.2f TB/s, %.0f TF)%s\n", e.name, e.stages[0], e.stages[1], m, n, k, best,
                    bytes / best * 1e-6, 2e-6 * m * n * k / best, line.c_str());
        std::fflush(stdout);
      }
    }
  }
}
