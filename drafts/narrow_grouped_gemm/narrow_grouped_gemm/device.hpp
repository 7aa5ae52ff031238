// The kernel: rows of W on the M side of mma.sync and rows of A on the N side, all from global memory to registers.
#pragma once
#include "common/epilogue.hpp"
#include "common/mma.hpp"
#include "experts/unit_list.hpp"
#include "narrow_grouped_gemm/codes.hpp"

namespace tilegemm {
namespace {

// src/family/narrow_grouped_gemm.rs has the same numbers.
constexpr int most_groups = 2048, most_entries = 1023;

template <class R>
struct NarrowShape {
  using Row = R;
  using T = typename scalar<R::dtype>::type;
  using W = Codes<R::b, T>;
  static constexpr int warps = 8;
  static constexpr int fragments = R::tile_m / 8;       // of 8 rows of A
  static constexpr int warps_n = R::tile_n / 16;        // with rows of W of their own
  static constexpr int warps_k = warps / warps_n;       // with parts of K
  using List = UnitList<R::tile_m, 1, 8>;
  static constexpr int sums = warps_k > 1 ? warps * 16 * 8 * 4 : 0;  // bytes
  static_assert((warps_k > 1) == (fragments == 1));
  static constexpr int bytes(int groups, int entries) {
    return sums + (groups + 4) / 4 * 16 + List::bytes(entries);
  }
};

struct NarrowPlace {
  GroupedRows rows;
  Divisor pairs_per_row;
  int n_tiles, entries, list_at;
};

// A lane's codes of a step, and factors.
template <class S>
struct Step {
  typename S::W::Raw w[2];  // of rows g and g + 8
  float factors[2];
  uint32_t powers[2];
};

// Where a lane's codes and numbers of A lie.
template <class S>
struct Rows {
  const uint8_t* w[2];
  int64_t factors[2];
  const typename S::T* x[S::fragments];  // null: no row
};

template <class S>
__device__ __forceinline__ void load_w(Step<S>& step, const tg_gemm_args& args, const Rows<S>& rows, int k0, int t) {
  using W = typename S::W;
  const int k = k0 + W::first(t);
  const bool inside = k < args.k, has_factor = args.b_scale.ptr && (W::scales_sums ? k0 < args.k : inside);
  const uint32_t of = uint32_t(W::scales_sums ? k0 : k);
  const int64_t along =
      args.b_scale.rows == UINT32_MAX ? 0 : int64_t(of / args.b_scale.rows) * args.b_scale.row_stride;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const auto* const from = reinterpret_cast<const typename W::Raw*>(rows.w[r] + W::bytes(k0)) + t;
    step.w[r] = inside ? __ldg(from) : typename W::Raw{};
    const int64_t at = rows.factors[r] + along;
    if constexpr (W::scales_sums) {
      step.factors[r] = has_factor ? narrow::factor_at(args.b_scale.format, args.b_scale.ptr, at) : 1.0f;
    } else {
      const uint32_t e = has_factor ? static_cast<const uint8_t*>(args.b_scale.ptr)[at] : 127;
      const uint32_t power = e == 255 ? 0x7fc0 : e == 0 ? 0x40 : e << 7;  // in bf16
      step.powers[r] = power | power << 16;
    }
  }
}

// The numbers of a row of A that meet a lane's codes of a step.
template <class S>
__device__ __forceinline__ void load_x(uint2 (&x)[4], const tg_gemm_args& args, const typename S::T* row, int k0,
                                       int t) {
  const int k = k0 + S::W::first(t);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    x[i] = row && k < args.k ? __ldg(reinterpret_cast<const uint2*>(row + k + S::W::x_of(i))) : uint2{};
  }
}

// Operand A of a step's four instructions.
template <class S>
__device__ __forceinline__ void convert(uint32_t (&a)[4][4], const Step<S>& step) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    S::W::numbers(step.w[0], i, step.powers[0], a[i][0], a[i][2]);
    S::W::numbers(step.w[1], i, step.powers[1], a[i][1], a[i][3]);
  }
}

template <class S>
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4][4], const uint2 (&x)[4],
                                         const float (&factors)[2]) {
  if constexpr (S::W::scales_sums) {
    float part[4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) mma_16<typename S::T>(part, a[i], x[i].x, x[i].y);
#pragma unroll
    for (int c = 0; c < 4; c++) sum[c] += factors[c / 2] * part[c];
  } else {
#pragma unroll
    for (int i = 0; i < 4; i++) mma_16<typename S::T>(sum, a[i], x[i].x, x[i].y);
  }
}

// Sums over the steps of K from `first` on, `stride` apart, with up to 8 rows of A: loads of several steps are under way
// together.
template <class S>
__device__ __forceinline__ void sum_of_few(float (&sum)[1][4], const tg_gemm_args& args, const Rows<S>& rows, int first,
                                           int t) {
  constexpr int ahead = 4, stride = depth * S::warps_k;
#pragma unroll 1
  for (int k0 = first; k0 < args.k; k0 += ahead * stride) {
    Step<S> steps[ahead];
    uint2 x[ahead][4];
#pragma unroll
    for (int i = 0; i < ahead; i++) {
      load_w<S>(steps[i], args, rows, k0 + i * stride, t);
      load_x<S>(x[i], args, rows.x[0], k0 + i * stride, t);
    }
#pragma unroll
    for (int i = 0; i < ahead; i++) {
      uint32_t a[4][4];
      convert<S>(a, steps[i]);
      multiply<S>(sum[0], a, x[i], steps[i].factors);
    }
  }
}

// The same with more rows of A, `filled` of which there are: codes of the next step are under way, and numbers of the
// next 8 rows.
template <class S>
__device__ __forceinline__ void sum_of_many(float (&sum)[S::fragments][4], const tg_gemm_args& args,
                                            const Rows<S>& rows, int filled, int t) {
  Step<S> next;
  load_w<S>(next, args, rows, 0, t);
#pragma unroll 1
  for (int k0 = 0; k0 < args.k; k0 += depth) {
    const Step<S> step = next;
    uint2 x[2][4];
    load_x<S>(x[0], args, rows.x[0], k0, t);
    load_w<S>(next, args, rows, k0 + depth, t);
    uint32_t a[4][4];
    convert<S>(a, step);
#pragma unroll
    for (int j = 0; j < S::fragments; j++) {
      if (8 * j >= filled) break;
      if (j + 1 < S::fragments) load_x<S>(x[(j + 1) % 2], args, rows.x[j + 1], k0, t);
      multiply<S>(sum[j], a, x[j % 2], step.factors);
    }
  }
}

template <class S>
__global__ void __launch_bounds__(32 * S::warps, 2)
    narrow_grouped_gemm(const __grid_constant__ tg_gemm_args args, const __grid_constant__ NarrowPlace p,
                        const __grid_constant__ Epilogue<typename S::T, float> epilogue) {
  using T = typename S::T;
  extern __shared__ __align__(16) uint8_t shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  griddepcontrol_wait();
  launch_dependents();
  typename S::List list(shared + p.list_at, p.entries, p.n_tiles, 0);
  T* const d = static_cast<T*>(args.d.ptr);
  const GroupedSpan of_groups = list.fill(p.rows, reinterpret_cast<int*>(shared), warp, lane);
  zero_rows_of_no_group(p.rows, of_groups, d, args.d.row_stride, int(args.n), threadIdx.x, 32 * S::warps);
  const int warp_n = warp % S::warps_n, warp_k = warp / S::warps_n, n_all = int(args.n);
#pragma unroll 1
  for (int u = blockIdx.x; u < list.total(); u += gridDim.x) {
    const GroupedTile tile = list.tile(u);
    const int n0 = tile.n * S::Row::tile_n + 16 * warp_n;
    Rows<S> rows;
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const int n = min(n0 + g + 8 * r, n_all - 1);
      rows.w[r] = static_cast<const uint8_t*>(args.b.ptr) +
                  narrow::bytes_of(S::Row::b, tile.group * args.b.batch_stride[1] + n * args.b.col_stride);
      const int of_columns = args.b_scale.columns == UINT32_MAX ? 0 : n / int(args.b_scale.columns);
      rows.factors[r] = tile.group * args.b_scale.batch_stride[1] + of_columns * args.b_scale.col_stride;
    }
#pragma unroll
    for (int j = 0; j < S::fragments; j++) {
      const int64_t row = 8 * j + g < tile.height ? p.rows.row_of_d(tile.first + 8 * j + g) : -1;
      rows.x[j] = row < 0 ? nullptr
                          : static_cast<const T*>(args.a.ptr) + p.pairs_per_row.quotient(int(row)) * args.a.row_stride;
    }
    float sum[S::fragments][4] = {};
    if constexpr (S::fragments == 1) {
      sum_of_few<S>(sum, args, rows, depth * warp_k, t);
    } else {
      sum_of_many<S>(sum, args, rows, tile.height, t);
    }
    const auto store = [&](int i, int n, float value) {
      if (i >= tile.height || n >= n_all) return;
      const int64_t row = p.rows.row_of_d(tile.first + i);
      if (row < 0) return;
      value = epilogue.unrounded(value, row, n, 0, tile.group) * p.rows.scale_of(row);
      d[row * args.d.row_stride + n] = T(value);
    };
    if constexpr (S::warps_k == 1) {
#pragma unroll
      for (int j = 0; j < S::fragments; j++) {
        if (8 * j >= tile.height) break;
#pragma unroll
        for (int c = 0; c < 4; c++) store(8 * j + 2 * t + c % 2, n0 + g + c / 2 * 8, sum[j][c]);
      }
    } else {
      // Parts of K in the order of the warps.
      float* const parts = reinterpret_cast<float*>(shared);
#pragma unroll
      for (int c = 0; c < 4; c++) parts[warp * 128 + (2 * t + c % 2) * 16 + g + c / 2 * 8] = sum[0][c];
      __syncthreads();
      for (int at = threadIdx.x; at < 128 * S::warps_n; at += 32 * S::warps) {
        float all = 0;
#pragma unroll
        for (int part = 0; part < S::warps_k; part++) all += parts[(part * S::warps_n) * 128 + at];
        store(at % 128 / 16, tile.n * S::Row::tile_n + at / 128 * 16 + at % 16, all);
      }
      __syncthreads();
    }
  }
}

}  // namespace
}  // namespace tilegemm
