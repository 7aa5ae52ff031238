// The oracle on the device: one thread per output element, any strides, 64-bit indices, the full epilogue.
// Nothing here is meant to be fast, and activations call the functions of <cmath>. Sums run over k in ascending order,
// in f32 (f64 for f64 and whole numbers), in chains of 64 products whose sums are added up: one chain of a long K would
// be less exact than a cuBLAS SGEMM, which splits K.
#include "common/epilogue.hpp"
#include "common/launch.hpp"
#include "experts/groups.hpp"
#include "gguf/blocks.hpp"
#include "narrow/numbers.hpp"

namespace tilegemm {
namespace {

constexpr int64_t chain = 64;

template <class Out, class Acc>
using ExactEpilogue = Epilogue<Out, Acc, Accuracy::exact>;

// A row of A, by k.
template <class T>
struct Row {
  const T* first;
  int64_t stride;
  __device__ Row(const tg_gemm_args& args, int64_t outer, int64_t inner, int64_t row)
      : first(static_cast<const T*>(args.a.ptr) + outer * args.a.batch_stride[0] + inner * args.a.batch_stride[1] +
              row * args.a.row_stride),
        stride(args.a.col_stride) {}
  __device__ T operator[](int64_t k) const { return first[k * stride]; }
};

// The elements before a column of B, of a matrix of the batch or of a group of rows.
__device__ int64_t offset_of(const tg_matrix& b, int64_t outer, int64_t inner, int64_t column) {
  return outer * b.batch_stride[0] + inner * b.batch_stride[1] + column * b.col_stride;
}

// A column of B, and the numbers of the column by k.
template <class T>
struct Numbers {
  const T* first;
  int64_t stride;
  __device__ Numbers(const tg_gemm_args& args, int64_t outer, int64_t inner, int64_t column)
      : first(static_cast<const T*>(args.b.ptr) + offset_of(args.b, outer, inner, column)), stride(args.b.row_stride) {}
  __device__ T operator[](int64_t k) const { return first[k * stride]; }
};

// As Numbers, where B has blocks, whose numbers lie at consecutive k.
struct Blocks {
  const uint8_t* first;
  tg_format format;
  __device__ Blocks(const tg_gemm_args& args, int64_t outer, int64_t inner, int64_t column) : format(args.types.b) {
    const gguf::Block block = gguf::block_of(format);
    const int64_t offset = offset_of(args.b, outer, inner, column);
    first = static_cast<const uint8_t*>(args.b.ptr) + offset / block.elements * block.bytes;
  }
  __device__ float operator[](int64_t k) const {
    const gguf::Block block = gguf::block_of(format);
    return gguf::number(format, first + k / block.elements * block.bytes, int(k % block.elements));
  }
};

template <class Row, class Column, class Sum, class Out, class Acc>
__global__ void reference(tg_gemm_args args, ExactEpilogue<Out, Acc> epilogue) {
  Out* d = static_cast<Out*>(args.d.ptr);
  // Gated: D has half of the columns, and an element is made of two columns of the product.
  const bool interleaved = args.gate == TG_GATE_INTERLEAVED, gated = args.gate == TG_GATE_HALVES || interleaved;
  const int64_t columns = gated ? args.n / 2 : args.n;
  const int64_t count = args.batch[0] * args.batch[1] * args.m * columns;
  const int64_t step = int64_t(gridDim.x) * blockDim.x;
  for (int64_t index = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; index < count; index += step) {
    const int64_t j = index % columns, i = index / columns % args.m;
    const int64_t batch = index / (columns * args.m), batch0 = batch / args.batch[1], batch1 = batch % args.batch[1];
    Acc scale = Acc(1);
    int64_t row_of_a = i, row_of_d = i, matrix = batch1;  // with its vector of biases
    if (args.groups.count > 0) {
      const GroupedRows rows{args.groups, args.m};
      const int64_t group = rows.group_of(i);
      row_of_d = rows.row_of_d(i);
      if (row_of_d < 0) continue;
      if (group < 0) {
        d[row_of_d * args.d.row_stride + j * args.d.col_stride] = Out(0.0f);
        continue;
      }
      row_of_a = rows.row_of_a(row_of_d);
      matrix = group;
      scale = Acc(rows.scale_of(row_of_d));
    }
    const Row row(args, batch0, batch1, row_of_a);
    Acc x = scale;
    for (int part = 0; part <= int(gated); part++) {
      const int64_t column = interleaved ? 2 * j + part : j + part * columns;
      const Column col(args, batch0, matrix, column);
      Sum total = Sum(0);
      for (int64_t first = 0; first < args.k; first += chain) {
        Sum sum = Sum(0);
        for (int64_t k = first; k < min(first + chain, args.k); k++) sum += Sum(row[k]) * Sum(col[k]);
        total += sum;
      }
      const Acc acc = Acc(total);
      if (part > 0) epilogue.activation = TG_IDENTITY;
      else epilogue.activation = args.activation;
      if (args.gate == TG_GATE_C) {
        const int64_t at = row_of_d * args.c.row_stride + column * args.c.col_stride + batch0 * args.c.batch_stride[0] +
                           batch1 * args.c.batch_stride[1];
        x *= epilogue.activated(acc, row_of_d, column, batch0, matrix) *
             (epilogue.beta * Acc(static_cast<const Out*>(args.c.ptr)[at]));
      } else {
        x *= epilogue.unrounded(acc, row_of_d, column, batch0, matrix);
      }
    }
    d[row_of_d * args.d.row_stride + j * args.d.col_stride + batch0 * args.d.batch_stride[0] +
      batch1 * args.d.batch_stride[1]] = Out(x);
  }
}

}  // namespace

template <class Kernel>
tg_status launch(const tg_gemm_args* args) {
  constexpr tg_format a = Kernel::dtype, b = Kernel::b;
  using Out = typename scalar<Kernel::out>::type;
  using Acc = std::conditional_t<a == TG_F64, double, float>;
  constexpr int threads = 256;
  const int64_t blocks = ceil_div(args->batch[0] * args->batch[1] * args->m * args->n, threads);
  const int64_t most = int64_t(args->sm_count) * 64;  // a grid-stride loop takes the rest
  const dim3 grid(unsigned(blocks < most ? blocks : most));
  const ExactEpilogue<Out, Acc> epilogue(*args);
  const auto run = [&](void (*kernel)(tg_gemm_args, ExactEpilogue<Out, Acc>)) {
    return launch_plainly(*args, grid, dim3(threads), 0, kernel, *args, epilogue);
  };
  if constexpr (narrow::is_narrow(a)) {
    using Sum = std::conditional_t<a == TG_I8, double, float>;
    return run(reference<narrow::Row, narrow::Column, Sum, Out, Acc>);
  } else {
    using T = typename scalar<a>::type;
    if constexpr (gguf::is_block(b)) {
      if (!gguf::is_whole(b, *args)) return TG_UNSUPPORTED;
      return run(reference<Row<T>, Blocks, Acc, Out, Acc>);
    } else if constexpr (narrow::is_narrow(b)) {
      return run(reference<Row<T>, narrow::Column, Acc, Out, Acc>);
    } else {
      return run(reference<Row<T>, Numbers<T>, Acc, Out, Acc>);
    }
  }
}

}  // namespace tilegemm

#include TG_ROWS
