// Hopper, some 65 to 800 rows of A in one wave of tiles: D = A @ B on the tensor cores, with K contiguous in A and B.
//
// The columns of B are called the rows of W here. With swap_ab, W is wgmma's M side and A is wgmma's N side, and the
// product is a tile of D^T: tiles come in steps of 8 rows of A. A producer keeps a ring of loads full, and warp groups
// multiply (wave.hpp).
//
// A row of the table stands for tiles of several widths. A plan names the tile of D, the blocks that share W
// (`cluster_m`), the parts of K (`split`), the stages of the ring and swap_ab; src/family/sm90_wave.rs chooses them.
// The sums of the parts meet in distributed shared memory and are added in a fixed order: there is no workspace, and a
// product has the same bits every time.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp). Meanwhile the kernel prefetches two stages
// of W into L2; more stages displace each other.
#include "sm90_wave/wave.hpp"

namespace tilegemm {
namespace {

template <class Row, int Width>
tg_status run(const tg_gemm_args& args, Wave<Row, Width>) {
  using C = Wave<Row, Width>;
  using T = typename C::Element;
  const int share = args.config.cluster_m, split = args.config.split, stages = args.config.stages,
            cluster = share * split;
  const int64_t n_tiles = ceil_div(args.n, C::w_rows), m_groups = ceil_div(args.m, C::a_rows * share);
  if (stages != C::stages(split) || args.k <= C::depth * (split - 1) ||
      ceil_div(args.m, C::a_rows) * n_tiles > INT_MAX / 16) {
    return TG_UNSUPPORTED;
  }
  CUtensorMap w_map, a_map;
  const int a_box = int(ceil_div(args.m, m_groups * share));  // rows of a tile of A, as even as possible
  if (!tensor_map<T>(&w_map, args.b, args.b.col_stride, args.n, args.k, args.batch, C::w_rows / share) ||
      !tensor_map<T>(&a_map, args.a, args.a.row_stride, args.m, args.k, args.batch, a_box,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B)) {
    return TG_UNSUPPORTED;
  }
  const bool wide = rows_at_multiples<T>(8, args.d, args.m, args.batch);
  const int64_t groups = m_groups * n_tiles, batches = args.batch[0] * args.batch[1];
  const int64_t at_once = std::max(1, args.sm_count / cluster);
  const Epilogue<typename C::Out, float> epilogue(args);
  const bool plain = epilogue.is_plain(), marches = plain && split == 1 && batches == 1;
  // The numbers of a row of C, and of the bias, are contiguous; all rows have the same bias.
  using Out = typename C::Out;
  const bool c_fits = args.beta == 0 || args.c.col_stride == 1,
             bias_fits = !args.bias.ptr || (args.bias.row_stride == 0 && args.bias.col_stride == 1);
  const WavePlace place{{args.d, int(args.m), int(args.n), int(args.k), int(args.batch[1])},
                        share,
                        split,
                        a_box,
                        Divisor(m_groups),
                        int(groups),
                        stages,
                        args.overlap ? 2 : 0,
                        wide,
                        plain,
                        !plain && args.activation == TG_IDENTITY && c_fits && bias_fits,
                        rows_at_multiples<Out>(8, args.c, args.m, args.batch),
                        rows_at_multiples<Out>(8, args.bias, 1, args.batch)};

  if (const cudaError_t error = allow_shared_memory<C>(sm90_wave<C>, C::shared_per_block)) return cuda_status(error);
  const int bytes = stages * C::stage_bytes + C::inbox_bytes(split) + C::barriers_bytes;
  const dim3 grid(unsigned((marches ? std::min(groups, at_once) : groups) * cluster), unsigned(batches));
  return Launch(args, grid, dim3(C::threads), bytes, dim3(cluster))(sm90_wave<C>, w_map, a_map, place, epilogue);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* args) {
  return run_width<Wave, Row>(*args, typename Row::widths{});
}

}  // namespace tilegemm

#include TG_ROWS
