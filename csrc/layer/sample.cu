// The next token of each sequence.
//
// Greedy: many blocks a sequence, the largest of 64-bit keys (number, index); the last block writes the token.
//
// Drawn: a cluster of blocks a sequence (one block before Hopper), each with its share of the vocabulary in shared
// memory (in the workspace before Hopper) as weights w = exp((x - largest) / temperature), from 0 to 1. top_k and top_p
// are thresholds of w, found by bisection: a step counts the weights from a pivot on and adds them up, always in the
// same order, and moves a bound to a weight that occurs. Then every token that stays draws an exponential number e, and
// the largest w / e wins.
#include <type_traits>

#include "layer/launch.hpp"

namespace tilegemm {
namespace {

constexpr int all = ~0;
constexpr int threads = 1024, warps = 32;
constexpr int most_blocks = 8;        // of a cluster
constexpr int most_tokens = 1 << 18;  // of a vocabulary that is drawn from

struct Sample {
  const char* logits;
  int64_t stride, history_stride;
  const tg_sampling* settings;
  const int32_t* slots;
  uint32_t* tokens;
  int32_t *positions, *lengths;
  uint32_t* history;
  int32_t* error;
  unsigned long long* keys;  // [sequences]
  unsigned* arrived;         // [sequences]
  float* weights;            // [sequences][share], without clusters
  int vocabulary, share;     // tokens of a block, a multiple of 4
  bool whole;                // rows are at multiples of four numbers
};

// Bits whose order is the order of numbers; NaN and -inf come first, -0 is 0.
__device__ inline uint32_t ordered(float x) {
  if (!(x > -INFINITY)) return 0;
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000 ? ~bits : bits | 0x80000000;
}

__device__ inline void finish(const Sample& a, int s, uint32_t token, bool none) {
  a.tokens[s] = token;
  const int position = a.positions ? a.positions[s] + 1 : 0;
  if (a.positions) a.positions[s] = position;
  if (a.lengths) a.lengths[s]++;
  if (a.history && position >= 0 && position < a.history_stride) a.history[s * a.history_stride + position] = token;
  if (none && a.error) *a.error = 1 + s;
}

// ---- Greedy ---------------------------------------------------------------------------------------------------------

// Block (x, y) takes pieces of `width` tokens of sequence y: x * 256 + thread, + 256 * gridDim.x, ...
template <class T, int width>
__global__ __launch_bounds__(256) void layer_greedy(const __grid_constant__ Sample a) {
  struct alignas(sizeof(T) * width) Piece {
    T x[width];
  };
  __shared__ unsigned long long partial[8];
  griddepcontrol_wait();
  launch_dependents();
  const int s = blockIdx.y;
  if (a.slots && a.slots[s] < 0) return;
  const T* row = reinterpret_cast<const T*>(a.logits) + s * a.stride;
  const int pieces = a.vocabulary / width, step = 256 * gridDim.x;
  unsigned long long best = 0;
  const auto offer = [&](float x, int token) {
    const unsigned long long key = static_cast<unsigned long long>(ordered(x)) << 32 | uint32_t(~token);
    best = key > best ? key : best;
  };
  int p = blockIdx.x * 256 + threadIdx.x;
  for (; p + 3 * step < pieces; p += 4 * step) {
    Piece x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = reinterpret_cast<const Piece*>(row)[p + j * step];
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int e = 0; e < width; e++) offer(to_float(x[j].x[e]), (p + j * step) * width + e);
    }
  }
  for (; p < pieces; p += step) {
    const Piece x = reinterpret_cast<const Piece*>(row)[p];
#pragma unroll
    for (int e = 0; e < width; e++) offer(to_float(x.x[e]), p * width + e);
  }
  if (blockIdx.x == 0 && pieces * width + int(threadIdx.x) < a.vocabulary) {
    offer(to_float(row[pieces * width + threadIdx.x]), pieces * width + threadIdx.x);
  }
  const uint32_t high = __reduce_max_sync(all, uint32_t(best >> 32));
  const uint32_t low = __reduce_max_sync(all, uint32_t(best >> 32) == high ? uint32_t(best) : 0);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = static_cast<unsigned long long>(high) << 32 | low;
  __syncthreads();
  if (threadIdx.x > 0) return;
  best = partial[0];
#pragma unroll
  for (int w = 1; w < 8; w++) best = partial[w] > best ? partial[w] : best;
  if (gridDim.x > 1) {
    atomicMax(a.keys + s, best);
    __threadfence();
    if (atomicInc(a.arrived + s, gridDim.x - 1) != gridDim.x - 1) return;
    __threadfence();
    best = atomicExch(a.keys + s, 0);
  }
  const bool none = best >> 32 == 0;
  finish(a, s, none ? 0 : ~uint32_t(best), none);
}

// ---- Drawn ----------------------------------------------------------------------------------------------------------

// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
__device__ inline uint4 philox(uint4 counter, uint2 key) {
#pragma unroll
  for (int round = 0; round < 10; round++) {
    const uint32_t high0 = __umulhi(0xD2511F53, counter.x), low0 = 0xD2511F53 * counter.x;
    const uint32_t high1 = __umulhi(0xCD9E8D57, counter.z), low1 = 0xCD9E8D57 * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
    key.x += 0x9E3779B9, key.y += 0xBB67AE85;
  }
  return counter;
}

// What the threads of a cluster find together: a sum, a count, a least and a largest number.
struct Found {
  float sum;
  uint32_t count, least, largest;
};

struct Shared {
  Found of_warp[2][warps], of_block[2][most_blocks];
};

// The sum is over lanes, then warps, then blocks, always in the same order.
__device__ inline Found over_lanes(Found x) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) x.sum += __shfl_xor_sync(all, x.sum, d);
  return {x.sum, __reduce_add_sync(all, x.count), __reduce_min_sync(all, x.least), __reduce_max_sync(all, x.largest)};
}
template <int blocks>
__device__ inline Found together(Found own, Shared& shared, int& turn) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, half = turn++ & 1;
  own = over_lanes(own);
  if (lane == 0) shared.of_warp[half][warp] = own;
  __syncthreads();
  own = over_lanes(shared.of_warp[half][lane]);
#if __CUDA_ARCH__ >= 900
  if constexpr (blocks > 1) {
    if (threadIdx.x < blocks) {
      const auto at = uint32_t(__cvta_generic_to_shared(&shared.of_block[half][cluster_rank()]));
      asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(map_shared(at, threadIdx.x)),
                   "r"(__float_as_uint(own.sum)), "r"(own.count), "r"(own.least), "r"(own.largest)
                   : "memory");
    }
    cluster_sync();
    own = shared.of_block[half][0];
#pragma unroll
    for (int b = 1; b < blocks; b++) {
      const Found x = shared.of_block[half][b];
      own = {own.sum + x.sum, own.count + x.count, min(own.least, x.least), max(own.largest, x.largest)};
    }
  }
#endif
  return own;
}

template <class T, int blocks>
__global__ __launch_bounds__(threads) void layer_draw(const __grid_constant__ Sample a) {
  extern __shared__ float4 dynamic[];
  __shared__ Shared shared;
  griddepcontrol_wait();
  launch_dependents();
#if __CUDA_ARCH__ >= 900
  if constexpr (blocks > 1) cluster_sync();  // the blocks that others write to have started
#endif
  const int s = blockIdx.x / blocks;
  if (a.slots && a.slots[s] < 0) return;  // all blocks of the cluster do
  const tg_sampling set = a.settings[s];
  const int rank = blocks > 1 ? blockIdx.x % blocks : 0, base = rank * a.share;
  const int own_tokens = max(0, min(a.share, a.vocabulary - base));
  const int pieces = a.share / 4;  // of four tokens
  float4* const weights = blocks > 1 ? dynamic : reinterpret_cast<float4*>(a.weights + int64_t(s) * a.share);
  uint32_t* const seen = reinterpret_cast<uint32_t*>(blocks > 1 ? dynamic + pieces : dynamic);  // a bit for each token
  const int position = a.positions ? a.positions[s] : 0;
  int turn = 0;

  const bool penalised = a.history && set.repetition_penalty != 1 && set.repetition_penalty > 0;
  if (penalised) {
    for (int i = threadIdx.x; i < (a.share + 31) / 32; i += threads) seen[i] = 0;
    __syncthreads();
    const int64_t end = min(int64_t(position) + 1, a.history_stride);
    const int64_t first = set.last_n > 0 ? max(int64_t(0), end - set.last_n) : 0;
    for (int64_t i = first + threadIdx.x; i < end; i += threads) {
      const int64_t at = int64_t(a.history[s * a.history_stride + i]) - base;
      if (at >= 0 && at < own_tokens) atomicOr(seen + at / 32, 1u << at % 32);
    }
    __syncthreads();
  }

  // The numbers, and the largest of them with its first index.
  const T* row = reinterpret_cast<const T*>(a.logits) + s * a.stride + base;
  uint32_t top = 0, index = ~0u;
  for (int p = threadIdx.x; p < pieces; p += threads) {
    float x[4];
    if (a.whole && 4 * p + 3 < own_tokens) {
      struct alignas(4 * sizeof(T)) Four {
        T x[4];
      };
      const Four four = reinterpret_cast<const Four*>(row)[p];
#pragma unroll
      for (int e = 0; e < 4; e++) x[e] = to_float(four.x[e]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++) x[e] = 4 * p + e < own_tokens ? to_float(row[4 * p + e]) : -INFINITY;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int i = 4 * p + e;
      if (penalised && (seen[i / 32] >> i % 32 & 1)) {
        x[e] = x[e] > 0 ? x[e] / set.repetition_penalty : x[e] * set.repetition_penalty;
      }
      if (!(x[e] > -INFINITY)) x[e] = -INFINITY;
      const uint32_t key = ordered(x[e]);
      if (key > top) top = key, index = base + i;
    }
    weights[p] = make_float4(x[0], x[1], x[2], x[3]);
  }
  const uint32_t highest = together<blocks>({0, 0, 0, top}, shared, turn).largest;
  const bool none = highest == 0;
  uint32_t winner = 0;
  if (none) {
    // nothing to choose from
  } else if (!(set.temperature > 0) || highest == 0xff800000) {  // or +inf, which has all of the probability
    winner = together<blocks>({0, 0, top == highest ? index : ~0u, 0}, shared, turn).least;
  } else {
    const float largest = __uint_as_float(highest & 0x80000000 ? highest & 0x7fffffff : ~highest);
    const float scale = 1.4426950408889634f / set.temperature;
    Found own = {0, 0, 0x7f800000, 0};
    for (int p = threadIdx.x; p < pieces; p += threads) {
      float4 w = weights[p];
      float* const each = &w.x;
#pragma unroll
      for (int e = 0; e < 4; e++) {
        const float below = each[e] - largest;  // 0 for the largest, at any temperature
        each[e] = below == 0 ? 1.0f : exp2f(below * scale);
        own.sum += each[e];
        if (each[e] > 0) own.least = min(own.least, __float_as_uint(each[e]));
      }
      weights[p] = w;
    }
    const Found whole = together<blocks>(own, shared, turn);
    // What there is from a pivot on, the least weight there, and the largest one below.
    const auto from = [&](float pivot) {
      Found own = {0, 0, 0x7f800000, 0};
      for (int p = threadIdx.x; p < pieces; p += threads) {
        const float4 w = weights[p];
        const float each[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
          const bool in = each[e] >= pivot;
          own.sum += in ? each[e] : 0;
          own.count += in;
          own.least = min(own.least, in ? __float_as_uint(each[e]) : 0x7f800000);
          own.largest = max(own.largest, in ? 0 : __float_as_uint(each[e]));
        }
      }
      return together<blocks>(own, shared, turn);
    };
    // The largest threshold with enough above: `count` tokens, or a sum of `sum`. `low` is known to be enough.
    float mass = whole.sum;
    const auto search = [&](float low, uint32_t count, float sum) {
      uint32_t least = __float_as_uint(low), most = 0x3f800000;
      while (least < most) {
        const uint32_t pivot = least + (most - least + 1) / 2;
        const Found found = from(__uint_as_float(pivot));
        if (count ? found.count >= count : found.sum >= sum) least = found.least, mass = found.sum;
        else most = found.largest;
      }
      return __uint_as_float(least);
    };
    float low = __uint_as_float(whole.least);
    if (set.top_k > 0 && set.top_k < a.vocabulary) low = search(low, set.top_k, 0);
    if (set.top_p < 1) low = search(low, 0, fmaxf(set.top_p, 0) * mass);
    low = fmaxf(low, fminf(set.min_p, 1));
    uint32_t score = 0;
    index = ~0u;
    for (int p = threadIdx.x; p < pieces; p += threads) {
      const float4 w = weights[p];
      const float each[4] = {w.x, w.y, w.z, w.w};
      if (fmaxf(fmaxf(w.x, w.y), fmaxf(w.z, w.w)) < low) continue;
      const uint4 random = philox(make_uint4((base + 4 * p) / 4, position, set.sequence, 0),
                                  make_uint2(uint32_t(set.seed), uint32_t(set.seed >> 32)));
      const uint32_t draws[4] = {random.x, random.y, random.z, random.w};
#pragma unroll
      for (int e = 0; e < 4; e++) {
        if (each[e] < low) continue;
        // An exponential number; near 0, where winners lie, with all of the 32 bits.
        const float x = -log1pf(-fminf((float(draws[e]) + 0.5f) * 2.3283064e-10f, 0.99999994f));
        const uint32_t key = __float_as_uint(each[e] / x);
        if (key > score || index == ~0u) score = key, index = base + 4 * p + e;
      }
    }
    const uint32_t best = together<blocks>({0, 0, 0, score}, shared, turn).largest;
    winner = together<blocks>({0, 0, score == best ? index : ~0u, 0}, shared, turn).least;
  }
  if (rank == 0 && threadIdx.x == 0) finish(a, s, winner, none);
#if __CUDA_ARCH__ >= 900
  if constexpr (blocks > 1) cluster_sync();  // no block leaves while another one writes to it
#endif
}

// ---- The host's side ------------------------------------------------------------------------------------------------

template <class T>
tg_status run_greedy(const Sample& a, int sequences, const tg_launch& launch) {
  constexpr int width = 16 / sizeof(T);
  const bool whole = at_multiple(a.logits, 16) && (sequences == 1 || a.stride % width == 0);
  const int pieces = a.vocabulary / (whole ? width : 1);
  const int each = 256 * (sequences > 16 ? 4 : sequences > 4 ? 2 : 1);
  int blocks = (pieces + each - 1) / each;
  if (blocks > 256) blocks = 256;
  if (blocks < 1) blocks = 1;
  const dim3 grid{unsigned(blocks), unsigned(sequences)};
  return whole ? start(launch, grid, 256, 0, 1, layer_greedy<T, width>, a)
               : start(launch, grid, 256, 0, 1, layer_greedy<T, 1>, a);
}

template <class T>
tg_status run_draw(const Sample& a, int sequences, bool clusters, const tg_launch& launch) {
  const int bits = (a.share + 31) / 32 * 4;
  const int shared = clusters ? a.share * 4 + bits : bits;
  const auto kernel = clusters ? layer_draw<T, most_blocks> : layer_draw<T, 1>;
  if (shared > 40 * 1024 &&
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_tokens / most_blocks * 4 + 8192)) {
    return TG_CUDA_ERROR;
  }
  const int blocks = clusters ? most_blocks : 1;
  return start(launch, dim3(sequences * blocks), threads, shared, blocks, kernel, a);
}

bool has_clusters() {
  int device = 0, major = 0;
  return !cudaGetDevice(&device) && !cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) &&
         major >= 9;
}

int64_t share_of(int vocabulary, int blocks) { return ((vocabulary + blocks - 1) / blocks + 3) / 4 * 4; }

}  // namespace
}  // namespace tilegemm

// 16 bytes a sequence; before Hopper also the weights of the vocabulary.
extern "C" int64_t tg_sample_workspace(int32_t sequences, int32_t vocabulary) {
  using namespace tilegemm;
  return int64_t(sequences) * (16 + (has_clusters() ? 0 : 4 * share_of(vocabulary, 1)));
}

extern "C" tg_status tg_sample_launch(const tg_sample* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_sample& x = *args;
  if (x.sequences < 0 || x.sequences > 65535 || x.vocabulary < 1 || (x.settings && x.vocabulary > most_tokens) ||
      (x.format != TG_F32 && x.format != TG_BF16 && x.format != TG_F16) || !at_multiple(x.workspace, 16) ||
      x.workspace_bytes < int64_t(x.sequences) * 16) {
    return TG_UNSUPPORTED;
  }
  if (x.sequences == 0) return TG_OK;
  Sample a{};
  a.logits = static_cast<const char*>(x.logits), a.stride = x.logits_stride;
  a.settings = x.settings, a.slots = x.slots, a.tokens = x.tokens;
  a.positions = x.positions, a.lengths = x.lengths, a.history = x.history, a.history_stride = x.history_stride;
  a.error = x.error, a.vocabulary = x.vocabulary;
  a.keys = static_cast<unsigned long long*>(x.workspace);
  a.arrived = reinterpret_cast<unsigned*>(a.keys + x.sequences);
  if (!x.settings) {
    switch (x.format) {
      case TG_F32: return run_greedy<float>(a, x.sequences, *launch);
      case TG_F16: return run_greedy<__half>(a, x.sequences, *launch);
      default: return run_greedy<__nv_bfloat16>(a, x.sequences, *launch);
    }
  }
  const bool clusters = has_clusters();
  const int four = x.format == TG_F32 ? 16 : 8;  // bytes
  a.whole = at_multiple(x.logits, four) && (x.sequences == 1 || x.logits_stride % 4 == 0);
  if (x.workspace_bytes < tg_sample_workspace(x.sequences, x.vocabulary)) return TG_UNSUPPORTED;
  a.share = int(share_of(x.vocabulary, clusters ? most_blocks : 1));
  a.weights = reinterpret_cast<float*>(static_cast<char*>(x.workspace) + 16 * int64_t(x.sequences));
  switch (x.format) {
    case TG_F32: return run_draw<float>(a, x.sequences, clusters, *launch);
    case TG_F16: return run_draw<__half>(a, x.sequences, clusters, *launch);
    default: return run_draw<__nv_bfloat16>(a, x.sequences, clusters, *launch);
  }
}

extern "C" tg_status tg_load_layer_sample() { return tilegemm::load_own_module(); }
