// Few tokens after many positions: the keys of a tile are parted over blocks, whose sums are combined in order.
#pragma once
#include "layer/prefill.hpp"

namespace tilegemm {
namespace {

// A part has at least so many blocks of keys.
constexpr int least_blocks = 4, most_parts = 32;

inline int64_t bytes_of_parts(const tg_prefill_args& args, int64_t parts) {
  return parts > 1 ? parts * args.tokens * args.heads * (args.head + 2) * 4 : 0;
}

// Parts of the keys that fill the device with tiles of `rows` rows and blocks of `keys` keys.
inline int parts_of(const tg_prefill_args& args, const Work& w, int rows, int keys, int cluster) {
  const int64_t tiles = int64_t(w.total) * cluster;
  if (tiles * 2 > args.sm_count) return 1;
  int64_t least = INT_MAX;  // blocks of a tile
  for (int64_t first = 0; first < args.tokens; first += rows) {
    const int64_t last = std::min(first + rows, args.tokens) - 1;
    const int64_t end = ceil_div(w.causal ? args.past + last + 1 : int64_t(w.length), keys);
    const int64_t begin = w.window ? std::max(int64_t(0), args.past + first - w.window + 1) / keys : 0;
    least = std::min(least, end - begin);
  }
  return int(std::max(int64_t(1), std::min({args.sm_count / tiles, least / least_blocks, int64_t(most_parts)})));
}

// A warp for each row of a head.
template <class T>
__global__ void __launch_bounds__(128) layer_prefill_combine(const __grid_constant__ Work w, int heads, int width) {
  const int64_t rows = int64_t(w.tokens) * heads, row = blockIdx.x * int64_t(4) + threadIdx.x / 32;
  griddepcontrol_wait();
  if (row >= rows) return;
  float high = -INFINITY;
  for (int p = 0; p < w.parts; p++) high = larger(high, w.rows[p * rows + row].x);
  const float base = high == -INFINITY ? 0.0f : high * w.scale;
  float sum = 0;
  for (int p = 0; p < w.parts; p++) {
    const float2 x = w.rows[p * rows + row];
    sum = fmaf(x.y, exp2_approx(fmaf(x.x, w.scale, -base)), sum);
  }
  sum += sink_weight(w.sinks, int(row % heads), base);
  const float inverse = sum == 0 ? 0.0f : 1.0f / sum;
  T* const to = static_cast<T*>(w.o) + row / heads * w.o_row + row % heads * w.o_head;
  for (int d = 2 * int(threadIdx.x % 32); d < width; d += 64) {
    float2 all = {0, 0};
    for (int p = 0; p < w.parts; p++) {
      const float weight = exp2_approx(fmaf(w.rows[p * rows + row].x, w.scale, -base));
      const float2 x = *reinterpret_cast<const float2*>(w.values + (p * rows + row) * width + d);
      all.x = fmaf(x.x, weight, all.x), all.y = fmaf(x.y, weight, all.y);
    }
    *reinterpret_cast<uint32_t*>(to + d) = pack<T>(all.x * inverse, all.y * inverse);
  }
}

struct CombineConfig {
  static constexpr int threads = 128, shared_bytes = 0;
};

template <class T>
tg_status combine_parts(const tg_prefill_args& args, const Work& w) {
  const int64_t blocks = ceil_div(args.tokens * args.heads, 4);
  return launch_blocks<CombineConfig>(args, int(blocks), 1, true, layer_prefill_combine<T>, w, int(args.heads),
                                      int(args.head));
}

}  // namespace
}  // namespace tilegemm
