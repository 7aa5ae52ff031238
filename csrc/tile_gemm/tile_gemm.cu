// GEMM in cuTile C++ (CUDA Tile): one source for sm_80 ... sm_120. The compiler picks TMA or cp.async, and wgmma,
// tcgen05 or mma.sync. Persistent: each block (a cluster where CTAs share a tile) strides over the tiles of D.
//
// Three properties make the compiler use TMA and keep loads in flight, also for run-time shapes and strides (SASS of
// nvcc 13.5):
// - pointers, strides and the extents of contiguous dimensions are known to be multiples of 16 bytes;
// - views are made of kernel arguments only, because the launch builds the descriptors of views on the host. So a batch
// is
//   a dimension of a view, never an offset into a view;
// - A, B and D are __restrict__. Otherwise the loads of a tile wait for the store of the tile before.
#define TG_ANCHOR __tile_global__

#include <algorithm>
#include <climits>
#include <optional>
#include <tuple>

#include "common/activation.hpp"
#include "common/launch.hpp"
#include "cuda_tile.h"

namespace tilegemm {

namespace ct = cuda::tiles;
using namespace ct::literals;

// --- The arguments of a kernel ---------------------------------------------------------------------------------------
//
// A tile kernel takes scalars and pointers, no structs. So the host passes the members of these aggregates one by one,
// in this order (scalars() below), and the kernel makes the aggregates again.

struct Strides {
  int64_t line;      // from row to row, or from column to column: the stride of the dimension that is not contiguous
  int64_t batch[2];  // 0: one matrix for the whole batch
};

struct Problem {
  int m, n, k, batch[2];
  int tiles_m, tiles_n, tiles_k, tiles;  // `tiles`: tiles of D in the whole batch
  int group, blocks;
  Strides a, b, d;
};

// The three epilogues are parts of the epilogue of common/epilogue.hpp. Each part has a kernel of its own: the plain
// product pays nothing for an epilogue, and only the third kernel stages C in shared memory, which otherwise holds one
// more stage of A and B.
struct Product {};  // d = acc

template <class T>
struct Activated {  // d = activation(alpha * acc + bias)
  float alpha;
  int activation;
  const T*
      bias;  // a vector along M of `bias_m` elements, or along N of `bias_n` elements; a count without a vector is 0
  int bias_m, bias_n;
  int64_t bias_stride, bias_batch[2];
};

template <class T>
struct Added {  // d = activation(alpha * acc + bias) + beta * c
  Activated<T> activated;
  float beta;
  const T* c;
  Strides c_strides;
};

template <class Epilogue>
struct Arguments {
  Problem problem;
  Epilogue epilogue;
};

// --- On the device ---------------------------------------------------------------------------------------------------

// Coordinates in tiles.
struct Position {
  int batch[2], m, n;
};

// The place of tile number t. In each matrix of the batch, `group` rows of tiles are visited column by column. The
// tiles in flight then form a block with about as many rows as columns, which shares rows of A and columns of B in L2.
__tile__ inline Position position(int t, const Problem& p) {
  const int per_batch = p.tiles_m * p.tiles_n, batch = t / per_batch, index = t % per_batch;
  const int width = p.group * p.tiles_n, first = index / width * p.group;
  const int rows = p.tiles_m - first < p.group ? p.tiles_m - first : p.group;
  return {{batch / p.batch[1], batch % p.batch[1]}, first + index % width % rows, index % width / rows};
}

// A batch of rows x cols matrices, (batch[0], batch[1], rows, cols), divided into tiles. Loads read 0 beyond the edges,
// and stores write nothing there. A broadcast dimension gets an extent of 1 and a valid stride, because a descriptor
// takes no stride of 0.
template <int TILE_ROWS, int TILE_COLS, bool ROW_MAJOR = true, class T>
__tile__ auto tiled(T* data, int64_t rows, int64_t cols, const Problem& p, const Strides& strides) {
  constexpr ct::shape<1, 1, TILE_ROWS, TILE_COLS> tile;
  const bool shared0 = strides.batch[0] == 0, shared1 = strides.batch[1] == 0;
  const int64_t count0 = shared0 ? 1 : p.batch[0], count1 = shared1 ? 1 : p.batch[1];
  const int64_t step0 = ct::assume_divisible(shared0 ? 8 : strides.batch[0], 8_ic);
  const int64_t step1 = ct::assume_divisible(shared1 ? 8 : strides.batch[1], 8_ic);
  const int64_t line = ct::assume_divisible(strides.line, 8_ic);
  data = ct::assume_aligned(data, 16_ic);
  if constexpr (ROW_MAJOR) {
    const auto extents = ct::extents{count0, count1, rows, ct::assume_divisible(cols, 8_ic)};
    const ct::layout_strided_mapping layout{extents, ct::strides{step0, step1, line, 1_ic}};
    return ct::partition_view{ct::tensor_span{data, layout}, tile};
  } else {
    const auto extents = ct::extents{count0, count1, ct::assume_divisible(rows, 8_ic), cols};
    const ct::layout_strided_mapping layout{extents, ct::strides{step0, step1, 1_ic, line}};
    return ct::partition_view{ct::tensor_span{data, layout}, tile};
  }
}

// The tile at (row, col), in tiles, of the matrix that belongs to a batch element.
template <class View>
__tile__ auto load(const View& view, const Strides& strides, const Position& at, int row, int col) {
  using Shape = typename View::view_shape_type;
  return ct::reshape<ct::shape<Shape::static_extent(2), Shape::static_extent(3)>>(
      view.load_masked(strides.batch[0] == 0 ? 0 : at.batch[0], strides.batch[1] == 0 ? 0 : at.batch[1], row, col));
}

// Elements [first, first + COUNT) of the bias, 0 from `end` on. The bias has no view, since a bias may be unaligned.
template <int COUNT, class T>
__tile__ auto load_bias(const Activated<T>& e, const Position& at, int first, int end) {
  const auto index = ct::iota<ct::tile<int, ct::shape<COUNT>>>() + first;
  const T* data = e.bias + at.batch[0] * e.bias_batch[0] + at.batch[1] * e.bias_batch[1];
  const auto elements = data + ct::element_cast<int64_t>(index) * e.bias_stride;
  return ct::element_cast<float>(ct::load_masked(elements, index < end, T(0.0f)));
}

// 1 / x and 2^x by the hardware's instructions: the error is a few units in the last place of f32, and subnormals count
// as 0. f16 and bf16 round that error away. The instructions save a branch or a scaling per element.
constexpr ct::rounding_mode_constant<ct::rounding_mode::round_approximate> approximate;
constexpr ct::subnormals_rounding_mode_constant<ct::subnormals_rounding_mode::round_subnormals_to_zero> flush;
template <class X> __tile__ X reciprocal(X x) { return ct::div(1.0f, x, approximate, flush); }
template <class X> __tile__ X exponential(X x) { return ct::exp2(x, flush); }

// activate() of common/activation.hpp on a tile, in the form for 16 bits: tile code can call neither activate() nor
// <cmath>. The branches are uniform.
constexpr ct::propagate_nan_t keep_nan;
template <class X> __tile__ X relu(X x) { return ct::max(x, 0.0f, keep_nan); }
template <class X>
__tile__ X gate(X x, X exponent) {
  return ct::max(x, -3.40282347e38f) * reciprocal(1.0f + exponential(exponent));  // 0, not NaN, for -inf
}

template <class X>
__tile__ X gelu_erf(X x) {
  constexpr GeluErf gelu;
  const X t = ct::min(ct::abs(x), GeluErf::end);
  X exponent = t * gelu.half[7] + gelu.half[6];
  exponent = exponent * t + gelu.half[5];
  exponent = exponent * t + gelu.half[4];
  exponent = exponent * t + gelu.half[3];
  exponent = exponent * t + gelu.half[2];
  exponent = exponent * t + gelu.half[1];
  exponent = exponent * t + gelu.half[0];
  return relu(x) - t * exponential(exponent);
}

template <class X>
__tile__ X activate(int activation, X x) {
  if (activation == TG_RELU) {
    x = relu(x);
  } else if (activation == TG_GELU_ERF) {
    x = gelu_erf(x);
  } else if (activation == TG_GELU_TANH) {
    x = gate(x, x * (Gate::first + Gate::third * x * x));
  } else if (activation == TG_SILU) {
    x = gate(x, Gate::linear * x);
  }
  return x;
}

template <class Row, class X>
__tile__ X finish(const Product&, const Problem&, const Position&, X acc) {
  return acc;
}

template <class Row, class T, class X>
__tile__ X finish(const Activated<T>& e, const Problem&, const Position& at, X acc) {
  const auto bias_m = load_bias<Row::tile_m>(e, at, at.m * Row::tile_m, e.bias_m);
  const auto bias_n = load_bias<Row::tile_n>(e, at, at.n * Row::tile_n, e.bias_n);
  return activate(e.activation, e.alpha * acc + ct::reshape<ct::shape<Row::tile_m, 1>>(bias_m) +
                                    ct::reshape<ct::shape<1, Row::tile_n>>(bias_n));
}

// C may be D. The compiler assumes different memory for C and D, but no tile reads memory that another tile writes.
template <class Row, class T, class X>
__tile__ X finish(const Added<T>& e, const Problem& p, const Position& at, X acc) {
  const auto c = load(tiled<Row::tile_m, Row::tile_n>(e.c, p.m, p.n, p, e.c_strides), e.c_strides, at, at.m, at.n);
  return finish<Row>(e.activated, p, at, acc) + e.beta * ct::element_cast<float>(c);
}

// Constants of a row; tile code cannot call the functions of common/kernel.hpp.
template <class Row> constexpr bool a_row_major = a_is_k_major(Row::layout);
template <class Row> constexpr bool b_row_major = !b_is_k_major(Row::layout);
template <class Row> constexpr int cluster = Row::cluster_m * Row::cluster_n;

// Without TMA the compiler unrolls the ring of stages: small tiles that have all registers of an SM spill (13.5).
template <class Row>
constexpr int blocks_per_sm = Row::arch < 90 && Row::tile_m * Row::tile_n <= 64 * 64 ? (Row::arch == 80 ? 3 : 2) : 1;

namespace {

template <class Row, class Epilogue, class T, class... Scalars>
[[using cutile: hint(Row::arch * 10, num_cta_in_cga = cluster<Row>, occupancy = blocks_per_sm<Row>,
                     num_worker_warps_per_cta = Row::warps)]]
__tile_global__ void tile_gemm(const T* __restrict__ a, const T* __restrict__ b, T* __restrict__ d,
                               Scalars... scalars) {
  constexpr int TILE_M = Row::tile_m, TILE_N = Row::tile_n, TILE_K = Row::tile_k;
  const Arguments<Epilogue> arguments{scalars...};
  const Problem& p = arguments.problem;
  const auto a_tiles = tiled<TILE_M, TILE_K, a_row_major<Row>>(a, p.m, p.k, p, p.a);
  const auto b_tiles = tiled<TILE_K, TILE_N, b_row_major<Row>>(b, p.k, p.n, p, p.b);
  const auto d_tiles = tiled<TILE_M, TILE_N>(d, p.m, p.n, p, p.d);

  for (int t : ct::irange(int(ct::bid().x), p.tiles, p.blocks)) {
    const Position at = position(t, p);
    auto acc = ct::zeros<ct::tile<float, ct::shape<TILE_M, TILE_N>>>();
    for (int k : ct::irange(0, p.tiles_k)) {
      acc = ct::mma(load(a_tiles, p.a, at, at.m, k), load(b_tiles, p.b, at, k, at.n), acc);
    }
    const auto out = ct::element_cast<T>(finish<Row>(arguments.epilogue, p, at, acc));
    d_tiles.store_masked(ct::reshape<ct::shape<1, 1, TILE_M, TILE_N>>(out), at.batch[0], at.batch[1], at.m, at.n);
  }
}

}  // namespace

// --- On the host -----------------------------------------------------------------------------------------------------

// The strides of a rows x cols matrix of 2-byte elements, or nothing unless 16-byte accesses cover exactly the matrix.
// The strides of dimensions of size 1 have no effect.
inline std::optional<Strides> strides_of(const tg_matrix& matrix, int64_t rows, int64_t cols, bool row_major,
                                         const int64_t (&batch)[2]) {
  const int64_t contiguous = row_major ? cols : rows, unit = row_major ? matrix.col_stride : matrix.row_stride;
  const int64_t lines = row_major ? rows : cols, stride = row_major ? matrix.row_stride : matrix.col_stride;
  const Strides strides{lines == 1 ? contiguous : stride,
                        {batch[0] == 1 ? 0 : matrix.batch_stride[0], batch[1] == 1 ? 0 : matrix.batch_stride[1]}};
  const int64_t bits =
      contiguous | strides.line | strides.batch[0] | strides.batch[1];  // the low bits of all strides at once
  const bool aligned = reinterpret_cast<uintptr_t>(matrix.ptr) % 16 == 0 && bits >= 0 && bits % 8 == 0;
  constexpr int64_t most = int64_t(1) << 39;  // elements: the limit of a TMA descriptor
  const bool addressable =
      strides.line > 0 && strides.line < most && strides.batch[0] < most && strides.batch[1] < most;
  return aligned && unit == 1 && addressable ? std::optional{strides} : std::nullopt;
}

inline auto scalars(const Strides& s) { return std::tuple{s.line, s.batch[0], s.batch[1]}; }

inline auto scalars(const Problem& p) {
  return std::tuple_cat(
      std::tuple{p.m, p.n, p.k, p.batch[0], p.batch[1], p.tiles_m, p.tiles_n, p.tiles_k, p.tiles, p.group, p.blocks},
      scalars(p.a), scalars(p.b), scalars(p.d));
}

inline auto scalars(const Product&) { return std::tuple{}; }

template <class T>
auto scalars(const Activated<T>& e) {
  return std::tuple{e.alpha, e.activation, e.bias, e.bias_m, e.bias_n, e.bias_stride, e.bias_batch[0], e.bias_batch[1]};
}

template <class T>
auto scalars(const Added<T>& e) {
  return std::tuple_cat(scalars(e.activated), std::tuple{e.beta, e.c}, scalars(e.c_strides));
}

template <class Row>
std::optional<Problem> problem_of(const tg_gemm_args& args) {
  const auto a = strides_of(args.a, args.m, args.k, a_row_major<Row>, args.batch);
  const auto b = strides_of(args.b, args.k, args.n, b_row_major<Row>, args.batch);
  const auto d = strides_of(args.d, args.m, args.n, true, args.batch);
  if (!a || !b || !d) return {};
  const int64_t tiles_m = ceil_div(args.m, Row::tile_m), tiles_n = ceil_div(args.n, Row::tile_n);
  const int64_t tiles = tiles_m * tiles_n * args.batch[0] * args.batch[1], group = std::min<int64_t>(8, tiles_m);
  const int resident = std::max(1, args.sm_count / cluster<Row> * blocks_per_sm<Row>);
  return Problem{int(args.m),
                 int(args.n),
                 int(args.k),
                 {int(args.batch[0]), int(args.batch[1])},
                 int(tiles_m),
                 int(tiles_n),
                 int(ceil_div(args.k, Row::tile_k)),
                 int(tiles),
                 int(group),
                 std::min(int(tiles), resident),
                 *a,
                 *b,
                 *d};
}

template <class T>
std::optional<Activated<T>> activated(const tg_gemm_args& args) {
  const tg_matrix& bias = args.bias;
  const bool along_n = bias.row_stride == 0 || args.m == 1, along_m = bias.col_stride == 0 || args.n == 1;
  if (bias.ptr && !along_n && !along_m) return {};
  return Activated<T>{float(args.alpha),
                      args.activation,
                      static_cast<const T*>(bias.ptr),
                      bias.ptr && !along_n ? int(args.m) : 0,
                      bias.ptr && along_n ? int(args.n) : 0,
                      along_n ? bias.col_stride : bias.row_stride,
                      {bias.batch_stride[0], bias.batch_stride[1]}};
}

template <class Row, class Epilogue>
tg_status start(const tg_gemm_args& args, const Problem& problem, const Epilogue& epilogue) {
  using T = typename scalar<Row::dtype>::type;
  const T *a = static_cast<const T*>(args.a.ptr), *b = static_cast<const T*>(args.b.ptr);
  T* d = static_cast<T*>(args.d.ptr);
  const auto launch = [&](auto... scalars) {
    const auto kernel = tile_gemm<Row, Epilogue, T, decltype(scalars)...>;
    return launch_plainly(args, dim3(problem.blocks), dim3(1), 0, kernel, a, b, d, scalars...);
  };
  return std::apply(launch, std::tuple_cat(scalars(problem), scalars(epilogue)));
}

template <class Row>
tg_status launch(const tg_gemm_args* args) {
  using T = typename scalar<Row::dtype>::type;
  const auto problem = problem_of<Row>(*args);
  if (!problem) return TG_UNSUPPORTED;
  if (args->alpha == 1 && args->beta == 0 && !args->bias.ptr && args->activation == TG_IDENTITY) {
    return start<Row>(*args, *problem, Product{});
  }
  const auto epilogue = activated<T>(*args);
  if (!epilogue) return TG_UNSUPPORTED;
  if (args->beta == 0) return start<Row>(*args, *problem, *epilogue);
  const auto c = strides_of(args->c, args->m, args->n, true, args->batch);
  if (!c) return TG_UNSUPPORTED;
  return start<Row>(*args, *problem, Added<T>{*epilogue, float(args->beta), static_cast<const T*>(args->c.ptr), *c});
}

}  // namespace tilegemm

#include TG_ROWS
