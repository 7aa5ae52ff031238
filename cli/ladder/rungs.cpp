// The rungs in order. cli/build/ladder.rs says which ones this build has.
#include "ladder.h"

extern "C" const tg_rung* const* tg_rungs(size_t* count) {
  static const tg_rung* const rungs[] = {
      &tg_rung_simt,
      &tg_rung_wmma,
#ifdef TG_LADDER_TILE  // CUDA Tile, for sm_90
      &tg_rung_tile_naive,
      &tg_rung_tile_aligned,
      &tg_rung_tile_static,
      &tg_rung_tile_64x128,
      &tg_rung_tile_256x256,
#endif
#ifdef TG_LADDER_SM90
      &tg_rung_cute_multistage,
      &tg_rung_cutlass_sm90,
#endif
  };
  *count = sizeof rungs / sizeof *rungs;
  return rungs;
}
