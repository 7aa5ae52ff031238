// Rows of activations times the weights of a GGUF file by wgmma: the shape of a block, and the warps that multiply.
//
// W is on wgmma's M side (swap AB), from registers: a warp group has 64 rows of W, and rows of A are columns of wgmma.
#pragma once
#include <type_traits>

#include "common/pipeline.hpp"
#include "common/wgmma.hpp"
#include "gguf/values.hpp"

namespace tilegemm::gguf {
namespace {

// `WIDTH`: the most rows of A of a tile; `BESIDE`: bytes of shared memory for other purposes.
template <tg_format F, int WIDTH, int BESIDE = 0>
struct WgmmaShape {
  using Values = gguf::Values<F>;
  using Row = gguf::Row<F>;
  static constexpr tg_format format = F;
  // With few rows of A, each of which takes little shared memory, many small blocks hide the latencies of each other.
  static constexpr int width = WIDTH, height = width > 16 ? 128 : 64, warps = height / rows_of_warp,
                       threads = 32 * warps + 128;
  static constexpr int blocks = width > 64 ? 1 : width > 16 ? 2 : Row::bytes > 192 ? 3 : 4;  // of a multiprocessor
  // Registers of a thread at the launch, of a thread that loads, and of a thread that multiplies: the last gets no more
  // than the others leave, or it waits forever.
  static constexpr int at_launch = 65536 / (blocks * threads) / 8 * 8, of_loads = 24;
  static constexpr int registers_beside(int loads) {
    return (at_launch * threads - loads * 128) / (32 * warps) / 8 * 8;
  }
  static constexpr int registers = registers_beside(of_loads);
  static_assert(registers <= 240);
  static constexpr int depth = 64, x_bytes = width * depth * 2;  // of a stage
  static constexpr int limit = (228 / blocks - 1) * 1024 - BESIDE;
  static constexpr int barriers_bytes = 8 * 2 * 16;
  static constexpr int least_x = width > 128 ? 3 : width == 64 ? 2 : 4;
  static constexpr int w_stages_in(int bytes) {
    const int stages = bytes / (warps * RingShape<F, 1>::ring_bytes);
    return stages < 4 ? stages : 4;
  }
  using Factors = gguf::Factors<Row>;
  static constexpr int factors_bytes = (warps * Factors::bytes + 1023) / 1024 * 1024;
  static constexpr int w_stages = w_stages_in(limit - 1024 - barriers_bytes - factors_bytes - least_x * x_bytes);
  using Ring = RingShape<F, w_stages>;
  static constexpr int w_bytes = (warps * Ring::ring_bytes + Ring::bytes_behind + 1023) / 1024 * 1024;
  static constexpr int room = (limit - 1024 - barriers_bytes - factors_bytes - w_bytes) / x_bytes,
                       x_stages = room < 8 ? room : 8;
  static constexpr int shared_bytes = x_stages * x_bytes + w_bytes + factors_bytes + barriers_bytes;
  static_assert(w_stages >= 2 && x_stages >= 2 && shared_bytes <= limit);
};

// Addresses in shared memory: the ring of activations, its barriers, and a barrier for sums of other blocks.
struct XRing {
  uint32_t stages, full, empty, sums;

  template <class S>
  __device__ static XRing of(uint8_t* shared, S) {
    const uint32_t stages = uint32_t(__cvta_generic_to_shared(shared)),
                   full = stages + S::x_stages * S::x_bytes + S::w_bytes + S::factors_bytes;
    return {stages, full, full + 8 * S::x_stages, full + 16 * S::x_stages};
  }
};

// W in bf16. A span that K has a part of has zeros behind, in the factors of W and in the activations.
template <class S>
struct Bf16Weights {
  using Row = typename S::Row;
  using Values = typename S::Values;
  using Number = __nv_bfloat16;
  using Factor = float2;

  // Fills the table of factors for a span, of whose numbers `left` are left in K.
  template <int width>
  __device__ __forceinline__ void begin(const typename S::Factors& factors, const Row& row, int lane, int left,
                                        float (&)[width / 2]) const {
    factors.fill(row, lane, left / Row::scaled,
                 [](float factor, float min) { return Values::factors_of(factor, min); });
    __syncwarp();
  }

  // A lane's share of a row: the two registers of a step.
  __device__ static void convert(const Row& row, int s, int t, Factor factor, uint32_t& first, uint32_t& second) {
    Values::convert(row, s, t, factor.x, factor.y, first, second);
  }

  template <int width>
  __device__ __forceinline__ void end(int, float (&)[width / 2]) const {}
};

// A warp that multiplies: 16 rows of W of the 64 of its warp group. `Weights`: the numbers of 16 bits that blocks
// become, as Bf16Weights.
template <class S, template <class> class Weights = Bf16Weights>
struct Multiplier {
  using Row = typename S::Row;
  static constexpr int group = 4;  // steps that wgmma gets at a time
  static_assert(group * gguf::step == S::depth);

  XRing x;
  int warp, lane;
  uint8_t* ring_of_warp;
  typename S::Factors factors;
  Stage at = Stage::to_read();  // the stage to read; the stage before is not released

  __device__ Multiplier(uint8_t* shared, int warp, int lane)
      : x(XRing::of(shared, S{})), warp(warp), lane(lane),
        ring_of_warp(shared + S::x_stages * S::x_bytes + warp * S::Ring::ring_bytes),
        factors{reinterpret_cast<float2*>(shared + S::x_stages * S::x_bytes + S::w_bytes + warp * S::Factors::bytes)} {}

  // Starts the loads of the first spans from `begin` on.
  __device__ __forceinline__ void start(Ring<typename S::Ring>& ring, int begin, int end) const {
#pragma unroll
    for (int i = 0; i < S::w_stages - 1; i++) {
      if (begin + i < end) ring.load(i);
      copy_async_commit();
    }
    if (begin == 0) ring.load_front(0);
  }

  // Releases the stage before.
  __device__ __forceinline__ void release() const {
    if (lane == 0) mbarrier_arrive(x.empty + 8 * (at.s == 0 ? S::x_stages - 1 : at.s - 1));
  }

  // Multiplies by the spans from `begin` to `end` - 1, whose loads have started. The last stage of activations is not
  // released.
  template <int width>
  __device__ __forceinline__ void multiply(float (&sum)[width / 2], Ring<typename S::Ring>& ring, int k, int begin,
                                           int end) {
    using Number = typename Weights<S>::Number;
    using Factor = typename Weights<S>::Factor;
    const int g = lane / 4, t = lane % 4;
    Weights<S> weights;
    wgmma_zero(sum);
    int stage = 0, free = S::w_stages - 1;
    for (int span = begin; span < end; span++) {
      if (span + S::w_stages - 1 < end) ring.load(free);
      copy_async_commit();
      copy_async_wait<S::w_stages - 1>();
      __syncwarp();
      const uint8_t* const arrived = ring_of_warp + stage * S::Ring::stage_bytes;
      const auto line = [&](int i) { return arrived + i * S::Ring::pitch + ring.odd_bytes(i, span); };
      const auto row = [&](int i) { return Row(line(i)); };
      const Row rows[2] = {row(g), row(g + 8)};
      weights.template begin<width>(factors, row(lane / 2), lane, k - span * gguf::span, sum);
      Factor of_row[2];
      // Two groups of steps: one in flight, and the next.
      uint32_t a[2][group][4];  // (PIPE,MMA_K,MMA), of W
      const auto convert = [&](int first) {
        constexpr int steps_of_scale = Row::scaled / gguf::step;
#pragma unroll
        for (int s = first; s < first + group; s++) {
          uint32_t (&to)[4] = a[first / group % 2][s - first];
#pragma unroll
          for (int r = 0; r < 2; r++) {
            if (s % steps_of_scale == 0) of_row[r] = factors.template at<Factor>(g + 8 * r, s / steps_of_scale);
            Weights<S>::convert(rows[r], s, t, of_row[r], to[r], to[2 + r]);
          }
        }
      };
      convert(0);
#pragma unroll
      for (int s = 0; s < gguf::steps; s += group) {
        // The group of steps from s on lies in one stage. All groups but the last are done then.
        at.wait_warp(x.full);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < group; i++)
          wgmma<Number, width>(sum, a[s / group % 2][i], wgmma_descriptor(x.stages + at.s * S::x_bytes) + i * 2);
        wgmma_commit_and_wait<1>();
        if (!(s == 0 && span == begin)) release();
        at.advance(S::x_stages);
        if (s + group < gguf::steps) convert(s + group);
      }
      __syncwarp();
      if (++stage == S::w_stages) stage = 0;
      if (++free == S::w_stages) free = 0;
    }
    wgmma_wait();
    wgmma_pin(sum);
    weights.template end<width>(lane, sum);
  }
};

}  // namespace
}  // namespace tilegemm::gguf
