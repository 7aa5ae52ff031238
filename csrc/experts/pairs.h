/* Biases of experts and clamped gates, on the results of pairs of a token and one of its experts. A header of its own
 * leaves the units of tilegemm.h as they are. */
#pragma once
#include "tilegemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Dense matrices in f32, a row a pair. A pair of expert `count` and above has no bias: that expert does not exist here.
 *
 * tg_bias_pairs: d[p][j] = x[p][j] + scales[p] * bias[experts[p]][j]; d may be x.
 *
 * tg_clamp_pairs: d[p][j] = (up + 1) * gate / (1 + e^(-alpha * gate)), where gate is at most `limit`, and up within
 * -limit and limit. x has 2 * columns in a row, the bias, too: gate, up, gate, up where they are interleaved, else the
 * gates come first. The bias is added before all else. NaN stays NaN. TG_UNSUPPORTED: 2^31 pairs, and more than 2^23
 * columns. */
typedef struct tg_pairs {
  const float* x;
  float* d;                /* [pairs][columns] */
  const uint32_t* experts; /* [pairs]; without a bias null */
  const float* bias;       /* [count][columns of x], or null */
  const float* scales;     /* [pairs]; null: 1 */
  int64_t pairs, columns;
  int32_t count, interleaved;
  float alpha, limit;
  int32_t overlap;
  void* stream;
} tg_pairs;
tg_status tg_bias_pairs(const tg_pairs* args);
tg_status tg_clamp_pairs(const tg_pairs* args);

#ifdef __cplusplus
}
#endif
