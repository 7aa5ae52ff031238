// The shape of a block of narrow weights by wgmma: its tile, its rings in shared memory, its registers.
//
// W is on wgmma's M side, from registers: a warp group has 64 rows of W, and rows of X are columns of wgmma.
#pragma once
#include "narrow/folded.hpp"

namespace tilegemm::narrow {
namespace {

// Where the factors of W come in. `late`: a row of W has one factor, which multiplies its results. `sums`: factors
// multiply the sums over a unit of K, which adds up apart. `folded`: factors multiply codes, and the product is rounded
// to 16 bits.
enum class Scaling { late, sums, folded };

constexpr int batch = 64;      // numbers of K that wgmma gets at a time: a row of X of 128 bytes
constexpr int w_row = 128;     // bytes of a row of codes in a box
constexpr int of_loads = 128;  // threads that load
constexpr int row_groups = 2;  // warp groups along W
constexpr int of_rows = 256;   // as `UNIT`: a row of W has one factor

// Tiles of more rows of X have no registers for sums apart.
constexpr int most_sums = 128;
constexpr Scaling scaling_of(int width, int unit) {
  return unit == of_rows ? Scaling::late : unit == 128 && width <= most_sums ? Scaling::sums : Scaling::folded;
}

// `CODE`: the format of W; `T`: X; `WIDTH`: rows of X of a tile; `UNIT`: numbers of K with one factor. `BESIDE`: bytes
// of shared memory behind these. `GATHERS`: threads copy rows of X; else TMA loads them.
template <tg_format CODE, class T, int WIDTH, int UNIT, int BESIDE = 0, bool GATHERS = false>
struct WgmmaShape {
  static constexpr Scaling scaling = scaling_of(WIDTH, UNIT);
  using Number = T;
  using Codes = narrow::Codes<CODE, T>;
  using Folded = narrow::Folded<CODE, T, UNIT>;
  static constexpr bool gathers = GATHERS, is_one_of_several = false;
  static constexpr tg_format code = CODE;
  static constexpr int width = WIDTH, height = 64 * row_groups;
  // Warp groups that share the same rows of W, each with its part of every stage of K: so many more threads convert.
  static constexpr int k_parts = WIDTH <= 32 ? 2 : 1;
  static constexpr int row_warps = 4 * row_groups, warps = row_warps * k_parts, threads = 32 * warps + of_loads;
  static constexpr int columns = width / 8;
  static constexpr bool has_nibbles = narrow::is_packed(CODE), has_zeros = CODE == TG_U4 || CODE == TG_U8;
  static constexpr bool is_late = scaling == Scaling::late, is_folded = scaling == Scaling::folded;
  static constexpr bool has_sums = scaling == Scaling::sums;
  // Whether the wgmma of a batch are issued together; else conversions come in between, which gains 15 % for bytes.
  static constexpr bool at_once = has_nibbles || WIDTH > 64;
  // One of two warp groups is a batch behind: while one ends a unit, the tensor cores have the products of the other.
  static constexpr bool staggers = has_sums && k_parts == 1;

  // A stage of codes: a box of rows of 128 bytes for each part of K, in batches, and in units with a factor for each
  // row.
  static constexpr int own_batches = has_nibbles ? 4 : 2, batches = own_batches * k_parts;
  static constexpr int w_box_bytes = height * w_row, w_bytes = k_parts * w_box_bytes;
  static constexpr int unit = is_late ? 128 : UNIT, units = is_late ? 0 : batches * batch / unit;
  // The factors and the zeros of a stage, as they are in memory: lines of a number for each row of W. Factors have up
  // to so many bytes.
  static constexpr int most_factor = CODE == TG_F4E2M1 ? 1 : UNIT == 32 ? 2 : 4;
  static constexpr int factor_line = height * most_factor, zeros_at = units * factor_line;
  static constexpr int f_bytes = zeros_at + (has_zeros ? units * height : 0);

  // A stage of X has some batches of each part of K; few, where rows are many.
  static constexpr int x_wanted = width * k_parts > 64 ? 1 : width* k_parts > 32 ? 2 : 4;
  static constexpr int x_own = x_wanted < own_batches ? x_wanted : own_batches;
  static constexpr int x_box_bytes = width * batch * 2, x_bytes = k_parts * x_own * x_box_bytes;
  static constexpr int most_stages = 16, barriers_bytes = 8 * 4 * most_stages;
  // Some fragments of each warp on their way through the epilogue: the ring of a block that goes over several tiles is
  // never free. The sums of the second part of K lie here, too.
  static constexpr int parked = columns < 4 ? columns : 4;
  static constexpr int parked_bytes = row_warps * 512 * (k_parts > 1 ? columns : parked);
  static constexpr int limit = 227 * 1024, room = limit - 1024 - barriers_bytes - parked_bytes - BESIDE;
  // X takes a share of the room that grows with its width.
  static constexpr int wanted_x = width >= 192 ? 4 : width >= 128 ? 5 : 3;
  static constexpr int w_stages_in(int bytes) {
    const int stages = bytes / (w_bytes + f_bytes);
    return stages < 8 ? stages : 8;
  }
  static constexpr int x_least = w_stages_in(room - wanted_x * x_bytes) >= 3 ? wanted_x : wanted_x - 1;
  static constexpr int w_stages = w_stages_in(room - x_least * x_bytes);
  static constexpr int x_room = (room - w_stages * (w_bytes + f_bytes)) / x_bytes;
  static constexpr int x_stages = x_room < most_stages ? x_room : most_stages;
  static_assert(w_stages >= 2 && x_stages >= 2);

  static constexpr int w_at = x_stages * x_bytes, f_at = w_at + w_stages * w_bytes,
                       parked_at = (f_at + w_stages * f_bytes + 127) / 128 * 128,
                       barriers_at = parked_at + parked_bytes, shared_bytes = barriers_at + barriers_bytes;
  static_assert(shared_bytes + BESIDE <= limit && w_at % 1024 == 0);

  // Registers of a thread at the launch, of a thread that loads, and of a thread that multiplies.
  static constexpr int at_launch = 65536 / threads / 8 * 8, loads_registers = k_parts > 1             ? 32
                                                                              : GATHERS &&WIDTH > 128 ? 56
                                                                                                      : 40;
  static constexpr int left = (at_launch * threads - loads_registers * of_loads) / (32 * warps) / 8 * 8;
  static constexpr int registers = left < 240 ? left : 240;
};

// The same rings and threads, for tiles of fewer rows of X. A kernel has several such.
template <class S, int WIDTH>
struct OfWidth : S {
  static_assert(WIDTH <= S::width && WIDTH % 16 == 0);
  static constexpr bool is_one_of_several = true;
  static constexpr int width = WIDTH, columns = WIDTH / 8;
  static constexpr bool at_once = S::has_nibbles || WIDTH > 64;
};

// The first row of W of a tile whose results begin with row `from`. Unless W has a single tile, the last tile ends with
// N or up to 15 rows later.
template <class S>
__device__ __forceinline__ int first_row_of_tile(int from, int n) {
  return min(from, (max(n - S::height, 0) + 15) / 16 * 16);
}

}  // namespace
}  // namespace tilegemm::narrow
