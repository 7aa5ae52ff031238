// Checks and times the kernels of this library that take narrow weights: check | sweep | bench.
#include "cases.hpp"

static const tg_kernel* kernel_of(const Case& c) {
  size_t count;
  const tg_kernel* const* kernels = tg_kernels(&count);
  for (size_t i = 0; i < count; i++)
    if (kernels[i]->types.a == c.a && kernels[i]->types.b == c.b && kernels[i]->types.d == c.d) return kernels[i];
  return nullptr;
}
static tg_config config_of(int m, int units, int wn, int wk, int cluster, int stages) {
  return {m <= 8 ? 8 : 16, 16 * units * wn, 1, cluster, cluster * wk, stages, wn * wk, 0};
}
static bool is_sensible(const Case& c, const tg_config& g) {
  const int wk = g.split / g.cluster_n, wn = g.warps / wk, units = g.tile_n / 16 / wn;
  const int teams = std::min(132 / g.cluster_n, c.n), rows = (c.n + teams - 1) / teams, passes = (rows + g.tile_n - 1) / g.tile_n;
  const int of_warp = ((rows + passes - 1) / passes + wn - 1) / wn;
  const int slots = (c.k * bits_of_format(c.b) / 8 + 127) / 128;
  return !(of_warp * 2 <= 16 * units && (wn > 1 || units > 1)) && slots >= g.split && (g.stages == 2 || g.stages <= (slots + g.split - 1) / g.split * passes);
}
static std::vector<tg_config> configs_of(const Case& c, const tg_kernel* k, tg_gemm_args args) {
  std::vector<tg_config> all;
  for (int cluster : {1, 2, 4}) for (int units : {2, 1}) for (int stages : {2, 3, 4}) for (int wn = 1; wn <= 16; wn++) for (int wk = 1; wn * wk <= 16; wk++) {
    args.config = config_of(c.m, units, wn, wk, cluster, stages);
    if (k->can_implement(&args) == TG_OK) all.push_back(args.config);
  }
  return all;
}
static std::string text_of(const tg_config& g) {
  char t[99];
  const int wk = g.split / g.cluster_n, wn = g.warps / wk;
  snprintf(t, 99, "u%d n%d k%d c%d s%d", g.tile_n / 16 / wn, wn, wk, g.cluster_n, g.stages);
  return t;
}

static int check(int most_configs, int most_cases) {
  int checked = 0, launches = 0, skipped = 0, wrong = 0;
  double worst = 0;
  std::mt19937 rng(5);
  for (const Case& c : all_cases()) {
    if (checked >= most_cases) break;
    const tg_kernel* k = kernel_of(c);
    if (!k) { skipped++; continue; }
    Problem p(c, 1, 1);
    std::vector<tg_config> configs = configs_of(c, k, p.args);
    if (configs.empty()) { skipped++; continue; }
    checked++;
    std::shuffle(configs.begin(), configs.end(), rng);
    for (size_t i = 0; i < configs.size() && i < size_t(most_configs); i++) {
      p.args.config = configs[i];
      p.restore();
      launches++;
      const tg_status s = k->launch(&p.args);
      const cudaError_t e = cudaDeviceSynchronize();
      if (s != TG_OK || e) { printf("FAILED %s %s: status %d %s %s\n", text_of(c).c_str(), text_of(configs[i]).c_str(), s, tg_last_cuda_error(), cudaGetErrorString(e)); if (e) return 1; wrong++; continue; }
      const int bad = p.check(worst);
      if (bad) { wrong++; if (wrong < 30) printf("%d wrong of %d: %s; %s\n", bad, c.m * c.n, text_of(c).c_str(), text_of(configs[i]).c_str()); }
    }
  }
  printf("checked %d cases, %d launches, skipped %d, wrong %d, worst %.3f of the bound\n", checked, launches, skipped, wrong, worst);
  return 0;
}

struct Format { const char* name; tg_format b, factor; uint32_t group, rows; bool zeros; };
const Format formats[] = {{"u4g128", TG_U4, TG_F16, 128, 1, false}, {"f8tensor", TG_F8E4M3, TG_F32, all_of, all_of, false},
  {"u4g128z", TG_U4, TG_F16, 128, 1, true}, {"u4g64", TG_U4, TG_F16, 64, 1, false}, {"u4g32z", TG_U4, TG_F16, 32, 1, true},
  {"mxfp4", TG_F4E2M1, TG_F8E8M0, 32, 1, false}, {"nvfp4", TG_F4E2M1, TG_F8E4M3, 16, 1, false},
  {"f8block", TG_F8E4M3, TG_F32, 128, 128, false}, {"mxfp8", TG_F8E4M3, TG_F8E8M0, 32, 1, false},
  {"i8row", TG_I8, TG_F32, all_of, 1, false}, {"u8g128z", TG_U8, TG_F16, 128, 1, true}};

static void sweep(int full) {
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  const int shapes[][2] = {{14336, 4096}, {4096, 14336}, {4096, 4096}, {1024, 4096}};
  for (const auto& shape : shapes) for (int m : {1, 2, 4, 8, 16}) for (const Format& f : formats) {
    if (m == 2 && shape[0] != 14336) continue;
    if (f.b != TG_U4 && f.b != TG_F8E4M3 && shape[0] != 14336) continue;
    if (&f - formats > 1 && shape[0] != 14336) continue;
    Case c;
    c.m = m, c.n = shape[0], c.k = shape[1], c.b = f.b, c.factor = f.factor, c.group = f.group, c.rows = f.rows, c.zeros = f.zeros, c.overlap = 1;
    const tg_kernel* k = kernel_of(c);
    if (!k) continue;
    const double mb = double(c.n) * c.k * bits_of_format(c.b) / 8e6;
    Problem p(c, std::max(2, std::min(40, int(220 / mb))), 3);
    const auto timed = [&](const tg_config& g, int overlap, int count, int runs) {
      p.args.config = g, p.args.overlap = overlap;
      return time_of(p, stream, [&](const tg_gemm_args& a) { return k->launch(&a); }, count, runs);
    };
    std::vector<std::pair<double, tg_config>> all;
    for (const tg_config& g : configs_of(c, k, p.args)) {
      if (g.warps < 8 || !is_sensible(c, g)) continue;
      const double us = timed(g, 1, 12, 3);
      if (us > 0) all.push_back({us, g});
    }
    if (all.empty()) { printf("%d x %d m%d %s: none\n", c.n, c.k, m, f.name); continue; }
    std::sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.first < b.first; });
    printf("%d x %d m%d %s:", c.n, c.k, m, f.name);
    for (size_t i = 0; i < all.size() && i < 5; i++) printf(" %s %.2f;", text_of(all[i].second).c_str(), all[i].first);
    for (int cl : {1, 2, 4}) for (auto& [us, g] : all) if (g.cluster_n == cl) { printf(" [%s %.2f]", text_of(g).c_str(), us); break; }
    double best[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
    int of[5] = {};
    for (size_t i = 0; i < all.size() && i < 4; i++) {
      for (int a = 0; a < 4; a++) {
        const double us = timed(all[i].second, a < 3 ? 1 + 16 * a : 0, 40, 9);
        if (us < best[a]) best[a] = us, of[a] = int(i);
      }
    }
    printf(" | prefetch 0 %.2f(%d) 1 %.2f(%d) 2 %.2f(%d), alone %.2f(%d)\n", best[0], of[0], best[1], of[1], best[2], of[2], best[3], of[3]);
    fflush(stdout);
  }
}

int main(int argc, char** argv) {
  if (argc > 1 && !strcmp(argv[1], "check")) return check(argc > 2 ? atoi(argv[2]) : 3, argc > 3 ? atoi(argv[3]) : 1 << 30);
  sweep(0);
}
