// The kernel for one or two rows of A, from Hopper on: a lane keeps 32 numbers of K of each row of A in registers, in
// f32, and multiplies them by the 32 numbers of row after row of W. No activation is rounded.
//
// A group of warps has the K of a row of W, 1024 numbers for each warp, and goes through some rows. Each warp loads its
// part of a row with one bulk copy, several rows ahead, and waits for no other warp before its sums. So blocks share
// the rows of W more evenly than units of 16 rows (device.hpp). A matrix with many rows takes longer than by mma.sync:
// a warp multiplies 32 numbers by some 150 instructions, whatever the format.
#pragma once
#include "gguf_gemv/bulk.hpp"

namespace tilegemm {
namespace {

// The most rows of A, as far as products are faster so, and the longest row of W: 16 warps.
constexpr int most_m_of_vectors(tg_format a, tg_format b) {
  if (a != TG_F32) return 0;
  if (b == TG_Q8_0) return 2;
  return b == TG_Q4_0 ? 1 : 0;
}
constexpr int rows_of_vectors = 8;
constexpr int64_t most_k_of_vectors = 16 * 1024;

// The shape of a block for `M` rows of A.
template <tg_format F, int M>
struct VectorRows {
  using Row = gguf::Row<F>;
  static constexpr tg_format format = F;
  static constexpr int m = M, most_warps = 16, threads = 32 * most_warps;
  static constexpr int of_lane = 32, of_warp = 32 * of_lane, spans = of_warp / gguf::span;  // numbers of K
  static constexpr int at_once = 4;                                                         // rows of W in a stage
  static constexpr int batch = rows_of_vectors, sums = M * batch;  // rows of W whose sums a group adds at a time
  static constexpr int pitch = gguf::shared_pitch(spans * Row::bytes), stage_bytes = at_once * pitch;
  // Bytes of a block's loads under way: with more, the first rows arrive later.
  static constexpr int useful = 144 * 1024, stages = useful / (most_warps * stage_bytes);
  static constexpr int x_bytes = 32 * (of_lane * int(sizeof(float)) + 16);  // of a warp
  static constexpr int sums_at = most_warps * x_bytes,
                       barriers_at = sums_at + 2 * most_warps * sums * int(sizeof(float)),
                       wrong_at = barriers_at + most_warps * stages * 8, ring_at = wrong_at + 16;
  static constexpr int shared_bytes = ring_at + most_warps * stages * stage_bytes + 16;
  static_assert(stages >= 2 && shared_bytes <= 227 * 1024 && ring_at % 16 == 0);
};

// A lane's 32 numbers of each row of A, and their sums.
template <class S, class T>
struct OfLane {
  using Row = typename S::Row;
  static constexpr int scales = S::of_lane / Row::scaled;
  static constexpr int of_16 = 16 / int(sizeof(T)), loads = S::of_warp / of_16 / 32,
                       pitch = S::of_lane * int(sizeof(T)) + 16;
  static_assert(32 * pitch <= S::x_bytes);
  float x[S::m][S::of_lane];
  float sums[Row::has_min ? S::m : 1][scales];

  // A row of A on its way: neighbouring lanes load neighbouring numbers, from number `k` of the row on.
  struct Loaded {
    uint4 sixteen[loads];

    __device__ __forceinline__ Loaded(const tg_gemm_args& args, int i, int64_t k, int lane) {
      const T* const from = static_cast<const T*>(args.a.ptr) + i * args.a.row_stride + k;
      const bool is_aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
#pragma unroll
      for (int j = 0; j < loads; j++) {
        const int at = (32 * j + lane) * of_16;
        sixteen[j] = {};
        if (k + at >= args.k) continue;
        if (is_aligned) sixteen[j] = *reinterpret_cast<const uint4*>(from + at);
        else {
          T numbers[of_16];
#pragma unroll
          for (int e = 0; e < of_16; e++) numbers[e] = from[at + e];
          sixteen[j] = *reinterpret_cast<const uint4*>(numbers);
        }
      }
    }
  };

  // Gives each lane its own numbers, through `shared`, 2^-16 times as large: codes times large ones do not overflow.
  __device__ __forceinline__ void take(int i, const Loaded& loaded, uint8_t* shared, int lane) {
    constexpr int of_row = S::of_lane / of_16;  // pieces of 16 bytes of a lane
    __syncwarp();
#pragma unroll
    for (int j = 0; j < loads; j++) {
      const int at = 32 * j + lane;
      *reinterpret_cast<uint4*>(shared + at / of_row * pitch + at % of_row * 16) = loaded.sixteen[j];
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < of_row; j++) {
      const uint4 piece = *reinterpret_cast<const uint4*>(shared + lane * pitch + j * 16);
#pragma unroll
      for (int e = 0; e < of_16; e++)
        x[i][j * of_16 + e] = float(reinterpret_cast<const T*>(&piece)[e]) / gguf::from_sums;
    }
    if constexpr (Row::has_min) {
#pragma unroll
      for (int s = 0; s < scales; s++) {
        sums[i][s] = 0;
#pragma unroll
        for (int j = 0; j < Row::scaled; j++) sums[i][s] += x[i][s * Row::scaled + j];
      }
    }
  }

  // The products with the lane's numbers of a row of W, whose part for the warp lies at `part`.
  __device__ __forceinline__ void times(const uint8_t* part, int lane, float (&total)[S::m]) const {
    // A block of 32 numbers belongs to the lane, one of 256 to eight lanes.
    constexpr bool is_own = Row::block.elements == 32;
    const int eighth = is_own ? 0 : lane % 8;
    const Row row(part + (is_own ? lane : lane / 8) * Row::block.bytes);
#pragma unroll
    for (int i = 0; i < S::m; i++) total[i] = 0;
#pragma unroll
    for (int s = 0; s < scales; s++) {
      float sum[S::m] = {};
#pragma unroll
      for (int j = s * Row::scaled; j < (s + 1) * Row::scaled; j += 4) {
        const uint32_t codes = row.unsigned_codes(2 * eighth + j / 16, j % 16 / 4);
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float code = gguf::with_byte(codes, e) - float((1 << 23) + int(Row::unsigned_zero));
#pragma unroll
          for (int i = 0; i < S::m; i++) sum[i] = fmaf(code, x[i][j + e], sum[i]);
        }
      }
      const float scale = row.scale(scales * eighth + s);
#pragma unroll
      for (int i = 0; i < S::m; i++) total[i] = fmaf(scale, sum[i], total[i]);
      if constexpr (Row::has_min) {
        const float min = row.min(scales * eighth + s);
#pragma unroll
        for (int i = 0; i < S::m; i++) total[i] -= min * sums[i][s];
      }
    }
  }
};

// Adds each of `COUNT` numbers over the lanes: lane l has the sum of number l * COUNT / 32 in the end.
template <int COUNT, int STEP = 16>
__device__ __forceinline__ void add_lanes(float* numbers, int lane) {
  if constexpr (STEP > 0) {
    if constexpr (COUNT > 1) {
      const bool is_second = lane & STEP;
#pragma unroll
      for (int i = 0; i < COUNT / 2; i++) {
        const float kept = is_second ? numbers[i + COUNT / 2] : numbers[i],
                    sent = is_second ? numbers[i] : numbers[i + COUNT / 2];
        numbers[i] = kept + __shfl_xor_sync(~0u, sent, STEP);
      }
      add_lanes<COUNT / 2, STEP / 2>(numbers, lane);
    } else {
      numbers[0] += __shfl_xor_sync(~0u, numbers[0], STEP);
      add_lanes<1, STEP / 2>(numbers, lane);
    }
  }
}

template <class S, class T>
__global__ void __launch_bounds__(S::threads, 1)
    gguf_gemv_vector(const __grid_constant__ tg_gemm_args args, int warps_of_row,
                     const __grid_constant__ GatingEpilogue<T, float> epilogue) {
  extern __shared__ __align__(16) uint8_t shared[];
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const int group = warp / warps_of_row, place = warp % warps_of_row, groups = warps / warps_of_row;
  const int64_t n = args.n;
  const int first = int(n * blockIdx.x / gridDim.x), last = int(n * (blockIdx.x + 1) / gridDim.x);
  const int of_group = int(ceil_div(last - first, groups));
  const int from = first + group * of_group, to = min(from + of_group, last);

  const PartOfRows<S::format> rows(args, S::spans * place, S::spans);
  const uint32_t base = uint32_t(__cvta_generic_to_shared(shared)),
                 ring_at = S::ring_at + warp * S::stages * S::stage_bytes;
  const uint32_t full = base + S::barriers_at + warp * S::stages * 8;
  unsigned* const wrong = reinterpret_cast<unsigned*>(shared + S::wrong_at);
  if (threadIdx.x == 0) *wrong = 0;
  if (lane == 0) {
    for (int s = 0; s < S::stages; s++) mbarrier_init(full + 8 * s, S::at_once);
    fence_mbarrier_init();
  }
  if (lane < S::at_once && from + lane < to) rows.prefetch(from + lane);
  __syncthreads();
  griddepcontrol_wait();
  launch_dependents();

  using Of = OfLane<S, T>;
  Of of_x;
  // Loads of A behind the loads of W would arrive after W.
  const typename Of::Loaded first_row(args, 0, place * S::of_warp, lane),
      last_row(args, S::m - 1, place * S::of_warp, lane);
  // Each of the first lanes loads a row.
  int next = from + lane;
  const auto load = [&](int s) {
    if (lane < S::at_once) {
      if (next < to) rows.load(next, base + ring_at + s * S::stage_bytes + lane * S::pitch, full + 8 * s);
      else mbarrier_arrive_expect(full + 8 * s, 0);
    }
    next += S::at_once;
  };
#pragma unroll 1
  for (int s = 0; s < S::stages; s++) load(s);
  uint8_t* const of_warp = shared + warp * S::x_bytes;
  of_x.take(0, first_row, of_warp, lane);
  if constexpr (S::m > 1) of_x.take(S::m - 1, last_row, of_warp, lane);

  float* const sums = reinterpret_cast<float*>(shared + S::sums_at);
  const bool has_numbers = place * S::of_warp + lane * S::of_lane < args.k;
  Stage at = Stage::to_read();
  int parity = 0;
#pragma unroll 1
  for (int row = from; row < to; row += S::batch) {
    float total[S::m * S::batch] = {};
#pragma unroll
    for (int b = 0; b < S::batch; b += S::at_once) {
      if (b > 0 && row + b >= to) break;
      at.wait_warp(full);
      if (has_numbers) {
#pragma unroll
        for (int r = 0; r < S::at_once; r++) {
          if (r % 2 == 0 && row + b + r >= to) break;
          float of_row[S::m];
          of_x.times(shared + ring_at + at.s * S::stage_bytes + r * S::pitch + rows.odd(row + b + r), lane, of_row);
#pragma unroll
          for (int i = 0; i < S::m; i++) total[i * S::batch + b + r] = of_row[i];
        }
      }
      __syncwarp();
      load(at.s);
      at.advance(S::stages);
    }
    add_lanes<S::sums>(total, lane);
    constexpr int lanes = 32 / S::sums;
    if (lane % lanes == 0) sums[(parity * S::most_warps + warp) * S::sums + lane / lanes] = total[0];
    if (warps_of_row == 1) __syncwarp();  // as many groups as warps, and so many barriers there are not
    else bar_sync(1 + group, 32 * warps_of_row);
    // Rows of W that do not exist have sums of bytes that nothing has loaded.
    const int i = lane / S::batch, j = row + lane % S::batch;
    if (place == 0 && lane < S::sums && j < to) {
      const float* const parts = sums + (parity * S::most_warps + warp) * S::sums + lane;
      float sum = 0;
#pragma unroll 4
      for (int w = 0; w < warps_of_row; w++) sum += parts[w * S::sums];
      sum *= gguf::from_sums;
      if (!isfinite(sum)) atomicOr(wrong, 1u << i);
      store_sum(args, epilogue, i, j, sum);
    }
    parity ^= 1;
  }
  __syncthreads();
  if (*wrong == 0) return;
  gguf::repair<S::format>(
      args, *wrong, 0, first, last, 0, args.k, warps, [](int r) { return r; },
      [&](int r, int j, float sum) { store_sum(args, epilogue, r, j, sum); }, gguf::MostOfF32{});
}

}  // namespace
}  // namespace tilegemm
