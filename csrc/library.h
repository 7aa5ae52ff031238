/* What Rust needs of the library beside its kernels. bindgen reads this file; no kernel includes this file, so that a
 * change here leaves kernels as they are. */
#pragma once
#include "tilegemm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Load the kernels beside the products, of csrc/elementwise/elementwise.cu and of csrc/experts/experts.cu, on the
 * current device, as a first launch does. They invalidate no capture, on any stream and thread. */
tg_status tg_load_elementwise(void);
tg_status tg_load_experts(void);

/* The most dynamic shared memory of a thread block, in bytes, among the launches that the latest can_implement of this
 * thread has rehearsed. */
int32_t tg_rehearsed_shared_bytes(void);

#ifdef __cplusplus
}
#endif
