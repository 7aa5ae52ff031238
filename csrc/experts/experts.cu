// Kernels beside the products of a layer of experts (src/candle/nn/moe.rs): the choice of each token's experts, the
// lists of pairs by expert, gates after an ungated product, and the sum over a token's experts.
//
// All results are equal from run to run: no order of atomic operations decides a result.
#include "common/activation.hpp"
#include "common/launch.hpp"
#include "common/ptx.hpp"
#include "experts/pairs.hpp"
#include "experts/route.h"
#include "library.h"

namespace tilegemm {
namespace {

constexpr int warps = 8, threads = 32 * warps, most_experts = 1024;

// What logits choose from, and the first of those that are here.
struct Routing : tg_routing {
  int64_t candidates, first;
};

// A number whose order is the order of the floats. NaN is above all floats, so that a token with a NaN has weights of
// NaN.
__device__ __forceinline__ uint32_t key_of(float x) {
  if (x != x) return ~0u;
  const uint32_t bits = __float_as_uint(x);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float float_of(uint32_t key) {
  if (key == ~0u) return __uint_as_float(0x7fffffffu);
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}
constexpr uint32_t taken = 0;  // below the key of -inf

// The `top_k` candidates with the largest logits of a token, by falling logit, equal logits by rising candidate; and
// their shares of the softmax. A warp works on a token, and `keys` is the warp's own shared memory.
template <class T>
__device__ void choose(const Routing& r, int64_t token, uint32_t* keys, int lane) {
  const T* logits = static_cast<const T*>(r.logits) + token * r.row_stride;
  const int experts = int(r.candidates), top_k = int(r.top_k);
  for (int e = lane; e < experts; e += 32) keys[e] = key_of(float(logits[e]));
  float largest = 0, sum = 0;
  uint32_t* const chosen = r.chosen + token * top_k;
  float* const scales = r.scales + token * top_k;
  for (int j = 0; j < top_k; j++) {
    uint32_t key = 0, expert = ~0u;
    for (int e = lane; e < experts; e += 32) {
      if (keys[e] > key) key = keys[e], expert = e;
    }
    const uint32_t best = __reduce_max_sync(~0u, key);
    expert = __reduce_min_sync(~0u, key == best ? expert : ~0u);
    const float logit = float_of(best);
    if (j == 0) {
      largest = logit;
      if (!r.normalise) {
        for (int e = lane; e < experts; e += 32) sum += expf(float_of(keys[e]) - largest);
#pragma unroll
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
      }
    }
    const float share = expf(logit - largest);
    if (r.normalise) sum += share;
    __syncwarp();
    if (lane == 0) chosen[j] = expert, scales[j] = share, keys[expert] = taken;
    __syncwarp();
  }
  for (int j = lane; j < top_k; j += 32) scales[j] /= sum;
}

__device__ void choose(const Routing& r, int64_t token, uint32_t* keys, int lane) {
  switch (r.format) {
    case TG_F16: return choose<__half>(r, token, keys, lane);
    case TG_BF16: return choose<__nv_bfloat16>(r, token, keys, lane);
    default: return choose<float>(r, token, keys, lane);
  }
}

// The tokens of a block.
struct Tokens {
  int64_t first, end;
  __device__ Tokens(const Routing& r, int block) {
    const int64_t each = (r.tokens + r.blocks - 1) / r.blocks;
    first = min(r.tokens, each * block), end = min(r.tokens, first + each);
  }
};

// Chooses experts for the tokens of a block, and counts the tokens of each expert in shared memory. Less `first`, the
// number of an expert on another GPU is out of range: above, or wrapped around.
__device__ void choose_and_count(const Routing& r, const Tokens& tokens, uint32_t* counts, uint32_t* keys, int warp,
                                 int lane) {
  for (int e = threadIdx.x; e < r.experts; e += blockDim.x) counts[e] = 0;
  __syncthreads();
  if (r.logits) {
    for (int64_t token = tokens.first + warp; token < tokens.end; token += blockDim.x / 32) {
      choose(r, token, keys + warp * r.candidates, lane);
      __syncwarp();
      for (int j = lane; j < r.top_k; j += 32) {
        const uint32_t expert = r.chosen[token * r.top_k + j] - uint32_t(r.first);
        r.chosen[token * r.top_k + j] = expert;
        if (expert < r.experts) atomicAdd(counts + expert, 1);
      }
    }
  } else {
    for (int64_t p = tokens.first * r.top_k + threadIdx.x; p < tokens.end * r.top_k; p += blockDim.x) {
      if (r.chosen[p] < r.experts) atomicAdd(counts + r.chosen[p], 1);
    }
  }
  __syncthreads();
}

// Turns the rows of each expert into the first row of each expert, and sets the row behind the last expert's. For one
// warp.
__device__ void add_up(uint32_t* rows, int experts, int32_t* first_row, int lane) {
  uint32_t before = 0;
  for (int e0 = 0; e0 < experts; e0 += 32) {
    const int e = e0 + lane;
    const uint32_t own = e < experts ? rows[e] : 0;
    uint32_t up_to = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const uint32_t other = __shfl_up_sync(~0u, up_to, d);
      if (lane >= d) up_to += other;
    }
    if (e < experts) {
      rows[e] = before + up_to - own;
      if (first_row) first_row[e] = int32_t(rows[e]);
    }
    before += __shfl_sync(~0u, up_to, 31);
  }
  if (lane == 0) {
    rows[experts] = before;
    if (first_row) first_row[experts] = int32_t(before);
  }
}

// Lists the pairs of a block's tokens, for each expert by rising pair. `next`: the next row of each expert, and of the
// pairs whose expert does not exist. For one warp.
__device__ void place(const Routing& r, const Tokens& tokens, uint32_t* next, int lane) {
  const int64_t end = tokens.end * r.top_k;
  for (int64_t p0 = tokens.first * r.top_k; p0 < end; p0 += 32) {
    const int64_t p = p0 + lane;
    const bool exists = p < end;
    const uint32_t expert = exists ? min(r.chosen[p], uint32_t(r.experts)) : ~0u;
    const unsigned same = __match_any_sync(~0u, expert), before = same & ((1u << lane) - 1);
    const uint32_t row = exists ? next[expert] + __popc(before) : 0;
    __syncwarp();
    if (exists) {
      if (before == 0) next[expert] += __popc(same);
      r.pairs[row] = uint32_t(p);
    }
    __syncwarp();
  }
}

// Few tokens: one block does all.
__global__ void __launch_bounds__(threads) route_few(const Routing r) {
  extern __shared__ uint32_t shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  griddepcontrol_wait();
  launch_dependents();
  const Tokens tokens(r, 0);
  choose_and_count(r, tokens, shared, shared + r.experts + 1, warp, lane);
  if (warp > 0) return;
  add_up(shared, int(r.experts), r.first_row, lane);
  __syncwarp();
  place(r, tokens, shared, lane);
}

// Many tokens, first kernel: choices, and the tokens of each expert among the tokens of each block.
__global__ void __launch_bounds__(threads) route_choose(const Routing r) {
  extern __shared__ uint32_t shared[];
  griddepcontrol_wait();
  launch_dependents();
  choose_and_count(r, Tokens(r, blockIdx.x), shared, shared + r.experts + 1, threadIdx.x / 32, threadIdx.x % 32);
  for (int e = threadIdx.x; e < r.experts; e += blockDim.x) r.counts[int64_t(blockIdx.x) * r.experts + e] = shared[e];
}

// Second kernel: a block's first row of each expert lies behind the rows of the blocks before. Each block adds up all
// counts by itself.
__global__ void __launch_bounds__(threads) route_place(const Routing r) {
  extern __shared__ uint32_t shared[];
  uint32_t* const of_blocks_before = shared + r.experts + 1;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  griddepcontrol_wait();
  launch_dependents();
  for (int e = threadIdx.x; e < r.experts; e += blockDim.x) {
    uint32_t all = 0, before = 0;
#pragma unroll 8
    for (int b = 0; b < r.blocks; b++) {
      const uint32_t count = r.counts[int64_t(b) * r.experts + e];
      all += count;
      if (b < int(blockIdx.x)) before += count;
    }
    shared[e] = all, of_blocks_before[e] = before;
  }
  __syncthreads();
  if (warp > 0) return;
  add_up(shared, int(r.experts), blockIdx.x == 0 ? r.first_row : nullptr, lane);
  __syncwarp();
  const Tokens tokens(r, blockIdx.x);
  uint32_t with_experts = 0;  // pairs of the blocks before
  for (int e = lane; e < r.experts; e += 32) {
    shared[e] += of_blocks_before[e];
    with_experts += of_blocks_before[e];
  }
  with_experts = __reduce_add_sync(~0u, with_experts);
  if (lane == 0) shared[r.experts] += uint32_t(tokens.first * r.top_k) - with_experts;
  __syncwarp();
  place(r, tokens, shared, lane);
}

// Neighbouring numbers of a row, moved at once.
template <class T, int width> struct alignas(sizeof(T) * width) Piece {
  T x[width];
};
template <class T, int width>
__device__ __forceinline__ void load(float (&x)[width], const T* from) {
  const auto piece = *reinterpret_cast<const Piece<T, width>*>(from);
#pragma unroll
  for (int e = 0; e < width; e++) x[e] = float(piece.x[e]);
}
template <class T, int width>
__device__ __forceinline__ void store(T* to, const float (&x)[width]) {
  Piece<T, width> piece;
#pragma unroll
  for (int e = 0; e < width; e++) piece.x[e] = T(x[e]);
  *reinterpret_cast<Piece<T, width>*>(to) = piece;
}

// D[i] = the sum of `of_row` rows of A, in their order, and C[i] behind them, in f32. A is dense; C may be D, or null.
template <class A, class T, int width>
__global__ void __launch_bounds__(threads) sum_rows(const A* a, T* d, int64_t pieces, int64_t count, int of_row,
                                                    int64_t d_stride, const T* c, int64_t c_stride) {
  griddepcontrol_wait();
  launch_dependents();
  const int64_t index = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (index >= count) return;
  const int64_t row = index / pieces, at = (index - row * pieces) * width, stride = pieces * width;
  const A* from = a + row * of_row * stride + at;
  float sum[width] = {};
#pragma unroll 8
  for (int j = 0; j < of_row; j++) {
    float x[width];
    load<A>(x, from + j * stride);
#pragma unroll
    for (int e = 0; e < width; e++) sum[e] += x[e];
  }
  if (c) {
    float x[width];
    load<T>(x, c + row * c_stride + at);
#pragma unroll
    for (int e = 0; e < width; e++) sum[e] += x[e];
  }
  store<T>(d + row * d_stride + at, sum);
}

// D = activation(gate) * up, with the gates and the numbers that they multiply side by side in the rows of A. A and D
// are dense.
template <class T, int width>
__global__ void __launch_bounds__(threads)
    gate_rows(const T* a, T* d, int64_t pieces, int64_t count, tg_activation activation, bool interleaved) {
  griddepcontrol_wait();
  launch_dependents();
  const int64_t index = int64_t(blockIdx.x) * threads + threadIdx.x;
  if (index >= count) return;
  const int64_t row = index / pieces, at = (index - row * pieces) * width, columns = pieces * width;
  const T* from = a + row * 2 * columns;
  float gate[width], up[width];
  if (interleaved) {
    float both[2][width];
    load<T>(both[0], from + 2 * at);
    load<T>(both[1], from + 2 * at + width);
#pragma unroll
    for (int e = 0; e < width; e++) {
      gate[e] = both[2 * e / width][2 * e % width];
      up[e] = both[(2 * e + 1) / width][(2 * e + 1) % width];
    }
  } else {
    load<T>(gate, from + at);
    load<T>(up, from + columns + at);
  }
#pragma unroll
  for (int e = 0; e < width; e++) gate[e] = activate<accuracy_of<T>>(activation, gate[e]) * up[e];
  store<T>(d + row * columns + at, gate);
}

template <class A, class T, int width>
bool in_pieces(const tg_gemm_args& args, int64_t columns) {
  const auto aligned = [](const void* ptr, size_t bytes) { return reinterpret_cast<uintptr_t>(ptr) % bytes == 0; };
  return columns % width == 0 && aligned(args.a.ptr, sizeof(A) * width) && aligned(args.d.ptr, sizeof(T) * width);
}

// Launches `kernel` for `columns` of each of m rows, in pieces of `width`.
template <int width, class A, class T, class... Parameters>
tg_status by_pieces(const tg_gemm_args& args, int64_t columns,
                    void (*kernel)(const A*, T*, int64_t, int64_t, Parameters...), const Parameters&... parameters) {
  const int64_t pieces = columns / width, count = args.m * pieces, blocks = ceil_div(count, threads);
  if (count == 0) return TG_OK;
  if (blocks > INT32_MAX) return TG_UNSUPPORTED;
  return Launch(args, dim3(unsigned(blocks)), dim3(threads), 0)(
      kernel, static_cast<const A*>(args.a.ptr), static_cast<T*>(args.d.ptr), pieces, count, parameters...);
}

template <class A, class T>
tg_status sum_from(const tg_gemm_args& args) {
  constexpr int width = 16 / sizeof(A);
  const int of_row = int(args.k);
  const T* const c = args.beta != 0 ? static_cast<const T*>(args.c.ptr) : nullptr;
  const int64_t d_stride = args.d.row_stride, c_stride = args.c.row_stride;
  if (c && args.beta != 1) return TG_UNSUPPORTED;
  const bool wide = in_pieces<A, T, width>(args, args.n) && d_stride % width == 0 &&
                    (!c || (c_stride % width == 0 && reinterpret_cast<uintptr_t>(c) % (sizeof(T) * width) == 0));
  return wide ? by_pieces<width>(args, args.n, sum_rows<A, T, width>, of_row, d_stride, c, c_stride)
              : by_pieces<1>(args, args.n, sum_rows<A, T, 1>, of_row, d_stride, c, c_stride);
}

// A is in D's type, or in f32 beside a D in 16 bits.
template <tg_format format>
tg_status sum_of(const tg_gemm_args& args) {
  using T = typename scalar<format>::type;
  if (args.types.a == format) return sum_from<T, T>(args);
  return args.types.a == TG_F32 ? sum_from<float, T>(args) : TG_UNSUPPORTED;
}

template <tg_format format>
tg_status gate_of(const tg_gemm_args& args) {
  using T = typename scalar<format>::type;
  constexpr int width = 16 / sizeof(T);
  const bool interleaved = args.gate == TG_GATE_INTERLEAVED, wide = in_pieces<T, T, width>(args, args.n / 2);
  if (args.gate == TG_UNGATED || args.n % 2 != 0) return TG_UNSUPPORTED;
  return wide ? by_pieces<width>(args, args.n / 2, gate_rows<T, width>, args.activation, interleaved)
              : by_pieces<1>(args, args.n / 2, gate_rows<T, 1>, args.activation, interleaved);
}

tg_status route(const Routing& r) {
  const bool has_choice = r.format == TG_F16 || r.format == TG_BF16 || r.format == TG_F32;
  // A given choice may have more experts than there are here.
  if (r.experts < 1 || r.experts > most_experts || r.top_k < 1 || r.tokens < 0 || r.tokens > INT_MAX / r.top_k ||
      r.blocks < 1) {
    return TG_UNSUPPORTED;
  }
  if (r.logits && (!has_choice || r.candidates > most_experts || r.top_k > r.candidates || r.first < 0 ||
                   r.first > r.candidates - r.experts)) {
    return TG_UNSUPPORTED;
  }
  tg_gemm_args args{};
  args.stream = r.stream, args.overlap = r.overlap;
  const dim3 grid(unsigned(r.blocks)), block(threads);
  const int row_bytes = (int(r.experts) + 1) * 4, choosing = row_bytes + warps * int(r.candidates) * 4;
  if (r.blocks == 1) return Launch(args, grid, block, choosing)(route_few, r);
  if (const tg_status status = Launch(args, grid, block, choosing)(route_choose, r)) return status;
  return Launch(args, grid, block, 2 * row_bytes)(route_place, r);
}

}  // namespace
}  // namespace tilegemm

extern "C" {

tg_status tg_route(const tg_routing* routing) { return tilegemm::route({*routing, routing->experts, 0}); }

tg_status tg_route_among(const tg_routing* routing, int64_t candidates, int64_t first) {
  return routing->logits ? tilegemm::route({*routing, candidates, first}) : TG_UNSUPPORTED;
}

tg_status tg_sum_rows(tg_format format, const tg_gemm_args* args) {
  switch (format) {
    case TG_F16: return tilegemm::sum_of<TG_F16>(*args);
    case TG_BF16: return tilegemm::sum_of<TG_BF16>(*args);
    case TG_F32: return tilegemm::sum_of<TG_F32>(*args);
    default: return TG_UNSUPPORTED;
  }
}

tg_status tg_gate_rows(tg_format format, const tg_gemm_args* args) {
  switch (format) {
    case TG_F16: return tilegemm::gate_of<TG_F16>(*args);
    case TG_BF16: return tilegemm::gate_of<TG_BF16>(*args);
    case TG_F32: return tilegemm::gate_of<TG_F32>(*args);
    default: return TG_UNSUPPORTED;
  }
}

tg_status tg_bias_pairs(const tg_pairs* args) {
  return args->bias ? tilegemm::launch_pairs(*args, tilegemm::bias_pairs) : TG_UNSUPPORTED;
}
tg_status tg_clamp_pairs(const tg_pairs* args) { return tilegemm::launch_pairs(*args, tilegemm::clamp_pairs); }

tg_status tg_load_experts() { return tilegemm::load_own_module(); }

}  // extern "C"
