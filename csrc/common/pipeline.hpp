// A ring of stages in shared memory, which TMA fills and warps empty: the ring's barriers, and the sides of the
// producer and of the consumers.
#pragma once
#include "common/ptx.hpp"

namespace tilegemm {

// A stage's `full` barrier ends a phase when the stage's bytes and all `writers` have arrived, the `empty` barrier when
// all `readers` have released the stage.
__device__ __forceinline__ void init_ring(uint32_t full, uint32_t empty, int stages, int readers, int writers = 1) {
  for (int s = 0; s < stages; s++) {
    mbarrier_init(full + 8 * s, writers);
    mbarrier_init(empty + 8 * s, readers);
  }
}

// A warp's release of stage s. Where the blocks of a cluster fill stages together (`clustered`), lane t signals the
// t-th of the `sharing` blocks, whose `empty` barriers are at the lane's `empty_there`.
__device__ __forceinline__ void release_stage(uint32_t empty_there, int s, int lane, bool clustered, int sharing) {
  if (clustered) {
    if (lane < sharing) mbarrier_arrive_cluster(empty_there + 8 * s);
  } else {
    if (lane == 0) mbarrier_arrive(empty_there + 8 * s);
  }
}

// A place in a ring: stage `s`, and the parity that a wait for a barrier of this stage takes.
struct Stage {
  int s, parity;

  // The first round waits for no release: a wait for parity 1 passes.
  static __device__ __forceinline__ Stage to_fill() { return {0, 1}; }
  static __device__ __forceinline__ Stage to_read(int first = 0) { return {first, 0}; }

  // Waits for the end of the phase at the stage's barrier among `barriers`. For whole warps: wait_warp() and
  // try_warp().
  __device__ __forceinline__ void wait(uint32_t barriers) const { mbarrier_wait(barriers + 8 * s, parity); }
  __device__ __forceinline__ void wait_warp(uint32_t barriers) const { mbarrier_wait_warp(barriers + 8 * s, parity); }
  __device__ __forceinline__ bool try_warp(uint32_t barriers) const {
    return mbarrier_try_warp(barriers + 8 * s, parity);
  }

  // The producer's wait until the stage is free. Returns the stage's `full` barrier, which then expects `bytes`.
  __device__ __forceinline__ uint32_t acquire(uint32_t full, uint32_t empty, uint32_t bytes) const {
    const uint32_t barrier = full + 8 * s;
    wait(empty);
    mbarrier_arrive_expect(barrier, bytes);
    return barrier;
  }

  // Goes on by `step` stages, at most one round.
  template <int step = 1>
  __device__ __forceinline__ void advance(int stages) {
    if constexpr (step == 1) {
      if (++s == stages) s = 0, parity ^= 1;
    } else {
      s += step;
      if (s >= stages) s -= stages, parity ^= 1;
    }
  }
};

}  // namespace tilegemm
