// narrow_grouped_gemm and sm90_narrow_grouped_gemm by their descriptors: results against f64, times beside sm90_grouped_gemm in bf16.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
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
using std::vector; using std::string;
#define CK(x) do { cudaError_t e_ = (x); if (e_) { printf("CUDA %s line %d\n", cudaGetErrorString(e_), __LINE__); exit(1); } } while (0)
static uint64_t seed = 0x9e3779b97f4a7c15ull;
static uint64_t rnd() { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed; }
static uint64_t below(uint64_t n) { return (rnd() >> 11) % n; }
static double unit() { return double(rnd() >> 11) / double(1ull << 53); }
static double sgn() { return unit() + unit() + unit() + unit() - 2; }
static double e4m3(int c) { double s = c & 128 ? -1 : 1; int e = c >> 3 & 15, m = c & 7; if ((c & 127) == 127) return NAN; return e ? s * ldexp(1 + m / 8.0, e - 7) : s * ldexp(m / 8.0, -6); }
static double e2m1(int c) { static const double v[8] = {0, .5, 1, 1.5, 2, 3, 4, 6}; return (c & 8 ? -1 : 1) * v[c & 7]; }
static double e8m0(int c) { return c == 255 ? NAN : ldexp(1.0, c - 127); }
static double number(tg_format f, const void* p, size_t i) {
  switch (f) {
    case TG_F32: return ((const float*)p)[i];
    case TG_F16: return __half2float(((const __half*)p)[i]);
    case TG_BF16: return __bfloat162float(((const __nv_bfloat16*)p)[i]);
    case TG_F8E4M3: return e4m3(((const uint8_t*)p)[i]);
    default: return e8m0(((const uint8_t*)p)[i]);
  }
}
static size_t size_of(tg_format f) { return f == TG_F32 ? 4 : f == TG_F16 || f == TG_BF16 ? 2 : 1; }
static void put(tg_format f, void* p, size_t i, double x) {
  switch (f) {
    case TG_F32: ((float*)p)[i] = float(x); break;
    case TG_F16: ((__half*)p)[i] = __float2half(float(x)); break;
    case TG_BF16: ((__nv_bfloat16*)p)[i] = __float2bfloat16(float(x)); break;
    default: ((uint8_t*)p)[i] = uint8_t(x);
  }
}
static bool packed(tg_format b) { return b == TG_U4 || b == TG_F4E2M1; }
static int code_at(const uint8_t* row, int k) { int i = k % 32, nibble = i / 8 + i % 2 * 4; return row[k / 32 * 16 + i / 2 % 4 * 4 + nibble / 2] >> nibble % 2 * 4 & 15; }
static const char* name_of(tg_format f) { return f == TG_F32 ? "f32" : f == TG_F16 ? "f16" : f == TG_BF16 ? "bf16" : f == TG_F8E4M3 ? "f8e4m3" : f == TG_U4 ? "u4" : f == TG_I8 ? "i8" : f == TG_U8 ? "u8" : "f4e2m1"; }
static const tg_kernel* find(const string& name) { size_t n; const tg_kernel* const* all = tg_kernels(&n); for (size_t i = 0; i < n; i++) if (name == all[i]->name) return all[i]; return nullptr; }
static const tg_kernel* kernel(const string& name) { const tg_kernel* found = find(name); if (!found) { printf("no %s\n", name.c_str()); exit(1); } return found; }
// The kernels of types, their names in short, and whether they multiply by wgmma; `folds`: weights times factors are rounded.
struct Named { string text; const tg_kernel* kernel; bool by_wgmma, folds; };
static vector<Named> kernels_of(tg_format a, tg_format b, bool own) {
  const string types = string(name_of(a)) + "_" + name_of(b) + (own && a != TG_F32 ? "_own" : ""); vector<Named> all;
  for (int tile : {8, 32}) all.push_back({std::to_string(tile), kernel("ngg_" + types + "_" + std::to_string(tile)), false, false});
  for (int tile : {32, 128, 192}) for (int unit : {256, 128, 32}) { const string name = std::to_string(tile) + "_" + std::to_string(unit); if (const tg_kernel* found = find("sng_" + types + "_" + name)) all.push_back({"w" + name, found, true, unit == 32 && b == TG_U4}); }
  return all;
}
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
struct Scales { tg_format format; int k, n; bool zeros; };  // numbers that share one; 0: all; format TG_F64: no factors
static size_t failures = 0, products = 0;
static void right(tg_format a, tg_format b, int t, int topk, int e, int n, int k, Scales sc, bool listed, bool first_row, bool bad, bool bias, bool scaled, int special, int skew, bool own = false) {
  const tg_format df = own ? a : TG_F32;
  const int64_t m = int64_t(t) * topk, rows_a = listed ? t : m, lda = (k + 15) / 16 * 16 + 16, ldb = (k + 31) / 32 * 32 + 32, mb = ldb * n + 64, ldd = n + 3;
  const size_t code_bytes = size_t(e) * mb / (packed(b) ? 2 : 1);
  vector<uint8_t> w(code_bytes); for (auto& c : w) { c = uint8_t(rnd()); if (b == TG_F8E4M3 && (c & 127) == 127 && !(special && below(30) == 0)) c = 33; }
  const int gk = sc.k ? (k + sc.k - 1) / sc.k : 1, gn = sc.n ? (n + sc.n - 1) / sc.n : 1; const int64_t ms = int64_t(gk) * gn + 3;
  const bool none = sc.format == TG_F64;
  vector<uint8_t> s(none ? 0 : size_t(e) * ms * size_of(sc.format)), z(sc.zeros ? size_t(e) * ms : 0);
  for (size_t i = 0; i < (none ? 0 : size_t(e) * ms); i++) {
    const double wild[] = {INFINITY, -INFINITY, NAN, 0, 1e-40, 3e38};
    if (sc.format == TG_F8E8M0) { const int ends[] = {0, 1, 254, 255, 200}; put(sc.format, s.data(), i, special && below(150) == 0 ? ends[below(5)] : 118 + below(8)); }
    else if (sc.format == TG_F8E4M3) put(sc.format, s.data(), i, 0x20 + below(0x20));
    else put(sc.format, s.data(), i, special && below(100) == 0 ? wild[below(6)] : exp2(unit() * 8 - 10) * (below(2) ? 1 : -1));
  }
  for (auto& c : z) c = uint8_t(below(b == TG_U8 ? 256 : 16));
  vector<uint8_t> x(rows_a * lda * size_of(a)); for (int64_t i = 0; i < rows_a * lda; i++) put(a, x.data(), i, sgn() * exp2(double(below(4))));
  if (special > 1) { put(a, x.data(), 3, INFINITY); put(a, x.data(), (rows_a - 1) * lda + k - 1, NAN); if (a == TG_F32) put(a, x.data(), 5, 3.4e38); }
  vector<uint8_t> bs(size_t(e) * n * size_of(df)); vector<float> factor(m); for (size_t i = 0; i < size_t(e) * n; i++) put(df, bs.data(), i, sgn()); for (auto& v : factor) v = float(unit() + .1);
  vector<uint32_t> ids(m); const uint32_t no[] = {uint32_t(e), ~0u, 1u << 31};
  for (auto& i : ids) i = bad && below(5) == 0 ? no[below(3)] : skew == 1 ? uint32_t(e / 2) : skew == 2 ? uint32_t(below(e) * below(e) / e) : uint32_t(below(e));
  Routing r = route(ids, e);
  if (!listed) { vector<uint32_t> sorted; for (auto p : r.pairs) sorted.push_back(ids[p]); ids = sorted; }
  vector<uint32_t> pairs = r.pairs; if (listed && bad && m > 4) pairs[m / 2] = uint32_t(m + 5), pairs[1] = ~0u;
  vector<char> named(m, listed ? 0 : 1); for (auto p : pairs) if (p < m) named[p] = 1;
  tg_gemm_args g{};
  g.m = m, g.n = n, g.k = k, g.batch[0] = g.batch[1] = 1;
  g.a = {up(x), lda, 1, {0, 0}}, g.b = {up(w), 1, ldb, {0, mb}};
  vector<uint8_t> guard((m * ldd + 64) * size_of(df)); for (int64_t i = 0; i < m * ldd + 64; i++) put(df, guard.data(), i, NAN); uint8_t* d = up(guard);
  g.d = {d, ldd, 1, {0, 0}}; if (bias) g.bias = {up(bs), 0, 1, {0, n}};
  g.alpha = 0.5, g.sm_count = sms, g.overlap = 1, g.stream = stream, g.types = {a, b, df, df, TG_F32};
  g.activation = bias ? TG_RELU : TG_IDENTITY;
  if (!none) { g.b_scale = {up(s), sc.zeros ? up(z) : nullptr, sc.format, sc.k ? uint32_t(sc.k) : UINT32_MAX, sc.n ? uint32_t(sc.n) : UINT32_MAX, sc.n == 1 ? int64_t(gn) : 1, sc.n == 1 ? 1 : int64_t(gk), {0, ms}}; }
  if (first_row) g.groups.first_row = up(r.first); else g.groups.group_of_row = up(r.group);
  if (listed) g.groups.pairs = up(pairs); if (scaled) g.groups.scales = up(factor);
  g.groups.pairs_per_row = listed ? topk : 1, g.groups.count = e;
  string line; uint8_t* work; g.workspace_bytes = size_t(rows_a) * (lda + 8) * 2; CK(cudaMalloc(&work, g.workspace_bytes)); owned.push_back(work); g.workspace = work;
  for (const Named& of : kernels_of(a, b, own)) {
    CK(cudaMemcpy(d, guard.data(), guard.size(), cudaMemcpyHostToDevice));
    const tg_status status = of.kernel->launch(&g);
    if (status) { line += status == TG_UNSUPPORTED ? (of.by_wgmma ? "" : " refused") : string(" ERROR ") + tg_last_cuda_error(); failures += status != TG_UNSUPPORTED; continue; }
    CK(cudaStreamSynchronize(stream)); CK(cudaGetLastError());
    vector<uint8_t> bytes(guard.size()); CK(cudaMemcpy(bytes.data(), d, bytes.size(), cudaMemcpyDeviceToHost)); vector<double> y(m * ldd + 64); for (size_t i = 0; i < y.size(); i++) y[i] = number(df, bytes.data(), i);
    double worst = 0; size_t wrong = 0, count = std::min<size_t>(size_t(m) * n, special ? 2500 : 1200); char first[160] = "";
    for (size_t q = 0; q < count; q++) {
      const size_t at = size_t(m) * n <= count ? q : below(size_t(m) * n), p = at / n; const int j = int(at % n);
      const double got = y[p * ldd + j]; double err;
      double sum = 0, mag = 0, exact = 0;
      if (!named[p]) { err = std::isnan(got) ? 0 : INFINITY; }
      else if (ids[p] >= uint32_t(e)) err = got == 0 ? 0 : INFINITY;
      else {
        const size_t row = listed ? p / topk : p, of_w = size_t(ids[p]) * mb + size_t(j) * ldb;
        for (int i = 0; i < k; i++) {
          double v = packed(b) ? (b == TG_U4 ? code_at(&w[of_w / 2], i) : e2m1(code_at(&w[of_w / 2], i))) : b == TG_I8 ? double(int8_t(w[of_w + i])) : b == TG_U8 ? double(w[of_w + i]) : e4m3(w[of_w + i]);
          if (none) v -= b == TG_U4 ? 8 : b == TG_U8 ? 128 : 0;
          else {
            const size_t si = size_t(ids[p]) * ms + (sc.k ? i / sc.k : 0) * g.b_scale.row_stride + (sc.n ? j / sc.n : 0) * g.b_scale.col_stride;
            v = v - (sc.zeros ? z[si] : b == TG_U4 ? 8 : b == TG_U8 ? 128 : 0);
            exact += number(a, x.data(), row * lda + i) * (v * number(sc.format, s.data(), si));
            v = double(float(v) * float(number(sc.format, s.data(), si)));
          }
          const double pr = number(a, x.data(), row * lda + i) * v; sum += pr, mag += fabs(pr);
        }
        sum *= .5, mag *= .5;
        if (bias) { const double v = number(df, bs.data(), size_t(ids[p]) * n + j); sum += v, mag += fabs(v); if (!(sum > 0) && !std::isnan(sum)) sum = 0; }
        if (scaled) sum *= factor[p], mag *= factor[p];
        exact *= .5 * (scaled ? factor[p] : 1);
        const float as = float(sum);
        if (!std::isfinite(sum) && std::isfinite(exact) && !none) err = 0;  // numbers of W beyond f32
        else if (std::isnan(sum)) err = std::isnan(got) ? 0 : INFINITY;
        else if (std::isinf(as) || std::isinf(got) || std::isnan(got) || mag > 1e38) err = as == got || mag > 1e38 ? 0 : INFINITY;
        else err = fabs(got - sum) / (mag * ((a == TG_F32 ? 1.05 * exp2(of.by_wgmma ? -8 : -11) : exp2(-18)) + (of.folds ? 1.05 * exp2(a == TG_F16 ? -11 : -8) : 0)) + fabs(sum) * (df == TG_BF16 ? 1.01 * exp2(-8) : df == TG_F16 ? 1.01 * exp2(-11) : exp2(-22)) + (df == TG_F16 ? 6e-8 : 1e-30));
        if (df == TG_F16 && (fabs(sum) > 65000 || mag > 1e37)) err = 0;
      }
      if (!(err <= 1)) { if (!wrong) snprintf(first, 160, " [row %zu col %d group %d got %g expected %g mag %g]", p, j, int(ids[p]), got, sum, mag); wrong++; }
      worst = std::max(worst, err);
    }
    for (int64_t i = 0; i < m; i++) for (int j = n; j < ldd; j++) if (!std::isnan(y[i * ldd + j])) wrong++;
    for (int i = 0; i < 64; i++) if (!std::isnan(y[m * ldd + i])) wrong++;
    products++, failures += wrong > 0;
    char text[256]; snprintf(text, 256, " %s: %.3f%s%s", of.text.c_str(), worst, wrong ? " WRONG" : "", first); line += text;
  }
  printf("%s %s t %d topk %d e %d n %d k %d groups %d x %d f%d%s listed %d first %d bad %d bias %d scaled %d special %d skew %d own %d:%s\n", name_of(a), name_of(b), t, topk, e, n, k, sc.k, sc.n, int(sc.format), sc.zeros ? " zeros" : "", listed, first_row, bad, bias, scaled, special, skew, own, line.c_str()); fflush(stdout);
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
static void* random_bytes(size_t bytes, tg_format f) {
  vector<uint8_t> part(1 << 22); for (auto& c : part) { c = uint8_t(rnd()); if (f == TG_F8E4M3 && (c & 127) == 127) c = 1; }
  if (f == TG_BF16) for (size_t i = 0; i < part.size() / 2; i++) put(TG_BF16, part.data(), i, sgn());
  uint8_t* q; CK(cudaMalloc(&q, bytes + 256)); for (size_t at = 0; at < bytes; at += part.size()) CK(cudaMemcpy(q + at, part.data(), std::min(part.size(), bytes - at), cudaMemcpyHostToDevice));
  owned.push_back(q); return q;
}
static void time_all(tg_format b, tg_format a, int topk, int e, int n, int k, Scales sc, bool per_pair, vector<int> tokens, bool dense) {
  const double bits = packed(b) ? 4 : 8; const size_t matrix = size_t(n) * k;
  void* w = random_bytes(size_t(e * (matrix * bits / 8)), b); void* wide = dense ? random_bytes(e * matrix * 2, TG_BF16) : nullptr;
  const int gk = sc.k ? k / sc.k : 1, gn = sc.n ? (n + sc.n - 1) / sc.n : 1;
  vector<uint8_t> s(size_t(e) * gk * gn * size_of(sc.format)); for (size_t i = 0; i < size_t(e) * gk * gn; i++) put(sc.format, s.data(), i, sc.format == TG_F8E8M0 ? 118 + below(4) : 0.01 * (1 + unit()));
  void* scale = up(s); void* zeros = sc.zeros ? up(vector<uint8_t>(size_t(e) * gk * gn, 7)) : nullptr;
  const int turns = 20;
  for (int t : tokens) {
    const int64_t m = int64_t(t) * topk; vector<uint8_t> x(m * k * 4); for (int64_t i = 0; i < m * k; i++) put(a, x.data(), i, sgn());
    void* dx = up(x); for (int64_t i = 0; i < m * k; i++) put(TG_BF16, x.data(), i, sgn()); void* dx16 = up(x); void* d; CK(cudaMalloc(&d, m * n * 4)); owned.push_back(d);
    vector<uint32_t*> group, pairs; double filled = 0;
    for (int turn = 0; turn < turns; turn++) {
      vector<uint32_t> ids; for (int i = 0; i < t; i++) { vector<uint32_t> own; while (int(own.size()) < topk) { uint32_t c = uint32_t(below(e)); if (std::find(own.begin(), own.end(), c) == own.end()) own.push_back(c); } ids.insert(ids.end(), own.begin(), own.end()); }
      Routing r = route(ids, e); group.push_back(up(r.group)); pairs.push_back(up(r.pairs)); for (int i = 0; i < e; i++) filled += r.first[i + 1] > r.first[i];
    }
    filled /= turns;
    tg_gemm_args g{}; g.m = m, g.n = n, g.k = k, g.batch[0] = g.batch[1] = 1; g.a = {dx, k, 1, {0, 0}}, g.b = {w, 1, k, {0, int64_t(matrix)}}, g.d = {d, n, 1, {0, 0}};
    g.alpha = 1, g.sm_count = sms, g.overlap = 1, g.stream = stream, g.types = {a, b, TG_F32, TG_F32, TG_F32};
    g.b_scale = {scale, (const uint8_t*)zeros, sc.format, sc.k ? uint32_t(sc.k) : UINT32_MAX, sc.n ? uint32_t(sc.n) : UINT32_MAX, sc.n == 1 ? int64_t(gn) : 1, sc.n == 1 ? 1 : int64_t(gk), {0, int64_t(gk) * gn}};
    g.groups.pairs_per_row = per_pair ? 1 : topk, g.groups.count = e;
    const auto run = [&](const tg_kernel* kernel, tg_gemm_args args) { return times(turns, [&](int i) { args.groups.group_of_row = group[i], args.groups.pairs = pairs[i]; const tg_status s = kernel->launch(&args); if (s == TG_CUDA_ERROR) { printf("%s\n", tg_last_cuda_error()); exit(1); } return s == TG_OK; }); };
    string line; char text[64];
    uint8_t* work; g.workspace_bytes = size_t(m) * (k + 8) * 2; CK(cudaMalloc(&work, g.workspace_bytes)); g.workspace = work;
    for (const Named& of : kernels_of(a, b, false)) {
      if (m > 4096 && of.text == "8") continue;
      const double us = run(of.kernel, g); if (!std::isnan(us)) { snprintf(text, 64, " %s %.1f", of.text.c_str(), us); line += text; }
    }
    CK(cudaFree(work));
    if (dense) {
      tg_gemm_args c = g; c.types = {TG_BF16, TG_BF16, TG_BF16, TG_BF16, TG_F32}; c.b_scale = {}; c.b = {wide, 1, k, {0, int64_t(matrix)}}; c.a.ptr = dx16;
      double best = INFINITY;
      for (int tile : {32, 176}) for (int cluster = 1; cluster <= (tile == 32 ? 1 : 2); cluster++) for (int stages = 12; stages >= 2; stages--) { c.config = {tile, tile == 32 ? 128 : 256, cluster, 1, 1, stages, 0, 1}; const double us = run(kernel(tile == 32 ? "bf16_32" : "bf16_176"), c); if (!std::isnan(us)) { best = std::min(best, us); break; } }
      snprintf(text, 64, " bf16 %.1f", best); line += text;
    }
    const double bytes = filled * matrix * bits / 8 + filled * gk * gn * (size_of(sc.format) + sc.zeros) + m * n * 4.0 + double(per_pair ? m : t) * k * size_of(a), flop = 2.0 * m * matrix;
    printf("time %s x %s%s %d of %d, %d x %d, g %d x %d, %d tokens, %.1f experts: at 3.9 TB/s %.1f, at 800 TFLOP/s %.1f:%s\n", name_of(a), name_of(b), sc.zeros ? " zeros" : "", topk, e, n, k, sc.k, sc.n, t, filled, bytes / 3.9e6, flop / 8e8, line.c_str()); fflush(stdout);
    for (void* p : {dx, dx16, d}) { CK(cudaFree(p)); owned.erase(std::find(owned.begin(), owned.end(), p)); }
  }
  release();
}
int main(int argc, char** argv) {
  const string what = argc > 1 ? argv[1] : "right";
  CK(cudaStreamCreate(&stream)); cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); sms = p.multiProcessorCount; printf("%s %d SMs\n", p.name, sms);
  const Scales none{TG_F64, 0, 0, false}, blocks{TG_F32, 128, 128, false}, rows{TG_F32, 0, 1, false}, tensor{TG_F32, 0, 0, false}, mx{TG_F8E8M0, 32, 1, false};
  if (what == "right" || what == "few") {
    const bool few = what == "few";
    for (tg_format b : {TG_F8E4M3, TG_U4, TG_F4E2M1, TG_I8, TG_U8}) for (tg_format a : {TG_BF16, TG_F16, TG_F32}) {
      if (argc > 3 && (string(argv[2]) != name_of(b) || string(argv[3]) != name_of(a))) continue;
      vector<Scales> all;
      if (b == TG_F8E4M3) all = {blocks, rows, tensor, none, {TG_BF16, 64, 96, false}, mx, {TG_F32, 192, 5, false}};
      if (b == TG_U4) all = {{TG_F16, 128, 1, false}, {TG_F16, 64, 1, true}, {TG_BF16, 32, 1, true}, {TG_F16, 32, 1, false}, rows, {TG_F16, 0, 1, true}, none, {TG_F16, 192, 1, true}};
      if (b == TG_I8) all = {rows, tensor, {TG_F16, 64, 1, false}, none};
      if (b == TG_U8) all = {{TG_F16, 128, 1, true}, {TG_BF16, 32, 1, true}, rows, none};
      if (b == TG_F4E2M1) all = {mx, mx, mx, none, mx};
      size_t i = 0; const auto next = [&] { return all[i++ % all.size()]; };
      if (few) {
        right(a, b, 3, 2, 5, 40, 288, next(), true, false, true, true, true, 1, 0);
        right(a, b, 90, 1, 3, 136, 160, next(), false, true, false, false, false, 2, 2);
        continue;
      }
      const bool wide = a == TG_F32;
      for (int turn = 0; turn < int(all.size()); turn++) {
        i = turn;
        right(a, b, 1, 8, 128, 96, 256, next(), true, false, false, false, false, 0, 0);
        right(a, b, 7, 3, 16, 136, 288, next(), true, true, true, false, true, 0, 0);
        right(a, b, 40, 2, 60, 30, wide ? 44 : 48, next(), false, false, true, true, false, 0, 0);
        right(a, b, 300, 4, 8, 520, 384, next(), true, false, false, true, true, 0, 2);
        right(a, b, 33, 1, 4, 64, 128, next(), true, true, false, false, false, 1, 0);
        right(a, b, 9, 2, 3, 72, 2880, next(), true, false, false, true, false, 1, 0);
        right(a, b, 1, 1, 1, 1, wide ? 4 : 8, next(), false, false, false, false, false, 0, 0);
        right(a, b, 130, 2, 16, 300, 768, next(), true, false, true, false, false, 2, 2);
        right(a, b, 70, 1, 9, 264, 2048, next(), false, true, false, false, false, 2, 1);
      }
      if (!few) for (int turn = 0; turn < int(all.size()); turn++) { i = turn; right(a, b, 21, 3, 11, 88, 352, next(), true, turn % 2, true, true, true, turn % 3, 2, true); }
      right(a, b, 2000, 8, 256, 16, 128, next(), true, false, true, false, false, 0, 0);
      right(a, b, 5, 2, 4, 200, 7168, next(), true, false, false, true, false, 0, 0);
      right(a, b, 1000, 1, 1000, 24, 1040, next(), true, true, false, false, false, 0, 0);
      right(a, b, 16, 8, 64, 520, 2048, next(), true, false, false, false, false, 0, 0);
    }
    printf("%zu products, %zu wrong\n", products, failures);
    return failures > 0;
  }
  time_all(TG_F8E4M3, TG_BF16, 8, 128, 1536, 2048, blocks, false, {1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096}, true);
  time_all(TG_F8E4M3, TG_F32, 8, 128, 2048, 768, blocks, true, {8, 32, 128, 256, 512, 1024, 2048}, true);
  time_all(TG_F8E4M3, TG_BF16, 8, 128, 1536, 2048, rows, false, {128, 256, 512, 1024}, false);
  time_all(TG_F4E2M1, TG_BF16, 4, 32, 5760, 2880, mx, false, {1, 16, 64, 128, 256, 512, 1024, 2048}, true);
  time_all(TG_F4E2M1, TG_F32, 4, 32, 2880, 2880, mx, true, {8, 64, 256, 1024}, true);
  time_all(TG_U4, TG_BF16, 8, 128, 1536, 2048, {TG_F16, 128, 1, false}, false, {8, 64, 128, 256, 512, 1024}, false);
  time_all(TG_U4, TG_F32, 8, 128, 2048, 768, {TG_F16, 32, 1, true}, true, {8, 64, 512}, false);
}
