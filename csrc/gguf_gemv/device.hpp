// The kernel: each warp of a block has a span of K, whose activations stay in registers, and multiplies the span by 16 rows of W after 16 rows.
#pragma once
#include "common/add_parts.hpp"
#include "gguf_gemv/loader.hpp"

namespace tilegemm {
namespace {

constexpr int most_m = 16;

// `TILES`: of eight rows of A each.
template <tg_format F, int TILES, int WARPS>
struct Shape : gguf::RingShape<F, 2> {
  using Factors = gguf::Factors<gguf::Row<F>>;
  static constexpr int tiles = TILES, columns = 8 * TILES, warps = WARPS;
  static constexpr int sums = gguf::rows_of_warp * columns;
  // Places of chunks in registers; the activations of two tiles leave few.
  static constexpr int kept = TILES == 2 && Factors::count == 16 ? 1 : 16;
  // The code of 0 in bf16 is `base` more than 0; sums of activations take the difference back.
  static constexpr int base = F == TG_Q8_0 ? 0 : 128;
  static constexpr int scales = Factors::count, x_bytes = base == 0 ? 0 : scales * columns * int(sizeof(float));
  // Of a block with so many warps.
  static constexpr int x_at(int warps) { return warps * Shape::ring_bytes + Shape::bytes_behind; }
  static constexpr int factors_at(int warps) { return x_at(warps) + warps * x_bytes; }
  static constexpr int sums_at(int warps) { return factors_at(warps) + warps * Factors::bytes; }
  // Rows of W whose sums the warps of a block add at a time, in units of 16: as many as fit.
  static constexpr int room = ((warps > 12 ? 227 : warps > 6 ? 163 : 99) * 1024 - sums_at(warps)) / (2 * warps * sums * int(sizeof(float)));
  static constexpr int batch = room > 4 ? 4 : room;
  static constexpr int bytes(int warps) { return sums_at(warps) + 2 * batch * warps * sums * int(sizeof(float)); }
  static constexpr int shared_bytes = bytes(warps);
  static_assert(batch >= 1);
};

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t bits(__nv_bfloat162 pair) { return reinterpret_cast<const uint32_t&>(pair); }

// Of each step of a span, from the first number of the span on, four neighbouring activations in bf16; zeros from `existing` numbers on (`WHOLE`: all
// or none exist). A finite number beyond the numbers of bf16 becomes an infinity.
template <bool WHOLE, class T>
__device__ __forceinline__ void load_activations(const T* from, int existing, uint32_t (&pairs)[gguf::steps][2]) {
  T four[gguf::steps][4] = {};
  if (reinterpret_cast<uintptr_t>(from) % (4 * sizeof(T)) == 0) {
#pragma unroll
    for (int s = 0; s < gguf::steps; s++) {
      if ((WHOLE ? 0 : gguf::step * s) >= existing) continue;
      if constexpr (sizeof(T) == 4) *reinterpret_cast<uint4*>(four[s]) = *reinterpret_cast<const uint4*>(from + gguf::step * s);
      else *reinterpret_cast<uint2*>(four[s]) = *reinterpret_cast<const uint2*>(from + gguf::step * s);
    }
  } else {
#pragma unroll
    for (int s = 0; s < gguf::steps; s++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if ((WHOLE ? 0 : gguf::step * s) < existing) four[s][i] = from[gguf::step * s + i];
      }
    }
  }
#pragma unroll
  for (int s = 0; s < gguf::steps; s++) {
#pragma unroll
    for (int i = 0; i < 2; i++) pairs[s][i] = bits(__floats2bfloat162_rn(float(four[s][2 * i]), float(four[s][2 * i + 1])));
  }
}

// Four codes, a byte each, as numbers in bf16: a code more than `base`, exactly.
template <tg_format F>
__device__ __forceinline__ void codes_to_bf16(uint32_t codes, uint32_t& first, uint32_t& second) {
  // 0x4300 is 128, and the last seven bits of bf16 count ones there.
  first = __byte_perm(codes, 0x43434343, 0x4140), second = __byte_perm(codes, 0x43434343, 0x4342);
  if constexpr (F == TG_Q8_0) {
    const auto with_sign = [](uint32_t pair) {
      const uint32_t number = pair & 0xff7fff7f, less = (pair & 0x00800080) | 0xc300c300;  // 128 + seven bits; -128, or -256 where the sign is set
      return bits(__hadd2(reinterpret_cast<const __nv_bfloat162&>(number), reinterpret_cast<const __nv_bfloat162&>(less)));
    };
    first = with_sign(first), second = with_sign(second);
  }
}

// The sum over k in [begin, end) of one element, number by number.
template <tg_format F, class T>
__device__ __noinline__ float exact_sum(const tg_gemm_args& args, int64_t m, int64_t n, int64_t begin, int64_t end) {
  const T* const x = static_cast<const T*>(args.a.ptr) + m * args.a.row_stride;
  constexpr gguf::Block block = gguf::block_of(F);
  const uint8_t* const w = static_cast<const uint8_t*>(args.b.ptr) + n * (args.b.col_stride / block.elements * block.bytes);
  float sum = 0;
  for (int64_t k = begin; k < end; k++) sum += gguf::number(F, w + k / block.elements * block.bytes, int(k % block.elements)) * float(x[k]);
  return sum;
}

// A block has up to 16 rows of A, `units` times 16 rows of W, and a part of K.
template <class S, class T>
__global__ void __launch_bounds__(32 * S::warps, 1)
    gguf_gemv(const __grid_constant__ tg_gemm_args args, int units, const __grid_constant__ Epilogue<T, float> epilogue) {
  using Row = typename S::Row;
  extern __shared__ __align__(16) uint8_t shared[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first = blockIdx.x * units, last = min(first + units, int(ceil_div(args.n, gguf::rows_of_warp)));
  const int first_span = blockIdx.y * warps, span = first_span + warp, first_m = blockIdx.z * most_m;
  // The last warps of the last parts of K may have no span: they multiply the first span by zeros.
  const bool has_span = span * gguf::span < args.k;
  uint8_t* const ring = shared + warp * S::ring_bytes;
  Loader<S> loader(args, first * gguf::rows_of_warp, has_span ? span : 0, ring);
  if (has_span) loader.prefetch(S::stages);
  griddepcontrol_wait();
  launch_dependents();
#pragma unroll
  for (int i = 0; i < S::stages - 1; i++) {
    if (first + i < last) loader.load(i * S::stage_bytes);
    copy_async_commit();
  }

  // The activations, operand B: a lane has numbers 4 t ... 4 t + 3 of each step, of row g of A. A product by ones adds the activations of a scale.
  uint32_t x[S::tiles][gguf::steps][2];
  float* const x_sums = reinterpret_cast<float*>(shared + S::x_at(warps) + warp * S::x_bytes);
  constexpr int steps_of_scale = Row::scaled / gguf::step;
#pragma unroll
  for (int tile = 0; tile < S::tiles; tile++) {
    const int row = first_m + 8 * tile + g;
    const T* const from = static_cast<const T*>(args.a.ptr) + row * args.a.row_stride + span * gguf::span + 4 * t;
    load_activations<Row::block.elements == gguf::span>(from, row < args.m ? int(args.k) - span * gguf::span : 0, x[tile]);
    if constexpr (S::base > 0) {
#pragma unroll
      for (int i = 0; i < S::scales; i++) {
        constexpr uint32_t one = 0x3f803f80, ones[4] = {one, one, one, one};
        float sum[4] = {};
#pragma unroll
        for (int s = 0; s < steps_of_scale; s++) multiply(sum, ones, x[tile][i * steps_of_scale + s]);
        if (g == 0) *reinterpret_cast<float2*>(x_sums + i * S::columns + 8 * tile + 2 * t) = {sum[0], sum[1]};
      }
    }
  }

  const typename S::Factors factors{reinterpret_cast<float2*>(shared + S::factors_at(warps) + warp * S::Factors::bytes)};
  float* const all_sums = reinterpret_cast<float*>(shared + S::sums_at(warps));
  const int existing = has_span ? min(S::scales, int(args.k - int64_t(span) * gguf::span) / Row::scaled) : 0;
  const int places[2] = {loader.place(g), loader.place(g + 8)}, place_of_factors = loader.place(lane / 2);
  int stage = 0, free = (S::stages - 1) * S::stage_bytes, batch = 0, parity = 0;
  for (int unit = first; unit < last; unit++) {
    if (unit + S::stages - 1 < last) loader.load(free);
    copy_async_commit();
    copy_async_wait<S::stages - 1>();
    __syncwarp();
    const uint8_t* const arrived = ring + stage;
    factors.fill(Row(arrived + place_of_factors), lane, existing, [](float scale, float min) {
      return make_float2(scale, fmaf(scale, float(S::base + int(Row::zero)), min));
    });
    __syncwarp();
    const Row rows[2] = {Row(arrived + places[0]), Row(arrived + places[1])};
    float total[S::tiles][4] = {};
#pragma unroll
    for (int i = 0; i < S::scales; i += 2) {
      const float4 of_rows[2] = {factors.two_at(g, i), factors.two_at(g + 8, i)};
#pragma unroll
      for (int j = 0; j < 2; j++) {
        // Keeps loads of later steps behind: the activations of two tiles leave no registers for them.
        if constexpr (S::tiles == 2) asm volatile("" ::: "memory");
        float sum[S::tiles][4] = {};
#pragma unroll
        for (int s = (i + j) * steps_of_scale; s < (i + j + 1) * steps_of_scale; s++) {
          uint32_t a[4];
#pragma unroll
          for (int r = 0; r < 2; r++) codes_to_bf16<S::format>(rows[r].codes(s, t), a[r], a[2 + r]);
#pragma unroll
          for (int tile = 0; tile < S::tiles; tile++) multiply(sum[tile], a, x[tile][s]);
        }
#pragma unroll
        for (int tile = 0; tile < S::tiles; tile++) {
          float2 of_x;
          if constexpr (S::base > 0) of_x = *reinterpret_cast<const float2*>(x_sums + (i + j) * S::columns + 8 * tile + 2 * t);
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const float scale = j ? of_rows[r].z : of_rows[r].x, less = j ? of_rows[r].w : of_rows[r].y;
            float(&to)[4] = total[tile];
            to[2 * r] += scale * sum[tile][2 * r], to[2 * r + 1] += scale * sum[tile][2 * r + 1];
            if constexpr (S::base > 0) to[2 * r] -= less * of_x.x, to[2 * r + 1] -= less * of_x.y;
          }
        }
      }
    }
    float* const to = all_sums + ((parity * S::batch + batch) * warps + warp) * S::sums + lane;
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) {
#pragma unroll
      for (int e = 0; e < 4; e++) to[(tile * 4 + e) * 32] = total[tile][e];
    }
    free = stage;
    stage = stage == (S::stages - 1) * S::stage_bytes ? 0 : stage + S::stage_bytes;

    // The sums of all warps. Two batches have places, so that a warp may go on before the others have added.
    if (++batch < S::batch && unit + 1 < last) continue;
    __syncthreads();
    for (int index = threadIdx.x; index < batch * S::sums; index += blockDim.x) {
      const int of_batch = index / S::sums, element = index % S::sums, e = element / 32;
      const int i = first_m + e / 4 * 8 + element % 4 * 2 + e % 2, j = (unit + 1 - batch + of_batch) * gguf::rows_of_warp + element % 32 / 4 + e / 2 % 2 * 8;
      if (i >= args.m || j >= args.n) continue;
      const float* const from = all_sums + (parity * S::batch + of_batch) * warps * S::sums + element;
      float sum = 0;
#pragma unroll 4
      for (int w = 0; w < warps; w++) sum += from[w * S::sums];
      if (!isfinite(sum)) sum = exact_sum<S::format, T>(args, i, j, first_span * int64_t(gguf::span), min(int64_t(first_span + warps) * gguf::span, args.k));
      if (gridDim.y > 1) *part_at<float>(args, blockIdx.y, 0, i, j) = sum;
      else static_cast<T*>(args.d.ptr)[i * args.d.row_stride + j] = epilogue(sum, i, j, 0, 0);
    }
    batch = 0, parity ^= 1;
  }
}

}  // namespace
}  // namespace tilegemm
