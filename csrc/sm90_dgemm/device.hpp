// The kernel of sm90_dgemm.cu: D = A @ B in f64 on Hopper's tensor cores (mma.sync m16n8k8 or k16).
//
// A producer thread loads blocks of 16 K by TMA with the 128-byte swizzle. A K-major operand arrives in lines of 16 K,
// an MN-major operand in squares of 16 x 16, K by K. Every thread reads 8 bytes at a time, in the order of the tensor
// cores and without bank conflicts: the assignment of rows or columns to the indices of a product is free. With g =
// lane / 4 and r = 0, 1 (the lower and the upper half of 16 rows of A; the first and the second of two products along
// B), a thread reads, of 16 lines,
//
//     K-major: 2 g + r      MN-major: 8 (g / 2 % 2) + 4 r + 2 (g / 4) + g % 2
//
// Each sum is a chain of fused multiply-adds along K, bit by bit.
#pragma once
#include "common/fma.hpp"
#include "common/pipeline.hpp"
#include "common/ptx.hpp"

namespace tilegemm {
namespace {

// A, B: whether K is contiguous. Step: K of one mma.
template <int TileM, int TileN, int WarpsM, int WarpsN, int Step, bool A, bool B>
struct Config {
  static constexpr int tile_m = TileM, tile_n = TileN, depth = 16, warps_m = WarpsM, step = Step;
  static constexpr bool a_k_major = A, b_k_major = B;
  static constexpr int warp_m = TileM / WarpsM, warp_n = TileN / WarpsN, m_blocks = warp_m / 16, n_blocks = warp_n / 16;
  static constexpr int warps = WarpsM * WarpsN, consumers = 32 * warps, threads = consumers + 128;
  static constexpr int a_bytes = TileM * 128, stage_bytes = a_bytes + TileN * 128, square = 16 * 128;
  static constexpr int barriers_bytes = 256, stages = (232448 - barriers_bytes) / stage_bytes;
  static constexpr int shared_bytes = stages * stage_bytes + barriers_bytes;
  static_assert(warp_m % 16 == 0 && warp_n % 16 == 0 && consumers == 256 && stages >= 3 &&
                16 * stages <= barriers_bytes);
};

struct Work : Tiles {
  bool in_pairs;  // two neighbours in a row may be stored at once
  bool simple;    // D is alpha times the product, without further operands
};

__device__ __forceinline__ void mma(double (&c)[4], const double (&a)[4], const double (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
}
__device__ __forceinline__ void mma(double (&c)[4], const double (&a)[8], const double (&b)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5, %6, %7, %8, %9, %10, %11},"
      " {%12, %13, %14, %15}, {%0, %1, %2, %3};"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(a[4]), "d"(a[5]), "d"(a[6]), "d"(a[7]), "d"(b[0]), "d"(b[1]),
        "d"(b[2]), "d"(b[3]));
}

// 16 K of `lines` lines.
template <int lines>
__device__ __forceinline__ void load(const CUtensorMap* map, uint32_t to, uint32_t barrier, bool k_major, int line,
                                     int k, const Tile& t) {
  if (k_major) {
    tma_load(map, to, barrier, k, line, t.batch1, t.batch0, evict_normal);
  } else {
#pragma unroll 1
    for (int x = 0; x < lines; x += 16)
      tma_load(map, to + 128 * x, barrier, line + x, k, t.batch1, t.batch0, evict_normal);
  }
}

template <class C>
__device__ __forceinline__ void produce(const CUtensorMap* a_map, const CUtensorMap* b_map, const Work& w,
                                        uint32_t full, uint32_t empty, uint32_t ring) {
  Stage at = Stage::to_fill();
  for (int tile = blockIdx.x; tile < w.order.total; tile += gridDim.x) {
    const Tile t = w.order.at(tile);
    for (int k = 0; k < w.k; k += C::depth) {
      const uint32_t to = ring + at.s * C::stage_bytes, barrier = at.acquire(full, empty, C::stage_bytes);
      load<C::tile_m>(a_map, to, barrier, C::a_k_major, t.m * C::tile_m, k, t);
      load<C::tile_n>(b_map, to + C::a_bytes, barrier, C::b_k_major, t.n * C::tile_n, k, t);
      at.advance(C::stages);
    }
  }
}

// The place of a thread's numbers of an operand: in 16 lines `block`, half r, at K = lane % 4 + 4 q of 16.
template <bool k_major>
struct Fragments {
  uint32_t base[2][k_major ? 4 : 2];
  __device__ __forceinline__ Fragments(uint32_t from, int line, int lane) {
    const int g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
#pragma unroll
      for (int q = 0; q < (k_major ? 4 : 2); q++) {
        const int of_lines = (2 * g + r) * 128 + (((t / 2 + 2 * q) ^ ((2 * g + r) & 7)) << 4) + t % 2 * 8;
        const int of_squares = t * 128 + (((4 * (g / 2 % 2) + 2 * r + g / 4) ^ (t + 4 * q)) << 4) + g % 2 * 8;
        base[r][q] = opaque(from + line * 128 + (k_major ? of_lines : of_squares));
      }
    }
  }
  __device__ __forceinline__ double load(uint32_t stage, int block, int r, int q) const {
    return load_shared_double(base[r][k_major ? q : q % 2] + stage + block * 2048 + (k_major ? 0 : q * 512));
  }
};

// The place of sum[i][2 j ...] in the tile, relative to the first element of the warp: the row of half r, and the first
// of two neighbouring columns, c = 0, 1. If B is K-major the pairs lie in sum[i][2 j, 2 j + 1][2 r + c], else in
// sum[i][2 j + c][2 r, 2 r + 1].
template <class C>
struct Spot {
  int g, t;
  __device__ __forceinline__ int row(int i, int r) const {
    return 16 * i + (C::a_k_major ? 2 * g + r : 8 * (g / 2 % 2) + 4 * r + 2 * (g / 4) + g % 2);
  }
  __device__ __forceinline__ int column(int j, int c) const {
    return 16 * j + (C::b_k_major ? 4 * t + 2 * c : 8 * (t % 2) + 2 * (t / 2) + 4 * c);
  }
  static __device__ __forceinline__ double& at(double (&sum)[2 * C::n_blocks][4], int j, int r, int c, int e) {
    return C::b_k_major ? sum[2 * j + e][2 * r + c] : sum[2 * j + c][2 * r + e];
  }
};

__device__ __forceinline__ void store_pair(const Work& w, double* d, double x, double y, int row, int column) {
  if (row >= w.m || column >= w.n) return;
  double* const to = d + row * w.d.row_stride + column;
  if (w.in_pairs && column + 1 < w.n) {
    *reinterpret_cast<double2*>(to) = make_double2(x, y);
  } else {
    to[0] = x;
    if (column + 1 < w.n) to[1] = y;
  }
}

template <class C>
__device__ __forceinline__ void consume(const Work& w, const Epilogue<double, double>& epilogue, uint32_t full,
                                        uint32_t empty, uint32_t ring, int warp, int lane) {
  const int first_row = warp % C::warps_m * C::warp_m, first_column = warp / C::warps_m * C::warp_n;
  const Fragments<C::a_k_major> of_a(ring, first_row, lane);
  const Fragments<C::b_k_major> of_b(ring + C::a_bytes, first_column, lane);
  full = opaque(full), empty = opaque(empty);
  const Spot<C> spot{lane / 4, lane % 4};
  Stage at = Stage::to_read();
  for (int tile = blockIdx.x; tile < w.order.total; tile += gridDim.x) {
    double sum[C::m_blocks][2 * C::n_blocks][4] = {};  // (MMA_M,MMA_N,MMA)
    uint32_t used = 0;                                 // the `empty` barrier of the stage that was read last
    const auto release = [&] {
      __syncwarp();
      if (used && lane == 0) mbarrier_arrive(used);
    };
#pragma unroll 1
    for (int k = 0; k < w.k; k += C::depth) {
      // The stage before is released here, after the products of the stage's numbers: an issued load may not have read
      // yet. (A draft that released a stage at the stage's end gave wrong results now and then.) Only whole warps go
      // on: mma needs all threads of a warp, and threads of a warp may diverge in a loop that waits.
      release();
      at.wait_warp(full);
      const uint32_t stage = at.s * C::stage_bytes;
      constexpr int fours = C::step / 4;
#pragma unroll
      for (int q = 0; q < 4; q += fours) {
        double a[C::m_blocks][2 * fours], b[2 * C::n_blocks][fours];  // (MMA_M,MMA), (MMA_N,MMA)
#pragma unroll
        for (int j = 0; j < 2 * C::n_blocks; j++) {
#pragma unroll
          for (int x = 0; x < fours; x++) b[j][x] = of_b.load(stage, j / 2, j % 2, q + x);
        }
#pragma unroll
        for (int i = 0; i < C::m_blocks; i++) {
#pragma unroll
          for (int x = 0; x < 2 * fours; x++) a[i][x] = of_a.load(stage, i, x % 2, q + x / 2);
        }
#pragma unroll
        for (int i = 0; i < C::m_blocks; i++) {
#pragma unroll
          for (int j = 0; j < 2 * C::n_blocks; j++) mma(sum[i][j], a[i], b[j]);
        }
      }
      used = empty + 8 * at.s;
      at.advance(C::stages);
    }
    release();

    const Tile t = w.order.at(tile);
    const int row0 = t.m * C::tile_m + first_row, column0 = t.n * C::tile_n + first_column;
    griddepcontrol_wait();
    double* const d = matrix_of<double>(w.d, t.batch0, t.batch1);
    if (w.simple) {
#pragma unroll
      for (int i = 0; i < C::m_blocks; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
#pragma unroll
          for (int j = 0; j < C::n_blocks; j++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
              const auto x = [&](int e) { return spot.at(sum[i], j, r, c, e) * epilogue.alpha; };
              store_pair(w, d, x(0), x(1), row0 + spot.row(i, r), column0 + spot.column(j, c));
            }
          }
        }
      }
    } else {
      // A loop that is not unrolled, with the sums moving up: otherwise every activation is inlined 64 times.
#pragma unroll 1
      for (int i = 0; i < C::m_blocks; i++) {
#pragma unroll
        for (int j = 0; j < C::n_blocks; j++) {
          double x[8];
          int rows[8], columns[8];
          bool inside[8];
#pragma unroll
          for (int n = 0; n < 8; n++) {
            const int r = n / 4, c = n / 2 % 2, e = n % 2;
            x[n] = spot.at(sum[0], j, r, c, e);
            rows[n] = row0 + spot.row(i, r), columns[n] = column0 + spot.column(j, c) + e;
            inside[n] = rows[n] < w.m && columns[n] < w.n;
          }
          epilogue.each(x, rows, columns, inside, t.batch0, t.batch1);
#pragma unroll
          for (int n = 0; n < 8; n += 2) store_pair(w, d, x[n], x[n + 1], rows[n], columns[n]);
        }
#pragma unroll
        for (int up = 1; up < C::m_blocks; up++) {
#pragma unroll
          for (int j = 0; j < 2 * C::n_blocks; j++) {
#pragma unroll
            for (int n = 0; n < 4; n++) sum[up - 1][j][n] = sum[up][j][n];
          }
        }
      }
    }
  }
}

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    sm90_dgemm(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
               const __grid_constant__ Work w, const __grid_constant__ Epilogue<double, double> epilogue) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared));
  const uint32_t full = ring + C::stages * C::stage_bytes, empty = full + 8 * C::stages;
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    prefetch_tensor_map(&a_map), prefetch_tensor_map(&b_map);
    init_ring(full, empty, C::stages, C::warps);
    fence_mbarrier_init();
  }
  __syncthreads();
  if (warp >= C::warps) {
    setmaxnreg_dec<40>();
    if (warp == C::warps && lane == 0) {
      griddepcontrol_wait();
      produce<C>(&a_map, &b_map, w, full, empty, ring);
      launch_dependents();
    }
  } else {
    setmaxnreg_inc<232>();
    consume<C>(w, epilogue, full, empty, ring, warp, lane);
  }
}

}  // namespace
}  // namespace tilegemm
