// The limits of a kernel on sizes and operands, which csrc/limits.cpp checks on the host. build.rs makes the numbers of
// each row from `[limits]` of csrc/<family>/family.toml, and Rust's from the same lines (src/kernel/limits.rs).
#pragma once
#include <climits>
#include <cstdint>

#include "tilegemm.h"

namespace tilegemm {

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr bool a_is_k_major(tg_layout layout) { return layout == TG_NN || layout == TG_NT; }
constexpr bool b_is_k_major(tg_layout layout) { return layout == TG_NT || layout == TG_TT; }

// Whether a kernel takes problems with groups of rows, and problems without.
enum class Grouping { never, optional, always };
// The part of the epilogue that a kernel computes.
enum class Fusion { none, bias_act, full };
// Sets of operands, and of extents.
constexpr unsigned of_a = 1, of_b = 2, of_c = 4, of_d = 8;
constexpr unsigned extent_n = 1, extent_k = 2, line_of_a = 4, line_of_b = 8;

// The numbers of a kernel, by default those of one that nothing limits.
struct Limits {
  Grouping groups = Grouping::never;
  bool gates = false, gates_c = false;  // gated products; products whose gates multiply C
  Fusion fusion = Fusion::full;
  int64_t rows = INT64_MAX, columns = INT64_MAX, least_k = 1, most_k = INT64_MAX, matrices = INT64_MAX;
  int64_t tiles = INT64_MAX, tile_rows = 1, tile_columns = 1;  // the most tiles, and their sides
  bool tiles_of_batch = false;                                 // whether the tiles of all matrices count together
  bool any_strides = false, two_batch_dims = true;
  unsigned aligned = 0;    // operands at multiples of the row's alignment
  unsigned tma = 0;        // operands that TMA addresses
  unsigned multiples = 0;  // extents whose bytes are multiples of the row's alignment
  unsigned scales = 0;     // operands that may have factors
  int blocks = 1;          // multiprocessors that have to run at the same time
};

// What a launch function is written for.
struct Contract {
  tg_types types;
  tg_layout layout;
  int align;  // bytes
  Limits limits;
};

// Calls `launch` with a problem that is within the contract and has an element of D. All kernels share the function,
// for the sake of the library's size.
tg_status launch_within(const Contract& contract, tg_status (*launch)(const tg_gemm_args*), const tg_gemm_args* args);
// The same as a rehearsal.
tg_status rehearse(const Contract& contract, tg_status (*launch)(const tg_gemm_args*), const tg_gemm_args* args);

}  // namespace tilegemm
