#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <random>
#include <string>
#include <vector>
#include "common/kernel.hpp"
#include "tilegemm.h"
// What registry.cpp gives the kernels.
namespace tilegemm {
tg_status cuda_status(cudaError_t e) { if (e) printf("cuda: %s\n", cudaGetErrorString(e)); return e ? TG_CUDA_ERROR : TG_OK; }
Rehearsal::Rehearsal() {}
Rehearsal::~Rehearsal() {}
bool Rehearsal::is_on() { return false; }
bool Rehearsal::knows(int) { return false; }
cudaError_t set_shared_memory(const void* k, int b) { return cudaFuncSetAttribute(k, cudaFuncAttributeMaxDynamicSharedMemorySize, b); }
tg_status load_module(const void*) { return TG_OK; }
tg_status launch_within(const Contract&, tg_status (*l)(const tg_gemm_args*), const tg_gemm_args* a) { return l(a); }
tg_status rehearse(const Contract&, tg_status (*l)(const tg_gemm_args*), const tg_gemm_args* a) { return TG_OK; }
}
using Fn = tg_status (*)(const tg_gemm_args*);
#define D(x) extern "C" tg_status x(const tg_gemm_args*);
D(gemv_mxfp4) D(gemv_iq4_nl) D(gemv_iq4_xs) D(gemv_q5_0)
D(gemm_mxfp4_16) D(gemm_mxfp4_64) D(gemm_mxfp4_256)
D(gemm_iq4_nl_16) D(gemm_iq4_nl_64) D(gemm_iq4_nl_256)
D(gemm_iq4_xs_16) D(gemm_iq4_xs_64) D(gemm_iq4_xs_256)
D(gemm_q5_0_16) D(gemm_q5_0_64) D(gemm_q5_0_256)
struct F { const char* name; tg_format f; int elements, bytes; Fn gemv, g16, g64, g256; };
static const F formats[] = {
  {"mxfp4", TG_MXFP4, 32, 17, gemv_mxfp4, gemm_mxfp4_16, gemm_mxfp4_64, gemm_mxfp4_256},
  {"iq4_nl", TG_IQ4_NL, 32, 18, gemv_iq4_nl, gemm_iq4_nl_16, gemm_iq4_nl_64, gemm_iq4_nl_256},
  {"iq4_xs", TG_IQ4_XS, 256, 136, gemv_iq4_xs, gemm_iq4_xs_16, gemm_iq4_xs_64, gemm_iq4_xs_256},
  {"q5_0", TG_Q5_0, 32, 22, gemv_q5_0, gemm_q5_0_16, gemm_q5_0_64, gemm_q5_0_256}};
#define CK(x) do { cudaError_t e = (x); if (e) { printf("%s: %s\n", #x, cudaGetErrorString(e)); exit(1); } } while (0)
static const int iq4[16] = {-127,-104,-83,-65,-49,-35,-22,-10,1,13,25,38,53,69,89,113};
static const double fp4[8] = {0,.5,1,1.5,2,3,4,6};
static double h(const uint8_t* p) { __half_raw r; r.x = p[0] | p[1] << 8; return double(float(__half(r))); }
// The number as a f32, by another way than the kernels.
static double number(const F& f, const uint8_t* b, int i) {
  switch (f.f) {
    case TG_MXFP4: { int c = i < 16 ? b[1+i] & 15 : b[1+i-16] >> 4; double v = fp4[c & 7] * (c & 8 ? -1 : 1);
      return b[0] == 255 ? NAN : double(float(v * std::ldexp(1.0, int(b[0]) - 127))); }
    case TG_IQ4_NL: { int c = i < 16 ? b[2+i] & 15 : b[2+i-16] >> 4; return h(b) * iq4[c]; }
    case TG_IQ4_XS: { int s = i / 32, j = i % 32; int hi = b[2] | b[3] << 8; int l = (s % 2 ? b[4+s/2] >> 4 : b[4+s/2] & 15) + 16 * ((hi >> (2*s)) & 3) - 32;
      int c = j < 16 ? b[8+16*s+j] & 15 : b[8+16*s+j-16] >> 4; return h(b) * l * iq4[c]; }
    default: { int byte = i % 16, half = i / 16; uint32_t hb; memcpy(&hb, b + 2, 4); int q = (b[6 + byte] >> 4 * half & 15) | (hb >> i & 1) << 4; return (q - 16) * h(b); }
  }
}
static std::mt19937 rng(7);
static void fill(const F& f, uint8_t* at, size_t blocks, bool any) {
  for (size_t i = 0; i < blocks * f.bytes; i++) at[i] = uint8_t(rng());
  if (any) return;
  for (size_t i = 0; i < blocks; i++) {
    uint8_t* b = at + i * f.bytes;
    if (f.f == TG_MXFP4) b[0] = uint8_t(116 + rng() % 8);
    else { __half x = __float2half(0.001f + 0.019f * float(rng() % 1000) / 1000); memcpy(b, &x, 2); }
  }
}
struct Case { int m, n, k, offset; bool any; };
static size_t bad = 0, tried = 0;
static uint8_t *dw; static float *dx, *dd; static void* ws; static size_t wsb = size_t(1) << 30;
static tg_gemm_args args_of(const F& f, int m, int n, int k) {
  tg_gemm_args a; memset(&a, 0, sizeof a);
  a.m = m, a.n = n, a.k = k, a.batch[0] = a.batch[1] = 1; a.alpha = 1; a.sm_count = 132;
  a.a = {dx, k, 1, {0, 0}}; a.b = {dw, 1, k, {0, 0}}; a.d = {dd, n, 1, {0, 0}};
  a.types = {TG_F32, f.f, TG_F32, TG_F32, TG_F32}; a.workspace = ws; a.workspace_bytes = wsb;
  a.groups.pairs_per_row = 1;
  return a;
}
static void check(const F& f, const char* what, Fn fn, Case c, int tm, int tn, int split, double bound) {
  std::vector<uint8_t> w(size_t(c.n) * c.k / f.elements * f.bytes);
  fill(f, w.data(), w.size() / f.bytes, false);
  const size_t of_row = size_t(c.k) / f.elements;
  if (c.any) for (int j = 0; j < c.n; j += 3) fill(f, w.data() + j * of_row * f.bytes, j % 2 ? of_row : 1, true);
  std::vector<float> x(size_t(c.m) * c.k), d(size_t(c.m) * c.n);
  std::normal_distribution<float> normal; for (auto& v : x) v = normal(rng);
  CK(cudaMemcpy(dw + c.offset, w.data(), w.size(), cudaMemcpyHostToDevice)); CK(cudaMemcpy(dx, x.data(), x.size() * 4, cudaMemcpyHostToDevice));
  CK(cudaMemset(dd, 0xff, d.size() * 4)); CK(cudaMemset(ws, 0xff, 1 << 26));
  tg_gemm_args a = args_of(f, c.m, c.n, c.k); a.b.ptr = dw + c.offset; a.config.tile_m = tm, a.config.tile_n = tn, a.config.split = split;
  if (fn(&a) != TG_OK) { printf("%s %s %d %d %d: refused\n", f.name, what, c.m, c.n, c.k); bad++; return; }
  CK(cudaDeviceSynchronize()); CK(cudaMemcpy(d.data(), dd, d.size() * 4, cudaMemcpyDeviceToHost));
  double worst = 0; int wrong = 0; std::vector<double> row(c.k);
  for (int j = 0; j < c.n; j++) {
    for (int k = 0; k < c.k; k++) row[k] = number(f, w.data() + (j * of_row + k / f.elements) * f.bytes, k % f.elements);
    for (int i = 0; i < c.m; i++) {
      double s = 0, t = 0; for (int k = 0; k < c.k; k++) { double p = row[k] * x[size_t(i) * c.k + k]; s += p, t += fabs(p); }
      float got = d[size_t(i) * c.n + j];
      bool ok;
      if (std::isnan(s)) ok = std::isnan(got);
      else if (std::isinf(s)) ok = got == s;
      else if (t > 1e38) ok = true;  // f32 may overflow
      else { double e = t > 0 ? fabs(got - s) / t : fabs(got); ok = e <= bound; worst = std::max(worst, std::isfinite(e) ? e : 9.0); }
      if (!ok && wrong++ < 2) printf("  WRONG %s %s m %d n %d k %d any %d: D[%d,%d] = %g, not %g (%g)\n", f.name, what, c.m, c.n, c.k, c.any, i, j, got, s, t);
    }
  }
  tried++; if (wrong) { bad++; printf("%s %s m %d n %d k %d off %d any %d: %d wrong, worst %.2e\n", f.name, what, c.m, c.n, c.k, c.offset, c.any, wrong, worst); }
}
static void check_copy(const F& f, int n, int k, int offset, bool any) {
  std::vector<uint8_t> w(size_t(n) * k / f.elements * f.bytes); fill(f, w.data(), w.size() / f.bytes, any);
  CK(cudaMemcpy(dw + offset, w.data(), w.size(), cudaMemcpyHostToDevice));
  tg_gemm_args a; memset(&a, 0, sizeof a); a.m = n, a.n = k, a.k = k, a.batch[0] = a.batch[1] = 1;
  a.a = {dw + offset, k, 1, {0, 0}}; a.d = {dd, k, 1, {0, 0}}; a.types = {f.f, f.f, TG_BF16, TG_BF16, TG_F32};
  if (tg_copy(f.f, &a) != TG_OK) { printf("%s copy refused\n", f.name); bad++; return; }
  CK(cudaDeviceSynchronize()); std::vector<__nv_bfloat16> d(size_t(n) * k); CK(cudaMemcpy(d.data(), dd, d.size() * 2, cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (size_t i = 0; i < d.size(); i++) {
    float e = float(number(f, w.data() + i / f.elements * f.bytes, i % f.elements)), got = float(d[i]);
    if (std::isfinite(e)) e = float(__nv_bfloat16(std::min(std::max(e, -3.3895313892515355e38f), 3.3895313892515355e38f)));
    if (!(got == e || (std::isnan(e) && std::isnan(got))) && wrong++ < 2) printf("  WRONG copy %s %zu: %g, not %g\n", f.name, i, got, e);
  }
  tried++; if (wrong) { bad++; printf("copy %s n %d k %d off %d any %d: %d wrong\n", f.name, n, k, offset, any, wrong); }
}
static uint8_t* of_times[4];
static float time_of(const F& f, Fn fn, int m, int n, int k, int tm, int tn, int split) {
  const size_t bytes = size_t(n) * k / f.elements * f.bytes, copies = std::max<size_t>(2, (size_t(256) << 20) / bytes);
  tg_gemm_args a = args_of(f, m, n, k); a.config.tile_m = tm, a.config.tile_n = tn, a.config.split = split; a.overlap = 0;
  cudaStream_t s; CK(cudaStreamCreate(&s)); a.stream = s;
  cudaGraph_t g; cudaGraphExec_t exec;
  CK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
  const int count = 40; bool fine = true;
  const size_t unit = size_t(f.bytes) * 256;
  for (int i = 0; i < count; i++) { a.b.ptr = of_times[&f - formats] + (i % copies) * ((bytes + unit - 1) / unit * unit); fine &= fn(&a) == TG_OK; }
  CK(cudaStreamEndCapture(s, &g)); if (!fine) return -1; CK(cudaGraphInstantiate(&exec, g, 0));
  cudaEvent_t b0, b1; cudaEventCreate(&b0); cudaEventCreate(&b1); std::vector<float> all;
  for (int r = 0; r < 8; r++) { cudaEventRecord(b0, s); CK(cudaGraphLaunch(exec, s)); cudaEventRecord(b1, s); CK(cudaEventSynchronize(b1)); float ms; cudaEventElapsedTime(&ms, b0, b1); if (r) all.push_back(ms * 1000 / count); }
  std::sort(all.begin(), all.end()); cudaGraphExecDestroy(exec); cudaGraphDestroy(g); cudaStreamDestroy(s); return all[all.size() / 2];
}
int main(int argc, char** argv) {
  const bool sane = argc > 1 && !strcmp(argv[1], "sanitize");
  CK(cudaMalloc(&dw, size_t(400) << 20)); CK(cudaMalloc(&dx, size_t(64) << 20)); CK(cudaMalloc(&dd, size_t(64) << 20)); CK(cudaMalloc(&ws, wsb));
  for (const F& f : formats) {
    const int e = f.elements; const size_t before = bad, from = tried;
    for (int any = 0; any < 2; any++) for (int k : {e, 3 * e, 9 * e, 45 * 64 / e * e, 4096}) for (int off : {0, 2 * (f.bytes % 4 ? 1 : 2), f.bytes % 2 ? 1 : 4}) check_copy(f, 37, k, off, any);
    std::vector<std::pair<int,int>> nk = {{72, 256}, {100, 45 * 64 / e * e}, {33, 3 * e}, {19, e}, {130, 35 * 128 / e * e + 2 * e}, {300, 4096}};
    if (sane) nk = {{72, 256}, {33, 3 * e}, {40, 45 * 64 / e * e}};
    for (auto [n, k] : nk) for (int any = 0; any < 2; any++) {
      const int off = f.bytes % 2 ? (n % 4) : f.bytes % 4 ? 2 * (n % 2) : 4 * (n % 3), spans = (k + 255) / 256;
      for (int m : sane ? std::vector<int>{1, 9} : std::vector<int>{1, 2, 5, 8, 13, 20}) for (int split : {(k + 4095) / 4096, std::min(spans, 3)}) if ((spans + split - 1) / split <= 16) check(f, "gemv", f.gemv, {m, n, k, off, bool(any)}, 16, 16, split, 1.0 / 256);
      for (int split : {1, std::min(2, spans), std::min(4, spans)}) {
        check(f, "g16", f.g16, {13, n, k, off, bool(any)}, 16, 64, split, 1.0 / 256);
        check(f, "g64", f.g64, {50, n, k, off, bool(any)}, 64, 128, split, 1.0 / 256);
        if (!sane || split == 1) check(f, "g256", f.g256, {sane ? 70 : 270, n, k, off, bool(any)}, 256, 128, split, 1.0 / 128);
      }
    }
    if (!sane) { for (int m : {1, 4}) check(f, "bulk", f.gemv, {m, 9000, 4096, 0, false}, 16, 16, 1, 1.0 / 256), check(f, "bulk", f.gemv, {m, 9000, 45 * 64 / e * e, f.bytes % 2 ? 3 : 0, true}, 16, 16, 1, 1.0 / 256); }
    printf("%s: %zu cases, %zu bad\n", f.name, tried - from, bad - before); fflush(stdout);
  }
  if (sane) return bad != 0;
  for (const F& f : formats) {
    std::vector<uint8_t> w(size_t(1 << 18) * f.bytes); fill(f, w.data(), 1 << 18, false);
    uint8_t*& to = of_times[&f - formats]; CK(cudaMalloc(&to, size_t(420) << 20));
    for (size_t at = 0; at + w.size() <= size_t(420) << 20; at += w.size()) CK(cudaMemcpy(to + at, w.data(), w.size(), cudaMemcpyHostToDevice));
  }
  { std::vector<float> x(size_t(16) << 20); std::normal_distribution<float> normal; for (size_t i = 0; i < 1 << 16; i++) x[i] = normal(rng); for (size_t i = 1 << 16; i < x.size(); i++) x[i] = x[i & 0xffff]; CK(cudaMemcpy(dx, x.data(), x.size() * 4, cudaMemcpyHostToDevice)); }
  for (auto [n, k] : std::vector<std::pair<int,int>>{{14336, 4096}, {4096, 14336}, {4096, 4096}, {2880, 2816}}) {
    for (int m : {1, 8, 16}) { printf("gemv m %d %dx%d us:", m, n, k); for (const F& f : formats) printf(" %s %.2f (bound %.2f)", f.name, time_of(f, f.gemv, m, n, k, 16, 16, (k + 4095) / 4096), double(n) * k / f.elements * f.bytes / 4.8e6); printf("\n"); }
    for (int m : {16, 64, 256, 2048}) { Fn F::*fn = m == 16 ? &F::g16 : m == 64 ? &F::g64 : &F::g256; const int t = m > 256 ? 256 : m; printf("gemm%d m %d %dx%d us:", t, m, n, k); for (const F& f : formats) { float best = 1e9; int at = 0; for (int s : {1, 2, 4}) { float x = time_of(f, f.*fn, m, n, k, t, t == 16 ? 64 : 128, s); if (x > 0 && x < best) best = x, at = s; } printf(" %s %.2f (k%d)", f.name, best, at); } printf("\n"); fflush(stdout); }
  }
  printf("bad %zu of %zu\n", bad, tried); return bad != 0;
}
