// The kernel for up to four rows of A and a long K, from Hopper on: one warp loads 16 rows of W after 16 rows for the
// other warps, with a bulk copy for each row. The other warps have a span of K each, as in device.hpp, and sums of the
// same bits.
#pragma once
#include "common/pipeline.hpp"
#include "gguf_gemv/device.hpp"

namespace tilegemm {
namespace {

// With more rows, the loads of the activations take longer; with fewer warps, a copy is short; of two or three units of
// a block, the second waits for the activations, and little is left behind. The warps' own copies are faster then.
constexpr int most_m_of_bulk = 4, least_warps_of_bulk = 12;
constexpr bool is_for_bulk(int64_t m, int64_t warps, int units) {
  return m <= most_m_of_bulk && warps >= least_warps_of_bulk && (units == 1 || units > 3);
}

// In the place of FewRows: a stage of the whole block has 16 rows of W, of each the blocks of the warps' spans as they
// lie in the file.
template <tg_format F, int WARPS>
struct BulkRows : gguf::FewRows<F, 1, WARPS> {
  using Base = gguf::FewRows<F, 1, WARPS>;
  using Row = gguf::Row<F>;
  static constexpr int threads = 32 * (WARPS + 1), batch = 4, most_stages = 8;
  // Bytes of all stages where two fit: more would arrive with the first rows, and late.
  static constexpr int useful = 112 * 1024;

  static constexpr int pitch(int warps) { return gguf::shared_pitch(warps * Row::bytes); }
  static constexpr int stage_bytes(int warps) { return gguf::rows_of_warp * pitch(warps); }
  static constexpr int x_at(int) { return 0; }
  static constexpr int factors_at(int warps) { return warps * Base::x_bytes; }
  static constexpr int sums_at(int warps) { return factors_at(warps) + warps * Base::Factors::bytes; }
  static constexpr int barriers_at(int warps) {
    return sums_at(warps) + 2 * batch * warps * Base::sums * int(sizeof(float));
  }
  static constexpr int wrong_at(int warps) { return barriers_at(warps) + 2 * 8 * most_stages + 8; }
  static constexpr int ring_at(int warps) { return barriers_at(warps) + 2 * 8 * most_stages + 16; }
  static constexpr int stages(int warps) {
    const int stages = useful / stage_bytes(warps);
    return stages < 2 ? 2 : stages < most_stages ? stages : most_stages;
  }
  static constexpr int bytes(int warps) {
    return ring_at(warps) + stages(warps) * stage_bytes(warps) + Base::bytes_behind;
  }
  static constexpr int most_bytes() {
    int most = 0;
    for (int warps = least_warps_of_bulk; warps <= WARPS; warps++) most = bytes(warps) > most ? bytes(warps) : most;
    return most;
  }
  static constexpr int shared_bytes = most_bytes();
  static_assert(shared_bytes <= 227 * 1024 && ring_at(WARPS) % 16 == 0);
};

// A part of K of W: `bytes` bytes of each row, from the row's byte `begin` on.
template <tg_format F>
struct PartOfRows {
  using Row = gguf::Row<F>;
  const uint8_t* w;
  uint32_t stride, begin, bytes;
  int rows;

  __device__ PartOfRows(const tg_gemm_args& args, int first_span, int spans)
      : w(gguf::matrix_at<F>(args, 0)), stride(uint32_t(gguf::row_stride<F>(args))), begin(first_span * Row::bytes),
        bytes(min(uint32_t(spans * Row::bytes), gguf::row_bytes<F>(args) - begin)), rows(int(args.n)) {}

  // Bytes from a multiple of 16 to row i; the same for row i + 16.
  __device__ uint32_t odd(int i) const {
    return uint32_t(reinterpret_cast<uint64_t>(w) + begin + uint64_t(i) * stride) & 15;
  }
  // The multiple of 16 at or before row i.
  __device__ const uint8_t* chunks(int i) const { return w + int64_t(i) * stride + begin - odd(i); }

  // Asks L2 for the chunks of 16 bytes that lie in W.
  __device__ void prefetch(int i) const {
    if (i >= rows) return;
    const uint32_t first = i == 0 && begin == 0 && odd(i) > 0 ? 16 : 0, end = (odd(i) + bytes) / 16 * 16;
    if (end > first) prefetch_l2(chunks(i) + first, end - first, evict_first);
  }

  // Loads row i to the place `to` of its first chunk. A row that does not exist arrives without bytes. Nothing before W
  // and nothing behind W is read.
  __device__ void load(int i, uint32_t to, uint32_t barrier) const {
    const uint8_t* const from = chunks(i);
    const uint32_t before = odd(i), behind = before + bytes;
    uint32_t first = 0, end = i < rows ? (behind + 15) / 16 * 16 : 0;
    if (i == 0 && begin == 0 && before > 0) {
      first = 16;
#pragma unroll 1
      for (uint32_t at = before; at < 16; at++) store_shared_8(to + at, from[at]);
    }
    if (i == rows - 1 && end > behind) {
      end -= 16;
#pragma unroll 1
      for (uint32_t at = max(end, before); at < behind; at++) store_shared_8(to + at, from[at]);
    }
    const uint32_t copied = end > first ? end - first : 0;
    mbarrier_arrive_expect(barrier, copied);
    if (copied == 0) return;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
            "r"(to + first),
        "l"(from + first), "r"(copied), "r"(barrier), "l"(evict_first)
        : "memory");
  }
};

// A block has `units` times 16 rows of W, and a part of K.
template <class S, class T>
__global__ void __launch_bounds__(S::threads, 1)
    gguf_gemv_bulk(const __grid_constant__ tg_gemm_args args, int units, int stages,
                   const __grid_constant__ GatingEpilogue<T, float> epilogue) {
  using Row = typename S::Row;
  extern __shared__ __align__(16) uint8_t shared[];
  const int warps = blockDim.x / 32 - 1, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32,
            g = lane / 4, t = lane % 4;
  const int first = blockIdx.x * units, last = min(first + units, int(ceil_div(args.n, gguf::rows_of_warp)));
  const int first_span = blockIdx.y * warps, span = first_span + warp, stage_bytes = S::stage_bytes(warps);
  const uint32_t full = uint32_t(__cvta_generic_to_shared(shared)) + S::barriers_at(warps),
                 empty = full + 8 * S::most_stages;
  const uint32_t taken = empty + 8 * S::most_stages;  // barrier: all warps have their activations
  const PartOfRows<S::format> rows(args, first_span, warps);
  if (threadIdx.x == 32 * warps) {
    init_ring(full, empty, stages, warps, gguf::rows_of_warp);
    mbarrier_init(taken, warps);
    fence_mbarrier_init();
  }
  __syncthreads();

  if (warp == warps) {
    const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)) + S::ring_at(warps) + lane * S::pitch(warps);
    const bool has_row = lane < gguf::rows_of_warp;
    int row = first * gguf::rows_of_warp + lane;
    if (has_row) rows.prefetch(row);
    if (has_row && first + 1 < last) rows.prefetch(row + gguf::rows_of_warp);
    wait_at_start(args);
    launch_dependents();
    Stage at = Stage::to_fill();
    for (int unit = first; unit < last; unit++, row += gguf::rows_of_warp) {
      // Behind the second unit, the activations would arrive late.
      if (unit == first + 1) mbarrier_wait_warp(taken, 0);
      at.wait_warp(empty);
      if (has_row) rows.load(row, ring + at.s * stage_bytes, full + 8 * at.s);
      at.advance(stages);
    }
    wait_at_end(args);
    return;
  }

  wait_at_start(args);
  launch_dependents();
  gguf::Span<S> of_x(shared, warp, warps);
  const T* const from = static_cast<const T*>(args.a.ptr) + g * args.a.row_stride + span * gguf::span + 4 * t;
  of_x.take(0, gguf::Activations<S, T>(from, g < args.m ? int(args.k) - span * gguf::span : 0), g, t);
  if (lane == 0) mbarrier_arrive(taken);

  const gguf::Sums<S> all(shared, warps);
  // The last warps of the last part of K may have no span.
  const bool has_span = span * gguf::span < args.k;
  const int existing = has_span ? min(S::scales, int(args.k - int64_t(span) * gguf::span) / Row::scaled) : 0;
  const auto place = [&](int i) { return i * S::pitch(warps) + int(rows.odd(i)); };
  const int places[2] = {place(g), place(g + 8)}, place_of_factors = place(lane / 2);
  const uint8_t* const ring = shared + S::ring_at(warps) + warp * Row::bytes;
  Stage at = Stage::to_read();
  int batch = 0, parity = 0;
  for (int unit = first; unit < last; unit++) {
    float total[1][4] = {};  // (MMA_N,MMA), of D^T
    at.wait_warp(full);
    if (has_span) of_x.times(ring + at.s * stage_bytes, places, place_of_factors, existing, total, lane);
    __syncwarp();  // all lanes have read the stage and the factors
    release_stage(empty, at.s, lane, false, 1);
    at.advance(stages);
    all.put(total, parity, batch, warp, lane);

    if (++batch < S::batch && unit + 1 < last) continue;
    bar_sync(1, 32 * warps);
    store_sums(args, all, epilogue, parity, batch, unit + 1 - batch, 0);
    batch = 0, parity ^= 1;
  }
  bar_sync(1, 32 * warps);
  repair(args, all, epilogue, first, last, 0, first_span);
}

}  // namespace
}  // namespace tilegemm
