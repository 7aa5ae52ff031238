// The limits of a kernel on sizes and operands, and their check on the host. build.rs makes a struct of each row from
// `[limits]` of csrc/<family>/family.toml, and Rust's numbers from the same lines (src/kernel/limits.rs).
#pragma once
#include <climits>
#include <cstdint>

#include "tilegemm.h"

namespace tilegemm {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr bool a_is_k_major(tg_layout layout) { return layout == TG_NN || layout == TG_NT; }
constexpr bool b_is_k_major(tg_layout layout) { return layout == TG_NT || layout == TG_TT; }

// Bytes of an element; 0 for blocks.
constexpr int bytes_of(tg_format format) {
  switch (format) {
    case TG_F64: return 8;
    case TG_F32: return 4;
    case TG_F16:
    case TG_BF16: return 2;
    case TG_F8E4M3: return 1;
    default: return 0;
  }
}

// Whether a kernel takes problems with groups of rows, and problems without.
enum class Grouping { never, optional, always };
// The part of the epilogue that a kernel computes.
enum class Fusion { none, bias_act, full };
// Sets of operands, and of extents.
constexpr unsigned of_a = 1, of_b = 2, of_c = 4, of_d = 8;
constexpr unsigned extent_n = 1, extent_k = 2, line_of_a = 4, line_of_b = 8;

// A kernel's struct has its own values for what is limited.
struct Limits {
  static constexpr Grouping groups = Grouping::never;
  static constexpr bool gates = false, gates_c = false;  // gated products; products whose gates multiply C
  static constexpr Fusion fusion = Fusion::full;
  static constexpr int64_t rows = INT64_MAX, columns = INT64_MAX, least_k = 1, most_k = INT64_MAX, matrices = INT64_MAX;
  static constexpr int64_t tiles = INT64_MAX, tile_rows = 1, tile_columns = 1;  // the most tiles, and their sides
  static constexpr bool tiles_of_batch = false;  // whether the tiles of all matrices count together
  static constexpr bool any_strides = false, two_batch_dims = true;
  static constexpr unsigned aligned = 0;    // operands at multiples of the row's alignment
  static constexpr unsigned tma = 0;        // operands that TMA addresses
  static constexpr unsigned multiples = 0;  // extents whose bytes are multiples of the row's alignment
  static constexpr int blocks = 1;          // multiprocessors that have to run at the same time
};

// The check for a kernel of these formats (`out`: of C, the bias and D), layout and alignment in bytes.
template <tg_format a, tg_format b, tg_format out, tg_layout layout, int align, class L>
struct Within {
  static bool check(const tg_gemm_args& args) {
    return groups(args) && gate(args) && epilogue(args) && counts(args) && lines(args) && alignment(args) &&
           multiples(args) && args.sm_count >= L::blocks;
  }

 private:
  static bool is_gated(const tg_gemm_args& args) {
    return args.gate == TG_GATE_HALVES || args.gate == TG_GATE_INTERLEAVED;
  }

  static bool groups(const tg_gemm_args& args) {
    const tg_groups& groups = args.groups;
    if (groups.count == 0) return L::groups != Grouping::always;
    return L::groups != Grouping::never && groups.count > 0 && groups.count <= INT_MAX / 2 &&
           !groups.first_row != !groups.group_of_row && groups.pairs_per_row >= 1 && groups.pairs_per_row <= INT_MAX &&
           args.batch[0] == 1 && args.batch[1] == 1 && args.beta == 0;
  }

  static bool gate(const tg_gemm_args& args) {
    if (args.gate == TG_UNGATED) return true;
    if (args.gate == TG_GATE_C) return L::gates_c && args.beta != 0;
    return L::gates && is_gated(args) && args.n % 2 == 0 && args.beta == 0;
  }

  static bool epilogue(const tg_gemm_args& args) {
    const bool activates = args.activation != TG_IDENTITY && !is_gated(args);
    if (L::fusion == Fusion::none && (args.bias.ptr || activates)) return false;
    return L::fusion == Fusion::full || args.beta == 0;
  }

  static bool counts(const tg_gemm_args& args) {
    const int64_t matrices = args.batch[0] * args.batch[1];
    const int64_t along_m = ceil_div(args.m, L::tile_rows), along_n = ceil_div(args.n, L::tile_columns);
    return args.m <= L::rows && args.n <= L::columns && args.k >= L::least_k && args.k <= L::most_k &&
           matrices <= L::matrices && (L::two_batch_dims || args.batch[0] == 1) && along_m <= L::tiles / along_n &&
           (!L::tiles_of_batch || along_m * along_n <= L::tiles / matrices);
  }

  // Whether C and D have contiguous rows, and A and B lines of the kernel's layout that do not overlap.
  static bool lines(const tg_gemm_args& args) {
    if (layout == TG_ANY) return true;
    const auto apart = [](int64_t unit, int64_t line, int64_t length, int64_t count) {
      return unit == 1 && (L::any_strides || line >= length || count == 1);
    };
    const auto in_rows = [&](const tg_matrix& x) { return L::any_strides || x.col_stride == 1 || args.n == 1; };
    const tg_matrix &a_is = args.a, &b_is = args.b;
    return (a_is_k_major(layout) ? apart(a_is.col_stride, a_is.row_stride, args.k, args.m)
                                 : apart(a_is.row_stride, a_is.col_stride, args.m, args.k)) &&
           (b_is_k_major(layout) ? apart(b_is.row_stride, b_is.col_stride, args.k, args.n)
                                 : apart(b_is.col_stride, b_is.row_stride, args.n, args.k)) &&
           in_rows(args.d) && (args.beta == 0 || in_rows(args.c));
  }

  // Whether each line of a matrix starts at a multiple of the alignment, and TMA's strides are in range. The stride of
  // a dimension of size 1 has no effect. Blocks have whole lines at multiples wherever the first one has.
  template <tg_format format, unsigned operand>
  static bool starts(const tg_matrix& x, int64_t rows, int64_t columns, int64_t outer, int64_t inner) {
    constexpr bool by_tma = (L::tma & operand) != 0;
    constexpr int64_t bytes = bytes_of(format), need = by_tma && align < 16 ? 16 : align;
    constexpr int64_t unit = bytes > 0 && need > bytes ? need / bytes : 1,
                      far = (int64_t(1) << 40) / (bytes > 0 ? bytes : 1);
    const auto takes = [](int64_t stride, int64_t extent) {
      return extent == 1 ||
             ((!(L::aligned & operand) || stride % unit == 0) && (!by_tma || (stride >= 0 && stride < far)));
    };
    const bool pointer = !(L::aligned & operand) || reinterpret_cast<uintptr_t>(x.ptr) % need == 0;
    return pointer && (x.col_stride == 1 || takes(x.col_stride, columns)) &&
           ((x.row_stride == 1 && x.col_stride != 1) || takes(x.row_stride, rows)) && takes(x.batch_stride[0], outer) &&
           takes(x.batch_stride[1], inner);
  }

  static bool alignment(const tg_gemm_args& args) {
    const int64_t (&batch)[2] = args.batch;
    const bool grouped = args.groups.count > 0;
    const int64_t rows_of_a = grouped ? ceil_div(args.m, args.groups.pairs_per_row) : args.m;
    const int64_t columns = is_gated(args) ? args.n / 2 : args.n;
    return starts<a, of_a>(args.a, rows_of_a, args.k, batch[0], batch[1]) &&
           starts<b, of_b>(args.b, args.k, args.n, batch[0], grouped ? args.groups.count : batch[1]) &&
           (args.beta == 0 || starts<out, of_c>(args.c, args.m, args.n, batch[0], batch[1])) &&
           starts<out, of_d>(args.d, args.m, columns, batch[0], batch[1]);
  }

  static bool multiples(const tg_gemm_args& args) {
    const auto whole = [](unsigned extent, int64_t length, int bytes) {
      return !(L::multiples & extent) || bytes == 0 || length * bytes % align == 0;
    };
    return whole(extent_n, is_gated(args) ? args.n / 2 : args.n, bytes_of(out)) &&
           whole(extent_k, args.k, bytes_of(a)) &&
           whole(line_of_a, a_is_k_major(layout) ? args.k : args.m, bytes_of(a)) &&
           whole(line_of_b, b_is_k_major(layout) ? args.k : args.n, bytes_of(b));
  }
};

}  // namespace tilegemm
