// sm90_fp8_grouped_gemm by its descriptors: results against f64, times beside sm90_grouped_gemm in bf16.
//   bench right        products of all kernels and kinds of factors
//   bench few          a few small ones, for compute-sanitizer
//   bench time [WHAT]  WHAT: up, down, rows, half (all, unless given)
// ONLY=NAME runs one kernel, such as 144 or bf16; TOKENS=64,4096 these numbers of tokens; TURNS=N so many launches in a graph.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
#include "tilegemm.h"
using std::string; using std::vector;
#define CK(x) do { cudaError_t e_ = (x); if (e_) { printf("CUDA %s line %d\n", cudaGetErrorString(e_), __LINE__); exit(1); } } while (0)
static uint64_t seed = 0x9e3779b97f4a7c15ull;
static uint64_t rnd() { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed; }
static uint64_t below(uint64_t n) { return (rnd() >> 11) % n; }
static double unit() { return double(rnd() >> 11) / double(1ull << 53); }
static double e4m3(int c) { double s = c & 128 ? -1 : 1; int e = c >> 3 & 15, m = c & 7; if ((c & 127) == 127) return NAN; return e ? s * ldexp(1 + m / 8.0, e - 7) : s * ldexp(m / 8.0, -6); }
static size_t size_of(tg_format f) { return f == TG_F32 ? 4 : f == TG_F16 || f == TG_BF16 ? 2 : 1; }
static double number(tg_format f, const void* p, size_t i) { return f == TG_F32 ? ((const float*)p)[i] : f == TG_F16 ? __half2float(((const __half*)p)[i]) : __bfloat162float(((const __nv_bfloat16*)p)[i]); }
static void put(tg_format f, void* p, size_t i, double x) {
  if (f == TG_F32) ((float*)p)[i] = float(x);
  else if (f == TG_F16) ((__half*)p)[i] = __float2half(float(x));
  else ((__nv_bfloat16*)p)[i] = __float2bfloat16(float(x));
}
static const char* name_of(tg_format f) { return f == TG_F32 ? "f32" : f == TG_F16 ? "f16" : "bf16"; }
struct Named { string text; const tg_kernel* kernel; };
// The kernels with a result in `d`, or those that ONLY names.
static vector<Named> kernels_of(tg_format d) {
  size_t n; const tg_kernel* const* all = tg_kernels(&n); vector<Named> of; const char* only = getenv("ONLY"); const string start = string("sfg_") + name_of(d) + "_";
  for (size_t i = 0; i < n; i++) { const string name = all[i]->name; if (name.rfind(start, 0) == 0 && (!only || name.substr(start.size()) == only)) of.push_back({name.substr(start.size()), all[i]}); }
  return of;
}
static const tg_kernel* kernel(const string& name) { size_t n; const tg_kernel* const* all = tg_kernels(&n); for (size_t i = 0; i < n; i++) if (name == all[i]->name) return all[i]; printf("no %s\n", name.c_str()); exit(1); }
static vector<void*> owned;
template <class T> T* up(const vector<T>& v) { T* p; CK(cudaMalloc(&p, v.size() * sizeof(T) + 256)); CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); owned.push_back(p); return p; }
static void release() { for (void* p : owned) CK(cudaFree(p)); owned.clear(); }
static cudaStream_t stream;
static int sms;
struct Routing { vector<uint32_t> group, pairs; vector<int> first; };  // rows in groups
// The lists for experts chosen by pairs; numbers from `e` on are of no group.
static Routing route(const vector<uint32_t>& ids, int e) {
  Routing r; r.pairs.resize(ids.size()); for (size_t i = 0; i < ids.size(); i++) r.pairs[i] = uint32_t(i);
  std::stable_sort(r.pairs.begin(), r.pairs.end(), [&](uint32_t x, uint32_t y) { return std::min<uint32_t>(ids[x], e) < std::min<uint32_t>(ids[y], e); });
  r.first.assign(e + 1, 0);
  for (uint32_t p : r.pairs) { r.group.push_back(ids[p]); if (ids[p] < uint32_t(e)) r.first[ids[p] + 1]++; }
  for (int i = 0; i < e; i++) r.first[i + 1] += r.first[i];
  return r;
}
// Factors: none, of tensors, of rows, of rows of A and a tensor of W, of blocks with K contiguous, and with rows contiguous.
enum Kind { none, tensor, of_rows, rows_and_tensor, blocks, blocks_by_row };
enum Codes { any_code, normal, positive };
enum Special { plain, nan_codes, wild_factors };
enum Skew { even, one_group, skewed };
struct Case { int t, topk, e, n, k; bool listed, first_row, strays, bias, scaled; int gap; Special special; Skew skew; Codes codes; int most_blocks = 0; };  // 0: a block for each multiprocessor
static size_t failures = 0, products = 0, differing = 0;
// The factors of A and B, `sb` from group to group.
static void set_factors(tg_gemm_args& g, Kind kind, const float* a, const float* b, int64_t rows_a, int64_t gk, int64_t gn, int64_t sb) {
  constexpr uint32_t all = UINT32_MAX;
  const tg_scale of_tensor_a{a, nullptr, TG_F32, all, all, 0, 0, {0, 0}}, of_tensor_b{b, nullptr, TG_F32, all, all, 0, 0, {0, sb}}, of_rows_a{a, nullptr, TG_F32, 1, all, gk, 0, {0, 0}};
  switch (kind) {
    case none: g.a_scale.rows = g.a_scale.columns = g.b_scale.rows = g.b_scale.columns = all; break;
    case tensor: g.a_scale = of_tensor_a, g.b_scale = of_tensor_b; break;
    case of_rows: g.a_scale = of_rows_a, g.b_scale = {b, nullptr, TG_F32, all, 1, 0, 1, {0, sb}}; break;
    case rows_and_tensor: g.a_scale = of_rows_a, g.b_scale = of_tensor_b; break;
    case blocks: g.a_scale = {a, nullptr, TG_F32, 1, 128, gk, 1, {0, 0}}, g.b_scale = {b, nullptr, TG_F32, 128, 128, 1, gk, {0, sb}}; break;
    default: g.a_scale = {a, nullptr, TG_F32, 1, 128, 1, rows_a, {0, 0}}, g.b_scale = {b, nullptr, TG_F32, 128, 128, gn, 1, {0, sb}};
  }
}
static double factor(const tg_scale& s, const vector<float>& all, int64_t i, int64_t j, int64_t first) { return s.ptr ? all[first + (s.rows == UINT32_MAX ? 0 : i / s.rows) * s.row_stride + (s.columns == UINT32_MAX ? 0 : j / s.columns) * s.col_stride] : 1.0; }
static void right(tg_format df, Kind kind, const Case& c) {
  static const vector<double> values = [] { vector<double> all; for (int i = 0; i < 256; i++) all.push_back(e4m3(i)); return all; }();
  const int e = c.e, n = c.n, k = c.k, topk = c.topk;
  const int64_t m = int64_t(c.t) * topk, rows_a = c.listed ? c.t : m, lda = (k + 15) / 16 * 16 + 16 * (c.t % 3), ldb = (k + 15) / 16 * 16 + 16, mb = ldb * n + 64, ldd = n + c.gap, gk = (k + 127) / 128, gn = (n + 127) / 128;
  const auto code = [&] {
    if (c.codes == any_code) { const uint8_t x = uint8_t(rnd()); return uint8_t((x & 127) == 127 ? 33 : x); }
    const double x = unit() + unit() + unit() + unit() - 2; const __nv_fp8_storage_t bits = __nv_cvt_float_to_fp8(float(x), __NV_SATFINITE, __NV_E4M3);
    return uint8_t(c.codes == positive ? bits & 127 : bits);
  };
  vector<uint8_t> a(rows_a * lda), w(size_t(e) * mb);  // NaN behind K
  for (int64_t i = 0; i < rows_a * lda; i++) a[i] = i % lda < k ? code() : 127;
  for (size_t i = 0; i < w.size(); i++) w[i] = i % mb < size_t(ldb) * n && i % mb % ldb < size_t(k) ? code() : 255;
  if (c.special == nan_codes) { a[3 % k] = 127, a[(rows_a - 1) * lda + k - 1] = 255; for (int i = 0; i < e; i += 3) w[size_t(i) * mb + (n / 2) * ldb + k / 2] = 127; }
  const int64_t sb = (kind >= blocks ? gk * gn : n) + 3;
  vector<float> sa(rows_a * gk + 8), sw(e * sb);
  const float wild[] = {INFINITY, -INFINITY, NAN, 0, 1e-40f};
  const auto scale = [&](double sign) { return c.special == wild_factors && below(60) == 0 ? wild[below(5)] : float(exp2(unit() * 8 - 6) * sign); };
  for (float& x : sa) x = scale(1); for (float& x : sw) x = scale(c.codes == positive || below(2) ? 1 : -1);
  vector<uint8_t> bs(size_t(e) * n * size_of(df)); vector<float> weight(m); for (size_t i = 0; i < size_t(e) * n; i++) put(df, bs.data(), i, unit() - .5); for (auto& v : weight) v = float(unit() + .1);
  vector<uint32_t> ids(m); const uint32_t no[] = {uint32_t(e), ~0u, 1u << 31};
  for (auto& i : ids) i = c.strays && below(5) == 0 ? no[below(3)] : c.skew == one_group ? uint32_t(e / 2) : c.skew == skewed ? uint32_t(below(e) * below(e) / e) : uint32_t(below(e));
  Routing r = route(ids, e);
  if (!c.listed) { vector<uint32_t> sorted; for (auto p : r.pairs) sorted.push_back(ids[p]); ids = sorted; }
  vector<uint32_t> pairs = r.pairs; if (c.listed && c.strays && m > 4) pairs[m / 2] = uint32_t(m + 5), pairs[1] = ~0u;
  vector<char> named(m, c.listed ? 0 : 1); for (auto p : pairs) if (p < m) named[p] = 1;
  tg_gemm_args g{};
  g.m = m, g.n = n, g.k = k, g.batch[0] = g.batch[1] = 1;
  g.a = {up(a), lda, 1, {0, 0}}, g.b = {up(w), 1, ldb, {0, mb}};
  vector<uint8_t> guard((m * ldd + 64) * size_of(df)); for (int64_t i = 0; i < m * ldd + 64; i++) put(df, guard.data(), i, NAN); uint8_t* d = up(guard);
  g.d = {d, ldd, 1, {0, 0}}; if (c.bias) g.bias = {up(bs), 0, 1, {0, n}}, g.activation = TG_RELU;
  g.alpha = 0.5, g.sm_count = c.most_blocks ? c.most_blocks : sms, g.overlap = 1, g.stream = stream, g.types = {TG_F8E4M3, TG_F8E4M3, df, df, TG_F32};
  set_factors(g, kind, up(sa), up(sw), rows_a, gk, gn, sb);
  if (c.first_row) g.groups.first_row = up(r.first); else g.groups.group_of_row = up(r.group);
  if (c.listed) g.groups.pairs = up(pairs); if (c.scaled) g.groups.scales = up(weight);
  g.groups.pairs_per_row = c.listed ? topk : 1, g.groups.count = e;
  // The error of the tensor cores, as a share of the sum of magnitudes. They keep 13 bits of the largest of the products that they add at a time, and cut the
  // others off there. Magnitudes of any codes differ by up to 2^17, so that one product makes up most of the sum, and up to 1.24 * 2^-11 was measured, with a short
  // K. Products of a normal distribution are many of like size. Those of one sign are cut off in one direction.
  const double share = exp2(c.codes == any_code ? -10 : c.codes == positive ? -9 : -11);
  // Some numbers of D, or all: NaN where no list names the row, or a number is NaN; any that is not finite where `is_any`.
  struct Expected { size_t row; int column; bool named, is_nan, is_any; double sum, error; };
  vector<Expected> all; const size_t count = std::min<size_t>(size_t(m) * n, c.special ? 2500 : 1200);
  for (size_t q = 0; q < count; q++) {
    const size_t place = size_t(m) * n <= count ? q : below(size_t(m) * n), p = place / n; const int j = int(place % n);
    Expected x{p, j, bool(named[p]), false, false, 0, 0};
    if (x.named && ids[p] < uint32_t(e)) {
      const size_t row = c.listed ? p / topk : p, of_w = size_t(ids[p]) * mb + size_t(j) * ldb; double mag = 0;
      for (int i = 0; i < k; i++) {
        const double fa = factor(g.a_scale, sa, row, i, 0), fb = factor(g.b_scale, sw, i, j, int64_t(ids[p]) * sb), u = values[a[row * lda + i]], v = values[w[of_w + i]];
        x.is_nan |= std::isnan(fa) || std::isnan(fb) || std::isnan(u) || std::isnan(v);
        x.sum += u * fa * (v * fb), mag += fabs(u * fa * (v * fb));
      }
      x.sum *= .5, mag *= .5, x.is_any = !x.is_nan && !std::isfinite(mag);  // infinities of both signs, or times zero
      if (c.bias) { x.sum += number(df, bs.data(), size_t(ids[p]) * n + j); if (!(x.sum > 0) && !std::isnan(x.sum)) x.sum = 0; }
      const double by = c.scaled ? weight[p] : 1; x.sum *= by;
      x.error = mag * by * share + fabs(x.sum) * (df == TG_BF16 ? 1.01 * exp2(-8) : df == TG_F16 ? 1.01 * exp2(-11) : exp2(-22)) + (df == TG_F16 ? 6e-8 : 1e-30);
    }
    all.push_back(x);
  }
  string line; vector<uint8_t> first_bytes;
  for (const Named& of : kernels_of(df)) {
    CK(cudaMemcpy(d, guard.data(), guard.size(), cudaMemcpyHostToDevice));
    if (of.kernel->can_implement(&g) != TG_OK || of.kernel->launch(&g) != TG_OK) { line += " " + of.text + " REFUSED " + tg_last_cuda_error(), failures++; continue; }
    CK(cudaStreamSynchronize(stream)); CK(cudaGetLastError());
    vector<uint8_t> bytes(guard.size()); CK(cudaMemcpy(bytes.data(), d, bytes.size(), cudaMemcpyDeviceToHost));
    const auto at = [&](size_t i) { return number(df, bytes.data(), i); };
    double worst = 0; size_t wrong = 0; char text[160] = "";
    for (const Expected& x : all) {
      const double got = at(x.row * ldd + x.column); double err;
      if (!x.named || x.is_nan) err = std::isnan(got) ? 0 : INFINITY;
      else if (x.is_any) err = !std::isfinite(got) || c.bias ? 0 : INFINITY;
      else if (df == TG_F16 && fabs(x.sum) > 65000) err = 0;
      else err = got == x.sum ? 0 : fabs(got - x.sum) / x.error;
      if (!(err <= 1)) { if (!wrong) snprintf(text, 160, " [row %zu column %d group %d got %g expected %g within %g]", x.row, x.column, int(ids[x.row]), got, x.sum, x.error); wrong++; }
      worst = std::max(worst, err);
    }
    for (int64_t i = 0; i < m; i++) for (int j = n; j < ldd; j++) if (!std::isnan(at(i * ldd + j))) wrong++;
    for (int i = 0; i < 64; i++) if (!std::isnan(at(m * ldd + i))) wrong++;
    products++, failures += wrong > 0;
    if (first_bytes.empty()) first_bytes = bytes;
    const bool same = c.special || bytes == first_bytes; differing += !same;  // NaN may have other bits
    char more[256]; snprintf(more, 256, " %s: %.3f%s%s%s", of.text.c_str(), worst, same ? "" : " other bits", wrong ? " WRONG" : "", text); line += more;
  }
  printf("%s kind %d t %d topk %d e %d n %d k %d listed %d first %d strays %d bias %d scaled %d gap %d special %d skew %d codes %d:%s\n", name_of(df), int(kind), c.t, topk, e, n, k, c.listed, c.first_row, c.strays, c.bias, c.scaled, c.gap, int(c.special), int(c.skew), int(c.codes), line.c_str()); fflush(stdout);
  release();
}
// Microseconds of a launch among `count` in a graph.
static double times(int count, const std::function<bool(int)>& launch) {
  cudaGraph_t graph; cudaGraphExec_t exec;
  CK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < count; i++) if (!launch(i)) { cudaStreamEndCapture(stream, &graph); return NAN; }
  CK(cudaStreamEndCapture(stream, &graph)); CK(cudaGraphInstantiate(&exec, graph, 0));
  cudaEvent_t a, b; CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b)); vector<double> all;
  for (int turn = 0; turn < 7; turn++) { CK(cudaEventRecord(a, stream)); CK(cudaGraphLaunch(exec, stream)); CK(cudaEventRecord(b, stream)); CK(cudaEventSynchronize(b)); float ms; CK(cudaEventElapsedTime(&ms, a, b)); all.push_back(ms * 1e3 / count); }
  CK(cudaGraphExecDestroy(exec)); CK(cudaGraphDestroy(graph)); std::sort(all.begin(), all.end()); return all[all.size() / 2];
}
static void* random_bytes(size_t bytes, bool wide) {
  vector<uint8_t> part(1 << 22); for (auto& c : part) { c = uint8_t(rnd()); if (!wide && (c & 127) == 127) c = 1; }
  if (wide) for (size_t i = 0; i < part.size() / 2; i++) put(TG_BF16, part.data(), i, unit() + unit() - 1);
  uint8_t* q; CK(cudaMalloc(&q, bytes + 256)); for (size_t at = 0; at < bytes; at += part.size()) CK(cudaMemcpy(q + at, part.data(), std::min(part.size(), bytes - at), cudaMemcpyHostToDevice));
  owned.push_back(q); return q;
}
// `per_pair`: A has a row for each pair. Each launch has experts of its own, so weights are cold.
static void time_all(const char* what, tg_format df, Kind kind, int topk, int e, int n, int k, bool per_pair, vector<int> tokens, bool dense) {
  if (const char* of = getenv("TOKENS")) { tokens.clear(); for (const char* p = of; *p; p++) { tokens.push_back(atoi(p)); while (p[1] && *p != ',') p++; } }
  const char* only = getenv("ONLY"); if (only) dense = string(only) == "bf16";
  const int turns = getenv("TURNS") ? atoi(getenv("TURNS")) : 20;
  const size_t matrix = size_t(n) * k; const int64_t gk = (k + 127) / 128, gn = (n + 127) / 128, sb = kind >= blocks ? gk * gn : n;
  void* w = random_bytes(e * matrix, false); void* wide = dense ? random_bytes(e * matrix * 2, true) : nullptr;
  vector<float> sw(e * sb); for (auto& x : sw) x = float(0.01 * (1 + unit())); float* scale_w = up(sw);
  for (int t : tokens) {
    const int64_t m = int64_t(t) * topk, rows_a = per_pair ? m : t;
    void* x = random_bytes(rows_a * k, false); void* x16 = dense ? random_bytes(rows_a * k * 2, true) : nullptr;
    vector<float> sa(rows_a * gk); for (auto& v : sa) v = float(0.01 * (1 + unit())); float* scale_x = up(sa);
    void* d; CK(cudaMalloc(&d, m * n * 4)); owned.push_back(d);
    vector<uint32_t*> group, pairs; double filled = 0;
    for (int turn = 0; turn < turns; turn++) {
      vector<uint32_t> ids; for (int i = 0; i < t; i++) { vector<uint32_t> own; while (int(own.size()) < topk) { uint32_t c = uint32_t(below(e)); if (std::find(own.begin(), own.end(), c) == own.end()) own.push_back(c); } ids.insert(ids.end(), own.begin(), own.end()); }
      Routing r = route(ids, e); group.push_back(up(r.group)); pairs.push_back(up(r.pairs)); for (int i = 0; i < e; i++) filled += r.first[i + 1] > r.first[i];
    }
    filled /= turns;
    tg_gemm_args g{}; g.m = m, g.n = n, g.k = k, g.batch[0] = g.batch[1] = 1; g.a = {x, k, 1, {0, 0}}, g.b = {w, 1, k, {0, int64_t(matrix)}}, g.d = {d, n, 1, {0, 0}};
    g.alpha = 1, g.sm_count = sms, g.overlap = 1, g.stream = stream, g.types = {TG_F8E4M3, TG_F8E4M3, df, df, TG_F32};
    set_factors(g, kind, scale_x, scale_w, rows_a, gk, gn, sb);
    g.groups.pairs_per_row = per_pair ? 1 : topk, g.groups.count = e;
    const auto run = [&](const tg_kernel* kernel, tg_gemm_args args) { return times(turns, [&](int i) { args.groups.group_of_row = group[i], args.groups.pairs = pairs[i]; const tg_status s = kernel->launch(&args); if (s == TG_CUDA_ERROR) { printf("%s\n", tg_last_cuda_error()); exit(1); } return s == TG_OK; }); };
    string line; char text[64];
    for (const Named& of : kernels_of(df)) { const double us = run(of.kernel, g); snprintf(text, 64, " %s %.1f", of.text.c_str(), us); line += text; }
    if (dense) {
      tg_gemm_args c = g; c.types = {TG_BF16, TG_BF16, TG_BF16, TG_BF16, TG_F32}; c.a_scale = c.b_scale = {}; c.b.ptr = wide, c.a.ptr = x16;
      double best = INFINITY;
      for (int tile : {32, 176}) for (int cluster = 1; cluster <= (tile == 32 ? 1 : 2); cluster++) for (int stages = 12; stages >= 2; stages--) { c.config = {tile, tile == 32 ? 128 : 256, cluster, 1, 1, stages, 0, 1}; const double us = run(kernel(tile == 32 ? "bf16_32" : "bf16_176"), c); if (!std::isnan(us)) { best = std::min(best, us); break; } }
      snprintf(text, 64, " bf16 %.1f", best); line += text;
    }
    const double bytes = filled * matrix + m * n * double(size_of(df)) + double(rows_a) * k, flop = 2.0 * m * matrix;
    printf("time %s %d of %d, %d x %d, %d tokens, %.1f experts: at 3.9 TB/s %.1f, at 1200 TFLOP/s %.1f:%s\n", what, topk, e, n, k, t, filled, bytes / 3.9e6, flop / 1.2e9, line.c_str()); fflush(stdout);
    CK(cudaStreamSynchronize(stream));
    while (owned.size() > (wide ? 3 : 2)) { CK(cudaFree(owned.back())); owned.pop_back(); }
  }
  release();
}
int main(int argc, char** argv) {
  const string what = argc > 1 ? argv[1] : "right", which = argc > 2 ? argv[2] : "";
  CK(cudaStreamCreate(&stream)); cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); sms = p.multiProcessorCount; printf("%s %d SMs\n", p.name, sms);
  if (what == "few") {
    for (Kind kind : {none, of_rows, blocks}) {
      right(TG_F32, kind, {3, 2, 5, 48, 288, true, false, true, true, true, 2, plain, even, any_code});
      right(TG_F32, kind, {180, 1, 2, 144, 160, false, true, false, false, false, 0, nan_codes, skewed, normal});
      right(TG_BF16, kind, {150, 2, 3, 24, 272, true, false, true, false, true, 2, plain, skewed, normal});
      // Some 11 tiles of 18 stages for each of three blocks; 16 and 4 tiles of 17 stages for each of two; and 5 tiles of two stages for each multiprocessor. Rings have
      // up to 10 stages, and places of up to four tiles: all of them are used again.
      right(TG_F32, kind, {12, 2, 8, 400, 2200, true, false, true, true, true, 0, plain, even, normal, 3});
      right(TG_F16, kind, {330, 1, 3, 272, 2064, true, true, false, false, false, 0, plain, one_group, normal, 2});
      right(TG_F32, kind, {400, 1, 160, 528, 144, true, false, false, false, true, 0, plain, even, normal});
    }
  } else if (what == "right") {
    for (tg_format d : {TG_F32, TG_BF16, TG_F16}) for (Kind kind : {none, tensor, of_rows, rows_and_tensor, blocks, blocks_by_row}) {
      right(d, kind, {1, 8, 128, 96, 256, true, false, false, false, false, 0, plain, even, any_code});
      right(d, kind, {7, 3, 16, 144, 288, true, true, true, false, true, 2, plain, even, normal});
      right(d, kind, {40, 2, 60, 30, 48, false, false, true, true, false, 3, plain, even, normal});
      right(d, kind, {300, 4, 8, 528, 384, true, false, false, false, true, 0, plain, skewed, normal});
      right(d, kind, {300, 4, 8, 520, 400, true, false, false, true, true, 1, plain, skewed, any_code});
      right(d, kind, {33, 1, 4, 64, 128, true, true, false, false, false, 0, nan_codes, even, normal});
      right(d, kind, {9, 2, 3, 80, 2880, true, false, false, false, false, 0, wild_factors, even, normal});
      right(d, kind, {1, 1, 1, 1, 8, false, false, false, false, false, 0, plain, even, normal});
      right(d, kind, {130, 2, 16, 304, 777, true, false, true, false, false, 0, nan_codes, skewed, normal});
      right(d, kind, {700, 1, 9, 272, 2048, false, true, true, false, false, 4, plain, one_group, normal});
      right(d, kind, {2000, 8, 256, 16, 128, true, false, true, false, false, 0, plain, even, normal});
      right(d, kind, {5, 2, 4, 200, 7168, true, false, false, true, false, 0, plain, even, normal});
      right(d, kind, {510, 1, 512, 32, 1040, true, true, false, false, false, 0, plain, even, normal});
      right(d, kind, {64, 8, 64, 512, 2048, true, false, false, false, true, 0, plain, even, normal});
      right(d, kind, {40, 4, 3, 256, 16384, true, false, false, false, false, 0, plain, even, positive});
      right(d, kind, {200, 4, 3, 144, 128, true, false, false, false, false, 0, plain, even, positive});
      right(d, kind, {400, 4, 3, 160, 16, true, true, false, false, false, 0, plain, even, any_code});
    }
  }
  if (what != "time") { printf("%zu products, %zu wrong, %zu with other bits than the first kernel's\n", products, failures, differing); return failures > 0; }
  const auto asked = [&](const char* name) { return which.empty() || which == name; };
  if (asked("up")) time_all("up, blocks, f32,", TG_F32, blocks, 8, 128, 1536, 2048, false, {1, 8, 16, 64, 256, 512, 1024, 2048, 4096, 8192}, true);
  if (asked("down")) time_all("down, blocks, f32,", TG_F32, blocks, 8, 128, 2048, 768, true, {1, 8, 64, 256, 1024, 4096}, true);
  if (asked("rows")) time_all("up, rows, f32,", TG_F32, of_rows, 8, 128, 1536, 2048, false, {64, 512, 1024, 4096}, false);
  if (asked("half")) time_all("up, blocks, bf16,", TG_BF16, blocks, 8, 128, 1536, 2048, false, {64, 1024, 4096}, false);
}
