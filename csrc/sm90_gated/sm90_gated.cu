// Hopper: gated products, D = activation(A @ gates) * (A @ ups), with K contiguous in A and B, and gates and ups as the
// two halves of B's columns. The columns of B are called the rows of W here.
//
// A plan names the tile, whose columns are half gates and half ups, and the tiles of A that share each load of W
// (`cluster_m`): gated.hpp. The kernel keeps nothing in the workspace.
//
// The kernel may start while the kernel before still runs (common/ptx.hpp). Meanwhile the kernel prefetches two stages
// of W into L2.
#include "common/launch.hpp"
#include "common/tensor_map.hpp"
#include "sm90_gated/gated.hpp"

namespace tilegemm {

template <class Row>
tg_status launch(const tg_gemm_args* args) {
  using C = Gated<Row>;
  using T = typename C::T;
  const tg_config& config = args->config;
  const int share = config.cluster_m;
  const tg_config own = {C::rows, C::width, share, 1, 1, C::stages, 0, 0};
  if (args->gate != TG_GATE_HALVES || args->bias.ptr || share < 1 || share > Row::cluster_m || config != own) {
    return TG_UNSUPPORTED;
  }
  const int64_t n = args->n / 2, clusters_m = ceil_div(args->m, C::rows * share), tiles_n = ceil_div(n, C::half);
  const int a_box = int(ceil_div(args->m, clusters_m * share));  // rows of a tile of A, as even as possible
  CUtensorMap w_map, a_map;
  if (!tensor_map<T>(&w_map, args->b, args->b.col_stride, args->n, args->k, args->batch, C::half) ||
      !tensor_map<T>(&a_map, args->a, args->a.row_stride, args->m, args->k, args->batch, a_box,
                     CU_TENSOR_MAP_L2_PROMOTION_L2_128B)) {
    return TG_UNSUPPORTED;
  }
  // Strips of 2048 rows, as those of sm90_gemm.
  const TileOrder order(clusters_m, tiles_n, {1, 1}, false, 2048 / (C::rows * share));
  const GatedPlace place{args->d,
                         int(args->m),
                         int(n),
                         int(args->k),
                         share,
                         a_box,
                         args->overlap ? 2 : 0,
                         order,
                         rows_at_multiples<T>(8, args->d, args->m, args->batch),
                         args->activation,
                         float(args->alpha)};
  const int64_t clusters = std::min<int64_t>(clusters_m * tiles_n, std::max(1, args->sm_count / share));
  return launch_configured<C>(*args, clusters * share, share, sm90_gated<C>, w_map, a_map, place);
}

}  // namespace tilegemm

#include TG_ROWS
