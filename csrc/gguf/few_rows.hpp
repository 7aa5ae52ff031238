// Up to 16 rows of activations times the weights of a GGUF file: what the families share whose warps have a span of K
// each.
//
// Codes of weights are operand A of mma.sync, activations are operand B, both in bf16: codes less the code of zero
// exactly, activations rounded. A scale of the weights multiplies a sum over its 16 or 32 numbers, in f32. Minima
// multiply the sums of the activations.
#pragma once
#include "gguf/exact.hpp"
#include "gguf/loader.hpp"

namespace tilegemm::gguf {
namespace {

constexpr int most_m = 16;

// The shape of a block of up to `WARPS` warps. `TILES`: of eight rows of A each; `BESIDE`: bytes of shared memory for
// other purposes.
template <tg_format F, int TILES, int WARPS, int BESIDE = 0>
struct FewRows : RingShape<F, 2> {
  using Factors = gguf::Factors<gguf::Row<F>>;
  static constexpr int tiles = TILES, columns = 8 * TILES, warps = WARPS;
  static constexpr int sums = rows_of_warp * columns;
  // Places of chunks in registers; the activations of two tiles leave few.
  static constexpr int kept = TILES == 2 && Factors::count == 16 ? 1 : 16;
  static constexpr int scales = Factors::count,
                       x_bytes = RingShape<F, 2>::Row::has_min ? scales * columns * int(sizeof(float)) : 0;
  // Of a block with so many warps.
  static constexpr int x_at(int warps) { return warps * FewRows::ring_bytes + FewRows::bytes_behind; }
  static constexpr int factors_at(int warps) { return x_at(warps) + warps * x_bytes; }
  static constexpr int sums_at(int warps) { return factors_at(warps) + warps * Factors::bytes; }
  // Rows of W whose sums the warps of a block add at a time, in units of 16: as many as fit.
  static constexpr int limit = (warps > 12 ? 227 : warps > 6 ? 163 : 99) * 1024 - BESIDE;
  static constexpr int room = (limit - 16 - sums_at(warps)) / (2 * warps * sums * int(sizeof(float)));
  static constexpr int batch = room > 4 ? 4 : room;
  // A bit for each row of A that has a sum which is not finite.
  static constexpr int wrong_at(int warps) { return sums_at(warps) + 2 * batch * warps * sums * int(sizeof(float)); }
  static constexpr int bytes(int warps) { return wrong_at(warps) + 16; }
  static constexpr int shared_bytes = bytes(warps) + BESIDE;
  static_assert(batch >= 1);
};

__device__ __forceinline__ void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32_t bits(__nv_bfloat162 pair) { return reinterpret_cast<const uint32_t&>(pair); }

// Of each step of a span, from the first number of the span on, four neighbouring activations; zeros from `existing`
// numbers on.
template <class S, class T>
struct Activations {
  static constexpr bool is_whole = S::Row::block.elements == span;  // all numbers exist, or none
  T four[steps][4] = {};                                            // (MMA_K,4)

  __device__ __forceinline__ Activations(const T* from, int existing) {
    if (reinterpret_cast<uintptr_t>(from) % (4 * sizeof(T)) == 0) {
#pragma unroll
      for (int s = 0; s < steps; s++) {
        if ((is_whole ? 0 : step * s) >= existing) continue;
        if constexpr (sizeof(T) == 4)
          *reinterpret_cast<uint4*>(four[s]) = *reinterpret_cast<const uint4*>(from + step * s);
        else *reinterpret_cast<uint2*>(four[s]) = *reinterpret_cast<const uint2*>(from + step * s);
      }
    } else {
#pragma unroll
      for (int s = 0; s < steps; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if ((is_whole ? 0 : step * s) < existing) four[s][i] = from[step * s + i];
        }
      }
    }
  }

  // In bf16. A finite number beyond the numbers of bf16 becomes an infinity.
  __device__ __forceinline__ void to_bf16(uint32_t (&pairs)[steps][2]) const {
#pragma unroll
    for (int s = 0; s < steps; s++) {
#pragma unroll
      for (int i = 0; i < 2; i++)
        pairs[s][i] = bits(__floats2bfloat162_rn(float(four[s][2 * i]), float(four[s][2 * i + 1])));
    }
  }
};

// Sums are of numbers 2^-16 times as large, so that codes times large activations do not overflow.
constexpr float from_sums = 65536.0f;
constexpr uint32_t two_to_sums = 0x37803780;  // 2^-16 in bf16, twice

// A lane's four codes of step s, less the code of zero, times 2^-16, in bf16, exactly. A large activation would leave
// the rest of any other zero in the sums.
template <tg_format F>
__device__ __forceinline__ void codes_to_bf16(const Row<F>& row, int s, int t, uint32_t& first, uint32_t& second) {
  // 0x4300 is 128, and the last seven bits of bf16 count ones there. 0xbb00 is -128 times 2^-16.
  row.pairs(false, s, t, 0x43434343, first, second);
  const auto scaled = [](uint32_t pair) {
    uint32_t number = pair, less = 0xbb00bb00 + 0x00010001 * Row<F>::zero;  // 128 + code; -128 - zero
    if constexpr (Row<F>::is_signed)
      number = pair & 0xff7fff7f,
      less = (pair & 0x00800080) | 0xbb00bb00;  // 128 + seven bits; -128, or -256 where the sign is set
    const auto two = [](uint32_t x) { return reinterpret_cast<const __nv_bfloat162&>(x); };
    return bits(__hfma2(two(number), two(two_to_sums), two(less)));
  };
  first = scaled(first), second = scaled(second);
}

// A warp's span: its activations, operand B, of which a lane has numbers 4 t ... 4 t + 3 of each step, of row g of A.
template <class S>
struct Span {
  using Row = typename S::Row;
  static constexpr int steps_of_scale = Row::scaled / step;
  uint32_t x[S::tiles][steps][2];  // (MMA_N,MMA_K,MMA), of A
  float* x_sums;
  typename S::Factors factors;

  __device__ Span(uint8_t* shared, int warp, int warps)
      : x_sums(reinterpret_cast<float*>(shared + S::x_at(warps) + warp * S::x_bytes)),
        factors{reinterpret_cast<float2*>(shared + S::factors_at(warps) + warp * S::Factors::bytes)} {}

  // Takes eight rows of A. A product by ones, times 2^-16, adds the activations of a minimum.
  template <class T>
  __device__ __forceinline__ void take(int tile, const Activations<S, T>& loaded, int g, int t) {
    loaded.to_bf16(x[tile]);
    if constexpr (Row::has_min) {
#pragma unroll
      for (int i = 0; i < S::scales; i++) {
        constexpr uint32_t ones[4] = {two_to_sums, two_to_sums, two_to_sums, two_to_sums};
        float sum[4] = {};
#pragma unroll
        for (int s = 0; s < steps_of_scale; s++) multiply(sum, ones, x[tile][i * steps_of_scale + s]);
        if (g == 0) *reinterpret_cast<float2*>(x_sums + i * S::columns + 8 * tile + 2 * t) = {sum[0], sum[1]};
      }
    }
  }

  // 16 rows of W times the activations: of a lane, rows g and g + 8 of W by rows 2 t and 2 t + 1 of each eight rows of
  // A. `places`: of rows g and g + 8 in `arrived`; `existing`: scales.
  __device__ __forceinline__ void times(const uint8_t* arrived, const int (&places)[2], int place_of_factors,
                                        int existing, float (&total)[S::tiles][4], int lane) const {
    const int g = lane / 4, t = lane % 4;
    factors.fill(Row(arrived + place_of_factors), lane, existing,
                 [](float scale, float min) { return make_float2(scale, min); });
    __syncwarp();
    const Row rows[2] = {Row(arrived + places[0]), Row(arrived + places[1])};
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) total[tile][0] = total[tile][1] = total[tile][2] = total[tile][3] = 0;
#pragma unroll
    for (int i = 0; i < S::scales; i += 2) {
      const float4 of_rows[2] = {factors.two_at(g, i), factors.two_at(g + 8, i)};
#pragma unroll
      for (int j = 0; j < 2; j++) {
        // Keeps loads of later steps behind: the activations of two tiles leave no registers for them.
        if constexpr (S::tiles == 2) asm volatile("" ::: "memory");
        float sum[S::tiles][4] = {};  // (MMA_N,MMA), of D^T
#pragma unroll
        for (int s = (i + j) * steps_of_scale; s < (i + j + 1) * steps_of_scale; s++) {
          uint32_t a[4];  // (MMA), of W
#pragma unroll
          for (int r = 0; r < 2; r++) codes_to_bf16(rows[r], s, t, a[r], a[2 + r]);
#pragma unroll
          for (int tile = 0; tile < S::tiles; tile++) multiply(sum[tile], a, x[tile][s]);
        }
#pragma unroll
        for (int tile = 0; tile < S::tiles; tile++) {
          float2 of_x;
          if constexpr (Row::has_min)
            of_x = *reinterpret_cast<const float2*>(x_sums + (i + j) * S::columns + 8 * tile + 2 * t);
#pragma unroll
          for (int r = 0; r < 2; r++) {
            const float scale = j ? of_rows[r].z : of_rows[r].x, less = j ? of_rows[r].w : of_rows[r].y;
            float (&to)[4] = total[tile];
            to[2 * r] += scale * sum[tile][2 * r], to[2 * r + 1] += scale * sum[tile][2 * r + 1];
            if constexpr (Row::has_min) to[2 * r] -= less * of_x.x, to[2 * r + 1] -= less * of_x.y;
          }
        }
      }
    }
  }
};

// The sums of a block's warps, of two batches of units, so that a warp may go on before the others have added.
template <class S>
struct Sums {
  float* at;
  unsigned* wrong;
  int warps;

  __device__ Sums(uint8_t* shared, int warps)
      : at(reinterpret_cast<float*>(shared + S::sums_at(warps))),
        wrong(reinterpret_cast<unsigned*>(shared + S::wrong_at(warps))), warps(warps) {
    if (threadIdx.x == 0) *wrong = 0;
  }

  __device__ float* of(int parity, int unit, int warp) const {
    return at + ((parity * S::batch + unit) * warps + warp) * S::sums;
  }

  __device__ __forceinline__ void put(const float (&total)[S::tiles][4], int parity, int unit, int warp,
                                      int lane) const {
    float* const to = of(parity, unit, warp) + lane;
#pragma unroll
    for (int tile = 0; tile < S::tiles; tile++) {
#pragma unroll
      for (int e = 0; e < 4; e++) to[(tile * 4 + e) * 32] = total[tile][e];
    }
  }

  // An element's row of A and row of W.
  __device__ static int m(int element) { return element / 128 * 8 + element % 4 * 2 + element / 32 % 2; }
  __device__ static int n(int element) { return element % 32 / 4 + element / 64 % 2 * 8; }

  // The sum of the warps, in order. One that is not finite is noted.
  __device__ __forceinline__ float add(int parity, int unit, int element) const {
    const float* const from = of(parity, unit, 0) + element;
    float sum = 0;
#pragma unroll 4
    for (int w = 0; w < warps; w++) sum += from[w * S::sums];
    sum *= from_sums;
    if (!isfinite(sum)) atomicOr(wrong, 1u << m(element));
    return sum;
  }
};

// Computes results of up to 16 rows of A by `last` - `first` columns once more where they are wrong. `wrong`: a bit for
// each row that has a sum which is not finite; `row_of_a`(r): the row of A of row r; `store`(r, n, sum). The warps of a
// block share the columns, and come here behind their last use of the activations, which leave no registers for this in
// the loop.
template <tg_format F, class RowOfA, class Store, class Most = MostOfBf16>
__device__ __forceinline__ void repair(const tg_gemm_args& args, unsigned wrong, int matrix, int first, int last,
                                       int64_t begin, int64_t end, int warps, const RowOfA& row_of_a,
                                       const Store& store, Most most = {}) {
  constexpr int columns = 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (; wrong; wrong &= wrong - 1) {
    const int r = __ffs(wrong) - 1;
#pragma unroll 1
    for (int from = first + columns * warp; from < last; from += columns * warps) {
      const int n = from + lane % columns;
      const Once once = once_more<F, columns>(args, row_of_a(r), matrix, n, n < last, begin, end, most);
      if (once.is_new && lane < columns) store(r, n, once.sum);
    }
  }
}

}  // namespace
}  // namespace tilegemm::gguf
