// Common to kernels that are bound by memory, for a few rows of A or a K of 1: the problem, operands in registers, sums
// over the lanes of a warp.
#pragma once
#include <algorithm>
#include <type_traits>

#include "common/epilogue.hpp"
#include "common/kernel.hpp"
#include "common/launch.hpp"
#include "common/ptx.hpp"

namespace tilegemm {

constexpr int lanes = 32;

// Numbers of one load of 16 bytes.
template <class T> constexpr int width = 16 / int(sizeof(T));

// A kernel reads weights once, so the load should displace nothing in L1 or L2. The load is not `.nc`: the kernel
// before may have written the weights.
__device__ inline uint4 load_weights(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from), "l"(evict_first));
  return v;
}

// Activations stay in L1, because every warp reads the activations. The load is not `.nc`: the kernel before may have
// written the activations.
__device__ inline uint4 load_activations(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::evict_last.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

__device__ inline uint32_t word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// The numbers of a 32-bit word: one or two.
template <class T>
__device__ inline void unpack(uint32_t word, float (&out)[4 / sizeof(T)]) {
  if constexpr (std::is_same_v<T, float>) {
    out[0] = __uint_as_float(word);
  } else if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    out[0] = __uint_as_float(word << 16);
    out[1] = __uint_as_float(word & 0xffff0000u);
  } else {
    const float2 both = __half22float2(reinterpret_cast<const __half2&>(word));
    out[0] = both.x;
    out[1] = both.y;
  }
}

constexpr int power_of_two_from(int x) { return x <= 1 ? 1 : 2 * power_of_two_from((x + 1) / 2); }

// Adds V values of every lane, V a power of two, over the lanes that differ in the bits LOW ... HIGH of their number.
template <int V, int HIGH = lanes / 2, int LOW = 1>
struct LaneSums {
  static constexpr int group = 2 * HIGH / LOW;             // lanes whose values are added
  static constexpr int left = V > group ? V / group : 1;   // sums that a lane has in the end
  static constexpr int twins = V < group ? group / V : 1;  // neighbouring lanes with the same sums

  // The index of the first of a lane's sums.
  __device__ static int first(int lane) { return lane / LOW % group / twins * left; }

  // Every step halves the number of values that a lane still adds, so that at most V + 4 shuffles are needed instead of
  // 5 V. The sums end up in v[0] ... v[left - 1].
  template <int COUNT = V, int BIT = HIGH, int N>
  __device__ static void add(float (&v)[N], int lane) {
    if constexpr (COUNT > 1) {
      const bool upper = lane & BIT;
#pragma unroll
      for (int i = 0; i < COUNT / 2; i++) {
        const float keep = upper ? v[i + COUNT / 2] : v[i], give = upper ? v[i] : v[i + COUNT / 2];
        v[i] = keep + __shfl_xor_sync(~0u, give, BIT);
      }
    } else {
      v[0] += __shfl_xor_sync(~0u, v[0], BIT);
    }
    if constexpr (BIT > LOW) add<(COUNT > 1 ? COUNT / 2 : 1), BIT / 2>(v, lane);
  }
};

// The matrix of a batch that a block computes: matrix blockIdx.y, unless another matrix is named.
struct Batch {
  int outer, inner;
  __device__ explicit Batch(int inner_batch) {
    outer = gridDim.y == 1 ? 0 : int(blockIdx.y) / inner_batch;
    inner = int(blockIdx.y) - outer * inner_batch;
  }
  __device__ Batch(int inner_batch, int matrix) : outer(matrix / inner_batch), inner(matrix - outer * inner_batch) {}
  template <class T>
  __device__ T* of(const tg_matrix& matrix) const {
    return matrix_of<T>(matrix, outer, inner);
  }
};

// A product, as a kernel's parameter; `T`: the type of C, the bias and D.
template <class T>
struct GemvProblem {
  tg_matrix a, b, d;
  int m, n, k, inner_batch;
  bool plain;  // whether D is the product alone

  explicit GemvProblem(const tg_gemm_args& args)
      : a(args.a), b(args.b), d(args.d), m(int(args.m)), n(int(args.n)), k(int(args.k)),
        inner_batch(int(args.batch[1])), plain(Epilogue<T, float>(args).is_plain()) {}

  __device__ void store(float sum, int i, int j, const Batch& batch, const Epilogue<T, float>& epilogue) const {
    if (!plain) sum = epilogue.unrounded(sum, i, j, batch.outer, batch.inner);
    batch.of<T>(d)[i * d.row_stride + j * d.col_stride] = T(sum);
  }
};

// Launches blocks of `warps` warps in teams of `split`, with C::rows rows of W for a team: as many blocks as there are
// tiles for, or as run at a time. A block has 8 warps, or 16 where a multiprocessor runs 16 warps of the kernel.
template <class C, class T>
tg_status launch_teams(const tg_gemm_args& args, void (*kernel)(GemvProblem<T>, Epilogue<T, float>),
                       int shared_bytes = 0) {
  const int warps = args.config.warps, split = args.config.split;
  if ((warps != 8 && warps != 16) || warps > C::warps_per_sm || split < 1 || warps % split != 0) return TG_UNSUPPORTED;
  const int teams = warps / split;
  const int64_t tiles = ceil_div(args.n, int64_t(teams) * C::rows),
                most = int64_t(args.sm_count) * (C::warps_per_sm / warps);
  const GemvProblem<T> problem(args);
  const Epilogue<T, float> epilogue(args);
  const dim3 grid(unsigned(std::min(tiles, most)), unsigned(args.batch[0] * args.batch[1]));
  return Launch(args, grid, dim3(lanes, unsigned(split), unsigned(teams)), shared_bytes)(kernel, problem, epilogue);
}

}  // namespace tilegemm
