// The sums of parts of K: a kernel that adds the parts of each element of D in order, and applies the epilogue. So
// results do not change from run to run.
#pragma once
#include <climits>

#include "common/epilogue.hpp"
#include "common/launch.hpp"
#include "common/ptx.hpp"

namespace tilegemm {
namespace {

constexpr int adding_threads = 256;
constexpr int threads_of_sm = 2048;  // that a multiprocessor has room for

// A sum of sums. In f32 the rounding errors of the additions are summed separately (Neumaier, "Rundungsfehleranalyse
// einiger Verfahren zur Summation endlicher Summen", 1974), so that many parts cost no digits: sums are as exact as
// cuBLAS's SGEMM.
template <class Acc>
struct Total {
  Acc sum = Acc(0), rest = Acc(0);

  __device__ void add(Acc x) {
    const Acc before = sum;
    sum += x;
    if constexpr (sizeof(Acc) == 4) rest += (before - sum) + x;  // exact where |before| >= |x|
  }

  // Where the sum is infinite, the rest is NaN and does not count.
  __device__ Acc value() const { return sizeof(Acc) == 4 && isfinite(rest) ? sum + rest : sum; }
};

// The sum of a part at (i, j) of a matrix: [part][matrix][m][n] in the workspace.
template <class Acc>
__device__ __forceinline__ Acc* part_at(const tg_gemm_args& args, int64_t part, int64_t matrix, int64_t i, int64_t j) {
  return static_cast<Acc*>(args.workspace) + ((part * (args.batch[0] * args.batch[1]) + matrix) * args.m + i) * args.n +
         j;
}

// Adds the parts of each element of D, `LANES` threads to an element, and applies the epilogue.
template <class Out, class Acc, int LANES, class E>
__global__ void __launch_bounds__(adding_threads)
    add_parts(const __grid_constant__ tg_gemm_args args, const __grid_constant__ E epilogue) {
  launch_dependents();
  griddepcontrol_wait();
  const int64_t matrix = args.m * args.n, count = args.batch[0] * args.batch[1] * matrix;
  const int64_t index = (int64_t(blockIdx.x) * adding_threads + threadIdx.x) / LANES;
  const int lane = threadIdx.x % LANES;
  Total<Acc> total;
  if (index < count) {
    const Acc* const parts = static_cast<const Acc*>(args.workspace) + index;
#pragma unroll 8
    for (int part = lane; part < args.config.split; part += LANES) total.add(parts[part * count]);
  }
  Acc sum = total.value();
#pragma unroll
  for (int bit = LANES / 2; bit > 0; bit /= 2) sum += __shfl_xor_sync(~0u, sum, bit);
  if (index >= count || lane != 0) return;
  const int64_t j = index % args.n, i = index / args.n % args.m, batch = index / matrix;
  const int64_t batch0 = batch / args.batch[1], batch1 = batch % args.batch[1];
  static_cast<Out*>(args.d.ptr)[i * args.d.row_stride + j * args.d.col_stride + batch0 * args.d.batch_stride[0] +
                                batch1 * args.d.batch_stride[1]] = epilogue(sum, i, j, batch0, batch1);
}

// Launches the kernel that adds the parts of `args.config.split`. `E`: the epilogue.
template <class Out, class Acc, class E = Epilogue<Out, Acc>>
tg_status launch_add_parts(const tg_gemm_args& args) {
  // As many threads for an element as fit on the card at the same time, but no more than there are parts to add.
  const int64_t count = args.m * args.n * args.batch[0] * args.batch[1],
                room = int64_t(args.sm_count) * threads_of_sm / count;
  const int lanes = args.config.split >= 32 && room >= 32 ? 32 : args.config.split >= 8 && room >= 8 ? 8 : 1;
  const int64_t blocks = ceil_div(count * lanes, adding_threads);
  if (blocks > INT_MAX) return TG_UNSUPPORTED;
  const auto kernel = lanes == 32  ? add_parts<Out, Acc, 32, E>
                      : lanes == 8 ? add_parts<Out, Acc, 8, E>
                                   : add_parts<Out, Acc, 1, E>;
  return Launch(args, dim3(unsigned(blocks)), dim3(adding_threads), 0)(kernel, args, E(args));
}

// Bytes of the workspace that hold the sums of all parts.
template <class Acc>
uint64_t parts_bytes(const tg_gemm_args& args) {
  return uint64_t(args.config.split) * uint64_t(args.m * args.n * args.batch[0] * args.batch[1]) * sizeof(Acc);
}

}  // namespace
}  // namespace tilegemm
