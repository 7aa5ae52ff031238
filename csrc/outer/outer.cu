// K = 1 in f32, as when rotary embeddings multiply positions and frequencies: D[i][j] = alpha * fma(a[i], b[j], 0). The
// result equals the result of a kernel that adds products one by one, bit for bit. Stores take all the time.
//
// A thread keeps its columns of B and goes down a few rows. Neighbouring threads cover the columns of D, up to a warp
// or two. Where D is narrow, a warp stores several rows.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp).
#include <algorithm>
#include <climits>

#include "common/cuda_cores.hpp"
#include "common/launch.hpp"

namespace tilegemm {
namespace {

constexpr int threads = 256;

// COLUMNS: the columns that a thread stores at once, four past the caches, or one.
template <int COLUMNS>
struct Tile {
  static constexpr int rows = COLUMNS == 4 ? 2 : 4;           // rows of a thread
  static constexpr int most_across = COLUMNS == 4 ? 32 : 64;  // threads side by side
};

// A block is (threads side by side, rows). blockIdx: x: pieces of D, columns first; y: the batch.
template <int COLUMNS>
__global__ void __launch_bounds__(threads) outer(const __grid_constant__ GemvProblem<float> p, const int column_blocks,
                                                 const __grid_constant__ Epilogue<float, float> epilogue) {
  launch_dependents();
  const Batch batch(p.inner_batch);
  const float *const a = batch.of<const float>(p.a), *const b = batch.of<const float>(p.b);
  float* const d = batch.of<float>(p.d);
  const int row_block = int(blockIdx.x) / column_blocks, column_block = int(blockIdx.x) - row_block * column_blocks;
  const int j0 = (column_block * int(blockDim.x) + int(threadIdx.x)) * COLUMNS;
  const int i0 = row_block * int(blockDim.y) * Tile<COLUMNS>::rows + int(threadIdx.y);
  griddepcontrol_wait();
  if (j0 >= p.n) return;

  float y[COLUMNS], x[Tile<COLUMNS>::rows];
#pragma unroll
  for (int e = 0; e < COLUMNS; e++) y[e] = b[(j0 + e) * p.b.col_stride];
#pragma unroll
  for (int r = 0; r < Tile<COLUMNS>::rows; r++) {
    const int i = i0 + r * int(blockDim.y);
    x[r] = i < p.m ? a[i * p.a.row_stride] : 0.0f;
  }
#pragma unroll
  for (int r = 0; r < Tile<COLUMNS>::rows; r++) {
    const int i = i0 + r * int(blockDim.y);
    if (i >= p.m) return;
    float v[COLUMNS];
    int rows[COLUMNS], columns[COLUMNS];
    bool inside[COLUMNS];
#pragma unroll
    for (int e = 0; e < COLUMNS; e++) v[e] = fmaf(x[r], y[e], 0.0f), rows[e] = i, columns[e] = j0 + e, inside[e] = true;
    epilogue.each(v, rows, columns, inside, batch.outer, batch.inner);
    float* const to = d + i * p.d.row_stride + j0 * p.d.col_stride;
    if constexpr (COLUMNS == 4) __stcs(reinterpret_cast<float4*>(to), make_float4(v[0], v[1], v[2], v[3]));
    else *to = v[0];
  }
}

template <int COLUMNS>
tg_status launch_columns(const tg_gemm_args& args) {
  const int64_t wide = ceil_div(args.n, COLUMNS);
  int across = 1;  // threads side by side
  while (across < wide && across < Tile<COLUMNS>::most_across) across *= 2;
  const int rows = threads / across;
  const int column_blocks = int(ceil_div(wide, across));
  const int64_t blocks = ceil_div(args.m, int64_t(rows) * Tile<COLUMNS>::rows) * column_blocks;
  const GemvProblem<float> p(args);
  const Epilogue<float, float> epilogue(args);
  const dim3 grid(unsigned(blocks), unsigned(args.batch[0] * args.batch[1])), block(across, rows);
  return Launch(args, grid, block, 0)(outer<COLUMNS>, p, column_blocks, epilogue);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_ANY && Row::dtype == TG_F32);
  const tg_gemm_args& args = *problem;
  const bool in_fours =
      args.n % 4 == 0 && args.d.col_stride == 1 && rows_at_multiples<float>(4, args.d, args.m, args.batch);
  return in_fours ? launch_columns<4>(args) : launch_columns<1>(args);
}

}  // namespace tilegemm

#include TG_ROWS
