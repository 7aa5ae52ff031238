// Experts in fp8 and MXFP4: narrow_grouped_gemm behind tg_route (and the reordered x) beside mistralrs 0.8.1's kernels; an f64 oracle.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <vector>
#include "library.h"
using std::vector; using std::string;
#define CK(x) do { cudaError_t e_ = (x); if (e_) { printf("CUDA %s line %d\n", cudaGetErrorString(e_), __LINE__); exit(1); } } while (0)
extern "C" {
#define DENSE(n, T) void theirs_fp8_matmul_##n(const T*, const void*, const float*, T*, int, int, int, int, int, int, cudaStream_t);
#define EX(n, T) void theirs_fp8_indexed_moe_gemm_##n(const T*, const void*, const float*, const uint32_t*, T*, int, int, int, int, int, int, int, int, bool, cudaStream_t);
#define MX(n, T) void theirs_mxfp4_indexed_moe_gemm_##n(const T*, const uint8_t*, const uint8_t*, const T*, const uint32_t*, T*, int, int, int, int, int, bool, bool, cudaStream_t); \
  void theirs_mxfp4_moe_grouped_gemm_wmma_##n(const T*, const uint8_t*, const uint8_t*, const T*, const uint32_t*, T*, int, int, int, int, int, bool, bool, cudaStream_t);
DENSE(f16, __half) DENSE(bf16, __nv_bfloat16) EX(f16, __half) EX(bf16, __nv_bfloat16) MX(f16, __half) MX(bf16, __nv_bfloat16)
}
static uint64_t seed = 0x9e3779b97f4a7c15ull;
static uint64_t rnd() { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed; }
static uint64_t below(uint64_t n) { return (rnd() >> 11) % n; }
static double unit() { return double(rnd() >> 11) / double(1ull << 53); }
static double sgn() { return unit() + unit() + unit() + unit() - 2; }
static double e4m3(int c) { double s = c & 128 ? -1 : 1; int e = c >> 3 & 15, m = c & 7; if ((c & 127) == 127) return NAN; return e ? s * ldexp(1 + m / 8.0, e - 7) : s * ldexp(m / 8.0, -6); }
static double e2m1(int c) { static const double v[8] = {0, .5, 1, 1.5, 2, 3, 4, 6}; return (c & 8 ? -1 : 1) * v[c & 7]; }
static double e8m0(int c) { return c == 255 ? NAN : ldexp(1.0, c - 127); }
template <class T> struct F;
template <> struct F<__half> { static constexpr tg_format f = TG_F16; static constexpr double hu = 1 / 2048.0; static double to(__half x) { return __half2float(x); } static __half of(double x) { return __float2half(float(x)); } static const char* n() { return "f16"; }
  static constexpr auto dense = theirs_fp8_matmul_f16; static constexpr auto ex = theirs_fp8_indexed_moe_gemm_f16; static constexpr auto mx = theirs_mxfp4_indexed_moe_gemm_f16; static constexpr auto mg = theirs_mxfp4_moe_grouped_gemm_wmma_f16; };
template <> struct F<__nv_bfloat16> { static constexpr tg_format f = TG_BF16; static constexpr double hu = 1 / 256.0; static double to(__nv_bfloat16 x) { return __bfloat162float(x); } static __nv_bfloat16 of(double x) { return __float2bfloat16(float(x)); } static const char* n() { return "bf16"; }
  static constexpr auto dense = theirs_fp8_matmul_bf16; static constexpr auto ex = theirs_fp8_indexed_moe_gemm_bf16; static constexpr auto mx = theirs_mxfp4_indexed_moe_gemm_bf16; static constexpr auto mg = theirs_mxfp4_moe_grouped_gemm_wmma_bf16; };
template <class T> T* up(const vector<T>& v) { T* p; CK(cudaMalloc(&p, std::max<size_t>(v.size(), 1) * sizeof(T))); CK(cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice)); return p; }
static cudaStream_t stream;
static int sms;
static const tg_kernel* kernel(const string& name) { size_t n; const tg_kernel* const* all = tg_kernels(&n); for (size_t i = 0; i < n; i++) if (name == all[i]->name) return all[i]; printf("no %s\n", name.c_str()); exit(1); }
struct Call {
  bool mx; tg_format of; int t, topk, e, n, k, by, bx, st; bool has;
  const void *x, *w, *s, *bias; uint32_t* ids; void* y;
};
static char* scratch; // lists, then the reordered x
// What src/interpose/mistralrs/experts.rs does.
static tg_status ours(const Call& c, const tg_kernel* kernel) {
  uint32_t* words = reinterpret_cast<uint32_t*>(scratch);
  tg_routing r{};
  const int64_t m = int64_t(c.t) * c.topk;
  r.tokens = c.t, r.experts = c.e, r.top_k = c.topk, r.row_stride = c.e, r.format = TG_F32, r.chosen = c.ids;
  r.first_row = reinterpret_cast<int32_t*>(words), r.pairs = words + c.e + 1, r.counts = words + c.e + 1 + m;
  r.blocks = c.t <= 16 ? 1 : std::min((c.t + 7) / 8, 264), r.overlap = 1, r.stream = stream;
  if (tg_status s = tg_route(&r)) return s;
  const int64_t rows = c.has ? m : c.t;
  const void* x = c.x;
  if (c.mx) {
    char* to = scratch + ((c.e + 1 + m + int64_t(r.blocks) * c.e) * 4 + 255) / 256 * 256;
    tg_gemm_args a{};
    a.m = rows * c.k / 32, a.n = a.k = 8, a.batch[0] = 1, a.batch[1] = 4;
    a.a = {const_cast<void*>(c.x), 32, 4, {0, 1}}, a.b = a.a, a.d = {to, 32, 1, {0, 8}};
    a.alpha = 1, a.types = {c.of, c.of, c.of, c.of, TG_F32}, a.stream = stream;
    if (tg_status s = tg_copy(c.of, &a)) return s;
    x = to;
  }
  tg_gemm_args a{};
  a.m = m, a.n = c.n, a.k = c.k, a.batch[0] = a.batch[1] = 1;
  a.a = {const_cast<void*>(x), c.k, 1, {0, 0}}, a.b = {const_cast<void*>(c.w), 1, c.k, {0, int64_t(c.n) * c.k}};
  a.d = {c.y, c.n, 1, {0, 0}}, a.bias = {const_cast<void*>(c.bias), 0, 1, {0, c.n}};
  a.alpha = 1, a.sm_count = sms, a.overlap = 1, a.stream = stream;
  a.types = {c.of, c.mx ? TG_F4E2M1 : TG_F8E4M3, c.of, c.of, TG_F32};
  a.b_scale.ptr = c.s;
  if (c.mx) {
    a.b_scale.format = TG_F8E8M0, a.b_scale.rows = c.k > 32 ? 32 : UINT32_MAX, a.b_scale.columns = 1;
    a.b_scale.row_stride = c.k > 32 ? 1 : 0, a.b_scale.col_stride = c.k / 32, a.b_scale.batch_stride[1] = int64_t(c.n) * (c.k / 32);
  } else {
    a.b_scale.format = TG_F32, a.b_scale.rows = c.bx >= c.k ? UINT32_MAX : c.bx, a.b_scale.columns = c.by >= c.n ? UINT32_MAX : c.by;
    a.b_scale.row_stride = c.bx >= c.k ? 0 : 1, a.b_scale.col_stride = c.by >= c.n ? 0 : c.st, a.b_scale.batch_stride[1] = int64_t((c.n + c.by - 1) / c.by) * c.st;
  }
  a.groups.first_row = r.first_row, a.groups.pairs = r.pairs, a.groups.pairs_per_row = c.has ? 1 : c.topk, a.groups.count = c.e;
  return kernel->launch(&a);
}
template <class T> void theirs(const Call& c) {
  if (!c.mx) F<T>::ex((const T*)c.x, c.w, (const float*)c.s, c.ids, (T*)c.y, c.t, c.topk, c.e, c.n, c.k, c.st, c.by, c.bx, c.has, stream);
  else (c.t > 1 ? F<T>::mg : F<T>::mx)((const T*)c.x, (const uint8_t*)c.w, (const uint8_t*)c.s, (const T*)c.bias, c.ids, (T*)c.y, c.t, c.topk, c.e, c.n, c.k, c.bias != nullptr, c.has, stream);
}
static string name_of(const char* t, bool mx, int tile) { return string("ngg_") + t + (mx ? "_f4e2m1_" : "_f8e4m3_") + (tile == 8 ? "8x16" : "64x128"); }
template <class T> void right(bool mx, int t, int topk, int e, int n, int k, int by, int bx, bool has, bool bad, bool bias, bool special) {
  const int st = (k + bx - 1) / bx;
  const size_t out = size_t(t) * topk * n;
  vector<uint8_t> w(mx ? size_t(e) * n * k / 2 : size_t(e) * n * k), sb(mx ? size_t(e) * n * k / 32 : 0);
  vector<float> sf(mx ? 0 : size_t(e) * ((n + by - 1) / by) * st);
  for (auto& c : w) { c = uint8_t(rnd()); if (!mx && (c & 127) == 127 && !(special && below(200) == 0)) c = 33; }
  for (auto& s : sf) s = float(exp2(unit() * 8 - 10));
  const uint8_t ends[] = {0, 254, 255};
  for (auto& s : sb) s = special && below(60) == 0 ? ends[below(3)] : 118 + below(8);
  vector<T> x(size_t(has ? t * topk : t) * k), b(size_t(e) * n);
  for (auto& v : x) v = F<T>::of(sgn());
  for (auto& v : b) v = F<T>::of(sgn());
  if (special) x[x.size() / 2] = F<T>::of(INFINITY);
  vector<uint32_t> ids(size_t(t) * topk);
  const uint32_t none[] = {uint32_t(e), ~0u, 1u << 31};
  for (auto& i : ids) i = bad && below(5) == 0 ? none[below(3)] : uint32_t(below(e) * below(3) / 2 % e);
  Call c{mx, F<T>::f, t, topk, e, n, k, by, bx, st, has};
  T* dx = up(x); uint8_t* dw = up(w); void* ds = mx ? (void*)up(sb) : (void*)up(sf); T* db = up(b); uint32_t* di = up(ids);
  c.x = dx, c.w = dw, c.s = ds, c.bias = bias ? db : nullptr, c.ids = di;
  CK(cudaMalloc(&c.y, (out + 64) * 2));
  string line;
  for (int arm = 0; arm < 3; arm++) {
    CK(cudaMemset(c.y, 0, out * 2)); CK(cudaMemset((char*)c.y + out * 2, 0x5a, 128));
    if (arm == 2) theirs<T>(c);
    else if (tg_status s = ours(c, kernel(name_of(F<T>::n(), mx, arm ? 64 : 8)))) { line += s == TG_UNSUPPORTED ? " refused" : string(" ERROR ") + tg_last_cuda_error(); continue; }
    CK(cudaStreamSynchronize(stream)); CK(cudaGetLastError());
    vector<T> y(out + 64); CK(cudaMemcpy(y.data(), c.y, (out + 64) * 2, cudaMemcpyDeviceToHost));
    double worst = 0; size_t wrong = 0, count = std::min<size_t>(out, 3000);
    for (size_t q = 0; q < count; q++) {
      const size_t at = out <= 3000 ? q : q < 500 ? out - 1 - q : below(out), p = at / n; const int j = int(at % n);
      const size_t row = has ? p : p / topk; const uint32_t ex = ids[p];
      double sum = 0, mag = 0;
      if (ex < uint32_t(e)) {
        for (int i = 0; i < k; i++) {
          const size_t el = (size_t(ex) * n + j) * k + i;
          const double v = mx ? e2m1(i % 2 ? w[el / 2] >> 4 : w[el / 2] & 15) * e8m0(sb[el / 32]) : e4m3(w[el]) * sf[(size_t(ex) * ((n + by - 1) / by) + j / by) * st + i / bx];
          const double pr = F<T>::to(x[row * k + i]) * v; sum += pr, mag += fabs(pr);
        }
        if (bias) { const double v = F<T>::to(b[size_t(ex) * n + j]); sum += v, mag += fabs(v); }
      }
      const double got = F<T>::to(y[at]), as = F<T>::to(F<T>::of(sum));
      double err;
      if (std::isnan(sum)) err = std::isnan(got) ? 0 : INFINITY;
      else if (std::isinf(as) || std::isinf(got) || std::isnan(got) || mag > 3e38) err = as == got || mag > 3e38 ? 0 : INFINITY;
      else err = fabs(got - sum) / (F<T>::hu * fabs(sum) * 1.001 + mag * exp2(-20) + 6e-8);
      if (!(err <= 1)) wrong++;
      worst = std::max(worst, err);
    }
    bool guard = true; for (int i = 0; i < 128; i++) guard &= ((char*)(y.data() + out))[i] == 0x5a;
    char text[64]; snprintf(text, 64, " %s %.3f (%zu over)%s", arm == 2 ? "theirs" : arm ? "64" : "8", worst, wrong, guard ? "" : " GUARD"); line += text;
  }
  printf("%s %s t %d topk %d e %d n %d k %d blocks %dx%d has %d bad %d bias %d special %d:%s\n", mx ? "mxfp4" : "fp8", F<T>::n(), t, topk, e, n, k, by, bx, has, bad, bias, special, line.c_str()); fflush(stdout);
  for (void* p : {(void*)dx, (void*)dw, ds, (void*)db, (void*)di, c.y}) CK(cudaFree(p));
}
static string times(vector<std::pair<string, std::function<void(int)>>> arms, double ms) {
  cudaEvent_t a, b; CK(cudaEventCreate(&a)); CK(cudaEventCreate(&b));
  vector<vector<float>> all(arms.size()); double spent = 0;
  for (int turn = 0; turn < 30; turn++) {
    for (size_t i = 0; i < arms.size(); i++) {
      CK(cudaEventRecord(a, stream)); arms[i].second(turn); CK(cudaEventRecord(b, stream)); CK(cudaEventSynchronize(b));
      float us; CK(cudaEventElapsedTime(&us, a, b)); spent += us; if (turn > 1) all[i].push_back(us * 1e3f);
    }
    if (turn > 4 && spent > ms) break;
  }
  string line;
  for (size_t i = 0; i < arms.size(); i++) { std::sort(all[i].begin(), all[i].end()); char t[64]; snprintf(t, 64, " %s %.1f", arms[i].first.c_str(), all[i][all[i].size() / 2]); line += t; }
  return line;
}
int main() {
  CK(cudaStreamCreate(&stream)); cudaDeviceProp p; CK(cudaGetDeviceProperties(&p, 0)); sms = p.multiProcessorCount; printf("%s %d SMs\n", p.name, sms);
  CK(cudaMalloc(&scratch, 256 << 20));
  using B = __nv_bfloat16; using H = __half;
#define BOTH(...) right<B>(__VA_ARGS__); right<H>(__VA_ARGS__)
  BOTH(false, 1, 8, 128, 96, 256, 128, 128, false, false, false, false);
  BOTH(false, 7, 3, 16, 136, 256, 128, 128, false, true, false, false);
  BOTH(false, 40, 2, 60, 30, 48, 16, 64, true, true, false, false);
  BOTH(false, 300, 4, 8, 520, 384, 128, 128, true, false, true, false);  // a bias, which mistralrs's kernel does not have
  BOTH(false, 33, 1, 4, 64, 128, 64, 64, false, true, false, true);
  BOTH(false, 1, 1, 1, 1, 16, 1, 16, false, false, false, false);
  BOTH(false, 2000, 8, 256, 16, 128, 128, 128, false, true, false, false);
  BOTH(false, 130, 8, 16, 256, 7168, 128, 128, false, false, false, false);
  BOTH(false, 8, 2, 4, 200, 1040, 128, 192, false, false, false, false);
  right<B>(true, 1, 4, 32, 96, 2880, 1, 32, false, false, true, false);
  right<B>(true, 3, 2, 8, 33, 64, 1, 32, true, true, false, false);
  right<B>(true, 50, 4, 32, 72, 320, 1, 32, false, true, true, false);
  right<B>(true, 130, 2, 8, 64, 96, 1, 32, true, false, true, false);
  right<B>(true, 5, 2, 8, 40, 32, 1, 32, false, false, true, false);
  right<B>(true, 20, 2, 8, 130, 256, 1, 32, false, false, false, true);
  struct S { bool mx; int topk, e, n, k; };
  for (S s : {S{false, 8, 128, 768, 2048}, S{false, 8, 128, 2048, 768}, S{false, 8, 256, 512, 7168}, S{true, 4, 32, 5760, 2880}, S{true, 4, 128, 2880, 2880}}) {
    const size_t bytes = size_t(s.e) * s.n * s.k / (s.mx ? 2 : 1);
    vector<uint8_t> part(1 << 22); for (auto& c : part) { c = uint8_t(rnd()); if (!s.mx && (c & 127) == 127) c = 1; }
    uint8_t* w[2]; for (auto& q : w) { CK(cudaMalloc(&q, bytes)); for (size_t at = 0; at < bytes; at += part.size()) CK(cudaMemcpy(q + at, part.data(), std::min(part.size(), bytes - at), cudaMemcpyHostToDevice)); }
    void* sc = s.mx ? (void*)up(vector<uint8_t>(size_t(s.e) * s.n * s.k / 32, 120)) : (void*)up(vector<float>(size_t(s.e) * (s.n / 128) * (s.k / 128), 0.01f));
    for (int t : {1, 4, 16, 64, 256, 1024, 4096}) {
      vector<B> x(size_t(t) * s.k); for (auto& v : x) v = F<B>::of(sgn());
      vector<uint32_t> ids(size_t(t) * s.topk); for (auto& i : ids) i = uint32_t(below(s.e));
      Call c{s.mx, TG_BF16, t, s.topk, s.e, s.n, s.k, 128, s.mx ? 32 : 128, s.k / 128, false};
      B* dx = up(x); uint32_t* di = up(ids); c.x = dx, c.ids = di, c.s = sc, c.bias = nullptr; CK(cudaMalloc(&c.y, size_t(t) * s.topk * s.n * 2));
      auto run = [&](int tile) { const tg_kernel* k = kernel(name_of("bf16", s.mx, tile)); return [&, k](int turn) { c.w = w[turn % 2]; ours(c, k); }; };
      printf("time %s %d tokens %d of %d, %d x %d:%s\n", s.mx ? "mxfp4" : "fp8", t, s.topk, s.e, s.n, s.k,
             times({{"8", run(8)}, {"64", run(64)}, {"theirs", [&](int turn) { c.w = w[turn % 2]; theirs<B>(c); }}}, 60).c_str()); fflush(stdout);
      CK(cudaStreamSynchronize(stream)); CK(cudaGetLastError());
      CK(cudaFree(dx)); CK(cudaFree(di)); CK(cudaFree(c.y));
    }
    CK(cudaFree(w[0])); CK(cudaFree(w[1])); CK(cudaFree(sc));
  }
  {  // dense, theirs alone
    const int n = 14336, k = 4096; uint8_t* w[2]; for (auto& q : w) { CK(cudaMalloc(&q, size_t(n) * k)); CK(cudaMemset(q, 0x31, size_t(n) * k)); }
    float* sc = up(vector<float>(112 * 32, 0.01f)); B *x, *y; CK(cudaMalloc(&x, size_t(4096) * k * 2)); CK(cudaMemset(x, 0, size_t(4096) * k * 2)); CK(cudaMalloc(&y, size_t(4096) * n * 2));
    for (int m : {1, 8, 16, 64, 256, 1024, 4096})
      printf("time fp8 dense %d x %d x %d:%s\n", m, n, k, times({{"theirs", [&](int turn) { F<B>::dense(x, w[turn % 2], sc, y, m, n, k, k / 128, 128, 128, stream); }}}, 60).c_str());
  }
}
