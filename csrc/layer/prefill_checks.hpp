// What the kernels of prefill attention take, where there are tokens: a tensor of none has no address.
#pragma once
#include <cmath>
#include <cstdint>

#include "layer/layer.h"

namespace tilegemm {

inline bool prefill_fits(const tg_prefill_args& args) {
  constexpr int64_t most = int64_t(1) << 30;
  const auto counts = [](int64_t x, int64_t least) { return x >= least && x <= most; };
  const auto aligned = [](const void* p) { return p && reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  // A stride of rows or heads that do not overlap, in units of 16 bytes.
  const auto apart = [&](int64_t stride) { return stride >= args.head && stride % 8 == 0 && stride < most; };
  if (args.format != TG_F16 && args.format != TG_BF16) return false;
  if (args.head != 64 && args.head != 96 && args.head != 128 && args.head != 256) return false;
  if (!counts(args.tokens, 1) || !counts(args.heads, 1) || !counts(args.kv_heads, 1) || !counts(args.past, 0) ||
      args.heads % args.kv_heads != 0 || args.past + args.tokens > most || args.window < 0 || args.sm_count < 1) {
    return false;
  }
  if (!(args.scale > 0) || !std::isfinite(args.scale)) return false;
  if (args.workspace && !aligned(args.workspace)) return false;
  return aligned(args.q) && aligned(args.k) && aligned(args.v) && aligned(args.o) && apart(args.q_row_stride) &&
         apart(args.q_head_stride) && apart(args.k_row_stride) && apart(args.v_row_stride) &&
         apart(args.o_row_stride) && apart(args.o_head_stride) && apart(args.k_head_stride) &&
         apart(args.v_head_stride);
}

}  // namespace tilegemm
