// One to four rows of A: D = A @ B with K contiguous in both, on the CUDA cores.
//
// Such a product is a read of B at memory speed. B's columns, called W's rows here, go from memory straight into the
// registers of the one thread that multiplies them, in 16-byte loads of which each thread has four on their way. A warp
// takes two rows of W at a time; `split` warps of a block share them and split K. Partial sums meet in shared memory and
// are added in a fixed order: there is no workspace, and results do not change from run to run. The grid is persistent,
// so that the next rows are on their way while sums are added up.
//
// The kernel may start while the one before it still runs (ptx.hpp). It then has its first weights brought into L2.
#include <algorithm>
#include <climits>

#include "epilogue.hpp"
#include "kernel.hpp"
#include "ptx.hpp"
#include "sm90.hpp"

namespace tilegemm {
namespace {

constexpr int lanes = 32;
constexpr int blocks_per_sm = 2;
constexpr int warps_per_sm = 16;  // at the 128 registers of a thread that four loads in flight and their sums take

// What a warp multiplies at a time.
template <class Row>
struct Chunk {
  using T = typename scalar<Row::dtype>::type;
  static constexpr int width = 16 / int(sizeof(T));  // numbers of one load
  static constexpr int rows = Row::tile_n;
  static constexpr int step = lanes * width;  // of K, that the lanes load side by side
  static constexpr int steps = Row::tile_k / step, k = Row::tile_k;
  static_assert(Row::tile_k % step == 0);
};

template <class T>
struct Problem {
  tg_matrix a, b, d;
  int n, k, batch1;
};

// Weights are read once: they should displace nothing, neither in L1 nor in L2.
__device__ inline uint4 load_weights(const void* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from), "l"(evict_first));
  return v;
}

// Activations stay in L1, from where every warp reads them. Not `.nc`: the kernel before may have written them.
__device__ inline uint4 load_activations(const void* from) {
  uint4 v;
  asm volatile("ld.global.L1::evict_last.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
  return v;
}

// The numbers in a 32-bit word.
__device__ inline float2 unpack(__nv_bfloat16, uint32_t word) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}
__device__ inline float2 unpack(__half, uint32_t word) { return __half22float2(reinterpret_cast<const __half2&>(word)); }

// Adds each of V values over the warp. Every step halves the values that a lane is in charge of, so that it takes V + 4
// shuffles at most instead of 5 V. Value i ends up as v[0] of the lanes from i * 32 / V on.
template <int V, int OFFSET = lanes / 2, int N>
__device__ inline void add_over_warp(float (&v)[N], int lane) {
  if constexpr (V > 1) {
    const bool upper = lane & OFFSET;
#pragma unroll
    for (int i = 0; i < V / 2; i++) {
      const float keep = upper ? v[i + V / 2] : v[i], give = upper ? v[i] : v[i + V / 2];
      v[i] = keep + __shfl_xor_sync(~0u, give, OFFSET);
    }
  } else {
    v[0] += __shfl_xor_sync(~0u, v[0], OFFSET);
  }
  if constexpr (OFFSET > 1) add_over_warp<(V > 1 ? V / 2 : 1), OFFSET / 2>(v, lane);
}

constexpr int power_of_two_from(int x) { return x <= 1 ? 1 : 2 * power_of_two_from((x + 1) / 2); }

// A warp's rows of W, its chunk of them on the way, and its sums. Weights and activations beyond K are zeros, not whatever
// lies there. Rows beyond N repeat the last one and are never stored.
template <class Row, int M>
struct Warp {
  using C = Chunk<Row>;
  using T = typename C::T;
  static constexpr int values = power_of_two_from(M * C::rows);  // sums (m, row), padded
  static_assert(values <= lanes);

  const T *a, *w;  // the lane's first numbers of the batch's matrices
  int64_t a_stride, w_stride;
  int n, k_end, lane;
  const T* row[C::rows];
  uint4 weights[C::steps][C::rows];
  float sum[values] = {};

  __device__ Warp(const Problem<T>& p, int lane)
      : a_stride(p.a.row_stride), w_stride(p.b.col_stride), n(p.n), k_end(p.k), lane(lane) {
    const int batch = blockIdx.y, batch0 = gridDim.y == 1 ? 0 : batch / p.batch1, batch1 = batch - batch0 * p.batch1;
    const auto first = [&](const tg_matrix& matrix) {
      return static_cast<const T*>(matrix.ptr) + batch0 * matrix.batch_stride[0] + batch1 * matrix.batch_stride[1] +
             lane * C::width;
    };
    a = first(p.a);
    w = first(p.b);
  }

  __device__ void point(int first_row) {
#pragma unroll
    for (int r = 0; r < C::rows; r++) row[r] = w + min(first_row + r, n - 1) * w_stride;
  }

  __device__ void prefetch(int k) const {
#pragma unroll
    for (int r = 0; r < C::rows; r++) {
      if (lane == 0 && k < k_end) prefetch_l2(row[r] + k, min(C::k, k_end - k) * int(sizeof(T)), evict_first);
    }
  }

  template <bool WHOLE>
  __device__ bool exists(int k) const {
    return WHOLE || k + lane * C::width < k_end;
  }

  template <bool WHOLE>
  __device__ void load_step(int k, int step) {
    k += step * C::step;
#pragma unroll
    for (int r = 0; r < C::rows; r++) {
      if (!WHOLE) weights[step][r] = make_uint4(0, 0, 0, 0);
      if (exists<WHOLE>(k)) weights[step][r] = load_weights(row[r] + k);
    }
  }

  template <bool WHOLE>
  __device__ void multiply_step(int k, int step) {
    k += step * C::step;
    uint4 x[M];
#pragma unroll
    for (int m = 0; m < M; m++) {
      if (!WHOLE) x[m] = make_uint4(0, 0, 0, 0);
      if (exists<WHOLE>(k)) x[m] = load_activations(a + m * a_stride + k);
    }
    const auto word = [](const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; };
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float2 u[C::rows];
#pragma unroll
      for (int r = 0; r < C::rows; r++) u[r] = unpack(T(), word(weights[step][r], i));
#pragma unroll
      for (int m = 0; m < M; m++) {
        const float2 v = unpack(T(), word(x[m], i));
#pragma unroll
        for (int r = 0; r < C::rows; r++) {
          float& s = sum[m * C::rows + r];
          s = fmaf(u[r].y, v.y, fmaf(u[r].x, v.x, s));
        }
      }
    }
  }

  template <bool WHOLE, bool LOAD, bool MULTIPLY>
  __device__ void steps(int k, int next) {
#pragma unroll
    for (int step = 0; step < C::steps; step++) {
      if constexpr (MULTIPLY) multiply_step<WHOLE>(k, step);
      if constexpr (LOAD) load_step<WHOLE>(next, step);
    }
  }
  __device__ void load(int k) { k + C::k <= k_end ? steps<true, true, false>(0, k) : steps<false, true, false>(0, k); }
  __device__ void multiply(int k) { k + C::k <= k_end ? steps<true, false, true>(k, 0) : steps<false, false, true>(k, 0); }

  // Multiplies one chunk and loads another: step by step where both are whole, which keeps more loads on their way.
  __device__ void multiply_and_load(int k, int next) {
    if (k + C::k <= k_end && next + C::k <= k_end) return steps<true, true, true>(k, next);
    multiply(k);
    load(next);
  }

  // Writes the sums to `partial` and starts anew.
  __device__ void flush(float* partial) {
    add_over_warp<values>(sum, lane);
    constexpr int owners = lanes / values;
    if (lane % owners == 0) partial[lane / owners] = sum[0];
#pragma unroll
    for (float& s : sum) s = 0;
  }
};

// A block is (lanes, split, teams). The rows of W are dealt out to the teams of all blocks in turns.
template <class Row, int M>
__global__ void __maxnreg__(65536 / (warps_per_sm * lanes))
    gemv(const __grid_constant__ Problem<typename Chunk<Row>::T> problem,
         const __grid_constant__ Epilogue<typename Chunk<Row>::T, float> epilogue) {
  using C = Chunk<Row>;
  using W = Warp<Row, M>;
  __shared__ float shared[2][warps_per_sm * W::values];  // sums of a block's warps, for two tiles in turns
  const int lane = threadIdx.x, split = blockDim.y, teams = blockDim.z, team = threadIdx.z;
  const int warp_index = team * split + threadIdx.y, threads = split * teams * lanes;
  launch_dependents();

  W warp(problem, lane);
  const int tile_rows = teams * C::rows;
  const int k_first = threadIdx.y * C::k, k_step = split * C::k;
  int row = int(blockIdx.x) * tile_rows, k = k_first, buffer = 0;
  warp.point(row + team * C::rows);
  warp.prefetch(k);
  griddepcontrol_wait();
  warp.load(k);

  for (;;) {
    const int this_row = row;
    const bool tile_done = k + k_step >= problem.k;
    int next = k + k_step;
    if (tile_done) {
      next = k_first;
      row += int(gridDim.x) * tile_rows;
      if (row < problem.n) warp.point(row + team * C::rows);
    }
    if (row < problem.n) warp.multiply_and_load(k, next);
    else warp.multiply(k);
    k = next;
    if (!tile_done) continue;

    // Buffers alternate, so that nobody writes a sum for the next tile where another still reads: to get to the tile
    // after it, all must have passed this barrier again.
    float* const partial = shared[buffer];
    buffer ^= 1;
    warp.flush(partial + warp_index * W::values);
    __syncthreads();
    for (int output = warp_index * lanes + lane; output < teams * W::values; output += threads) {
      const int value = output % W::values, of_team = output / W::values;
      const int m = value / C::rows, n = this_row + of_team * C::rows + value % C::rows;
      if (m >= M || n >= problem.n) continue;
      const float* from = partial + of_team * split * W::values + value;
      float total = from[0];
      for (int i = 1; i < split; i++) total += from[i * W::values];
      const int batch = blockIdx.y, batch0 = gridDim.y == 1 ? 0 : batch / problem.batch1;
      const int batch1 = batch - batch0 * problem.batch1;
      const tg_matrix& d = problem.d;
      static_cast<typename C::T*>(d.ptr)[m * d.row_stride + n * d.col_stride + batch0 * d.batch_stride[0] +
                                         batch1 * d.batch_stride[1]] = epilogue(total, m, n, batch0, batch1);
    }
    if (row >= problem.n) return;
  }
}

// Warps that share a row: as many as make for the fewest turns of a chunk each, four when it makes little difference.
int choose_split(int64_t n, int64_t k, int rows, int chunk, int sm_count) {
  int best = 4;
  double least = 1e300;
  for (int split : {4, 8, 2, 1, 16}) {
    const double tiles = double(ceil_div(ceil_div(n, rows), int64_t(sm_count) * warps_per_sm / split));
    const double turns = tiles * (double(ceil_div(k, int64_t(chunk) * split)) + 0.05);
    if (turns < 0.97 * least) best = split, least = turns;
  }
  return best;
}

// Whether every matrix has K contiguous and the rest of its rows on 16 bytes.
template <class T>
bool k_contiguous(const tg_matrix& matrix, int64_t unit, int64_t leading, int64_t rows, const int64_t (&batch)[2]) {
  const auto aligned = [](int64_t stride, int64_t extent) { return extent == 1 || stride * int64_t(sizeof(T)) % 16 == 0; };
  return unit == 1 && aligned(leading, rows) && aligned(matrix.batch_stride[0], batch[0]) &&
         aligned(matrix.batch_stride[1], batch[1]) && reinterpret_cast<uintptr_t>(matrix.ptr) % 16 == 0;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using C = Chunk<Row>;
  using T = typename C::T;
  static_assert(Row::layout == TG_NT);
  const tg_gemm_args& args = *problem;
  const int64_t batches = args.batch[0] * args.batch[1];
  if (args.m == 0 || args.n == 0 || batches == 0) return TG_OK;
  if (args.m > Row::tile_m || args.n > INT_MAX / 2 || args.k > INT_MAX / 2 || args.k == 0 || args.k % C::width != 0 ||
      batches > 65535 || !k_contiguous<T>(args.a, args.a.col_stride, args.a.row_stride, args.m, args.batch) ||
      !k_contiguous<T>(args.b, args.b.row_stride, args.b.col_stride, args.n, args.batch)) {
    return TG_UNSUPPORTED;
  }
  // A batch fills the device by itself, as do many rows of W.
  const int share = int(std::max<int64_t>(1, args.sm_count / batches));
  const int split = choose_split(args.n, args.k, C::rows, C::k, share);
  const int warps = std::max(split, warps_per_sm / blocks_per_sm), teams = warps / split;
  const int64_t tiles = ceil_div(args.n, int64_t(teams) * C::rows);
  const int64_t most = std::max<int64_t>(1, int64_t(args.sm_count) * (warps_per_sm / warps));

  using Kernel = void (*)(Problem<T>, Epilogue<T, float>);
  static constexpr Kernel kernels[] = {gemv<Row, 1>, gemv<Row, 2>, gemv<Row, 3>, gemv<Row, 4>};
  static_assert(Row::tile_m == sizeof(kernels) / sizeof(kernels[0]));
  Problem<T> p{args.a, args.b, args.d, int(args.n), int(args.k), int(args.batch[1])};
  Epilogue<T, float> epilogue(args);
  const dim3 grid(unsigned(std::min(tiles, most)), unsigned(batches)), block(lanes, unsigned(split), unsigned(teams));
  void* parameters[] = {&p, &epilogue};
  return Launch(args, grid, block, 0)(reinterpret_cast<const void*>(kernels[args.m - 1]), parameters);
}

}  // namespace tilegemm

#include TG_ROWS
