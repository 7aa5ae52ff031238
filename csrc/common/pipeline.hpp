// A ring of stages in shared memory, which TMA fills and warps empty: its barriers, and the side of the producer.
//
// Consumers count their stages themselves: a common type changes the machine code that ptxas makes of sm90_tf32, sm90_dgemm and
// sm90_bf16x6. sm90_swap_ab has a ring of its own, because these functions change its machine code, too.
#pragma once
#include "common/ptx.hpp"

namespace tilegemm {

// `full`: barriers of stages whose bytes have arrived; `empty`: barriers of stages that all `readers` have released.
__device__ __forceinline__ void init_ring(uint32_t full, uint32_t empty, int stages, int readers) {
  for (int s = 0; s < stages; s++) {
    mbarrier_init(full + 8 * s, 1);
    mbarrier_init(empty + 8 * s, readers);
  }
}

// The stage that the producer fills next. The first round waits for no release: a wait for parity 1 passes.
struct Stage {
  int s = 0, parity = 1;

  // Waits until the stage is free. Returns the stage's `full` barrier, which then expects `bytes`.
  __device__ __forceinline__ uint32_t acquire(uint32_t full, uint32_t empty, uint32_t bytes) const {
    const uint32_t barrier = full + 8 * s;
    mbarrier_wait(empty + 8 * s, parity);
    mbarrier_arrive_expect(barrier, bytes);
    return barrier;
  }
  __device__ __forceinline__ void advance(int stages) {
    if (++s == stages) s = 0, parity ^= 1;
  }
};

}  // namespace tilegemm
