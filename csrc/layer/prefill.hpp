// What the kernels of prefill attention share: tiles, masks, and the softmax.
#pragma once
#include <algorithm>
#include <climits>
#include <type_traits>

#include "common/launch.hpp"
#include "common/ptx.hpp"
#include "layer/layer.h"

namespace tilegemm {
namespace {

struct Work {
  int tokens, heads, ratio, past, length, window;  // heads: or clusters of heads; ratio: of them to heads of K
  bool causal, taken;                              // taken: tiles are taken from `counter`
  int tiles_m, total;                              // tiles along the tokens; of all heads
  int section;                                     // heads whose K and V stay in L2 together
  float scale;                                     // times log2(e)
  int never;                                       // -1, unknown to the compiler
  uint32_t* counter;
  void* o;
  int64_t o_row, o_head;  // strides
  const float* sinks;     // of all heads, or null
  int parts;              // of the keys of a tile; with more than one, their sums go to:
  float* values;          // (parts,tokens,heads,head)
  float2* rows;           // (parts,tokens,heads): the largest score, the sum of weights
};

constexpr double log2_e = 1.4426950408889634;

// K and V of so many bytes stay in L2 beside Q and O.
constexpr int64_t resident_bytes = 16 << 20;

// Tiles of `rows` rows of `heads` heads. False: they are too many.
inline bool work_of(const tg_prefill_args& args, int rows, Work* work, int heads = 1) {
  Work w{};
  const int64_t tiles_m = ceil_div(args.tokens, rows), units = args.heads / heads, total = tiles_m * units,
                length = args.past + args.tokens;
  w.tokens = int(args.tokens), w.heads = int(units), w.ratio = int(units / args.kv_heads);
  w.past = int(args.past), w.length = int(length), w.window = args.window < length ? int(args.window) : 0;
  w.causal = args.causal != 0, w.tiles_m = int(tiles_m), w.total = int(total);
  const int64_t kept = std::max(resident_bytes / (length * args.head * 4), int64_t(1));
  w.section = int(std::min(kept * w.ratio, units));
  w.parts = 1, w.never = -1, w.scale = float(double(args.scale) * log2_e);
  w.o = args.o, w.o_row = args.o_row_stride, w.o_head = args.o_head_stride, w.sinks = args.sinks;
  *work = w;
  return total <= INT_MAX / 2;
}

// Launches blocks of C::threads threads, in clusters.
template <class C, class... Parameters>
tg_status launch_blocks(const tg_prefill_args& args, int blocks, int cluster, bool overlap,
                        void (*kernel)(Parameters...), const Parameters&... parameters) {
  if (const cudaError_t error = allow_shared_memory<C>(kernel, C::shared_bytes)) return cuda_status(error);
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(blocks)), config.blockDim = dim3(C::threads);
  config.dynamicSmemBytes = C::shared_bytes, config.stream = cudaStream_t(args.stream);
  config.attrs = attributes;
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs++].val.clusterDim = {unsigned(cluster), 1, 1};
  }
  if (overlap) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  void* list[] = {const_cast<void*>(static_cast<const void*>(&parameters))...};
  return cuda_status(cudaLaunchKernelExC(&config, reinterpret_cast<const void*>(kernel), list));
}

struct Tile {
  int head, first;  // row
  int begin, end;   // blocks of keys
  int part;
};

// Tile i: the longest first, heads with the same K and V beside each other.
template <int rows, int keys, bool parted = true>
__device__ __forceinline__ Tile tile_at(const Work& w, int i) {
  const bool parts = parted && w.parts > 1;
  const int part = parts ? i % w.parts : 0;
  if (parts) i /= w.parts;
  const int of_section = w.tiles_m * w.section, section = i / of_section, at = i - section * of_section;
  const int first_head = section * w.section, heads = min(w.section, w.heads - first_head);
  const int m = at / heads;
  Tile t;
  t.head = first_head + at - m * heads;
  t.first = (w.tiles_m - 1 - m) * rows;
  const int last = min(t.first + rows, w.tokens) - 1, sees = w.causal ? w.past + last + 1 : w.length;
  t.end = (sees + keys - 1) / keys;
  t.begin = w.window ? max(0, w.past + t.first - w.window + 1) / keys : 0;
  t.part = part;
  if (parts) {
    const int begin = t.begin, count = t.end - begin;
    t.begin = begin + count * part / w.parts, t.end = begin + count * (part + 1) / w.parts;
  }
  return t;
}

// Whether some of `rows` rows from position `at` on do not see some of `keys` keys from key `from` on.
__device__ __forceinline__ bool is_masked(const Work& w, int at, int rows, int from, int keys) {
  const int seen = w.causal ? min(at, w.length - 1) : w.length - 1;  // by all rows
  return from + keys - 1 > seen || (w.window && from <= at + rows - 1 - w.window);
}

// Scores of keys that a row does not see become -inf. `at`: the position of the lane's first row of two, `from`: of the
// block's first key.
template <int size>
__device__ __forceinline__ void mask(const Work& w, float (&s)[size], int at, int from) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    const int position = at + 8 * r, lane_from = from + 2 * int(threadIdx.x % 4);
    const int last = (w.causal ? min(position, w.length - 1) : w.length - 1) - lane_from;
    const int first = (w.window ? position - w.window + 1 : 0) - lane_from;
#pragma unroll
    for (int j = 0; j < size / 4; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float& x = s[4 * j + 2 * r + e];
        if (8 * j + e > last || 8 * j + e < first) x = -INFINITY;
      }
    }
  }
}

// Four matrices of 8 x 8 numbers; lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void ldmatrix(uint32_t (&x)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
               : "r"(from)
               : "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// The same on the FMA units, for x from -inf to a little above 0, within 1e-4 of the value: 2^n times a polynomial.
__device__ __forceinline__ float exp2_polynomial(float x) {
  const float at = fmaxf(x, -127.0f), shifted = at + 12582912.0f;  // whose low bits are n
  const float f = at - (shifted - 12582912.0f);                    // -0.5 to 0.5
  const float y = fmaf(fmaf(fmaf(0.05500901f, f, 0.24221115f), f, 0.69328294f), f, 1.0f);
  return __int_as_float(__float_as_int(y) + (__float_as_int(shifted) << 23));
}
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  uint32_t both;
  if constexpr (std::is_same_v<T, __half>) asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  else asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}

template <int size>
__device__ __forceinline__ void multiply_rows(float (&x)[size], const float (&factor)[2]) {
#pragma unroll
  for (int j = 0; j < size; j++) x[j] *= factor[j >> 1 & 1];
}

// The larger number; NaN if there is one.
__device__ __forceinline__ float larger(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

// The weight of a head's sink, in a sum whose weights are over `base` in powers of two. It multiplies no V.
__device__ __forceinline__ float sink_weight(const float* sinks, int head, float base) {
  return sinks ? exp2_approx(fmaf(__ldg(sinks + head), float(log2_e), -base)) : 0.0f;
}

// The softmax of a lane's two rows, g and g + 8 of the warp's 16.
struct Softmax {
  float high[2], sum[2];  // the largest score so far; the lane's share of the sum of weights

  __device__ __forceinline__ void start() { high[0] = high[1] = -INFINITY, sum[0] = sum[1] = 0; }

  // Turns scores into weights. `factor`: what older weights are to be multiplied by. `polynomials`: how many of eight
  // weights the FMA units compute.
  template <int polynomials = 0, int size>
  __device__ __forceinline__ void weigh(float (&s)[size], float (&factor)[2], float scale) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
      float top[2] = {s[2 * r], s[2 * r + 1]};
#pragma unroll
      for (int j = 4; j < size; j += 4) {
        top[0] = larger(top[0], s[j + 2 * r]), top[1] = larger(top[1], s[j + 2 * r + 1]);
      }
      float now = larger(top[0], top[1]);
      now = larger(now, __shfl_xor_sync(~0u, now, 1));
      now = larger(high[r], larger(now, __shfl_xor_sync(~0u, now, 2)));
      const float base = now == -INFINITY ? 0.0f : now * scale;  // no key yet: all weights are 0
      factor[r] = exp2_approx(fmaf(high[r], scale, -base));
      high[r] = now;
      float part[2] = {0, 0};
#pragma unroll
      for (int j = 0; j < size; j += 4) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
          float& x = s[j + 2 * r + e];
          x = fmaf(x, scale, -base);
          x = j / 4 * polynomials % 8 + polynomials > 7 ? exp2_polynomial(x) : exp2_approx(x);
          part[e] += x;
        }
      }
      sum[r] = fmaf(sum[r], factor[r], part[0] + part[1]);
    }
  }

  // The sum of weights of row r.
  __device__ __forceinline__ float total(int r) const {
    const float two = sum[r] + __shfl_xor_sync(~0u, sum[r], 1);
    return two + __shfl_xor_sync(~0u, two, 2);
  }

  // Divides O by the sums of weights, with that of the head's sink; a row without keys is 0.
  template <int size>
  __device__ __forceinline__ void finish(float (&o)[size], const Work& w, int head) const {
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
      const float base = high[r] == -INFINITY ? 0.0f : high[r] * w.scale;
      const float all = total(r) + sink_weight(w.sinks, head, base);
      inverse[r] = all == 0 ? 0.0f : 1.0f / all;
    }
    multiply_rows(o, inverse);
  }
};

// Weights as the first operand of products: 16 keys of the warp's rows at a time.
template <class T, int size>
__device__ __forceinline__ void rounded(uint32_t (&p)[size / 8][4], const float (&s)[size]) {
#pragma unroll
  for (int i = 0; i < size / 8; i++) {
#pragma unroll
    for (int j = 0; j < 4; j++) p[i][j] = pack<T>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]);
  }
}

}  // namespace
}  // namespace tilegemm
