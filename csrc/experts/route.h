/* The choice of experts some of which are on other GPUs. A header of its own leaves the units of tilegemm.h as they
 * are. */
#pragma once
#include "tilegemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As tg_route, with logits, tokens x candidates: the experts that are here are the candidates from `first` on. `chosen`
 * and the shares are of all candidates, less `first`: a number that is not below `experts` is that of no expert here.
 * TG_UNSUPPORTED: no logits, more than 1024 candidates, and experts that are not all among them. */
tg_status tg_route_among(const tg_routing* routing, int64_t candidates, int64_t first);

#ifdef __cplusplus
}
#endif
