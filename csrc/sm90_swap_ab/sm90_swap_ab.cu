// Hopper, up to some 800 rows of A: D = A @ B on the tensor cores, with K contiguous in A and B. raw.hpp also takes a B
// whose N is contiguous.
//
// The columns of B are called the rows of W here. With swap_ab, W is wgmma's M side and A is wgmma's N side, and the
// product is a tile of D^T: tiles come in steps of 8 rows of A. A producer keeps a ring of loads full, and warp groups
// multiply. The blocks of a cluster may split K. The sums of the blocks meet in distributed shared memory and are added
// in a fixed order: there is no workspace, and a product has the same bits every time.
//
// A row of the table stands for tiles of several widths. A plan names the tile of D, the blocks that share W
// (`cluster_m`), the parts of K (`split`), the stages of the ring and swap_ab; src/family/sm90_swap_ab.rs chooses them.
// Rows that split K in more than two parts have the kernel of few_rows.hpp, other rows the kernel of wave.hpp.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp). Meanwhile the kernel prefetches two stages
// of W into L2; more stages displace each other.
#include <type_traits>

#include "sm90_swap_ab/few_rows.hpp"
#include "sm90_swap_ab/wave.hpp"

namespace tilegemm {
namespace {

template <class Row, int Width>
using Config = std::conditional_t<(Row::split > 2), FewRows<Row, Width>, Wave<Row, Width>>;

template <class Row, int... widths>
tg_status run_width(const tg_gemm_args& args, Widths<widths...>) {
  tg_status status = TG_UNSUPPORTED;
  ((Tile<Row, widths>::is(args.config) && (status = run(args, Config<Row, widths>{}), true)) || ...);
  return status;
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_NT || Row::align < 16);
  const tg_gemm_args& args = *problem;
  const tg_config& config = args.config;
  if (config.cluster_m < 1 || config.cluster_m > Row::cluster_m || config.cluster_n != 1 || config.split < 1 ||
      config.split > Row::split) {
    return TG_UNSUPPORTED;
  }
  return run_width<Row>(args, typename Row::widths{});
}

}  // namespace tilegemm

#include TG_ROWS
