// qk-norm, rope, and the way of K and V into the cache: a warp for a head of a token.
//
// A lane has `width` pairs of a head: numbers p and p + head / 2 (halves), or 2p and 2p + 1 (interleaved). A warp goes
// through `heads_each` heads of its token with the same sines and cosines.
#include <cuda_fp8.h>

#include <type_traits>

#include "layer/launch.hpp"

namespace tilegemm {
namespace {

constexpr int all = ~0;

struct Append {
  const char* qkv;
  char* q_out;
  char *k, *v;
  float *k_scale, *v_scale;
  const int32_t *positions, *slots;
  const float *inv_freq, *cos, *sin;
  const char *q_norm, *k_norm;
  int64_t qkv_stride, q_stride, slot_stride, head_stride, row_stride, scale_slot_stride, scale_head_stride;
  int tokens, heads, kv_heads, table_rows, slots_count, capacity, heads_each, warps_each;
  float eps;
  tg_rope rope;
};

template <class T, int count> struct alignas(sizeof(T) * count) Few {
  T x[count];
};

// The pairs of one lane. Pair i is (x[i], y[i]).
template <int width>
struct Pairs {
  float x[width], y[width];

  template <class T>
  __device__ void load(const T* row, int lane, int half, bool interleaved) {
    if (interleaved) {
      const auto both = *reinterpret_cast<const Few<T, 2 * width>*>(row + 2 * width * lane);
#pragma unroll
      for (int i = 0; i < width; i++) x[i] = to_float(both.x[2 * i]), y[i] = to_float(both.x[2 * i + 1]);
    } else {
      const auto low = *reinterpret_cast<const Few<T, width>*>(row + width * lane);
      const auto high = *reinterpret_cast<const Few<T, width>*>(row + half + width * lane);
#pragma unroll
      for (int i = 0; i < width; i++) x[i] = to_float(low.x[i]), y[i] = to_float(high.x[i]);
    }
  }
  template <class T, class Round>
  __device__ void store(T* row, int lane, int half, bool interleaved, Round round) const {
    if (interleaved) {
      Few<T, 2 * width> both;
#pragma unroll
      for (int i = 0; i < width; i++) both.x[2 * i] = round(x[i]), both.x[2 * i + 1] = round(y[i]);
      *reinterpret_cast<Few<T, 2 * width>*>(row + 2 * width * lane) = both;
    } else {
      Few<T, width> low, high;
#pragma unroll
      for (int i = 0; i < width; i++) low.x[i] = round(x[i]), high.x[i] = round(y[i]);
      *reinterpret_cast<Few<T, width>*>(row + width * lane) = low;
      *reinterpret_cast<Few<T, width>*>(row + half + width * lane) = high;
    }
  }
};

template <class T, int head, bool fp8>
__global__ __launch_bounds__(128) void layer_append(const __grid_constant__ Append a) {
  constexpr int width = head == 64 ? 1 : head == 256 ? 4 : 2, half = head / 2, lanes = half / width;
  griddepcontrol_wait();
  launch_dependents();
  const int lane = threadIdx.x % 32, warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
  const int token = warp / a.warps_each;
  if (token >= a.tokens) return;
  const bool works = lane < lanes, interleaved = a.rope == TG_ROPE_INTERLEAVED;
  const int every = a.heads + 2 * a.kv_heads;
  const int first = (warp - token * a.warps_each) * a.heads_each, end = min(first + a.heads_each, every);
  const T* row = reinterpret_cast<const T*>(a.qkv) + token * a.qkv_stride;
  const int position = a.positions[token], slot = a.slots ? a.slots[token] : token;
  const bool appends = slot >= 0 && slot < a.slots_count && position >= 0 && position < a.capacity;

  Pairs<width> next;
  if (works) next.load(row + first * head, lane, half, interleaved);
  float2 turns[width];
  if (a.rope != TG_ROPE_NONE && first < a.heads + a.kv_heads && works) {
    const bool in_table = a.cos && position >= 0 && position < a.table_rows;
#pragma unroll
    for (int i = 0; i < width; i++) {
      const int p = width * lane + i;
      if (in_table) turns[i] = make_float2(a.cos[int64_t(position) * half + p], a.sin[int64_t(position) * half + p]);
      else if (a.inv_freq) turns[i] = turn_of(position, a.inv_freq[p]);
      else turns[i] = make_float2(NAN, NAN);  // neither in the table nor computed
    }
  }
  for (int h = first; h < end; h++) {
    Pairs<width> now = next;
    if (works && h + 1 < end) next.load(row + (h + 1) * head, lane, half, interleaved);
    const bool is_q = h < a.heads, is_v = h >= a.heads + a.kv_heads;
    const char* weights = is_q ? a.q_norm : a.k_norm;
    if (!is_v && weights) {
      float squares = 0;
      if (works) {
#pragma unroll
        for (int i = 0; i < width; i++) squares += now.x[i] * now.x[i] + now.y[i] * now.y[i];
      }
#pragma unroll
      for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(all, squares, d);
      const float factor = rsqrtf(squares / head + a.eps);
      if (works) {
        Pairs<width> w;
        w.load(reinterpret_cast<const T*>(weights), lane, half, interleaved);
#pragma unroll
        for (int i = 0; i < width; i++) now.x[i] *= factor * w.x[i], now.y[i] *= factor * w.y[i];
      }
    }
    if (!is_v && a.rope != TG_ROPE_NONE) {
#pragma unroll
      for (int i = 0; i < width; i++) rotate(now.x[i], now.y[i], turns[i]);
    }
    if (is_q) {
      T* to = reinterpret_cast<T*>(a.q_out) + token * a.q_stride + h * head;
      if (works) now.store(to, lane, half, interleaved, from_float<T>);
      continue;
    }
    if (!appends) continue;
    const int kv = is_v ? h - a.heads - a.kv_heads : h - a.heads;
    const int64_t at = slot * a.slot_stride + kv * a.head_stride + position * a.row_stride;
    char* const cache = is_v ? a.v : a.k;
    if constexpr (fp8) {
      // Bits of magnitudes are ordered as their numbers, NaN above all.
      uint32_t largest = 0;
      if (works) {
#pragma unroll
        for (int i = 0; i < width; i++) {
          largest = max(largest, __float_as_uint(now.x[i]) & 0x7fffffff);
          largest = max(largest, __float_as_uint(now.y[i]) & 0x7fffffff);
        }
      }
      largest = __reduce_max_sync(all, largest);
      const float scale = largest >= 0x7f800000 ? NAN : __uint_as_float(largest) * (1.0f / 448);
      // A row of subnormal numbers counts as zeros.
      const float inverse = scale >= 1e-37f ? 1 / scale : 0;
      if (works) {
        now.store(reinterpret_cast<__nv_fp8_e4m3*>(cache) + at, lane, half, interleaved,
                  [inverse](float x) { return __nv_fp8_e4m3(inverse == 0 ? 0.0f : x * inverse); });
      }
      float* const scales = is_v ? a.v_scale : a.k_scale;
      if (lane == 0) scales[slot * a.scale_slot_stride + kv * a.scale_head_stride + position] = scale;
    } else {
      if (works) now.store(reinterpret_cast<T*>(cache) + at, lane, half, interleaved, from_float<T>);
    }
  }
}

// A thread makes 16 numbers of a row of K, or (block z) of V.
template <class T>
__global__ __launch_bounds__(128) void layer_widen(const __grid_constant__ tg_widen a) {
  griddepcontrol_wait();
  launch_dependents();
  const tg_cache& c = a.cache;
  const int pieces = c.head / 16, at = blockIdx.x * 128 + threadIdx.x, row = at / pieces, kv = blockIdx.y;
  if (row >= a.rows) return;
  const bool is_v = blockIdx.z == 1;
  const char* const from = static_cast<const char*>(is_v ? c.v : c.k) + a.slot * c.slot_stride + kv * c.head_stride +
                           row * c.row_stride + 16 * (at - row * pieces);
  const int64_t scales = a.slot * c.scale_slot_stride + kv * c.scale_head_stride + row;
  const float scale = is_v ? c.v_scale[scales] : c.k_scale[scales];
  const uint4 in = *reinterpret_cast<const uint4*>(from);
  const auto* const numbers = reinterpret_cast<const __nv_fp8_e4m3*>(&in);
  Few<T, 8> low, high;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    low.x[i] = from_float<T>(float(numbers[i]) * scale), high.x[i] = from_float<T>(float(numbers[i + 8]) * scale);
  }
  auto* const to = static_cast<Few<T, 8>*>(is_v ? a.v : a.k) + 2 * (int64_t(kv) * a.rows * pieces + at);
  to[0] = low, to[1] = high;
}

template <class T, bool fp8>
tg_status run(const Append& a, int head, const tg_launch& launch) {
  const int64_t blocks = (int64_t(a.tokens) * a.warps_each + 3) / 4;
  if (blocks > 0x7fffffff) return TG_UNSUPPORTED;
  const dim3 grid{unsigned(blocks)};
  switch (head) {
    case 64: return start(launch, grid, 128, 0, 1, layer_append<T, 64, fp8>, a);
    case 96: return start(launch, grid, 128, 0, 1, layer_append<T, 96, fp8>, a);
    case 128: return start(launch, grid, 128, 0, 1, layer_append<T, 128, fp8>, a);
    default: return start(launch, grid, 128, 0, 1, layer_append<T, 256, fp8>, a);
  }
}

}  // namespace
}  // namespace tilegemm

extern "C" tg_status tg_append_launch(const tg_append* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_append& x = *args;
  const tg_cache& y = x.cache;
  const bool fp8 = y.format == TG_F8E4M3;
  if (x.tokens < 0 || x.heads < 0 || y.kv_heads < 0 || x.heads + y.kv_heads == 0) return TG_UNSUPPORTED;
  if (y.head != 64 && y.head != 96 && y.head != 128 && y.head != 256) return TG_UNSUPPORTED;
  if ((x.format != TG_F16 && x.format != TG_BF16) || (y.format != x.format && !fp8)) return TG_UNSUPPORTED;
  const int unit = fp8 ? 16 : 8;
  if (x.qkv_stride % 8 || (x.q_out && x.q_stride % 8) || y.slot_stride % unit || y.head_stride % unit ||
      y.row_stride % unit || !at_multiple(x.qkv, 16) || !at_multiple(x.q_out, 16) || !at_multiple(y.k, 16) ||
      !at_multiple(y.v, 16) || !at_multiple(x.q_norm, 16) || !at_multiple(x.k_norm, 16)) {
    return TG_UNSUPPORTED;
  }
  if (fp8 && (!y.k_scale || !y.v_scale)) return TG_UNSUPPORTED;
  if (x.rope != TG_ROPE_NONE && !x.inv_freq && !(x.cos && x.sin)) return TG_UNSUPPORTED;
  if (!x.cos != !x.sin) return TG_UNSUPPORTED;
  if (x.tokens == 0) return TG_OK;
  Append a{};
  a.qkv = static_cast<const char*>(x.qkv);
  a.q_out = static_cast<char*>(x.q_out ? x.q_out : const_cast<void*>(x.qkv));
  a.q_stride = x.q_out ? x.q_stride : x.qkv_stride, a.qkv_stride = x.qkv_stride;
  a.k = static_cast<char*>(y.k), a.v = static_cast<char*>(y.v), a.k_scale = y.k_scale, a.v_scale = y.v_scale;
  a.positions = x.positions, a.slots = x.slots, a.inv_freq = x.inv_freq, a.cos = x.cos, a.sin = x.sin;
  a.q_norm = static_cast<const char*>(x.q_norm), a.k_norm = static_cast<const char*>(x.k_norm);
  a.slot_stride = y.slot_stride, a.head_stride = y.head_stride, a.row_stride = y.row_stride;
  a.scale_slot_stride = y.scale_slot_stride, a.scale_head_stride = y.scale_head_stride;
  a.tokens = x.tokens, a.heads = x.heads, a.kv_heads = y.kv_heads, a.table_rows = x.table_rows;
  a.slots_count = y.slots, a.capacity = y.capacity, a.eps = x.eps, a.rope = x.rope;
  const int every = a.heads + 2 * a.kv_heads;
  // One head a warp until warps abound.
  a.heads_each = int64_t(a.tokens) * every >= 16384 ? 8 : int64_t(a.tokens) * every >= 4096 ? 2 : 1;
  a.warps_each = (every + a.heads_each - 1) / a.heads_each;
  if (x.format == TG_F16) return fp8 ? run<__half, true>(a, y.head, *launch) : run<__half, false>(a, y.head, *launch);
  return fp8 ? run<__nv_bfloat16, true>(a, y.head, *launch) : run<__nv_bfloat16, false>(a, y.head, *launch);
}

extern "C" tg_status tg_widen_launch(const tg_widen* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_widen& x = *args;
  const tg_cache& y = x.cache;
  if (y.head != 64 && y.head != 96 && y.head != 128 && y.head != 256) return TG_UNSUPPORTED;
  if (y.format != TG_F8E4M3 || !y.k_scale || !y.v_scale) return TG_UNSUPPORTED;
  if (x.slot < 0 || x.slot >= y.slots || x.rows < 0 || x.rows > y.capacity) return TG_UNSUPPORTED;
  if (y.slot_stride % 16 || y.head_stride % 16 || y.row_stride % 16 || !at_multiple(y.k, 16) || !at_multiple(y.v, 16) ||
      !at_multiple(x.k, 16) || !at_multiple(x.v, 16)) {
    return TG_UNSUPPORTED;
  }
  const int64_t blocks = (int64_t(x.rows) * (y.head / 16) + 127) / 128;
  if (blocks > 0xffffff || y.kv_heads > 0xffff) return TG_UNSUPPORTED;
  if (blocks == 0 || y.kv_heads <= 0) return TG_OK;
  const dim3 grid(unsigned(blocks), unsigned(y.kv_heads), 2);
  if (x.format == TG_F16) return start(*launch, grid, 128, 0, 1, layer_widen<__half>, x);
  if (x.format == TG_BF16) return start(*launch, grid, 128, 0, 1, layer_widen<__nv_bfloat16>, x);
  return TG_UNSUPPORTED;
}

extern "C" tg_status tg_load_layer_append() { return tilegemm::load_own_module(); }
