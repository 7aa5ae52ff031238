/* Columns of rows by a list, as layer.h has the rest. A header of its own leaves the units of layer.h as they are. */
#pragma once
#include "layer/layer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[r][c] = x[r][columns[c]], in numbers of 2 or 4 bytes, whatever they are. Where x has no such column, 0. Strides
 * are in numbers. TG_UNSUPPORTED: numbers of another size, and more than 2^23 columns of the result. */
typedef struct tg_gather {
  const void* x;           /* [rows][width] */
  const uint32_t* columns; /* [count] */
  void* out;               /* [rows][count] */
  int64_t x_stride, out_stride;
  int32_t rows, width, count, bytes;
} tg_gather;
tg_status tg_gather_launch(const tg_gather* args, const tg_launch* launch);

#ifdef __cplusplus
}
#endif
