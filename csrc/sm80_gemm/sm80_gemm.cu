// Tensor cores by mma.sync, in CuTe: for every architecture from Ampere on.
//
// A thread block computes a tile of D. Blocks of `tile_k` k's of A and B pass through a ring of shared-memory stages,
// which cp.async fills. A warp loads fragments one step ahead of the tensor cores, and multiplies by mma.sync. A
// `Product` has the layout of the ring, the fragments and the sums: native.hpp for f16, bf16 and TF32, parts.hpp for
// f32 by six products of bf16 parts, double.hpp for f64.
//
// Copies have the width of the row's alignment: 16, 8 or 4 bytes; numbers at odd addresses pass through registers. The
// last block of K, which may be incomplete, is loaded first, so that the main loop checks no k.
//
// With `split` parts of K each block writes its sums to the workspace, and a second kernel adds the parts in order
// (common/add_parts.hpp).
#include <climits>

#include "common/add_parts.hpp"
#include "common/epilogue.hpp"
#include "common/launch.hpp"
#include "common/store.hpp"
#include "common/tile_order.hpp"
#include "sm80_gemm/double.hpp"
#include "sm80_gemm/native.hpp"
#include "sm80_gemm/parts.hpp"

namespace tilegemm {
namespace {

template <class Product>
struct Config : Warps<typename Product::Row> {
  using Row = typename Product::Row;
  using W = Warps<Row>;
  using Out = typename scalar<Row::out>::type;
  using Sum = typename Product::Sum;
  static constexpr int tile_m = Row::tile_m, tile_n = Row::tile_n, tile_k = Row::tile_k, stages = Row::stages;
  static_assert(tile_k % 2 == 0 && stages >= 2);

  // Rows of D pass through shared memory, as sums, on their way to global memory: `slab` rows of each warp at a time.
  static constexpr int ring_bytes = Product::A::ring_bytes + Product::B::ring_bytes, pitch = tile_n + 8,
                       line_bytes = pitch * int(sizeof(Sum));
  static constexpr int slab = [] {
    int rows = W::warp_m;
    while (rows % 32 == 0 && rows * W::warps_m * line_bytes > ring_bytes) rows /= 2;
    return rows;
  }();
  static constexpr int slab_bytes = slab * W::warps_m * line_bytes;
  static constexpr int shared_bytes = ring_bytes > slab_bytes ? ring_bytes : slab_bytes;
  static constexpr int blocks_per_sm = tile_m * tile_n * int(sizeof(Sum)) > 128 * 128 * 4 ? 1 : 2;
};

// Two sums, which are stored at a time, and 16 bytes of sums, which are loaded at a time.
template <class Sum> struct Vectors;
template <> struct Vectors<float> {
  using two = float2;
  using piece = float4;
};
template <> struct Vectors<double> {
  using two = double2;
  using piece = double2;
};

// How the blocks of a grid share the product.
struct Grid {
  TileOrder order;
  int parts;     // of K
  int blocks;    // of K in a part
  bool vectors;  // whether 16 bytes of D are stored at a time
  bool plain;    // whether D is the product
};

template <class Product>
__global__ __launch_bounds__(Config<Product>::threads, Config<Product>::blocks_per_sm) void sm80_gemm(
    const __grid_constant__ tg_gemm_args args,
    const __grid_constant__ Epilogue<typename Config<Product>::Out, typename Product::Sum> epilogue,
    const __grid_constant__ Grid grid) {
  using C = Config<Product>;
  using A = typename Product::A;
  using B = typename Product::B;
  using Out = typename C::Out;
  using Sum = typename Product::Sum;
  constexpr int stages = C::stages, steps = Product::steps;

  const int part = int(blockIdx.y);
  const tilegemm::Tile tile = grid.order.at(int(blockIdx.x));
  const int m0 = tile.m * C::tile_m, n0 = tile.n * C::tile_n;
  const int64_t k0 = int64_t(part) * grid.blocks * C::tile_k;
  const int64_t k_of_part = min(args.k - k0, int64_t(grid.blocks) * C::tile_k);
  const auto at = [&](const tg_matrix& x, int64_t i, int64_t j) {
    const int64_t offset =
        i * x.row_stride + j * x.col_stride + tile.batch0 * x.batch_stride[0] + tile.batch1 * x.batch_stride[1];
    return static_cast<const char*>(x.ptr) + offset * A::bytes;
  };

  extern __shared__ __align__(128) char smem[];
  const uint32_t ring_a = cast_smem_ptr_to_uint(smem), ring_b = ring_a + A::ring_bytes;
  typename A::Loader load_a(at(args.a, m0, k0), args.a.row_stride, args.a.col_stride, ring_a,
                            int(min(args.m - m0, int64_t(C::tile_m))));
  typename B::Loader load_b(at(args.b, k0, n0), args.b.col_stride, args.b.row_stride, ring_b,
                            int(min(args.n - n0, int64_t(C::tile_n))));
  const int warp = int(threadIdx.x) / 32, warp_m = warp % C::warps_m * C::warp_m,
            warp_n = warp / C::warps_m * C::warp_n;
  Product product(ring_a, ring_b, warp_m, warp_n);

  // Block 0 of the ring is the last block of K.
  const int blocks = int(ceil_div(k_of_part, C::tile_k)), k_left = int(k_of_part - int64_t(blocks - 1) * C::tile_k);
  load_a.template copy<false>(0, blocks - 1, k_left);
  load_b.template copy<false>(0, blocks - 1, k_left);
  cp_async_fence();
  const auto load_next = [&](int stage) {
    load_a.template copy<true>(stage * A::stage_bytes, 0, 0);
    load_b.template copy<true>(stage * B::stage_bytes, 0, 0);
    load_a.advance();
    load_b.advance();
  };
  const auto put = [&](int stage) {
    load_a.put(stage * A::stage_bytes);
    load_b.put(stage * B::stage_bytes);
  };
  put(0);
  CUTE_UNROLL
  for (int stage = 1; stage < stages - 1; stage++) {
    if (stage < blocks) load_next(stage), put(stage);
    cp_async_fence();
  }
  cp_async_wait<stages - 2>();
  __syncthreads();
  product.load(0, 0);

  int read = 0, write = stages - 1;
  CUTE_NO_UNROLL
  for (int block = 0; block < blocks; block++) {
    CUTE_UNROLL
    for (int step = 0; step < steps; step++) {
      if (step == steps - 1) {  // the reads from here on are of the next block
        if (block + stages - 1 < blocks) put(write);
        write = write == stages - 1 ? 0 : write + 1;
        cp_async_wait<stages - 2>();
        __syncthreads();
        read = read == stages - 1 ? 0 : read + 1;
      }
      product.load(read, (step + 1) % steps);
      if (step == 0) {
        if (block + stages - 1 < blocks) load_next(write);
        cp_async_fence();
      }
      product.multiply(step);
    }
  }
  product.finish();
  cp_async_wait<0>();

  bool strange = false;
  if constexpr (Product::mends) strange = product.has_strange();

  // A thread has eight neighbouring columns of some rows of D.
  using Two = typename Vectors<Sum>::two;
  using Piece = typename Vectors<Sum>::piece;
  auto& sum = product.sum;
  Sum* const slab = reinterpret_cast<Sum*>(smem);
  const int lane = int(threadIdx.x) % 32;
  Sum* const own = slab + (warp_m / C::warp_m * C::slab + lane / 4) * C::pitch + warp_n + lane % 4 * 2;
  constexpr int pieces = C::tile_n / 8, fragments = C::slab / 16, in_piece = 16 / int(sizeof(Sum));
  const int column = int(threadIdx.x) % pieces * 8, j0 = n0 + column;
  const int count = int(max(int64_t(0), min(args.n - j0, int64_t(8)))),
            m_left = int(min(args.m - m0, int64_t(C::tile_m)));
  const int64_t matrix = int64_t(tile.batch0) * args.batch[1] + tile.batch1;
  Out* const d = matrix_of<Out>(args.d, int64_t(tile.batch0), int64_t(tile.batch1)) + m0 * args.d.row_stride +
                 j0 * args.d.col_stride;
  CUTE_NO_UNROLL
  for (int row = 0; row < C::warp_m; row += C::slab) {
    __syncthreads();
    CUTE_UNROLL
    for (int i = 0; i < fragments; i++) {
      CUTE_UNROLL
      for (int j = 0; j < 2 * C::fragments_n; j++) {
        *reinterpret_cast<Two*>(own + 16 * i * C::pitch + 8 * j) = Two{sum[i][j][0], sum[i][j][1]};
        *reinterpret_cast<Two*>(own + (16 * i + 8) * C::pitch + 8 * j) = Two{sum[i][j][2], sum[i][j][3]};
      }
    }
    if constexpr (Product::mends) {
      if (__syncthreads_or(strange)) {
        mend<C>(slab, args, k0, int(k_of_part), m0 + row, n0, tile);
        __syncthreads();
      }
    } else {
      __syncthreads();
    }
    CUTE_UNROLL
    for (int i = fragments; i < C::fragments_m; i++) {
      CUTE_UNROLL
      for (int j = 0; j < 2 * C::fragments_n; j++) {
        CUTE_UNROLL
        for (int e = 0; e < 4; e++) sum[i - fragments][j][e] = sum[i][j][e];
      }
    }
    CUTE_NO_UNROLL
    for (int line = int(threadIdx.x) / pieces; line < C::slab * C::warps_m; line += C::threads / pieces) {
      const int i = line / C::slab * C::warp_m + row + line % C::slab;
      if (i >= m_left || count == 0) continue;
      const Sum* const from = slab + line * C::pitch + column;
      Sum x[8];
      CUTE_UNROLL
      for (int e = 0; e < 8; e += in_piece)
        *reinterpret_cast<Piece*>(x + e) = *reinterpret_cast<const Piece*>(from + e);
      if (grid.parts > 1) {
        store_row(part_at<Sum>(args, part, matrix, m0 + i, j0), 1, x, count, args.n % in_piece == 0);
        continue;
      }
      if (!grid.plain) {
        int is[8], js[8];
        bool inside[8];
        CUTE_UNROLL
        for (int e = 0; e < 8; e++) is[e] = m0 + i, js[e] = j0 + e, inside[e] = e < count;
        epilogue.each(x, is, js, inside, tile.batch0, tile.batch1);
      }
      Out out[8];
      CUTE_UNROLL
      for (int e = 0; e < 8; e++) out[e] = Out(x[e]);
      store_row(d + i * args.d.row_stride, args.d.col_stride, out, count, grid.vectors);
    }
  }
}

}  // namespace

// Whether the rows of C, or of D, can be read or written 16 bytes at a time.
template <class Out>
bool in_vectors(const tg_gemm_args& args, const tg_matrix& matrix) {
  return (matrix.col_stride == 1 || args.n == 1) &&
         rows_at_multiples<Out>(16 / int(sizeof(Out)), matrix, args.m, args.batch);
}

template <class Product>
tg_status run(const tg_gemm_args& args) {
  using C = Config<Product>;
  using Row = typename Product::Row;
  using Out = typename C::Out;
  using Sum = typename Product::Sum;
  const int64_t m = args.m, n = args.n, k = args.k, batches = args.batch[0] * args.batch[1];
  const int64_t tiles_m = ceil_div(m, C::tile_m), tiles_n = ceil_div(n, C::tile_n);
  const int split = args.config.split;
  tg_config only_split{};
  only_split.split = split;
  if (args.config != only_split || split < 1 || split > 65535) return TG_UNSUPPORTED;
  if (split > 1 && (!args.workspace || args.workspace_bytes < parts_bytes<Sum>(args))) return TG_UNSUPPORTED;

  const int blocks = int(ceil_div(ceil_div(k, C::tile_k), split));
  if (ceil_div(k, int64_t(blocks) * C::tile_k) != split) return TG_UNSUPPORTED;  // a part would be empty
  if (C::shared_bytes > 48 * 1024) {  // a kernel gets this much without a request
    if (const cudaError_t error = allow_shared_memory<C>(sm80_gemm<Product>, C::shared_bytes))
      return cuda_status(error);
  }
  const Epilogue<Out, Sum> epilogue(args);
  const TileOrder order(tiles_m, tiles_n, args.batch, false, std::max(1, 2048 / C::tile_n));
  const Grid grid{order, split, blocks, in_vectors<Out>(args, args.d), epilogue.is_plain()};
  const dim3 blocks_of_grid(unsigned(tiles_m * tiles_n * batches), unsigned(split));
  const tg_status status =
      launch_plainly(args, blocks_of_grid, dim3(C::threads), C::shared_bytes, sm80_gemm<Product>, args, epilogue, grid);
  if (status != TG_OK || split == 1) return status;
  return launch_add_parts<Out, Sum>(args);
}

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  if constexpr (Row::math == TG_BF16X6) {
    // Small tiles have room for separate sums of large and small products, which a shorter K needs.
    if constexpr (Row::tile_m * Row::tile_n <= 64 * 64) {
      if (problem->k < most_apart) return run<Parts<Row, true>>(*problem);
    }
    return run<Parts<Row, false>>(*problem);
  } else if constexpr (Row::dtype == TG_F64) {
    return run<Double<Row>>(*problem);
  } else {
    return run<Native<Row>>(*problem);
  }
}

}  // namespace tilegemm

#include TG_ROWS
