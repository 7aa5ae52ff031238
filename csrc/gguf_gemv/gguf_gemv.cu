// Up to 8 rows of activations times the weights of a GGUF file, at the speed of memory.
//
// Codes of weights are operand A of mma.sync in 8 bits, a byte each, as gguf_fragment.hpp takes them out of blocks; activations are operand B.
// The 32 activations of a block share a scale in f32 and have 16 bits each: a high and a low byte in two columns of B, so that a product of
// eight columns has four rows of activations. Products of bytes are exact. Each scale of weights multiplies a sum over its 16 or 32 numbers, in
// f32; minima and the code of zero multiply the sums of the activations.
//
// A kernel before writes the activations to the workspace, span by span. A block has 128 rows of W, 16 for each warp, and a part of K. Blocks of the
// file and activations arrive by cp.async, in rings.
//
// Scaled whole numbers cannot hold infinities, nor sums of factors what infinite scales make of a single weight. A sum that is not finite is computed
// once more, number by number. Activations that are too small for a scale in f32 get a scale of NaN.
#include "common/add_parts.hpp"
#include "common/gguf_ring.hpp"

namespace tilegemm {
namespace {

constexpr int warps = 8, threads = 32 * warps, rows_of_warp = gguf::rows_of_warp, rows_of_block = warps * rows_of_warp, most_m = 8;
static_assert(threads == gguf::span);

constexpr int stages_of(int row_bytes) { return row_bytes > 200 ? 2 : 3; }

template <tg_format F, int TILES>
struct Shape : gguf::RingShape<F, stages_of(gguf::Row<F>::bytes)> {
  using Factors = gguf::Factors<gguf::Row<F>>;
  static constexpr int tiles = TILES, columns = 8 * TILES, rows = columns / 2;  // columns of operand B, rows of A
  // The activations of a span.
  static constexpr int x_bytes = gguf::span * columns, span_bytes = x_bytes + Factors::count * columns * int(sizeof(float2));
  static constexpr int factors_at = warps * Shape::ring_bytes + Shape::bytes_behind, x_at = factors_at + warps * Factors::bytes;
  static constexpr int shared_bytes = x_at + Shape::stages * span_bytes;
  static_assert(x_at % 16 == 0 && span_bytes % 16 == 0 && 2 * shared_bytes <= 227 * 1024);
};

// The activations of a span: bytes in the order of operand B's registers, and of each scale's numbers the scale of the activations and their sum.
template <class S>
struct Span {
  uint8_t* bytes;

  // The four bytes of step 2 i, and of step 2 i + 1, of a column.
  __device__ uint2 pair(int i, int column, int t) const {
    return *reinterpret_cast<const uint2*>(bytes + (i * S::columns + column) * 32 + 8 * t);
  }
  __device__ void set(int k, int column, int byte) const {
    bytes[(k / 32 * S::columns + column) * 32 + k % 16 / 4 * 8 + k % 32 / 16 * 4 + k % 4] = uint8_t(byte);
  }
  __device__ float2* scales(int group) const { return reinterpret_cast<float2*>(bytes + S::x_bytes) + group * S::columns; }
};

// Writes the activations of a span to the workspace. A block has the span, a warp 32 neighbouring numbers. Rows that do not exist are 0.
template <class S, class T>
__global__ void __launch_bounds__(threads) prepare(const __grid_constant__ tg_gemm_args args, uint8_t* spans) {
  griddepcontrol_wait();
  launch_dependents();  // after the wait: the product reads W before this kernel ends, and W may be of the kernel before
  constexpr float most = 127 * 256, least = 1e-30f;
  constexpr int scaled = S::Row::scaled;
  const Span<S> to{spans + blockIdx.x * int64_t(S::span_bytes)};
  const int place = threadIdx.x, lane = place % 32;
  const int64_t k = int64_t(blockIdx.x) * gguf::span + place;
  const T* const from = static_cast<const T*>(args.a.ptr) + k;
#pragma unroll
  for (int i = 0; i < S::rows; i++) {
    const float x = i < args.m && k < args.k ? float(from[i * args.a.row_stride]) : 0.0f;
    // Bits of positive numbers ascend with the numbers; those of infinities and NaN are above all others.
    const float largest = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fabsf(x))));
    const bool fits = largest >= least && isfinite(largest);
    const int whole = fits ? __float2int_rn(x * (most / largest)) : 0, high = (whole + 128) >> 8;
    to.set(place, i, high), to.set(place, S::rows + i, whole - high * 256);
    const int sum = __reduce_add_sync(scaled == 32 ? ~0u : 0xffffu << (lane & 16), whole);
    if (lane % scaled == 0) {
      const float scale = fits || largest == 0 ? largest / most : __int_as_float(0x7fffffff);
      float2* const scales = to.scales(place / scaled);
      scales[i] = {256 * scale, scale * float(sum)};
      scales[S::rows + i] = {scale, 0.0f};  // the sum counts once
    }
  }
}

// Bytes of A times bytes of B over 32 k, or 16 k.
template <bool is_signed>
__device__ __forceinline__ void multiply(int (&d)[4], const uint32_t (&a)[4], uint2 b) {
  if constexpr (is_signed) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(0));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(0));
  }
}
__device__ __forceinline__ void multiply_16(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(0));
}

// The sum over k in [begin, end) of one element, number by number.
template <class S, class T>
__device__ __noinline__ float exact_sum(const tg_gemm_args& args, const uint8_t* w, int64_t m, int64_t begin, int64_t end) {
  const T* const x = static_cast<const T*>(args.a.ptr) + m * args.a.row_stride;
  constexpr gguf::Block block = S::Row::block;
  float sum = 0;
  for (int64_t k = begin; k < end; k++) {
    sum += gguf::number(S::format, w + k / block.elements * block.bytes, int(k % block.elements)) * float(x[k]);
  }
  return sum;
}

template <class S, class T>
__global__ void __launch_bounds__(threads, 2)
    gguf_gemv(const __grid_constant__ tg_gemm_args args, const uint8_t* x_spans, int spans_of_part, const __grid_constant__ Epilogue<T, float> epilogue) {
  using Row = typename S::Row;
  extern __shared__ __align__(16) uint8_t shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first_row = blockIdx.x * rows_of_block + warp * rows_of_warp;
  const int spans = int(ceil_div(args.k, gguf::span));
  const int begin = blockIdx.y * spans_of_part, end = min(begin + spans_of_part, spans);
  uint8_t* const of_warp = shared + warp * S::ring_bytes;
  gguf::Ring<S> ring(args, first_row, begin, of_warp);
  const typename S::Factors factors{reinterpret_cast<float2*>(shared + S::factors_at + warp * S::Factors::bytes)};
  const auto span_at = [&](int stage) { return Span<S>{shared + S::x_at + stage * S::span_bytes}; };
  const auto load_x = [&](int span, int stage) {
    const uint32_t to = uint32_t(__cvta_generic_to_shared(span_at(stage).bytes));
    const uint8_t* const from = x_spans + span * int64_t(S::span_bytes);
#pragma unroll
    for (int i = 0; i < S::span_bytes; i += 16 * threads) {
      const int at = i + 16 * int(threadIdx.x);
      if (at < S::span_bytes) copy_async_16(to + at, from + at, 16, evict_last);
    }
  };

  // W is not of the kernel before. Groups of copies: all of W's first, then the first span's activations, and so on.
#pragma unroll
  for (int i = 0; i < S::stages - 1; i++) {
    if (begin + i < end) ring.load(i);
  }
  if (begin == 0) ring.load_front(0);
  griddepcontrol_wait();
  launch_dependents();
#pragma unroll
  for (int i = 0; i < S::stages - 1; i++) {
    if (begin + i < end) load_x(begin + i, i);
    copy_async_commit();
  }

  float total[S::tiles][4] = {};
  int stage = 0, free = S::stages - 1;
  for (int span = begin; span < end; span++) {
    copy_async_wait<S::stages - 2>();
    __syncthreads();  // the span has arrived for all threads, and all threads have read the span before
    if (span + S::stages - 1 < end) ring.load(free), load_x(span + S::stages - 1, free);
    copy_async_commit();

    const auto arrived = [&](int i) { return of_warp + stage * S::stage_bytes + i * S::pitch + ring.odd_bytes(i, span); };
    // Blocks of 32 end with K.
    const int scales = min(S::Factors::count, (int(args.k) - span * gguf::span) / Row::scaled);
    constexpr bool subtracts = Row::has_min || Row::zero != 0;
    const auto factors_of = [](const Row& row, int i) {
      const float scale = row.scale(i);
      return make_float2(scale, fmaf(scale, float(Row::zero), row.min(i)));
    };
    factors.fill(Row(arrived(lane / 2)), lane, scales, factors_of);
    __syncwarp();
    const Row rows[2] = {Row(arrived(g)), Row(arrived(g + 8))};
    const Span<S> x = span_at(stage);
#pragma unroll
    for (int i = 0; i < gguf::span / 32; i++) {
      if (Row::block.elements < gguf::span && i >= scales) break;
      const uint32_t a[4] = {rows[0].codes(2 * i, t), rows[1].codes(2 * i, t), rows[0].codes(2 * i + 1, t), rows[1].codes(2 * i + 1, t)};
#pragma unroll
      for (int tile = 0; tile < S::tiles; tile++) {
        const uint2 b = x.pair(i, 8 * tile + g, t);
        const auto add = [&](int group, const int (&sum)[4]) {
          const float4 two = *reinterpret_cast<const float4*>(x.scales(group) + 8 * tile + 2 * t);
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const float2 of_row = factors.at(g + 8 * r, group);
            float(&to)[4] = total[tile];
            to[2 * r] += of_row.x * (two.x * float(sum[2 * r])), to[2 * r + 1] += of_row.x * (two.z * float(sum[2 * r + 1]));
            if (subtracts) to[2 * r] -= of_row.y * two.y, to[2 * r + 1] -= of_row.y * two.w;
          }
        };
        int sum[4];
        if constexpr (Row::scaled == 32) {
          multiply<S::format == TG_Q8_0>(sum, a, b);
          add(i, sum);
        } else {
          multiply_16(sum, a[0], a[1], b.x);
          add(2 * i, sum);
          multiply_16(sum, a[2], a[3], b.y);
          add(2 * i + 1, sum);
        }
      }
    }
    if (++stage == S::stages) stage = 0;
    if (++free == S::stages) free = 0;
  }

  // A lane's sums: rows g and g + 8 of W, by columns 2 t and 2 t + 1.
  float sum[4];
#pragma unroll
  for (int e = 0; e < 4; e++) {
    sum[e] = total[0][e];
    // Columns with the low bytes.
    if constexpr (S::tiles == 1) sum[e] += __shfl_xor_sync(~0u, sum[e], 2);
    else sum[e] += total[1][e];
  }
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const int i = 2 * t + e % 2, row = g + e / 2 * 8, j = first_row + row;
    if (i >= args.m || j >= args.n) continue;
    if (!isfinite(sum[e])) sum[e] = exact_sum<S, T>(args, ring.row(row), i, int64_t(begin) * gguf::span, min(int64_t(end) * gguf::span, args.k));
    if (gridDim.y > 1) {
      *part_at<float>(args, blockIdx.y, 0, i, j) = sum[e];
    } else {
      static_cast<T*>(args.d.ptr)[i * args.d.row_stride + j] = epilogue(sum[e], i, j, 0, 0);
    }
  }
}

template <class S, class T>
tg_status run(const tg_gemm_args& args) {
  const int64_t spans = ceil_div(args.k, gguf::span);
  const int split = args.config.split, spans_of_part = int(ceil_div(spans, split));
  // The sums of the parts, and the activations behind.
  const uint64_t parts = split > 1 ? parts_bytes<float>(args) : 0, x_at = (parts + 127) / 128 * 128;
  if (!args.workspace || args.workspace_bytes < x_at + uint64_t(spans) * S::span_bytes) return TG_UNSUPPORTED;
  uint8_t* const x = static_cast<uint8_t*>(args.workspace) + x_at;
  const auto kernel = gguf_gemv<S, T>;
  if (const cudaError_t error = allow_shared_memory<S>(kernel, S::shared_bytes)) return cuda_status(error);
  if (const tg_status status = Launch(args, dim3(unsigned(spans)), dim3(threads), 0)(prepare<S, T>, args, x); status != TG_OK) return status;
  const dim3 grid(unsigned(ceil_div(args.n, rows_of_block)), unsigned(split));
  const Epilogue<T, float> epilogue(args);
  const tg_status status =
      Launch(args, grid, dim3(threads), S::shared_bytes)(kernel, args, static_cast<const uint8_t*>(x), spans_of_part, epilogue);
  return status == TG_OK && split > 1 ? launch_add_parts<T, float>(args) : status;
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
  // csrc/gguf_gemv/family.toml has the limits.
  if (!is_tiled || !is_whole || !is_aligned || !is_one || !has_lines) return TG_UNSUPPORTED;
  if (args.m > most_m || args.n > INT_MAX / 2 || args.k < 1 || args.k > INT_MAX / 2) return TG_UNSUPPORTED;
  if (args.b.col_stride < args.k || args.b.col_stride > gguf::most_stride) return TG_UNSUPPORTED;
  return args.m <= most_m / 2 ? run<Shape<Row::b, 1>, T>(args) : run<Shape<Row::b, 2>, T>(args);
}

}  // namespace tilegemm

#include TG_ROWS
