// How a block of narrow_gemv is laid out: what the host chooses, and where everything lies in shared memory.
//
// A team is the blocks of a cluster. A team has `rows` rows of W, in passes of `rows_of_pass`. Its blocks have a part of
// K each, and so have their warps along K (warps_k); the warps along N (warps_n) have up to `rows_of_warp` rows each. K is
// counted in slots of 128 bytes of a row of W.
#pragma once
#include "narrow/half.hpp"

namespace tilegemm {

// How scales are applied. whole: they are the same for all of a row, and multiply its sums. wide: to sums over a step.
// fine1, fine2: to sums over a quarter and a half of a step. nvfp4: to e2m1 codes in f16, which is exact for scales in
// e4m3, of groups of 16.
enum class Way { whole, wide, fine1, fine2, nvfp4 };

// What the kernel knows when it is compiled. `TILES`: of eight rows of X; `UNITS`: of 16 rows of W that a warp
// multiplies at a time.
template <Codes C, Way WAY, int TILES, int UNITS, bool ZEROS>
struct GemvConfig {
  using Half = narrow::Half<C>;
  static constexpr Codes codes = C;
  static constexpr Way way = WAY;
  static constexpr int tiles = TILES, units = UNITS;
  static constexpr bool has_zeros = ZEROS, is_fine = WAY == Way::fine1 || WAY == Way::fine2;
  static constexpr int most_warps = 16, threads = 32 * most_warps, most_m = 8 * TILES;
  static constexpr int rows = 16 * UNITS, rows_of_lane = 2 * UNITS;
  // A slot of a warp's ring has two steps of each row.
  static constexpr int step_bytes = 64, slot_bytes = 2 * step_bytes, step_k = step_bytes * 8 / bits_of(C);
  static constexpr int slot_k = 2 * step_k, segment_slots = 256 / slot_k;
  // Numbers of K that share a scale: of a step, and of a slot.
  static constexpr int scales_of_step =
      WAY == Way::whole ? 0 : WAY == Way::wide ? 1 : WAY == Way::fine2 ? 2 : WAY == Way::fine1 ? 4 : step_k / 16;
  static constexpr int scales = 2 * scales_of_step, scaled = step_k / (scales_of_step ? scales_of_step : 1);
  static constexpr int scale_bytes = WAY == Way::nvfp4 ? 1 : 4;
  static constexpr int scales_bytes = scales * rows * scale_bytes, zeros_bytes = ZEROS ? scales * rows * 4 : 0;
  static constexpr int beside_bytes = scales_bytes + zeros_bytes;  // of a warp
  static_assert(WAY != Way::nvfp4 || C == Codes::e2m1);
  static_assert(!ZEROS || (has_zero(C) && WAY != Way::whole));
};

constexpr int most_stages = 4;

struct GemvShape {
  int log_cluster;
  int warps_n, warps_k;  // of a block, along the rows of W, and along K
  int stages;
  int rows, passes, rows_of_pass, rows_of_warp;
  int slots, parts;  // of K
  int bytes_of_k;    // of a row of W
  bool scales_in_words;
  uint32_t scale_stride;  // bytes from a group to the next
  Divisor by_warps_n, by_parts, by_group, by_rows, by_m;
  int slot_pitch;  // bytes
  int early;         // slots of a warp on their way before X is asked for
  int x_at, x_pitch, powers_at, powers_pitch;  // of a part of K
  int beside_at, inbox_at, inbox_bytes, flags_at, barriers_at, shared_bytes;

  __host__ __device__ int cluster() const { return 1 << log_cluster; }
};

// The choice of the host.
struct GemvPlan {
  int units, warps_n, warps_k, cluster, split, stages;
  int of_sm = 1;  // blocks of a multiprocessor
  int early = 1;
};

template <class S>
GemvShape shape_of(const tg_gemm_args& args, const NarrowWeights& w, const GemvPlan& plan, int teams) {
  const int64_t of_team = ceil_div(args.n, teams), rows = w.format == Scales::e4m3 ? ceil_div(of_team, 4) * 4 : of_team;
  const int passes = int(ceil_div(rows, plan.warps_n * S::rows));
  const int64_t of_pass = ceil_div(ceil_div(rows, passes), 4) * 4,
                of_warp = ceil_div(ceil_div(of_pass, plan.warps_n), 4) * 4, pitch = ceil_div(of_warp, 8) * 1024;
  const int64_t bytes_of_k = bits_of(S::codes) == 4 ? ceil_div(args.k, 32) * 16 : args.k,
                slots = ceil_div(bytes_of_k, S::slot_bytes), blocks = int64_t(plan.split) * plan.cluster;
  const int64_t scales_of_group = (w.group < args.k ? w.group : args.k + S::scaled) / S::scaled;
  const bool in_words = w.stride_n == 1 && w.rows == 1 && args.n % 4 == 0 && w.stride_k % 4 == 0 &&
                        reinterpret_cast<uintptr_t>(w.scales) % 4 == 0;
  const int warps = plan.warps_n * plan.warps_k;
  const auto multiple_of_16 = [](int64_t x) { return int((x + 15) / 16 * 16); };
  const int64_t slots_of_part = ceil_div(slots, blocks * plan.warps_k),
                segments = ceil_div(slots_of_part, S::segment_slots);
  const int x_at = int(warps * plan.stages * pitch), x_pitch = int(slots_of_part * S::slot_k * args.m * 2),
            powers_at = x_at + plan.warps_k * x_pitch, powers_pitch = int(segments * S::most_m * 4),
            beside_at = powers_at + plan.warps_k * powers_pitch,
            inbox_at = multiple_of_16(beside_at + warps * S::beside_bytes),
            inbox_bytes = int(ceil_div(plan.warps_n, plan.cluster) * plan.cluster * plan.warps_k * args.m * S::rows * 4),
            flags_at = inbox_at + inbox_bytes * (passes > 1 ? 2 : 1), barriers_at = flags_at + plan.warps_k * 16 * 4,
            bytes = barriers_at + 2 * 8 + warps * plan.stages * 8;
  // Lanes of rows that do not exist read on behind a slot.
  const int least_bytes = int(x_at - pitch + S::rows * S::slot_bytes);
  return {log2_of(plan.cluster, 16),
          plan.warps_n,
          plan.warps_k,
          plan.stages,
          int(rows),
          passes,
          int(of_pass),
          int(of_warp),
          int(slots),
          int(blocks * plan.warps_k),
          int(bytes_of_k),
          in_words,
          uint32_t(w.stride_k * size_of(w.format)),
          Divisor(plan.warps_n),
          Divisor(blocks * plan.warps_k),
          Divisor(scales_of_group < 1 ? 1 : scales_of_group),
          Divisor(w.rows < args.n ? w.rows : args.n),
          Divisor(args.m),
          int(pitch),
          plan.early < plan.stages ? plan.early : plan.stages,
          x_at,
          x_pitch,
          powers_at,
          powers_pitch,
          beside_at,
          inbox_at,
          inbox_bytes,
          flags_at,
          barriers_at,
          bytes > least_bytes ? bytes : least_bytes};
}

}  // namespace tilegemm
