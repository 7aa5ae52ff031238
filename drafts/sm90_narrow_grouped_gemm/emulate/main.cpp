// sm90_narrow_grouped_gemm on the CPU, against sums in f64.
#include "emulate.hpp"
#include "sm90_narrow_grouped_gemm/sm90_narrow_grouped_gemm.cu"
namespace tilegemm { tg_status cuda_status(cudaError_t) { return TG_CUDA_ERROR; } }
using namespace tilegemm;
using std::vector;
template <tg_format A, tg_format B, int M, int K> struct OneRow {
  static constexpr tg_format dtype = A, b = B;
  static constexpr tg_layout layout = TG_NT;
  static constexpr int arch = 90, tile_m = M, tile_n = 128, tile_k = K, align = 16;
};
static uint64_t below(uint64_t n) { return (emu::rnd() >> 11) % n; }
static double unit() { return double(emu::rnd() >> 11) / double(1ull << 53); }
static size_t size_of(tg_format f) { return f == TG_F32 ? 4 : f == TG_F16 || f == TG_BF16 ? 2 : 1; }
static void put(tg_format f, void* p, size_t i, double x) {
  switch (f) {
    case TG_F32: ((float*)p)[i] = float(x); break;
    case TG_F16: ((__half*)p)[i] = __float2half(float(x)); break;
    case TG_BF16: ((__nv_bfloat16*)p)[i] = __float2bfloat16(float(x)); break;
    default: ((uint8_t*)p)[i] = uint8_t(x);
  }
}
template <class T> struct Aligned { vector<uint8_t> bytes; T* at; explicit Aligned(size_t n) : bytes(n * sizeof(T) + 4096) { at = (T*)((uintptr_t(bytes.data()) + 255) / 256 * 256); } };
struct Scales { tg_format format; int k, n; bool zeros, lines; };  // numbers that share one, 0: all; format TG_F64: none
struct Case { vector<int> rows; int n, k; Scales s; bool listed, first_row, strays, bias, own, wild; };
static size_t products = 0, wrong_products = 0, refused = 0;

template <tg_format A, tg_format B, int M, int K> void right(const char* name, const Case& c) {
  const int e = int(c.rows.size()), topk = c.listed ? 2 : 1, n = c.n, k = c.k; int64_t in = 0; for (int r : c.rows) in += r;
  const int before = c.strays && c.first_row ? 3 : 0, behind = c.strays ? 5 : 0; const int64_t m = before + in + behind;
  const int64_t rows_a = (m + topk - 1) / topk, lda = (k + 7) / 8 * 8 + 8, ldb = (k + 31) / 32 * 32 + 32, mb = ldb * n, ldd = n + 3;
  const tg_format dt = c.own ? A : TG_F32;
  Aligned<uint8_t> a(rows_a * lda * size_of(A)), w(e * mb), d((m * ldd + 64) * size_of(dt)), bias(size_t(e) * n * size_of(dt) + 64), work(rows_a * (lda + 8) * 2);
  for (int64_t i = 0; i < rows_a * lda; i++) put(A, a.at, i, i % lda < k ? (unit() - .5) * 4 : NAN);
  for (int64_t i = 0; i < e * mb; i++) { w.at[i] = uint8_t(emu::rnd()); if (B == TG_F8E4M3 && (w.at[i] & 127) == 127) w.at[i] = c.wild && below(20) == 0 ? 127 : 33; }
  if (c.wild) put(A, a.at, 2, INFINITY), put(A, a.at, (rows_a - 1) * lda + k - 1, NAN);
  for (int64_t i = 0; i < m * ldd + 64; i++) put(dt, d.at, i, NAN);
  for (int64_t i = 0; i < int64_t(e) * n; i++) put(dt, bias.at, i, unit() - .5);
  const bool none = c.s.format == TG_F64;
  const int gk = c.s.k ? (k + c.s.k - 1) / c.s.k : 1, gn = c.s.n ? (n + c.s.n - 1) / c.s.n : 1;
  const int64_t ms = c.s.lines ? int64_t(gk) * ((gn + 15) / 16 * 16) : int64_t(gk) * gn + 3, row_stride = c.s.n == 1 ? (c.s.lines ? (gn + 15) / 16 * 16 : gn) : 1, col_stride = c.s.n == 1 ? 1 : gk;
  Aligned<uint8_t> s(none ? 1 : e * ms * size_of(c.s.format)), z(e * ms);
  for (int64_t i = 0; !none && i < e * ms; i++) {
    if (c.s.format == TG_F8E8M0) s.at[i] = c.wild && below(40) == 0 ? (below(2) ? 255 : 0) : uint8_t(122 + below(8));
    else put(c.s.format, s.at, i, c.wild && below(60) == 0 ? INFINITY : (below(2) ? 1 : -1) * exp2(unit() * 4 - 4));
  }
  for (int64_t i = 0; i < e * ms; i++) z.at[i] = uint8_t(below(B == TG_U8 ? 256 : 16));
  vector<int32_t> first; vector<uint32_t> group, pairs(m); vector<float> scales(m); int64_t at = before;
  for (int i = 0; i < e; i++) { first.push_back(int(at)), at += c.rows[i]; for (int j = 0; j < c.rows[i]; j++) group.push_back(i); }
  first.push_back(int(at)); while (int64_t(group.size()) < m) group.push_back(uint32_t(e) + uint32_t(below(9)));
  for (int64_t i = 0; i < m; i++) pairs[i] = uint32_t(i), scales[i] = float(unit() + .2);
  if (c.listed) { for (int64_t i = m - 1; i > 0; i--) std::swap(pairs[i], pairs[below(i + 1)]); if (c.strays && m > 6) pairs[m / 2] = uint32_t(m + 3), pairs[1] = ~0u; }
  tg_gemm_args g{}; g.m = m, g.n = n, g.k = k, g.batch[0] = g.batch[1] = 1;
  g.a = {a.at, lda, 1, {0, 0}}, g.b = {w.at, 1, ldb, {0, mb}}, g.d = {d.at, ldd, 1, {0, 0}}; if (c.bias) g.bias = {bias.at, 0, 1, {0, n}}, g.activation = TG_RELU;
  g.alpha = .5, g.sm_count = 3, g.types = {A, B, dt, dt, TG_F32}, g.workspace = work.at, g.workspace_bytes = work.bytes.size() - 256;
  g.b_scale.rows = g.b_scale.columns = UINT32_MAX; if (!none) g.b_scale = {s.at, c.s.zeros ? z.at : nullptr, c.s.format, c.s.k ? uint32_t(c.s.k) : UINT32_MAX, c.s.n ? uint32_t(c.s.n) : UINT32_MAX, row_stride, col_stride, {0, ms}};
  if (c.first_row) g.groups.first_row = first.data(); else g.groups.group_of_row = group.data();
  if (c.listed) g.groups.pairs = pairs.data(); g.groups.scales = scales.data(), g.groups.pairs_per_row = topk, g.groups.count = e;
  const tg_status status = launch<OneRow<A, B, M, K>>(&g);
  if (status != TG_OK) { refused++; if (status != TG_UNSUPPORTED) wrong_products++; printf("%s: status %d\n", name, int(status)); return; }
  vector<int> of(m, -2); for (int64_t i = 0; i < m; i++) { const int64_t p = c.listed ? pairs[i] : i; if (p < m) of[p] = i >= before && i < before + in ? int(group[i - before]) : -1; }
  double worst = 0; size_t wrong = 0; char text[200] = "";
  const bool folds = K == 32 && B == TG_U4 && A != TG_F16;
  for (int64_t p = 0; p < m; p++) for (int64_t j = 0; j < ldd; j++) {
    const double got = narrow::factor_at(dt, d.at, p * ldd + j); double sum = 0, size = 0, err;
    if (j >= n || of[p] == -2) err = std::isnan(got) ? 0 : INFINITY;
    else if (of[p] == -1) err = got == 0 ? 0 : INFINITY;
    else {
      const narrow::Column column(g, 0, of[p], j);
      for (int i = 0; i < k; i++) { const double x = narrow::factor_at(A, a.at, p / topk * lda + i) * double(column[i]); sum += x, size += fabs(x); }
      sum *= .5, size *= .5;
      if (c.bias) { sum += narrow::factor_at(dt, bias.at, int64_t(of[p]) * n + j); if (!(sum > 0) && !std::isnan(sum)) sum = 0; size += 1; }
      sum *= scales[p], size *= scales[p];
      const double rounds = exp2(-18) + (folds ? exp2(-7.98) : 0) + (A == TG_F32 ? exp2(-7.98) : 0) + (K == 32 && A == TG_F16 ? exp2(-11) : 0);
      err = std::isnan(sum) ? (std::isnan(got) ? 0 : INFINITY) : std::isinf(sum) ? (got == sum ? 0 : INFINITY)
          : fabs(got - sum) / (size * rounds + fabs(sum) * (dt == TG_BF16 ? exp2(-7.98) : dt == TG_F16 ? exp2(-10.98) : exp2(-22)) + 1e-6);
    }
    if (!(err <= 1)) { if (getenv("ALL")) printf("  row %d column %d: %g, expected %g\n", int(p), int(j), got, sum); if (!wrong) snprintf(text, 200, " row %d column %d group %d: %g, expected %g of %g", int(p), int(j), of[p], got, sum, size); wrong++; }
    worst = max(worst, err);
  }
  for (int i = 0; i < 64; i++) if (!std::isnan(narrow::factor_at(dt, d.at, m * ldd + i))) wrong++;
  products++, wrong_products += wrong > 0;
  printf("%s m %d n %d k %d: %.3f%s%s\n", name, int(m), n, k, worst, wrong ? " WRONG" : "", text); fflush(stdout);
}
// Every kind of routing, with every kind of factors.
template <tg_format A, tg_format B, int M, int K> void all(const char* name, const vector<Scales>& s, int turns) {
  if (const char* only = getenv("ONLY"); only && !strstr(name, only)) return;
  size_t at = 0; const auto next = [&] { return s[at++ % s.size()]; };
  const vector<Case> cases = {
      {{5, 0, M, 1, M + 1, 0}, 136, 288, next(), true, false, false, false, false, false},
      {{0, 3, 2 * M + 7, 0}, 40, 64, next(), true, true, true, false, false, false},
      {{7, 9}, 264, 704, next(), false, true, false, true, true, false},
      {{1, 0, 20}, 72, 104, next(), true, false, true, true, false, true},
      {{M / 2 + 3}, 130, 1030, next(), false, false, true, false, false, false},
      {{2, 2, 2, 2, 2, 2, 2, 2}, 17, 17, next(), true, false, false, false, true, false},
  };
  for (int i = 0; i < turns && i < int(cases.size()); i++) right<A, B, M, K>(name, cases[i]);
}
int main(int argc, char** argv) {
  if (argc > 1) emu::seed = strtoull(argv[1], nullptr, 10);
  const Scales none{TG_F64, 0, 0, false, false}, blocks{TG_F32, 128, 128, false, false}, row{TG_F32, 0, 1, false, false}, tensor{TG_F32, 0, 0, false, false}, mx{TG_F8E8M0, 32, 1, false, true}, mx_any{TG_F8E8M0, 32, 1, false, false};
  const Scales g128{TG_F16, 128, 1, false, true}, g128z{TG_F16, 128, 1, true, true}, any128z{TG_BF16, 128, 1, true, false}, f128{TG_F32, 256, 1, false, true}, g32{TG_F16, 32, 1, true, true}, g64{TG_BF16, 64, 1, false, false}, rowz{TG_F16, 0, 1, true, false};
  all<TG_BF16, TG_F8E4M3, 32, 256>("bf16 fp8 32 rows", {row, tensor, none}, 6);
  all<TG_BF16, TG_F8E4M3, 192, 256>("bf16 fp8 192 rows", {tensor, row}, 6);
  all<TG_F32, TG_I8, 32, 256>("f32 i8 32 rows", {row, none}, 6);
  all<TG_F16, TG_I8, 192, 256>("f16 i8 192 rows", {row}, 3);
  all<TG_BF16, TG_F8E4M3, 32, 128>("bf16 fp8 32 blocks", {blocks, f128, row, none}, 6);
  all<TG_BF16, TG_F8E4M3, 128, 128>("bf16 fp8 128 blocks", {blocks, f128, blocks, row}, 6);
  all<TG_F32, TG_F8E4M3, 128, 128>("f32 fp8 128 blocks", {blocks}, 4);
  all<TG_F16, TG_U4, 32, 128>("f16 u4 32 g128", {g128, g128z, any128z, rowz, f128}, 6);
  all<TG_BF16, TG_U4, 128, 128>("bf16 u4 128 g128", {g128z, any128z, g128, rowz, none}, 6);
  all<TG_BF16, TG_U8, 32, 128>("bf16 u8 32 g128", {g128z, none}, 3);
  all<TG_F16, TG_U8, 128, 128>("f16 u8 128 g128", {any128z, g128}, 3);
  all<TG_BF16, TG_U4, 32, 32>("bf16 u4 32 g32", {g32, g64}, 6);
  all<TG_F16, TG_U4, 192, 32>("f16 u4 192 g32", {g32, g64, none}, 6);
  all<TG_BF16, TG_F4E2M1, 32, 32>("bf16 mxfp4 32", {mx, mx_any, none}, 6);
  all<TG_BF16, TG_F4E2M1, 192, 32>("bf16 mxfp4 192", {mx_any, mx}, 6);
  all<TG_F32, TG_F4E2M1, 192, 32>("f32 mxfp4 192", {mx}, 4);
  printf("%zu products, %zu wrong, %zu refused\n", products, wrong_products, refused);
  return wrong_products > 0;
}
