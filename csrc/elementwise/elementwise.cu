// Kernels that go through a matrix element by element: the rest of an epilogue after a kernel that does not fuse the
// whole epilogue, slopes of activations, for gradients, and copies.
#include "common/epilogue.hpp"
#include "common/launch.hpp"
#include "elementwise/convert.hpp"
#include "elementwise/convert_narrow.hpp"
#include "elementwise/copy_rows.hpp"
#include "library.h"

namespace tilegemm {
namespace {

// Neighbouring elements of a row, moved at once.
template <class T, int width> struct alignas(sizeof(T) * width) Piece {
  T x[width];
};

// The index of the first element of a thread.
struct Place {
  int64_t i, j, batch0, batch1;

  template <class T>
  __device__ T* in(const tg_matrix& matrix) const {
    return static_cast<T*>(matrix.ptr) + i * matrix.row_stride + j * matrix.col_stride +
           batch0 * matrix.batch_stride[0] + batch1 * matrix.batch_stride[1];
  }
};

template <class T, class Acc, int width>
__device__ void load(Acc (&x)[width], const tg_matrix& matrix, const Place& place) {
  constexpr int at_once = width * sizeof(T) > 16 ? 16 / sizeof(T) : width;
  const auto* pieces = reinterpret_cast<const Piece<T, at_once>*>(place.in<T>(matrix));
#pragma unroll
  for (int p = 0; p < width / at_once; p++) {
    const auto piece = pieces[p];
#pragma unroll
    for (int e = 0; e < at_once; e++) x[p * at_once + e] = Acc(piece.x[e]);
  }
}

template <class T, class Acc, int width>
__device__ void store(const Acc (&x)[width], const tg_matrix& matrix, const Place& place) {
  Piece<T, width> piece;
#pragma unroll
  for (int e = 0; e < width; e++) piece.x[e] = T(x[e]);
  T* to = place.in<T>(matrix);
  if constexpr (width == 1) {
    *to = piece.x[0];
  } else {  // with an assignment, the compiler stores number by number
    uint4 words;
    memcpy(&words, &piece, 16);
    __stwb(reinterpret_cast<uint4*>(to), words);
  }
}

// activation(x + bias) + beta * c, or activation(x + bias) * (beta * c), by the formulas of the kernels that fuse this
// epilogue.
template <class T, class Acc>
struct Rest {
  Epilogue<T, Acc> inner;  // without alpha; beta * c is read in pieces, outside of `inner`
  Acc beta;
  bool gates_c;
  tg_matrix c;

  static tg_gemm_args without_factors(tg_gemm_args args) {
    args.alpha = 1;
    args.beta = 0;
    return args;
  }
  explicit Rest(const tg_gemm_args& args)
      : inner(without_factors(args)), beta(Acc(args.beta)), gates_c(args.gate == TG_GATE_C), c(args.c) {}

  template <int width>
  __device__ void operator()(Acc (&x)[width], const Place& p) const {
#pragma unroll
    for (int e = 0; e < width; e++) x[e] = inner.unrounded(x[e], p.i, p.j + e, p.batch0, p.batch1);
    if (beta == Acc(0)) return;
    Acc y[width];
    load<T>(y, c, p);
#pragma unroll
    for (int e = 0; e < width; e++) x[e] = gates_c ? x[e] * (beta * y[e]) : x[e] + beta * y[e];
  }
};

// The derivative of an activation: NaN for NaN, and the limits where x is infinite, as in `Activation::slope` of
// src/problem/epilogue.rs.
template <class T, class Acc>
struct Slope {
  tg_activation activation;

  explicit Slope(const tg_gemm_args& args) : activation(args.activation) {}

  template <int width>
  __device__ void operator()(Acc (&x)[width], const Place&) const {
#pragma unroll
    for (int e = 0; e < width; e++) x[e] = at(x[e]);
  }

 private:
  __device__ Acc at(Acc x) const {
    if (activation == TG_IDENTITY) return Acc(1);
    if (activation == TG_RELU) return x >= Acc(0) ? Acc(1) : x < Acc(0) ? Acc(0) : x;
    // Beyond 800 every slope is 0 or 1, so that no infinity meets a 0.
    x = x > Acc(800) ? Acc(800) : x < Acc(-800) ? Acc(-800) : x;
    if (activation == TG_GELU_ERF) {
      const Acc density = Acc(0.39894228040143267794) * exp(Acc(-0.5) * x * x);
      return Acc(0.5) * erfc(x * Acc(-0.70710678118654752440)) + x * density;
    }
    // x sigmoid(y(x))
    const bool is_silu = activation == TG_SILU;
    const Acc factor = Acc(1.59576912160573071176), cubic = Acc(0.044715), square = x * x;
    const Acc y = is_silu ? x : factor * x * (Acc(1) + cubic * square);
    const Acc steepness = is_silu ? Acc(1) : factor * (Acc(1) + Acc(3) * cubic * square);
    const Acc power = exp(-fabs(y)), sum = Acc(1) + power;
    return (x < Acc(0) ? power : Acc(1)) / sum + x * steepness * (power / (sum * sum));
  }
};

// x / by, for x up to `most`: without a division where 31 bits hold `most`.
struct Quotient {
  int64_t by;
  bool small;
  Divisor divisor;

  Quotient(int64_t by, int64_t most) : by(by), small(most <= INT32_MAX), divisor(small ? by : 1) {}
  __device__ int64_t operator()(int64_t x) const { return small ? divisor.quotient(int(x)) : x / by; }
};

// D = op(A), one piece of a row for each thread. `From`: the type of A.
template <class From, class T, class Acc, int width, class Op>
__global__ void elementwise(tg_gemm_args args, Op op, int64_t count, Quotient pieces, Quotient rows,
                            Quotient matrices) {
  const int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (index >= count) return;
  const int64_t row = pieces(index), matrix = rows(row), outer = matrices(matrix);
  const Place place{row - matrix * rows.by, (index - row * pieces.by) * width, outer, matrix - outer * matrices.by};
  Acc x[width];
  load<From>(x, args.a, place);
  op(x, place);
  store<T>(x, args.d, place);
}

// Whether every row of a matrix begins at a multiple of 16 bytes and is contiguous.
template <class T>
bool in_pieces(const tg_matrix& matrix, const tg_gemm_args& args) {
  return matrix.col_stride == 1 && rows_at_multiples<T>(16 / sizeof(T), matrix, args.m, args.batch);
}

template <class From, class T, class Acc, int width, class Op>
tg_status launch(const tg_gemm_args& args, const Op& op) {
  const int64_t pieces = args.n / width, matrices = args.batch[0] * args.batch[1];
  const int64_t count = pieces * args.m * matrices;
  if (count == 0) return TG_OK;
  constexpr int threads = 256;
  const int64_t blocks = ceil_div(count, threads);
  if (blocks > INT32_MAX) return TG_UNSUPPORTED;
  const Quotient by_piece(pieces, count), by_row(args.m, count), by_matrix(args.batch[1], count);
  const auto kernel = elementwise<From, T, Acc, width, Op>;
  return launch_plainly(args, dim3(unsigned(blocks)), dim3(threads), 0, kernel, args, op, count, by_piece, by_row,
                        by_matrix);
}

template <template <class, class> class Op, tg_format format, class From = typename scalar<format>::type>
tg_status launch_as(const tg_gemm_args& args) {
  using T = typename scalar<format>::type;
  using Acc = typename scalar<format>::accumulator;
  constexpr int width = 16 / sizeof(T);
  const Op<T, Acc> op(args);
  const bool wide = args.n % width == 0 && in_pieces<From>(args.a, args) && in_pieces<T>(args.d, args) &&
                    (args.beta == 0 || in_pieces<T>(args.c, args));
  return wide ? launch<From, T, Acc, width>(args, op) : launch<From, T, Acc, 1>(args, op);
}

template <template <class, class> class Op>
tg_status launch_of(tg_format format, const tg_gemm_args& args) {
  switch (format) {
    case TG_F16: return launch_as<Op, TG_F16>(args);
    case TG_BF16: return launch_as<Op, TG_BF16>(args);
    case TG_F32: return launch_as<Op, TG_F32>(args);
    case TG_F64: return launch_as<Op, TG_F64>(args);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace
}  // namespace tilegemm

extern "C" {

tg_status tg_epilogue(tg_format format, const tg_gemm_args* args) {
  using tilegemm::launch_as;
  using tilegemm::Rest;
  if (args->types.a == format) return tilegemm::launch_of<Rest>(format, *args);
  if (args->types.a != TG_F32) return TG_UNSUPPORTED;
  switch (format) {
    case TG_F16: return launch_as<Rest, TG_F16, float>(*args);
    case TG_BF16: return launch_as<Rest, TG_BF16, float>(*args);
    default: return TG_UNSUPPORTED;
  }
}

tg_status tg_slope(tg_format format, const tg_gemm_args* args) {
  tg_gemm_args plain = *args;
  plain.beta = 0;
  return tilegemm::launch_of<tilegemm::Slope>(format, plain);
}

tg_status tg_copy(tg_format format, const tg_gemm_args* args) {
  tg_gemm_args plain = *args;
  plain.beta = 0, plain.bias = {}, plain.activation = TG_IDENTITY;
  if (tilegemm::narrow::is_narrow(format)) return tilegemm::convert_narrow(format, plain);
  if (plain.a_scale.ptr) return TG_UNSUPPORTED;
  if (plain.types.d != format)
    return plain.types.d == TG_BF16 ? tilegemm::convert_to_bf16(format, plain) : TG_UNSUPPORTED;
  if ((plain.a.col_stride != 1 && plain.n > 1) || (plain.d.col_stride != 1 && plain.n > 1)) {
    return plain.k == plain.n ? tilegemm::launch_of<tilegemm::Rest>(format, plain) : TG_UNSUPPORTED;
  }
  switch (format) {
    case TG_F16:
    case TG_BF16: return tilegemm::launch_copy_rows(plain, 2);
    case TG_F32: return tilegemm::launch_copy_rows(plain, 4);
    case TG_F64: return tilegemm::launch_copy_rows(plain, 8);
    default: return TG_UNSUPPORTED;
  }
}

tg_status tg_load_elementwise() { return tilegemm::load_own_module(); }

}  // extern "C"
