// What a warp does with rows of the cache in attention of one query row a sequence.
//
// All query heads of a kv head are computed together, K and V are read once, into the fragments of mma.sync: straight
// from global memory (load_k, load_v), or by way of shared memory (decode_rows.hpp).
//
//   S^T [16 rows x 8 heads]  = K [16 x head] Q^T [head x 8]       rows of the cache are M, query heads are N
//   O^T [head x 8 heads]    += V^T [head x 16] P^T [16 x 8]
//
// The order of numbers along `head` in the first product, and the order of dims along M in the second, are free, so
// that a lane reads 16 neighbouring bytes. With r = lane / 4 and c = lane % 4, a lane has rows r and r + 8 of K, and
// rows 2c, 2c + 1, 2c + 8, 2c + 9 of V. P^T comes from S^T by movmatrix. P goes through the product as two numbers,
// high and low, so that nothing but `out` is rounded to 16 bits.
#pragma once
#include <type_traits>

#include "common/activation.hpp"
#include "common/mma.hpp"
#include "layer/launch.hpp"

namespace tilegemm {
namespace {

constexpr int most_parts = 64;
constexpr int all = ~0;

// `kv_heads` counts a kv head `shares` times, each with `group` of its query heads, where these are too many for the
// registers; else shares is 1.
struct Decode {
  const char *q, *k, *v;
  char* out;
  const float *k_scale, *v_scale;
  const int32_t *lengths, *slots;
  const float* sinks;  // [query head], or null
  float2* part_sums;   // [sequence][kv_head][part][group][pair of dims]
  float2* part_tops;   // [sequence][kv_head][part][group]: maximum in powers of two, sum
  unsigned* arrived;   // [sequence][kv_head]
  int64_t q_stride, out_stride, slot_stride, head_stride, row_stride, scale_slot_stride, scale_head_stride;
  Divisor by_half{1}, by_all{1}, by_kv_heads{1};  // by 64 times max_parts / 2, 64 times max_parts, kv_heads
  int sequences, kv_heads, shares, group, lanes, slots_count, capacity, window, min_part, max_parts;
  bool early;  // all but the last row of a sequence, and the lengths, are there before the wait
  float scale_log2;
};

struct Cut {
  int first, end, size, parts;
};
// Parts of min_part rows; from min_part * max_parts / 2 rows on max_parts / 2 parts, until these have 2 min_part rows;
// and from 2 min_part * max_parts rows on max_parts parts. Sizes are multiples of 64 rows.
__device__ inline Cut cut(const Decode& a, int length) {
  Cut x;
  x.end = length;
  x.first = a.window > 0 ? max(0, length - a.window) : 0;
  const int rows = x.end - x.first;
  const auto share = [&](const Divisor& rows_of_all) {  // rows_of_all: 64 for each part
    return rows_of_all.quotient(rows + int(rows_of_all.value) - 1) * 64;
  };
  x.size = max(max(a.min_part, min(2 * a.min_part, share(a.by_half))), share(a.by_all));
  x.parts = max(1, (rows + x.size - 1) / x.size);
  return x;
}

__device__ inline int slot_of(const Decode& a, int sequence) { return a.slots ? a.slots[sequence] : sequence; }

// Rows of the cache that a sequence has; 0 for rows of padding.
__device__ inline int length_of(const Decode& a, int sequence, int slot) {
  if (sequence >= a.sequences) return 0;
  const int length = a.lengths[sequence];
  return slot < 0 || slot >= a.slots_count ? 0 : min(max(length, 0), a.capacity);
}
__device__ inline int length_of(const Decode& a, int sequence) {
  return sequence < a.sequences ? length_of(a, sequence, slot_of(a, sequence)) : 0;
}

// Reads 4, 8 or 16 bytes that no other lane wants; `fresh`: from L2 even where L1 has them.
template <int words, bool fresh>
__device__ __forceinline__ void load(uint32_t* to, const char* from) {
#define TG_LOAD(WAY)                                                                                            \
  if constexpr (words == 4) {                                                                                   \
    asm volatile("ld.global." WAY ".v4.u32 {%0, %1, %2, %3}, [%4];"                                             \
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])                                           \
                 : "l"(from)                                                                                    \
                 : "memory");                                                                                   \
  } else if constexpr (words == 2) {                                                                            \
    asm volatile("ld.global." WAY ".v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from) : "memory"); \
  } else {                                                                                                      \
    asm volatile("ld.global." WAY ".u32 %0, [%1];" : "=r"(to[0]) : "l"(from) : "memory");                       \
  }
  if constexpr (fresh) {
    TG_LOAD("cg")
  } else {
    TG_LOAD("nc.L1::no_allocate.L2::128B")
  }
#undef TG_LOAD
}

// Reads a lane's `words` words of a row that `lanes` lanes share: pieces of 16 bytes, then of 8, then of 4.
template <int words, int lanes, bool fresh>
__device__ __forceinline__ void load_share(uint32_t* to, const char* row, int lane) {
  constexpr int whole = words / 4, rest = words % 4;
#pragma unroll
  for (int i = 0; i < whole; i++) load<4, fresh>(to + 4 * i, row + 16 * lanes * i + 16 * lane);
  if constexpr (rest >= 2) load<2, fresh>(to + 4 * whole, row + 16 * lanes * whole + 8 * lane);
  if constexpr (rest % 2) load<1, fresh>(to + words - 1, row + 4 * lanes * (words - 1) + 4 * lane);
}
// The byte of a row at which word `word` of lane `lane` lies.
template <int words, int lanes>
__device__ __host__ constexpr int byte_of(int word, int lane) {
  const int whole = words / 4 * 4, pairs = words / 2 * 2;
  if (word < whole) return 4 * lanes * (word / 4 * 4) + 16 * lane + 4 * (word % 4);
  if (word < pairs) return 4 * lanes * whole + 8 * lane + 4 * (word - whole);
  return 4 * lanes * pairs + 4 * lane;
}

// Bytes x and y of fp8 in the upper half of two 16-bit numbers, as bf16 numbers 2^120 times smaller.
__device__ __forceinline__ uint32_t bf16_of_fp8(uint32_t spread) {
  return (spread & 0x80008000) | ((spread >> 4) & 0x07f007f0);
}
constexpr float fp8_lift = 1.2676506002282294e30f;  // 2^100, on the other factor
constexpr float fp8_rest = 1048576.0f;              // 2^20, on the sum

// The same as f16 numbers 2^8 smaller.
__device__ __forceinline__ uint32_t f16_of_fp8(uint32_t spread) {
  return (spread & 0x80008000) | ((spread >> 1) & 0x3f803f80);
}
constexpr float f16_rest = 256;  // on the sum

template <class T>
__device__ __forceinline__ uint32_t pack(float x, float y) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 v = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&v);
  } else {
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&v);
  }
}
template <class T>
__device__ __forceinline__ float2 unpack(uint32_t word) {
  if constexpr (std::is_same_v<T, __half>) return __half22float2(*reinterpret_cast<const __half2*>(&word));
  else return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000));
}

// Config: T, head, columns (of 8 query heads), fp8, warps, tiles, blocks (of a multiprocessor, where they go through
// units).
template <class T_, int head_, int columns_, bool fp8_, int warps_, int tiles_, int blocks_>
struct Config {
  using T = T_;                                          // of q @ K^T
  using M = std::conditional_t<fp8_, __nv_bfloat16, T>;  // of P @ V: P in f16 with small scales of V would vanish
  static constexpr int head = head_, columns = columns_, warps = warps_, tiles = tiles_, blocks = blocks_;
  static constexpr bool fp8 = fp8_, lifts_q = fp8 && std::is_same_v<T, __nv_bfloat16>;
  static constexpr int bytes = fp8 ? 1 : 2;
  static constexpr int step = 16 * tiles;            // rows of a warp at once
  static constexpr int k_words = head * bytes / 16;  // of a lane in a row of K
  static constexpr int v_words = head * bytes / 32;  // of a lane in a row of V
  static constexpr int steps = head / 16;            // of mma along `head`
  // P goes up to 2^bias, so that small ones do not vanish in f16.
  static constexpr float bias = std::is_same_v<M, __half> ? 15 : 0;
  __device__ __host__ static constexpr int quads(int lanes) { return columns * steps * 8 * lanes; }
};

// Rows of the cache that a unit goes through.
template <class C>
struct Rows {
  const char *k, *v, *k_scale, *v_scale;
  int64_t stride;  // in bytes
  int last;

  __device__ Rows(const Decode& a, int slot, int kv_head, int first, int end) {
    const int head = a.shares == 1 ? kv_head : kv_head / a.shares;
    const int64_t at = (slot * a.slot_stride + head * a.head_stride + first * a.row_stride) * C::bytes;
    k = a.k + at, v = a.v + at, stride = a.row_stride * C::bytes, last = end - first - 1;
    k_scale = v_scale = nullptr;
    if constexpr (C::fp8) {
      const int64_t s = slot * a.scale_slot_stride + head * a.scale_head_stride + first;
      k_scale = reinterpret_cast<const char*>(a.k_scale + s), v_scale = reinterpret_cast<const char*>(a.v_scale + s);
    }
  }
  __device__ int steps() const { return (last + C::step) / C::step; }
};

// What a warp has read of K and of V, and sums over the rows that it has done.
template <class C>
struct Worker {
  uint32_t q[C::columns][C::steps][2];
  uint32_t k[C::tiles][2][C::k_words], v[C::tiles][4][C::v_words];
  float k_scale[C::tiles][2], v_scale[C::tiles][2];
  float o[C::columns][C::steps][4], top[C::columns][2], sum[C::columns][2];

  __device__ __forceinline__ void load_q(const char* q, int group, int r, int c) {
#pragma unroll
    for (int n = 0; n < C::columns; n++) {
#pragma unroll
      for (int s = 0; s < C::steps; s++) {
        // Four neighbouring numbers of `head`: two words of 16-bit K, or one word of fp8.
        const int at = C::fp8 ? byte_of<C::k_words, 4>(s, c) : byte_of<C::k_words, 4>(2 * s, c) / 2;
        uint2 words = make_uint2(0, 0);
        if (8 * n + r < group) words = *reinterpret_cast<const uint2*>(q + 2 * ((8 * n + r) * C::head + at));
        if constexpr (C::lifts_q) {
          const float2 x = unpack<typename C::T>(words.x), y = unpack<typename C::T>(words.y);
          words = make_uint2(pack<typename C::T>(x.x * fp8_lift, x.y * fp8_lift),
                             pack<typename C::T>(y.x * fp8_lift, y.y * fp8_lift));
        }
        this->q[n][s][0] = words.x, this->q[n][s][1] = words.y;
      }
    }
  }

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < C::columns; n++) {
#pragma unroll
      for (int m = 0; m < C::steps; m++) {
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][m][e] = 0;
      }
      top[n][0] = top[n][1] = -INFINITY;
      sum[n][0] = sum[n][1] = 0;
    }
  }

  // Rows from `last` + 1 on are read as row `last`: their P is 0. `fresh`: only row `last`, once more.
  template <bool fresh = false>
  __device__ __forceinline__ void load_k(const Rows<C>& rows, int first, int r, int c) {
#pragma unroll
    for (int t = 0; t < C::tiles; t++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int row = min(first + 16 * t + 8 * h + r, rows.last);
        if (fresh && row != rows.last) continue;
        load_share<C::k_words, 4, fresh>(k[t][h], rows.k + row * rows.stride, c);
        if constexpr (C::fp8) load<1, true>(reinterpret_cast<uint32_t*>(&k_scale[t][h]), rows.k_scale + 4 * row);
      }
    }
  }
  template <bool fresh = false>
  __device__ __forceinline__ void load_v(const Rows<C>& rows, int first, int r, int c) {
#pragma unroll
    for (int t = 0; t < C::tiles; t++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = min(first + 16 * t + 2 * c + (i & 1) + 4 * (i & 2), rows.last);
        if (fresh && row != rows.last) continue;
        load_share<C::v_words, 8, fresh>(v[t][i], rows.v + row * rows.stride, r);
      }
      if constexpr (C::fp8) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int row = min(first + 16 * t + 8 * h + r, rows.last);
          if (fresh && row != rows.last) continue;
          load<1, true>(reinterpret_cast<uint32_t*>(&v_scale[t][h]), rows.v_scale + 4 * row);
        }
      }
    }
  }

  // s[t][n]: rows r and r + 8 of tile t, query heads 8n + 2c and the next.
  __device__ __forceinline__ void scores(float (&s)[C::tiles][C::columns][4]) const {
#pragma unroll
    for (int t = 0; t < C::tiles; t++) {
#pragma unroll
      for (int n = 0; n < C::columns; n++) s[t][n][0] = s[t][n][1] = s[t][n][2] = s[t][n][3] = 0;
#pragma unroll
      for (int i = 0; i < C::steps; i++) {
        uint32_t a[4];
        if constexpr (C::fp8) {
          const uint32_t x = k[t][0][i], y = k[t][1][i];
          const auto of_fp8 = [](uint32_t spread) { return C::lifts_q ? bf16_of_fp8(spread) : f16_of_fp8(spread); };
          a[0] = of_fp8(__byte_perm(x, 0, 0x1100)), a[2] = of_fp8(__byte_perm(x, 0, 0x3322));
          a[1] = of_fp8(__byte_perm(y, 0, 0x1100)), a[3] = of_fp8(__byte_perm(y, 0, 0x3322));
        } else {
          a[0] = k[t][0][2 * i], a[1] = k[t][1][2 * i], a[2] = k[t][0][2 * i + 1], a[3] = k[t][1][2 * i + 1];
        }
#pragma unroll
        for (int n = 0; n < C::columns; n++) mma_16<typename C::T>(s[t][n], a, q[n][i][0], q[n][i][1]);
      }
    }
  }

  // Scores to P; `left`: rows of the step that exist.
  __device__ __forceinline__ void soften(float (&s)[C::tiles][C::columns][4], float scale, int left, int r) {
#pragma unroll
    for (int n = 0; n < C::columns; n++) {
      float high[2] = {-INFINITY, -INFINITY};
#pragma unroll
      for (int t = 0; t < C::tiles; t++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const float x = C::fp8 ? s[t][n][e] * (scale * k_scale[t][e / 2]) : s[t][n][e] * scale;
          s[t][n][e] = 16 * t + 8 * (e / 2) + r < left ? x : -INFINITY;
          high[e % 2] = fmaxf(high[e % 2], s[t][n][e]);
        }
      }
#pragma unroll
      for (int d = 4; d < 32; d *= 2) {
        high[0] = fmaxf(high[0], __shfl_xor_sync(all, high[0], d));
        high[1] = fmaxf(high[1], __shfl_xor_sync(all, high[1], d));
      }
      const bool grows = high[0] > top[n][0] || high[1] > top[n][1];
      if (__any_sync(all, grows)) {
        float factor[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const float above = fmaxf(top[n][e], high[e]);
          factor[e] = above == -INFINITY ? 1 : exp2_approximate(top[n][e] - above);
          top[n][e] = above;
          sum[n][e] *= factor[e];
        }
#pragma unroll
        for (int m = 0; m < C::steps; m++) {
#pragma unroll
          for (int e = 0; e < 4; e++) o[n][m][e] *= factor[e % 2];
        }
      }
      float base[2];
#pragma unroll
      for (int e = 0; e < 2; e++) base[e] = (top[n][e] == -INFINITY ? 0 : top[n][e]) - C::bias;
#pragma unroll
      for (int t = 0; t < C::tiles; t++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
          s[t][n][e] = exp2_approximate(s[t][n][e] - base[e % 2]);
          sum[n][e % 2] += s[t][n][e];
          if constexpr (C::fp8) {
            // A scale of a row that does not exist is that of row `last`.
            s[t][n][e] *= v_scale[t][e / 2] * fp8_lift;
          }
        }
      }
    }
  }

  __device__ __forceinline__ void add(const float (&s)[C::tiles][C::columns][4]) {
    using M = typename C::M;
#pragma unroll
    for (int t = 0; t < C::tiles; t++) {
      uint32_t high[C::columns][2], low[C::columns][2];
#pragma unroll
      for (int n = 0; n < C::columns; n++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const float x = s[t][n][2 * h], y = s[t][n][2 * h + 1];
          const uint32_t rounded = pack<M>(x, y);
          const float2 back = unpack<M>(rounded);
          high[n][h] = movmatrix(rounded);
          low[n][h] = movmatrix(pack<M>(x - back.x, y - back.y));
        }
      }
#pragma unroll
      for (int m = 0; m < C::steps; m++) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
          // a[0], a[1]: dims 2m and 2m + 1 of the lane in rows 2c, 2c + 1; a[2], a[3]: in the two other rows.
          const uint32_t x = v[t][i & 2][C::fp8 ? m / 2 : m], y = v[t][(i & 2) + 1][C::fp8 ? m / 2 : m];
          if constexpr (C::fp8) {
            const int byte = 2 * (m % 2) + (i & 1);
            a[i] = bf16_of_fp8(__byte_perm(x, y, byte * 0x11 | (byte + 4) * 0x1100));
          } else {
            a[i] = __byte_perm(x, y, i & 1 ? 0x7632 : 0x5410);
          }
        }
#pragma unroll
        for (int n = 0; n < C::columns; n++) {
          mma_16<M>(o[n][m], a, high[n][0], high[n][1]);
          mma_16<M>(o[n][m], a, low[n][0], low[n][1]);
        }
      }
    }
  }

  // Writes the warp's sums to shared memory, as quads lie (quad_of), and maxima and sums of weights.
  __device__ __forceinline__ void leave(float4* sums, float4* tops, int lanes, int r, int c) {
#pragma unroll
    for (int n = 0; n < C::columns; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int d = 4; d < 32; d *= 2) sum[n][e] += __shfl_xor_sync(all, sum[n][e], d);
      }
      if (c >= lanes) continue;
      if (r == 0) tops[n * lanes + c] = make_float4(top[n][0], sum[n][0], top[n][1], sum[n][1]);
      float4* const to = sums + (n * C::steps * 8 + r) * lanes + c;
#pragma unroll
      for (int m = 0; m < C::steps; m++) {
        to[8 * m * lanes] = make_float4(o[n][m][0], o[n][m][1], o[n][m][2], o[n][m][3]);
      }
    }
  }
};

// What one of several sums, each with its own maximum, counts in the whole.
__device__ inline float weight_of(float top, float highest) {
  return highest == -INFINITY ? 1 : exp2_approximate(top - highest);
}

// Sums go from hand to hand in quads, as lanes have them: dims `dim` and `dim` + 1 of query heads `h` and `h` + 1. Of
// the four lanes c of a quad's row `lanes` have query heads.
struct Quad {
  float4 x;    // h and h + 1 of dim; of dim + 1
  float4 top;  // maximum and sum of weights of h, and of h + 1
};
template <class C>
struct Place {
  int h, dim, top;  // top: of the list of maxima

  __device__ Place(int quad, int lanes) {
    const int log = lanes / 2, c = quad & (lanes - 1), r = (quad >> log) % 8, m = (quad >> log) / 8 % C::steps;
    const int n = C::columns == 1 ? 0 : (quad >> log) / (8 * C::steps);
    h = 8 * n + 2 * c, top = n * lanes + c;
    dim = C::fp8 ? byte_of<C::v_words, 8>(m / 2, r) + 2 * (m % 2) : byte_of<C::v_words, 8>(m, r) / 2;
  }
  // The number of dim and dim + 1 in the list of all pairs of dims of a head.
  __device__ static int pair_of(int quad, int lanes) { return (quad >> lanes / 2) % (8 * C::steps); }
};

// The whole of `count` sums. top_of(i): maxima and sums of weights of sum i; numbers_of(i): numbers of it.
template <class Top, class Four>
__device__ __forceinline__ Quad whole_of(int count, Top top_of, Four numbers_of) {
  float high[2] = {-INFINITY, -INFINITY};
#pragma unroll 8
  for (int i = 0; i < count; i++) high[0] = fmaxf(high[0], top_of(i).x), high[1] = fmaxf(high[1], top_of(i).z);
  Quad sum = {make_float4(0, 0, 0, 0), make_float4(high[0], 0, high[1], 0)};
#pragma unroll 8
  for (int i = 0; i < count; i++) {
    const float4 y = numbers_of(i), t = top_of(i);
    const float f = weight_of(t.x, high[0]), g = weight_of(t.z, high[1]);
    sum.x.x = fmaf(f, y.x, sum.x.x), sum.x.y = fmaf(g, y.y, sum.x.y);
    sum.x.z = fmaf(f, y.z, sum.x.z), sum.x.w = fmaf(g, y.w, sum.x.w);
    sum.top.y = fmaf(f, t.y, sum.top.y), sum.top.w = fmaf(g, t.w, sum.top.w);
  }
  return sum;
}

// The sum of the weights of a query head, with that of its sink. Weights are as soften() has them: over the maximum
// `top` in powers of two, or over 1 where no row counts, and times 2^bias.
template <class C>
__device__ inline float sum_with_sink(const float* sinks, int head, float top, float sum) {
  if (!sinks) return sum;
  const float base = top == -INFINITY ? 0 : top;
  return sum + exp2_approximate(fmaf(__ldg(sinks + head), 1.4426950408889634f, C::bias - base));
}

// The result for a kv head, whose first query head is kv_head * group.
template <class C>
__device__ inline void store_out(const Decode& a, int sequence, int kv_head, const Place<C>& place, const Quad& p,
                                 bool empty) {
  using T = typename C::T;
  const float factor = C::fp8 ? fp8_rest : 1;
  const int head = kv_head * a.group + place.h;
  uint32_t* const to =
      reinterpret_cast<uint32_t*>(a.out + 2 * (sequence * a.out_stride + int64_t(head) * C::head + place.dim));
  if (place.h < a.group) {
    const float weights = empty ? 1 : sum_with_sink<C>(a.sinks, head, p.top.x, p.top.y);
    to[0] = pack<T>(p.x.x * factor / weights, p.x.z * factor / weights);
  }
  if (place.h + 1 < a.group) {
    const float weights = empty ? 1 : sum_with_sink<C>(a.sinks, head + 1, p.top.z, p.top.w);
    to[C::head / 2] = pack<T>(p.x.y * factor / weights, p.x.w * factor / weights);
  }
}

}  // namespace
}  // namespace tilegemm
