// The choice of a plan: later Rust's.
#pragma once
#include "dispatch.hpp"

namespace tilegemm {

inline int places_for(const GemvPlan& p, int sms) {
  const int places = p.of_sm * sms;
  return p.cluster == 8 ? places / 8 * 8 - (places % 16 ? 8 : 0) : p.cluster == 4 ? places * 31 / 33 : places;
}

// Whether a plan wastes no warps; for sweeps, too.
inline bool is_sensible(Codes codes, int64_t m, int64_t n, int64_t k, const GemvPlan& p, int sms) {
  const int64_t teams = std::min<int64_t>(places_for(p, sms) / p.cluster, n), rows = ceil_div(n, teams), unit = 16 * p.units;
  const int64_t passes = ceil_div(rows, p.warps_n * unit), of_warp = ceil_div(ceil_div(rows, passes), p.warps_n);
  const int64_t slots = ceil_div(k * bits_of(codes) / 8, 128), parts = int64_t(p.cluster) * p.warps_k;
  if (of_warp * 2 <= unit && (p.warps_n > 1 || p.units > 1)) return false;  // half of a unit is empty
  if (slots < parts) return false;
  if (p.stages > 2 && p.stages > ceil_div(slots, parts) * passes) return false;
  const int64_t bytes = p.warps_n * p.warps_k * ceil_div(of_warp, 8) * 1024 * p.stages + ceil_div(slots, parts) * p.warps_k * ((1024 / bits_of(codes)) * m * 2 + 64) +
                        ceil_div(p.warps_n, p.cluster) * p.cluster * p.warps_k * m * unit * 4 * (passes > 1 ? 2 : 1) + 8192;
  return bytes <= (p.of_sm == 2 ? 115 : 227) * 1024 && p.warps_n * p.warps_k <= 16 / p.of_sm;
}

inline GemvPlan plan_of(const tg_gemm_args& a, const NarrowWeights& w, Codes codes, Way way, int sms) {
  GemvPlan best{2, 4, 1, 1, 1, 2};
  double least = 1e30;
  for (int cluster : {1, 2, 4}) for (int units : {2, 1}) for (int stages : {3, 4, 2}) for (int warps = 16; warps >= 1; warps--) for (int wk = 1; wk <= 16; wk++) {
    if (warps % wk) continue;
    const GemvPlan p{units, warps / wk, wk, cluster, 1, stages};
    if (!is_sensible(codes, a.m, a.n, a.k, p, sms)) continue;
    const int64_t teams = std::min<int64_t>(places_for(p, sms) / cluster, a.n), rows = ceil_div(a.n, teams);
    const int64_t slots = ceil_div(a.k * bits_of(codes) / 8, 128);
    double cost = double(rows) * double(ceil_div(slots, cluster * wk)) * wk;
    cost *= 1 + 0.01 * (16 - warps) + (cluster == 4 ? 0.1 : cluster == 2 ? 0.02 : 0.005 * a.m) + (stages == 2 ? 0.02 : stages == 4 ? 0.01 : 0) + (units == 2 ? 0 : 0.04);
    if (cost < least) least = cost, best = p;
  }
  return best;
}

}  // namespace tilegemm
