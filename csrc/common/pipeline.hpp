// A ring of stages in shared memory, which TMA fills and warps empty: its barriers, and the side of the producer.
//
// Consumers count their stages themselves: with a common type ptxas makes other code of sm90_tf32, sm90_dgemm and sm90_bf16x6. The code
// of sm90_swap_ab changes with these functions, too.
#pragma once
#include "common/ptx.hpp"

namespace tilegemm {

// `full`: barriers of stages whose bytes are there; `empty`: of stages that all `readers` have let go.
__device__ __forceinline__ void init_ring(uint32_t full, uint32_t empty, int stages, int readers) {
  for (int s = 0; s < stages; s++) {
    mbarrier_init(full + 8 * s, 1);
    mbarrier_init(empty + 8 * s, readers);
  }
}

// The stage that the producer fills next. The first time no stage has to be let go: a wait for parity 1 passes.
struct Stage {
  int s = 0, parity = 1;

  // Waits until the stage is free. Its `full` barrier, which this returns, expects `bytes` then.
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
