// How a block of narrow_gemv is laid out: what the host chooses, and where everything lies in shared memory.
//
// A team is the blocks of a cluster. A team has `rows` rows of W, in passes of `rows_of_pass`. Its blocks have a part
// of K each, and so have their warps along K (warps_k); the warps along N (warps_n) have up to `rows_of_warp` rows
// each. K is counted in slots of 128 bytes of a row of W.
#pragma once
#include "narrow/half.hpp"

namespace tilegemm {

// How factors are applied. whole: a row has one, which multiplies its sums. wide: to sums over a step. fine1, fine2: to
// sums over a quarter and a half of a step. groups_of_16: to codes of TG_F4E2M1 in f16, which is exact for factors in
// TG_F8E4M3.
enum class Way { whole, wide, fine1, fine2, groups_of_16 };

// What the kernel knows when it is compiled. `TILES`: of eight rows of X; `UNITS`: of 16 rows of W that a warp
// multiplies at a time.
template <tg_format CODES, Way WAY, int TILES, int UNITS, bool ZEROS>
struct GemvConfig {
  using Half = narrow::Half<CODES>;
  static constexpr tg_format codes = CODES;
  static constexpr Way way = WAY;
  static constexpr int tiles = TILES, units = UNITS, bits = narrow::is_packed(CODES) ? 4 : 8;
  static constexpr bool has_zeros = ZEROS, is_fine = WAY == Way::fine1 || WAY == Way::fine2;
  static constexpr int most_warps = 16, threads = 32 * most_warps, most_m = 8 * TILES;
  static constexpr int rows = 16 * UNITS, rows_of_lane = 2 * UNITS;
  // A slot of a warp's ring has two steps of each row.
  static constexpr int step_bytes = 64, slot_bytes = 2 * step_bytes, step_k = step_bytes * 8 / bits;
  static constexpr int slot_k = 2 * step_k, segment_slots = 256 / slot_k;
  // Numbers of K that share a factor: of a step, and of a slot.
  static constexpr int scales_of_step = WAY == Way::whole   ? 0
                                        : WAY == Way::wide  ? 1
                                        : WAY == Way::fine2 ? 2
                                        : WAY == Way::fine1 ? 4
                                                            : step_k / 16;
  static constexpr int scales = 2 * scales_of_step, scaled = step_k / (scales_of_step ? scales_of_step : 1);
  static constexpr int scale_bytes = WAY == Way::groups_of_16 ? 1 : 4;
  static constexpr int scales_bytes = scales * rows * scale_bytes, zeros_bytes = ZEROS ? scales * rows * 4 : 0;
  static constexpr int beside_bytes = scales_bytes + zeros_bytes;  // of a warp
  static_assert(WAY != Way::groups_of_16 || CODES == TG_F4E2M1);
  static_assert(!ZEROS || ((CODES == TG_U4 || CODES == TG_U8) && WAY != Way::whole));
};

constexpr int most_stages = 4, most_cluster = 4;
// Shared memory of a block of the cards that run the code of an arch.
constexpr int most_bytes_of_block(int arch) { return (arch == 90 || arch == 100 ? 227 : 99) * 1024; }

// The choice of the host.
struct GemvPlan {
  int units, warps_n, warps_k, cluster, stages;
};

struct GemvShape {
  int log_cluster;
  int warps_n, warps_k;  // of a block, along the rows of W, and along K
  int stages;
  int rows, passes, rows_of_pass, rows_of_warp;
  int slots;       // of K
  int bytes_of_k;  // of a row of W
  bool scales_in_words;
  uint32_t scale_stride;  // bytes from a group to the next
  Divisor by_warps_n, by_parts, by_group, by_rows, by_m;
  int slot_pitch;                              // bytes
  int x_at, x_pitch, powers_at, powers_pitch;  // of a part of K
  int beside_at, inbox_at, inbox_bytes, flags_at, barriers_at, shared_bytes;

  __host__ __device__ int cluster() const { return 1 << log_cluster; }
};

template <class S>
GemvShape shape_of(const tg_gemm_args& args, const GemvPlan& plan, int64_t teams) {
  const auto multiple = [](int64_t x, int64_t of) { return ceil_div(x, of) * of; };
  const tg_scale& scale = args.b_scale;
  // Factors in bytes are loaded by fours.
  const int64_t rows = multiple(ceil_div(args.n, teams), S::way == Way::groups_of_16 ? 4 : 1);
  const int64_t passes = ceil_div(rows, plan.warps_n * S::rows), of_pass = multiple(ceil_div(rows, passes), 4),
                of_warp = multiple(ceil_div(of_pass, plan.warps_n), 4), pitch = ceil_div(of_warp, 8) * 1024;
  const int64_t bytes_of_k = S::bits == 4 ? ceil_div(args.k, 32) * 16 : args.k,
                slots = ceil_div(bytes_of_k, S::slot_bytes), parts = int64_t(plan.cluster) * plan.warps_k;
  // Groups as numbers of the kernel's own; all of K: more than there are.
  const int64_t of_group = (scale.ptr && scale.rows < args.k ? scale.rows : args.k + S::scaled) / S::scaled;
  const bool in_words = scale.col_stride == 1 && scale.columns == 1 && args.n % 4 == 0 && scale.row_stride % 4 == 0 &&
                        reinterpret_cast<uintptr_t>(scale.ptr) % 4 == 0;
  const int64_t warps = plan.warps_n * plan.warps_k, slots_of_part = ceil_div(slots, parts),
                segments = ceil_div(slots_of_part, S::segment_slots);
  const int64_t x_at = warps * plan.stages * pitch, x_pitch = slots_of_part * S::slot_k * args.m * 2,
                powers_at = x_at + plan.warps_k * x_pitch, powers_pitch = segments * S::most_m * 4,
                beside_at = powers_at + plan.warps_k * powers_pitch,
                inbox_at = multiple(beside_at + warps * S::beside_bytes, 16),
                inbox_bytes = ceil_div(plan.warps_n, plan.cluster) * parts * args.m * S::rows * 4,
                flags_at = inbox_at + inbox_bytes * (passes > 1 ? 2 : 1),
                barriers_at = flags_at + plan.warps_k * 16 * 4, bytes = barriers_at + 2 * 8 + warps * plan.stages * 8;
  // Lanes of rows that do not exist read on behind a slot.
  const int64_t least_bytes = x_at - pitch + S::rows * S::slot_bytes, all = bytes > least_bytes ? bytes : least_bytes;
  const int64_t of_rows = scale.ptr && scale.columns < args.n ? scale.columns : args.n;
  GemvShape shape{log2_of(plan.cluster, most_cluster),
                  plan.warps_n,
                  plan.warps_k,
                  plan.stages,
                  int(rows),
                  int(passes),
                  int(of_pass),
                  int(of_warp),
                  int(slots),
                  int(bytes_of_k),
                  in_words,
                  uint32_t(scale.row_stride * narrow::bytes_of_factor(scale.format)),
                  Divisor(plan.warps_n),
                  Divisor(parts),
                  Divisor(of_group < 1 ? 1 : of_group),
                  Divisor(of_rows),
                  Divisor(args.m),
                  int(pitch),
                  int(x_at),
                  int(x_pitch),
                  int(powers_at),
                  int(powers_pitch),
                  int(beside_at),
                  int(inbox_at),
                  int(inbox_bytes),
                  int(flags_at),
                  int(barriers_at),
                  int(all)};
  if (all > INT_MAX) shape.shared_bytes = INT_MAX;
  return shape;
}

}  // namespace tilegemm
