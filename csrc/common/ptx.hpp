// PTX instructions that CUDA C++ lacks, most of them from Hopper on. Functions have the names of the PTX ISA.
#pragma once
#include <cstdint>

namespace tilegemm {

// ---- Programmatic dependent launch ----------------------------------------------------------------------------------
//
// A kernel launched with programmatic stream serialization starts when all blocks of the kernel before have called
// launch_dependents() or ended. The kernel must touch nothing that depends on the kernel before until
// griddepcontrol_wait() has returned: the kernel before has then ended, and the writes of that kernel are visible. Two
// rules keep chains of kernels right:
//
// - Every block waits, so that the end of a kernel implies the end of all earlier kernels.
// - Before waiting, a block reads no memory. A block may prefetch into L2, since later writes reach L2, too.
//
// Both instructions do nothing in a kernel that was launched without the attribute. Architectures before Hopper have
// neither the attribute nor the instructions.

// Lets the next kernel of the stream start.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- Matrices -------------------------------------------------------------------------------------------------------

// Loads 8 x 8 numbers of 16 bits transposed; each lane gets two numbers of a row. For whole warps.
__device__ inline uint32_t movmatrix(uint32_t matrix) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(matrix));
  return transposed;
}

// ---- Caches ---------------------------------------------------------------------------------------------------------

// Fixed L2 policies, equal to the policies that createpolicy.fractional makes for a whole access.
constexpr uint64_t evict_normal = 0x1000000000000000, evict_first = 0x12F0000000000000, evict_last = 0x14F0000000000000;

// Requests `bytes` bytes in L2, from Hopper on; address and `bytes` are multiples of 16.
__device__ inline void prefetch_l2(const void* from, int bytes, uint64_t policy) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from), "r"(bytes), "l"(policy)
               : "memory");
#endif
}

// Requests the line of `at` in L2.
__device__ inline void prefetch_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory"); }

// ---- Barriers in shared memory --------------------------------------------------------------------------------------
//
// Addresses are addresses of shared memory, in 32 bits.

__device__ inline void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the other blocks of the cluster and to TMA.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives at a barrier, and extends the phase until `bytes` more bytes have arrived.
__device__ inline void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

__device__ inline void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives at a barrier of any block of the cluster (map_shared).
__device__ inline void mbarrier_arrive_cluster(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Waits for the end of the phase of this parity. A fresh barrier passes a wait for parity 1.
__device__ inline void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(barrier), "r"(parity)
                 : "memory");
  } while (!done);
}

// Whether the phase of this parity has ended, with one answer for the whole warp. The threads of a warp never diverge
// here, while they may diverge in a loop of their own. So the code after this function may need whole warps (mma), or
// one thread may signal for all.
__device__ inline bool mbarrier_try_warp(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return __all_sync(~0u, done);
}
__device__ inline void mbarrier_wait_warp(uint32_t barrier, uint32_t parity) {
  while (!mbarrier_try_warp(barrier, parity)) {}
}

// ---- Asynchronous copies by threads ---------------------------------------------------------------------------------

// Copies `size` bytes to shared memory, and zeros behind these bytes, 16 bytes in all; both addresses are multiples
// of 16.
__device__ inline void copy_async_16(uint32_t to, const void* from, int size, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(size),
               "l"(policy)
               : "memory");
}

// Ends a group of copies of this thread; waits until at most `groups` of the groups are on their way.
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int groups>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

// Arrives at a barrier when all copies that this thread has started have ended. The barrier's number of arrivals has to
// include this arrival.
__device__ inline void mbarrier_arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- Blocks ---------------------------------------------------------------------------------------------------------

// Changes the number of registers of each thread of a warp group.
template <int count>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Barriers of the block by number; 0 is the barrier of __syncthreads(). `threads` threads take part: some threads wait
// (bar_sync), other threads only arrive (bar_arrive).
__device__ inline void bar_sync(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void bar_arrive(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- Shared memory --------------------------------------------------------------------------------------------------

__device__ inline uint32_t load_shared(uint32_t from) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
__device__ inline uint32_t load_shared_16(uint32_t from) {
  uint16_t half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(from) : "memory");
  return half;
}
__device__ inline float4 load_shared_4_ordered(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ inline void store_shared_8(uint32_t to, uint8_t byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(to), "r"(uint32_t(byte)) : "memory");
}
__device__ inline void store_shared(uint32_t to, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(x) : "memory");
}
__device__ inline void store_shared(uint32_t to, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

// The compiler does not order the loads from here on with other memory accesses, only with each other and with
// barriers.

__device__ inline float4 load_shared_4(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(from));
  return v;
}
__device__ inline float2 load_shared_2(uint32_t from) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(from));
  return v;
}
__device__ inline double load_shared_double(uint32_t from) {
  double v;
  asm volatile("ld.shared.f64 %0, [%1];" : "=d"(v) : "r"(from));
  return v;
}
__device__ inline void store_shared_4(uint32_t to, float4 v) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ inline void store_shared_4(uint32_t to, const uint32_t (&v)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// Returns x with an origin that the compiler does not see. Otherwise the compiler recomputes values of the thread's
// index in the main loop. For whole warps.
__device__ inline uint32_t opaque(uint32_t x) {
  uint32_t y;
  asm volatile("shfl.sync.bfly.b32 %0, %1, 0, 31, 0xffffffff;" : "=r"(y) : "r"(x));
  return y;
}

// ---- Clusters -------------------------------------------------------------------------------------------------------

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

// The address of the same place in the shared memory of another block of the cluster.
__device__ inline uint32_t map_shared(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Stores to another block without waiting; the barrier there counts the bytes.
__device__ inline void store_async(uint32_t to, uint32_t barrier, float4 v) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%2, %3, %4, %5}, [%1];" ::"r"(to),
      "r"(barrier), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
      : "memory");
}

__device__ inline void store_async(uint32_t to, uint32_t barrier, float v) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to), "f"(v),
               "r"(barrier)
               : "memory");
}

// All warps of the cluster arrive, as whole warps, and wait.
__device__ inline void cluster_arrive_relaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ inline void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ inline void cluster_sync() { cluster_arrive(), cluster_wait(); }

// ---- Tensor memory access -------------------------------------------------------------------------------------------

__device__ inline void prefetch_tensor_map(const void* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Loads a box of a three-dimensional tensor to shared memory; the barrier counts the bytes.
__device__ inline void tma_load(const void* map, uint32_t to, uint32_t barrier, int x, int y, int z, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

// Loads a box to the same place in every block of `blocks`, a bit for each block; the barrier of each block counts the
// bytes.
__device__ inline void tma_load_multicast(const void* map, uint32_t to, uint32_t barrier, int x, int y, int z,
                                          uint64_t policy, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks), "l"(policy)
      : "memory");
}

// Loads a box of a four-dimensional tensor.
__device__ inline void tma_load(const void* map, uint32_t to, uint32_t barrier, int x, int y, int z, int w,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
      : "memory");
}

// Loads a four-dimensional box to the same place in every block of `blocks`, a bit for each block.
__device__ inline void tma_load_multicast(const void* map, uint32_t to, uint32_t barrier, int x, int y, int z, int w,
                                          uint64_t policy, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7, %8;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks), "l"(policy)
      : "memory");
}

// Stores a box from shared memory, as far as the box lies inside of the tensor, in whole pieces of 16 bytes. A
// fence_proxy_async() comes first, after the thread's own writes to the box, or after a wait for the writes of other
// threads. Stores are asynchronous. The stores of a thread up to a commit make up a group. tma_store_wait_read()
// returns when all groups but the latest `pending` have read shared memory.
__device__ inline void tma_store(const void* map, uint32_t from, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
               "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
               : "memory");
}
__device__ inline void tma_store(const void* map, uint32_t from, int x, int y, int z, int w, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint [%0, {%2, %3, %4, %5}], [%1], %6;" ::"l"(
          map),
      "r"(from), "r"(x), "r"(y), "r"(z), "r"(w), "l"(policy)
      : "memory");
}
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int pending = 0>
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Requests a box in L2.
__device__ inline void tma_prefetch(const void* map, int x, int y, int z) {
  asm volatile("cp.async.bulk.prefetch.tensor.3d.L2.global [%0, {%1, %2, %3}];" ::"l"(map), "r"(x), "r"(y), "r"(z)
               : "memory");
}
__device__ inline void tma_prefetch(const void* map, int x, int y, int z, int w) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y), "r"(z),
               "r"(w)
               : "memory");
}

}  // namespace tilegemm
