// f32 GEMM on the FMA units, in CuTe: every layout, size and stride; products and sums in f32.
//
// A thread block computes a TILE_M x TILE_N tile of D with 16 x 16 threads. Each thread owns 4 x 4 outputs of every
// 64 x 64. Blocks of TILE_K k of A and B pass through a ring of shared-memory stages that cp.async fills.
//
// Shared memory is MN-major for both operands: a thread then reads four rows of one k in 16 bytes. A K-major operand is
// transposed on the way, float by float. cp.async transposes without registers, several stages ahead; 16-byte loads
// would have to be scattered from registers. A K-major copy in shared memory would be read four k at a time, which
// takes four times the registers and puts both operands of an FMA in the same register bank.
#include <algorithm>
#include <climits>

#include <cute/tensor.hpp>

#include "common/epilogue.hpp"
#include "common/kernel.hpp"
#include "common/launch.hpp"
#include "common/store.hpp"
#include "common/tile_order.hpp"

namespace tilegemm {
namespace {

using namespace cute;

constexpr int threads = 256;
constexpr int chain =
    64;  // products in a chain of additions; the chain's sum is then added to the total in shared memory

// One operand in blocks of MN rows by K, with an alignment of `ALIGN` bytes. The "rows" of B are the columns of B.
template <bool K_MAJOR, int MN, int K, int STAGES, int ALIGN>
struct Operand {
  static constexpr int width = K_MAJOR ? 1 : ALIGN / int(sizeof(float));
  static constexpr int pitch = K_MAJOR ? MN + 4 : MN;  // 8 k of 4 rows, which a warp transposes, fall into 32 banks
  static constexpr int stage_floats = pitch * K;
  static_assert(MN % (threads / K * width) == 0, "every thread copies the same number of vectors, all of one k");
  using SmemLayout = Layout<Shape<Int<MN>, Int<K>, Int<STAGES>>, Stride<_1, Int<pitch>, Int<stage_floats>>>;

  // Adjacent threads copy adjacent vectors of global memory.
  using ThreadsMN = Layout<Shape<Int<threads / K>, Int<K>>>;
  using ThreadsK = Layout<Shape<Int<threads / K>, Int<K>>, Stride<Int<K>, _1>>;
  using GmemCopy =
      decltype(make_tiled_copy(Copy_Atom<UniversalCopy<uint_bit_t<32 * width>>, float>{},
                               conditional_t<K_MAJOR, ThreadsK, ThreadsMN>{}, Layout<Shape<Int<width>, _1>>{}));

  // One matrix of the batch, (MN,K), with the contiguous stride known at compile time.
  CUTE_DEVICE static auto tensor(const float* ptr, int64_t extent, int64_t k, int64_t stride_mn, int64_t stride_k) {
    if constexpr (K_MAJOR) {
      return make_tensor(make_gmem_ptr(ptr), make_shape(extent, k), make_stride(stride_mn, _1{}));
    } else {
      return make_tensor(make_gmem_ptr(ptr), make_shape(extent, k), make_stride(_1{}, stride_k));
    }
  }
};

// Copies the first `bytes` bytes of a vector without waiting, and fills the rest with zeros, without reading the rest.
template <int WIDTH>
CUTE_DEVICE void copy_async(const float* gmem, float* smem, int bytes) {
  const uint32_t target = cast_smem_ptr_to_uint(smem);
  if constexpr (WIDTH == 4) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target), "l"(gmem), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 4, %2;" ::"r"(target), "l"(gmem), "r"(bytes)
                 : "memory");
  }
}

// A thread's part in copying the blocks of an operand to shared memory.
template <class Op, class Gmem, class Smem, class Coord>
struct Loader {
  Gmem gmem;    // (CPY,CPY_MN,1,k), advanced block by block
  Smem smem;    // (CPY,CPY_MN,1,PIPE)
  Coord coord;  // (CPY,CPY_MN,1)
  int mn_left;  // rows of the block that exist

  // Copies the rows and the `k_left` k that exist of the block `ahead` blocks away, and fills the rest of the block
  // with zeros. Both operands are padded in K, so that no Inf meets a zero. Sums of rows that do not exist are never
  // stored.
  CUTE_DEVICE void copy(int ahead, int stage, int k_left) const {
    CUTE_UNROLL
    for (int i = 0; i < size<1>(smem); i++) {
      const int first = get<0>(coord(0, i, 0));
      const int rows = Op::width == 1 ? 1 : min(Op::width, mn_left - first);
      const bool exists = first < mn_left && get<1>(coord(0, i, 0)) < k_left;
      copy_async<Op::width>(&gmem(0, i, 0, ahead), &smem(0, i, 0, stage), exists ? rows * int(sizeof(float)) : 0);
    }
  }

  CUTE_DEVICE void advance() { gmem.data() = gmem.data() + stride<3>(gmem); }
};

template <class Op, class Gmem, class Smem>
CUTE_DEVICE auto make_loader(const Gmem& gmem, const Smem& smem, int mn_left) {
  const auto copy = typename Op::GmemCopy{}.get_slice(threadIdx.x);
  Tensor tg = copy.partition_S(gmem);  // (CPY,CPY_MN,CPY_K,k)
  Tensor ts = copy.partition_D(smem);  // (CPY,CPY_MN,CPY_K,PIPE)
  Tensor tc =
      copy.partition_S(make_identity_tensor(select<0, 1>(shape(typename Op::SmemLayout{}))));  // (CPY,CPY_MN,CPY_K)
  return Loader<Op, decltype(tg), decltype(ts), decltype(tc)>{tg, ts, tc, mn_left};
}

// The tile and the matrices of the batch that a thread block computes, and the extents of the tile inside D.
struct Place {
  int64_t batch0, batch1, first_m, first_n;
  uint2 tile;
  int m_left, n_left;

  template <class Tile>
  CUTE_DEVICE Place(const tg_gemm_args& args, const TileOrder& order, int64_t first_batch, Tile) {
    unsigned block;
    // Volatile, so that the epilogue computes the place again; otherwise the place keeps ten registers through the main
    // loop.
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block));
    const unsigned tiles = order.in_matrix.value;
    const int64_t batch = first_batch + block / tiles;
    batch0 = batch / args.batch[1];
    batch1 = batch % args.batch[1];
    const tilegemm::Tile at = order.at(int(block % tiles));
    tile = make_uint2(unsigned(at.m), unsigned(at.n));
    constexpr int64_t tile_m = size<0>(Tile{}), tile_n = size<1>(Tile{});
    first_m = tile.x * tile_m;
    first_n = tile.y * tile_n;
    m_left = int(min(args.m - first_m, tile_m));
    n_left = int(min(args.n - first_n, tile_n));
  }

  CUTE_DEVICE float* of_batch(const tg_matrix& matrix) const { return matrix_of<float>(matrix, batch0, batch1); }
};

template <class Row>
struct Config {
  static_assert(Row::dtype == TG_F32, "operands, products and sums are f32");
  static_assert(Row::align == 4 || Row::align == 16, "operands are copied 4 or 16 bytes at a time");
  static_assert(Row::tile_m % 64 == 0 && Row::tile_n % 64 == 0, "a thread owns 4 x 4 outputs of every 64 x 64");
  static_assert(Row::tile_k % 8 == 0 && threads % Row::tile_k == 0, "threads are spread evenly over the k of a block");
  static_assert(Row::stages >= 3, "one stage is read, one is filled, and the others are on their way");

  using TileMNK = Shape<Int<Row::tile_m>, Int<Row::tile_n>, Int<Row::tile_k>>;
  using A = Operand<a_is_k_major(Row::layout), Row::tile_m, Row::tile_k, Row::stages, Row::align>;
  using B = Operand<b_is_k_major(Row::layout), Row::tile_n, Row::tile_k, Row::stages, Row::align>;
  static constexpr int smem_bytes = Row::stages * (A::stage_floats + B::stage_floats) * int(sizeof(float));
  // A K of more than two chains keeps the totals in shared memory: registers have room for only one accumulator for
  // each element.
  static constexpr int total_bytes = Row::tile_m * Row::tile_n * int(sizeof(float));
  static constexpr bool totals(int64_t k) { return k > 2 * chain; }
  static_assert(chain % Row::tile_k == 0);
  static constexpr int blocks_per_sm = Row::tile_m * Row::tile_n <= 128 * 128 ? 2 : 1;  // by registers

  // A warp is 4 x 8 threads. Lane bit 0 goes along N and bit 1 along M. Lanes that differ in one of these bits read the
  // same 16 bytes of A or of B, so that shared memory serves half a warp at a time.
  using Threads = Layout<Shape<Shape<_2, _2, _4>, Shape<_2, _2, _2, _2>, _1>,
                         Stride<Stride<_2, _8, _32>, Stride<_1, _4, _16, _128>, _0>>;
  using Quads = Layout<Shape<_16, _4>, Stride<_4, _1>>;  // thread t owns 4t ... 4t + 3 of every 64
  using Mma = TiledMMA<MMA_Atom<UniversalFMA<float>>, Threads, cute::Tile<Quads, Quads, Underscore>>;
};

// Adds the accumulators to the totals of their thread and sets the accumulators to zero. `first`: there are no totals
// yet.
template <class Accum>
CUTE_DEVICE void add_to_totals(Accum& accum, float* totals, bool first) {
  float4* const mine = reinterpret_cast<float4*>(totals) + threadIdx.x;
  CUTE_UNROLL
  for (int i = 0; i < size(accum); i += 4) {
    float4& total = mine[i / 4 * threads];
    const float4 sum = first ? make_float4(0, 0, 0, 0) : total;
    total = make_float4(sum.x + accum(i), sum.y + accum(i + 1), sum.z + accum(i + 2), sum.w + accum(i + 3));
  }
  clear(accum);
}

template <class Accum>
CUTE_DEVICE void take_totals(Accum& accum, const float* totals) {
  const float4* const mine = reinterpret_cast<const float4*>(totals) + threadIdx.x;
  CUTE_UNROLL
  for (int i = 0; i < size(accum); i += 4) {
    const float4 total = mine[i / 4 * threads];
    accum(i) += total.x, accum(i + 1) += total.y, accum(i + 2) += total.z, accum(i + 3) += total.w;
  }
}

template <class Row>
__global__ __launch_bounds__(threads, Config<Row>::blocks_per_sm) void simt_gemm(
    const __grid_constant__ tg_gemm_args args, const __grid_constant__ Epilogue<float, float> epilogue,
    const __grid_constant__ TileOrder order, const int64_t first_batch, const bool vector_stores) {
  using A = typename Config<Row>::A;
  using B = typename Config<Row>::B;
  constexpr int stages = Row::stages;
  constexpr typename Config<Row>::TileMNK tile_mnk;

  const Place place(args, order, first_batch, tile_mnk);
  const float *a = place.of_batch(args.a), *b = place.of_batch(args.b);
  Tensor mA = A::tensor(a, args.m, args.k, args.a.row_stride, args.a.col_stride);            // (M,K)
  Tensor mB = B::tensor(b, args.n, args.k, args.b.col_stride, args.b.row_stride);            // (N,K)
  Tensor gA = local_tile(mA, select<0, 2>(tile_mnk), make_coord(int64_t(place.tile.x), _));  // (BLK_M,BLK_K,k)
  Tensor gB = local_tile(mB, select<1, 2>(tile_mnk), make_coord(int64_t(place.tile.y), _));  // (BLK_N,BLK_K,k)

  extern __shared__ __align__(16) float smem[];
  float* const smem_b = smem + stages * A::stage_floats;
  float* const totals = smem_b + stages * B::stage_floats;
  Tensor sA = make_tensor(make_smem_ptr(smem), typename A::SmemLayout{});    // (BLK_M,BLK_K,PIPE)
  Tensor sB = make_tensor(make_smem_ptr(smem_b), typename B::SmemLayout{});  // (BLK_N,BLK_K,PIPE)

  const typename Config<Row>::Mma mma;
  const auto thr_mma = mma.get_slice(threadIdx.x);
  Tensor tCsA = thr_mma.partition_A(sA);                                    // (1,MMA_M,BLK_K,PIPE)
  Tensor tCsB = thr_mma.partition_B(sB);                                    // (1,MMA_N,BLK_K,PIPE)
  Tensor tCrA = make_tensor<float>(make_shape(_1{}, size<1>(tCsA), _2{}));  // (1,MMA_M,2)
  Tensor tCrB = make_tensor<float>(make_shape(_1{}, size<1>(tCsB), _2{}));  // (1,MMA_N,2)
  Tensor accum = partition_fragment_C(mma, select<0, 1>(tile_mnk));         // (1,MMA_M,MMA_N)
  clear(accum);

  auto load_a = make_loader<A>(gA, sA, place.m_left);
  auto load_b = make_loader<B>(gB, sB, place.n_left);
  const auto load_next = [&](int stage) {
    load_a.copy(0, stage, Row::tile_k);
    load_b.copy(0, stage, Row::tile_k);
    load_a.advance();
    load_b.advance();
  };

  // The last block comes first: only the last block may be incomplete in K, and the main loop needs no check.
  const int blocks = int(ceil_div(args.k, Row::tile_k)), k_left = int(args.k - int64_t(blocks - 1) * Row::tile_k);
  load_a.copy(blocks - 1, 0, k_left);
  load_b.copy(blocks - 1, 0, k_left);
  cp_async_fence();
  CUTE_UNROLL
  for (int stage = 1; stage < stages - 1; stage++) {
    if (stage < blocks) load_next(stage);
    cp_async_fence();
  }
  cp_async_wait<stages - 2>();
  __syncthreads();
  copy(tCsA(_, _, 0, 0), tCrA(_, _, 0));
  copy(tCsB(_, _, 0, 0), tCrB(_, _, 0));

  // While the products of one k are summed, the registers of the next k are loaded. While one stage is read, up to
  // stages - 1 further blocks are copied.
  int read = 0, write = stages - 1;
  CUTE_NO_UNROLL
  for (int block = 0; block < blocks; block++) {
    if (block + stages - 1 < blocks) load_next(write);
    cp_async_fence();
    write = read;
    CUTE_UNROLL
    for (int k = 0; k < Row::tile_k; k++) {
      if (k == Row::tile_k - 1) {  // the reads from here on are of the next block
        cp_async_wait<stages - 2>();
        __syncthreads();
        read = read == stages - 1 ? 0 : read + 1;
      }
      const int next = (k + 1) % Row::tile_k;
      copy(tCsA(_, _, next, read), tCrA(_, _, next % 2));
      copy(tCsB(_, _, next, read), tCrB(_, _, next % 2));
      gemm(mma, tCrA(_, _, k % 2), tCrB(_, _, k % 2), accum);
    }
    constexpr int chain_blocks = chain / Row::tile_k;
    if (Config<Row>::totals(args.k) && (block + 1) % chain_blocks == 0) {
      add_to_totals(accum, totals, block + 1 == chain_blocks);
    }
  }
  if (Config<Row>::totals(args.k)) take_totals(accum, totals);

  const Place goal(args, order, first_batch, tile_mnk);
  Tensor tCcD = thr_mma.partition_C(make_identity_tensor(select<0, 1>(tile_mnk)));  // (1,MMA_M,MMA_N)
  // A loop that is not unrolled, with the accumulators moving up row by row: otherwise every activation is inlined once
  // per output.
  CUTE_NO_UNROLL
  for (int row = 0; row < size<1>(accum); row++) {
    const int tile_row = get<0>(tCcD(0, row, 0));
    if (tile_row >= goal.m_left) break;
    const int64_t i = goal.first_m + tile_row;
    CUTE_UNROLL
    for (int col = 0; col < size<2>(accum); col += 4) {
      const int tile_col = get<1>(tCcD(0, 0, col)), count = min(4, goal.n_left - tile_col);
      const int64_t j = goal.first_n + tile_col;
      float* const d = goal.of_batch(args.d) + i * args.d.row_stride + j * args.d.col_stride;
      float out[4];
      CUTE_UNROLL
      for (int e = 0; e < 4; e++) {
        if (e < count) out[e] = epilogue(accum(0, 0, col + e), i, j + e, goal.batch0, goal.batch1);
      }
      store_row(d, args.d.col_stride, out, count, vector_stores);
    }
    CUTE_UNROLL
    for (int next = 1; next < size<1>(accum); next++) copy(accum(_, next, _), accum(_, next - 1, _));
  }
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  const tg_gemm_args& args = *problem;
  const int64_t m = args.m, n = args.n, k = args.k, batches = args.batch[0] * args.batch[1];
  const int64_t tiles = ceil_div(m, Row::tile_m) * ceil_div(n, Row::tile_n);
  const auto kernel = simt_gemm<Row>;
  const int smem_bytes = Config<Row>::smem_bytes + (Config<Row>::totals(k) ? Config<Row>::total_bytes : 0);
  if (smem_bytes > 48 * 1024) {  // a kernel gets 48 KiB without a request
    if (const cudaError_t error = allow_shared_memory<Config<Row>>(kernel, smem_bytes)) return cuda_status(error);
  }
  const Epilogue<float, float> epilogue(args);
  // In strips of eight tiles along M: tiles that are computed at the same time share operands in L2.
  const TileOrder order(ceil_div(m, Row::tile_m), ceil_div(n, Row::tile_n), {1, 1}, false, 8);
  const bool vector_stores = (args.d.col_stride == 1 || n == 1) && rows_at_multiples<float>(4, args.d, m, args.batch);
  const int64_t most = INT_MAX / tiles;  // matrices that fit one grid
  for (int64_t first = 0; first < batches; first += most) {
    const unsigned grid = unsigned(std::min(most, batches - first) * tiles);
    const tg_status status = launch_plainly(args, dim3(grid), dim3(threads), smem_bytes, kernel, args, epilogue, order,
                                            first, vector_stores);
    if (status != TG_OK) return status;
  }
  return TG_OK;
}

}  // namespace tilegemm

#include TG_ROWS
