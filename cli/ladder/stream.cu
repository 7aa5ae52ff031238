// How fast the memory can be read: the ceiling that every bandwidth-bound figure is held against.
//
// HBM3 needs some 3 MB in flight (3.35 TB/s times 0.8 us). Here it is 8 loads of 16 bytes for each of 1536 threads of
// an SM: 192 KiB per SM, 25 MB on an H100. Blocks stride through memory in contiguous pieces of 32 KiB, which keeps
// DRAM pages open.
#include <cstdint>

#include "launched.hpp"

namespace {

constexpr int threads = 256, unroll = 8, blocks_per_sm = 6;

// Not kept in L1, and brought to L2 by 256 bytes.
__device__ uint4 load_streaming(const uint4* address) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(address));
  return x;
}

__global__ __launch_bounds__(threads, blocks_per_sm) void stream_read(const uint4* data, size_t count, unsigned* sink) {
  constexpr size_t piece = threads * unroll;
  uint2 sum = {0, 0};
  const auto add = [&](uint4 x) { sum.x ^= x.x ^ x.z, sum.y ^= x.y ^ x.w; };
  size_t first = blockIdx.x * piece + threadIdx.x;
  for (; first - threadIdx.x + piece <= count; first += gridDim.x * piece) {
    uint4 x[unroll];
#pragma unroll
    for (int i = 0; i < unroll; i++) x[i] = load_streaming(data + first + i * threads);
#pragma unroll
    for (int i = 0; i < unroll; i++) add(x[i]);
  }
  for (; first < count; first += threads) add(load_streaming(data + first));  // the last piece, not whole, of one block

  const unsigned x = __reduce_xor_sync(0xffffffff, sum.x), y = __reduce_xor_sync(0xffffffff, sum.y);
  if (threadIdx.x % 32 == 0) atomicXor(sink, x), atomicXor(sink + 1, y);
}

}  // namespace

extern "C" int tg_stream_read(const void* data, size_t bytes, void* sink, int sm_count, void* stream) {
  if (bytes % sizeof(uint4) != 0) return TG_RUNG_UNSUPPORTED;
  stream_read<<<sm_count * blocks_per_sm, threads, 0, cudaStream_t(stream)>>>(
      static_cast<const uint4*>(data), bytes / sizeof(uint4), static_cast<unsigned*>(sink));
  return launched();
}
