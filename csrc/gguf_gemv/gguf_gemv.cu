// Up to 8 rows of activations times the weights of a GGUF file, at the speed of memory.
//
// Weights are operand A of mma.m16n8k16 in bf16, as whole numbers (common/gguf_fragment.hpp); activations are operand B, so that 8 rows take
// the time of one. An activation in f16 or f32 is the sum of two numbers of bf16, which is exact for f16 and has 16 bits for f32. Each scale
// multiplies a sum over its 16 or 32 numbers, in f32; a minimum multiplies the sum of the activations, from a product with ones.
//
// A block has 128 rows of W, 16 for each warp, and a part of K. Blocks of the file arrive by cp.async as they lie, in a ring of each warp. The
// block's threads write the activations of a span of 256 k to shared memory once for all warps.
//
// Sums of factors cannot tell what infinite scales and activations make of a single weight. A warp that has met one computes its sums once
// more, number by number.
#include "common/add_parts.hpp"
#include "common/gguf_fragment.hpp"
#include "common/mma.hpp"

namespace tilegemm {
namespace {

// A warp's 16 rows span less than 2^32 bytes. src/family/gguf_gemv.rs has the same number.
constexpr int64_t most_stride = 1 << 27;
constexpr int warps = 8, threads = 32 * warps, rows_of_warp = 16, rows_of_block = warps * rows_of_warp, most_m = 8;
static_assert(threads == gguf::span);

template <tg_format F, class T, int TILES>
struct Shape {
  using Input = T;
  using Row = gguf::Row<F>;
  static constexpr tg_format format = F;
  static constexpr int tiles = TILES, columns = 8 * TILES;  // of operand B
  static constexpr bool has_halves = !std::is_same_v<T, __nv_bfloat16>;
  // Bytes from a row to the next, for a row at any multiple of 2 bytes: an odd multiple of 16, which spreads eight rows over all banks.
  static constexpr int least = (Row::bytes + 15 + 15) / 16 * 16, pitch = least % 32 ? least : least + 16;
  static constexpr int stages = pitch > 256 ? 2 : 3;
  static constexpr int stage_bytes = rows_of_warp * pitch, ring_bytes = stages * stage_bytes;
  static constexpr int x_count = gguf::span * columns;  // numbers of bf16
  // Behind the last row a word may touch 4 bytes.
  static constexpr int shared_bytes = warps * ring_bytes + 16 + 2 * x_count * int(sizeof(__nv_bfloat16));
};

// The place of number k of a span, for column 0 of operand B: [step][column][lane t][4 numbers].
template <class S>
__device__ int place_of(int k) {
  return k / gguf::step * (S::columns * gguf::step) + gguf::place_of_k(k % gguf::step);
}

// The blocks of a warp's 16 rows, span after span. Places are bytes from a multiple of 16 at or before the first row's first byte.
template <class S>
class Ring {
 public:
  using Row = typename S::Row;

  __device__ Ring(const tg_gemm_args& args, int first_row, uint8_t* ring)
      : rows_left_(int(args.n) - 1 - first_row), row_bytes_(uint32_t(args.k) / Row::block.elements * Row::block.bytes),
        stride_(int(args.b.col_stride / Row::block.elements * Row::block.bytes)) {
    const uint64_t first = reinterpret_cast<uint64_t>(args.b.ptr), here = first + int64_t(min(first_row, int(args.n) - 1)) * stride_;
    base_ = reinterpret_cast<const uint8_t*>(here & ~uint64_t(15));
    odd_ = uint32_t(here & 15);
    front_ = here == first ? odd_ : 0;
    // Rows behind the end of W are the last row.
    end_ = odd_ + uint32_t(min(max(rows_left_, 0), rows_of_warp - 1)) * stride_ + row_bytes_;
    to_ = uint32_t(__cvta_generic_to_shared(ring));
#pragma unroll
    for (int i = 0; i < copies; i++) rows_[i] = place(index(i) / chunks);
  }

  __device__ void load(int span, int stage) const {
#pragma unroll
    for (int i = 0; i < copies; i++) {
      const int r = index(i) / chunks, chunk = index(i) % chunks;
      const uint32_t from = rows_[i] + span * Row::bytes, at = (from & ~15u) + 16 * chunk;
      // Of a row's last span there may be fewer blocks.
      const uint32_t until = Row::block.elements == gguf::span ? from + Row::bytes : min(from + Row::bytes, rows_[i] + row_bytes_);
      const bool exists = (rows_of_warp * chunks % 32 == 0 || r < rows_of_warp) && at >= front_ && at < until;
      const uint32_t to = to_ + stage * S::stage_bytes + r * S::pitch + 16 * chunk;
      if (exists) copy_async_16(to, base_ + at, int(min(end_ - at, 16u)), evict_first);
    }
  }

  // Loads the first bytes of W, where these do not start at a multiple of 16 bytes: `load` leaves them out.
  __device__ void load_front(int stage) const {
    const int byte = int(threadIdx.x) % 32;
    if (front_ > 0 && byte >= front_ && byte < 16 && byte < end_) store_shared_8(to_ + stage * S::stage_bytes + byte, base_[byte]);
  }

  // The bytes between row i's span and the multiple of 16 before, with which the span has arrived in shared memory.
  __device__ uint32_t odd_bytes(int i, int span) const { return (place(i) + span * Row::bytes) & 15; }

  __device__ const uint8_t* row(int i) const { return base_ + place(i); }

 private:
  static constexpr int chunks = S::pitch / 16, copies = (rows_of_warp * chunks + 31) / 32;

  __device__ static int index(int i) { return i * 32 + int(threadIdx.x) % 32; }
  __device__ uint32_t place(int i) const { return odd_ + uint32_t(min(i, max(rows_left_, 0))) * stride_; }

  const uint8_t* base_;
  uint32_t odd_, front_, end_, to_;
  int rows_left_;
  uint32_t row_bytes_;
  int stride_;
  uint32_t rows_[copies];
};

// One number of a span for each row of A.
template <class S>
struct Activations {
  using T = typename S::Input;
  static constexpr int most = S::has_halves ? S::columns / 2 : S::columns;
  T held[most];

  __device__ void load(const tg_gemm_args& args, int k) {
    const T* from = static_cast<const T*>(args.a.ptr) + k;
    const int m = k < args.k ? int(args.m) : 0;
#pragma unroll
    for (int i = 0; i < most; i++) {
      held[i] = i < m ? *from : T(0.0f);
      from += args.a.row_stride;
    }
  }

  // Whether all numbers were finite. Rows that do not exist are 0.
  __device__ bool store(__nv_bfloat16* span) const {
    bool are_finite = true;
    __nv_bfloat16* const to = span + place_of<S>(int(threadIdx.x));
#pragma unroll
    for (int i = 0; i < most; i++) {
      const float x = float(held[i]);
      const __nv_bfloat16 high = __nv_bfloat16(x);
      const bool is_finite = isfinite(float(high));
      are_finite &= is_finite;
      to[i * gguf::step] = high;
      if constexpr (S::has_halves) {
        to[(S::columns / 2 + i) * gguf::step] = __nv_bfloat16(is_finite ? x - float(high) : 0.0f);
      }
    }
    return are_finite;
  }
};

// The sum over k in [begin, end) of one element, number by number.
template <class S>
__device__ __noinline__ float exact_sum(const tg_gemm_args& args, const uint8_t* w, int64_t m, int64_t begin, int64_t end) {
  using T = typename S::Input;
  const T* const x = static_cast<const T*>(args.a.ptr) + m * args.a.row_stride;
  constexpr gguf::Block block = S::Row::block;
  float sum = 0;
  for (int64_t k = begin; k < end; k++) {
    sum += gguf::number(S::format, w + k / block.elements * block.bytes, int(k % block.elements)) * float(x[k]);
  }
  return sum;
}

template <class S, class Out>
__global__ void __launch_bounds__(threads, 2)
    gguf_gemv(const __grid_constant__ tg_gemm_args args, int spans_of_part, const __grid_constant__ Epilogue<Out, float> epilogue) {
  using Row = typename S::Row;
  extern __shared__ __align__(16) uint8_t shared[];
  launch_dependents();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_row = blockIdx.x * rows_of_block + warp * rows_of_warp;
  const int spans = int(ceil_div(args.k, gguf::span));
  const int begin = blockIdx.y * spans_of_part, end = min(begin + spans_of_part, spans);
  uint8_t* const of_warp = shared + warp * S::ring_bytes;
  const Ring<S> ring(args, first_row, of_warp);
  __nv_bfloat16* const x = reinterpret_cast<__nv_bfloat16*>(shared + warps * S::ring_bytes + 16);
  griddepcontrol_wait();

#pragma unroll
  for (int i = 0; i < S::stages - 1; i++) {
    if (begin + i < end) ring.load(begin + i, i);
    copy_async_commit();
  }
  if (begin == 0) ring.load_front(0);
  Activations<S> next;
  next.load(args, begin * gguf::span + threadIdx.x);
  bool are_finite = next.store(x);
  __syncthreads();

  float total[S::tiles][4] = {};
  int stage = 0, free = S::stages - 1;
  for (int span = begin; span < end; span++) {
    if (span + S::stages - 1 < end) ring.load(span + S::stages - 1, free);
    copy_async_commit();
    next.load(args, (span + 1) * gguf::span + threadIdx.x);
    copy_async_wait<S::stages - 1>();
    __syncwarp();

    const auto arrived = [&](int i) { return of_warp + stage * S::stage_bytes + i * S::pitch + ring.odd_bytes(i, span); };
    const Row rows[2] = {Row(arrived(g)), Row(arrived(g + 8))};
    are_finite &= rows[0].is_finite() && rows[1].is_finite();
    const __nv_bfloat16* const here = x + (span - begin) % 2 * S::x_count + g * gguf::step + 4 * t;
    // Blocks of 32 end with K.
    const int left = int(args.k) - span * gguf::span;
#pragma unroll
    for (int i = 0; i < gguf::span / Row::scaled; i++) {
      if (Row::block.elements < gguf::span && i * Row::scaled >= left) break;
      float sum[S::tiles][4], ones[S::tiles][4];
#pragma unroll
      for (int j = 0; j < Row::scaled / gguf::step; j++) {
        const int s = i * (Row::scaled / gguf::step) + j;
        uint32_t a[4];
        rows[0].pairs(s, t, a[0], a[2]);
        rows[1].pairs(s, t, a[1], a[3]);
#pragma unroll
        for (int tile = 0; tile < S::tiles; tile++) {
          const uint2 b = *reinterpret_cast<const uint2*>(here + (s * S::columns + 8 * tile) * gguf::step);
          const auto add = [&](float (&to)[4], const uint32_t (&by)[4]) {
            if (j == 0) mma_16_from_0(to, by, b.x, b.y);
            else mma_16<__nv_bfloat16>(to, by, b.x, b.y);
          };
          add(sum[tile], a);
          constexpr uint32_t one = 0x3f803f80;
          if constexpr (Row::has_min) add(ones[tile], {one, one, one, one});
        }
      }
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const float scale = rows[r].scale(i), least = rows[r].min(i);
        if constexpr (Row::block.elements < gguf::span) are_finite &= isfinite(scale) && isfinite(least);
#pragma unroll
        for (int tile = 0; tile < S::tiles; tile++) {
#pragma unroll
          for (int e = 2 * r; e < 2 * r + 2; e++) {
            total[tile][e] += scale * sum[tile][e];
            if constexpr (Row::has_min) total[tile][e] -= least * ones[tile][e];
          }
        }
      }
    }
    __syncwarp();
    if (++stage == S::stages) stage = 0;
    if (++free == S::stages) free = 0;
    are_finite &= next.store(x + (span + 1 - begin) % 2 * S::x_count);
    __syncthreads();
  }

  // A lane's sums: rows g and g + 8 of W, by columns 2 t and 2 t + 1.
  float sum[4];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    sum[e] = total[0][e];
    if constexpr (S::has_halves && S::tiles == 1) sum[e] += __shfl_xor_sync(~0u, sum[e], 2);  // columns 4 to 7 have the second halves
    if constexpr (S::has_halves && S::tiles == 2) sum[e] += total[1][e];
  }
  const bool is_exact = __syncthreads_and(are_finite);
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const int i = 2 * t + e % 2, row = g + e / 2 * 8, j = first_row + row;
    if (i >= args.m || j >= args.n) continue;
    if (!is_exact) sum[e] = exact_sum<S>(args, ring.row(row), i, int64_t(begin) * gguf::span, min(int64_t(end) * gguf::span, args.k));
    if (gridDim.y > 1) {
      *part_at<float>(args, blockIdx.y, 0, i, j) = sum[e];
    } else {
      static_cast<Out*>(args.d.ptr)[i * args.d.row_stride + j] = epilogue(sum[e], i, j, 0, 0);
    }
  }
}

template <class S, class Out>
tg_status run(const tg_gemm_args& args) {
  const int64_t spans = ceil_div(args.k, gguf::span);
  const int split = args.config.split, spans_of_part = int(ceil_div(spans, split));
  const auto kernel = gguf_gemv<S, Out>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_bytes)) return cuda_status(error);
  const dim3 grid(unsigned(ceil_div(args.n, rows_of_block)), unsigned(split));
  const Epilogue<Out, float> epilogue(args);
  const tg_status status = Launch(args, grid, dim3(threads), S::shared_bytes)(kernel, args, spans_of_part, epilogue);
  return status == TG_OK && split > 1 ? launch_add_parts<Out, float>(args) : status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  using T = typename scalar<Row::dtype>::type;
  constexpr gguf::Block block = gguf::block_of(Row::b);
  const tg_gemm_args& args = *problem;
  if (args.m == 0 || args.n == 0) return TG_OK;
  const int64_t split = args.config.split, spans = ceil_div(args.k, gguf::span);
  const bool is_tiled = args.config.tile_m == most_m && args.config.tile_n == rows_of_block && split >= 1 && split <= spans && split <= 65535;
  const bool is_whole = args.k % block.elements == 0 && args.b.row_stride == 1 && args.b.col_stride % block.elements == 0;
  const bool is_aligned = reinterpret_cast<uintptr_t>(args.b.ptr) % Row::align == 0;
  const bool is_one = args.batch[0] == 1 && args.batch[1] == 1;
  const bool has_lines = args.a.col_stride == 1 && args.d.col_stride == 1;
  const bool has_parts = split == 1 || (args.workspace && args.workspace_bytes >= parts_bytes<float>(args));
  // csrc/gguf_gemv/family.toml has the limits.
  if (!is_tiled || !is_whole || !is_aligned || !is_one || !has_lines || !has_parts) return TG_UNSUPPORTED;
  if (args.m > most_m || args.n > INT_MAX / 2 || args.k < 1 || args.k > INT_MAX / 2) return TG_UNSUPPORTED;
  if (args.b.col_stride < args.k || args.b.col_stride > most_stride) return TG_UNSUPPORTED;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return run<Shape<Row::b, T, 1>, T>(args);
  } else {
    return args.m <= most_m / 2 ? run<Shape<Row::b, T, 1>, T>(args) : run<Shape<Row::b, T, 2>, T>(args);
  }
}

}  // namespace tilegemm

#include TG_ROWS
