// Prefill attention by mma.sync, from sm80 on.
//
// A block of four warps has a tile of Q, a warp 16 or 32 of the rows. K and V have a block of keys each in shared
// memory: V comes in during S = Q @ K^T, the next K during the softmax and O += P @ V.
#include "layer/prefill_sm80.hpp"

namespace tilegemm {
namespace {

template <class C>
tg_status launch_sm80(const tg_prefill_args& args) {
  Work w;
  if (!work_of(args, C::rows, &w)) return TG_UNSUPPORTED;
  return launch_blocks<C>(args, w.total, 1, false, layer_prefill_sm80<C>, args, w);
}

template <class T>
tg_status launch_for_sm80(const tg_prefill_args& args) {
  switch (args.head) {
    case 64: return launch_sm80<WarpConfig<T, 64, 1, 64>>(args);
    case 96: return launch_sm80<WarpConfig<T, 96, 1, 64>>(args);
    case 128: return launch_sm80<WarpConfig<T, 128, 1, 64>>(args);
    case 256: return launch_sm80<WarpConfig<T, 256, 1, 32>>(args);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace
}  // namespace tilegemm

extern "C" tg_status tg_prefill_sm80(const tg_prefill_args* args) {
  using namespace tilegemm;
  if (args->tokens == 0) return TG_OK;
  if (!prefill_fits(*args)) return TG_UNSUPPORTED;
  return args->format == TG_F16 ? launch_for_sm80<__half>(*args) : launch_for_sm80<__nv_bfloat16>(*args);
}

extern "C" tg_status tg_load_layer_prefill_sm80() { return tilegemm::load_own_module(); }
