// A ring of stages in shared memory, which TMA fills and warps empty: its barriers, and the sides of the producer and of the consumers.
//
// Consumers hold their stage and its parity in variables: a common type changes the machine code that ptxas makes of sm90_tf32,
// sm90_dgemm and sm90_bf16x6. For the same reason sm90_swap_ab and sm90_bf16x6_direct advance their stages without next_stage(), and
// sm90_swap_ab/wave.hpp has neither init_ring() nor release_stage().
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

// The next stage of a ring, and the parity of the next round's barriers.
__device__ __forceinline__ void next_stage(int& s, int& parity, int stages) {
  if (++s == stages) s = 0, parity ^= 1;
}

// A warp's release of stage s. Where the blocks of a cluster fill stages together (`clustered`), lane t signals the t-th of the `sharing`
// blocks, whose `empty` barriers are at the lane's `empty_there`.
__device__ __forceinline__ void release_stage(uint32_t empty_there, int s, int lane, bool clustered, int sharing) {
  if (clustered) {
    if (lane < sharing) mbarrier_arrive_cluster(empty_there + 8 * s);
  } else {
    if (lane == 0) mbarrier_arrive(empty_there + 8 * s);
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
  __device__ __forceinline__ void advance(int stages) { next_stage(s, parity, stages); }
};

}  // namespace tilegemm
