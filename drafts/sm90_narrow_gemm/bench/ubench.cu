// Rates of wgmma with A in registers, by width and by warp groups of a multiprocessor, and of conversions.
#include <cstdio>
#include "common/ptx.hpp"
#include "narrow/wgmma.hpp"
#include "narrow/codes.hpp"
using namespace tilegemm;
template <int N, int STEPS>
__global__ void rate(long long* out, float* sink, int rounds) {
  extern __shared__ __align__(1024) uint8_t shared[];
  for (int i = threadIdx.x; i < 32768 / 4; i += blockDim.x) reinterpret_cast<uint32_t*>(shared)[i] = 0x3c003c00 + i * 7919 % 97;
  __syncthreads();
  float d[N / 2] = {};
  uint32_t a[2][STEPS][4];
  for (int i = 0; i < 8 * STEPS; i++) a[i / (4 * STEPS)][i / 4 % STEPS][i % 4] = 0x3c003c00 + threadIdx.x % 64 + i;
  const uint64_t q = wgmma_descriptor(uint32_t(__cvta_generic_to_shared(shared)));
  const long long begin = clock64();
  for (int r = 0; r < rounds; r++) {
#pragma unroll
    for (int u = 0; u < 2; u++) {
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < STEPS; s++) narrow::wgmma<__nv_bfloat16, N>(d, a[u][s], q + 2 * (s % 4), 1);
      wgmma_commit_and_wait<1>();
    }
  }
  wgmma_wait();
  wgmma_pin(d);
  const long long end = clock64();
  float x = 0;
  for (int i = 0; i < N / 2; i++) x += d[i];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = x;
  if (threadIdx.x == 0) out[blockIdx.x] = end - begin;
}
template <int KIND>
__global__ void convert(long long* out, uint32_t* sink, uint32_t seed) {
  uint32_t v[8];
  for (int i = 0; i < 8; i++) v[i] = seed + threadIdx.x * 8 + i;
  const long long begin = clock64();
#pragma unroll 1
  for (int r = 0; r < 64; r++) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (KIND == 0) asm volatile("{\n .reg .b16 h, g;\n mov.b32 {h, g}, %0;\n cvt.rn.f16x2.e4m3x2 %0, h;\n}" : "+r"(v[i]));
      if (KIND == 1) asm volatile("add.rn.bf16x2 %0, %0, %1;" : "+r"(v[i]) : "r"(seed));
      if (KIND == 2) asm volatile("fma.rn.f16x2 %0, %0, %1, %1;" : "+r"(v[i]) : "r"(seed));
      if (KIND == 3) asm volatile("lop3.b32 %0, %0, %1, 0x43004300, 0xec;" : "+r"(v[i]) : "r"(seed));
      if (KIND == 4) asm volatile("{\n .reg .f32 a, b;\n mov.b32 a, %0;\n mov.b32 b, %1;\n cvt.rn.bf16x2.f32 %0, a, b;\n}" : "+r"(v[i]) : "r"(seed));
      if (KIND == 5) asm volatile("{\n .reg .b16 h, g;\n .reg .f32 f;\n mov.b32 {h, g}, %0;\n cvt.f32.f16 f, h;\n mov.b32 %0, f;\n}" : "+r"(v[i]));
      if (KIND == 6) asm volatile("shr.u32 %0, %0, %1;" : "+r"(v[i]) : "r"(seed & 1));
      if (KIND == 7) asm volatile("prmt.b32 %0, %0, %1, 0x4140;" : "+r"(v[i]) : "r"(seed));
    }
  }
  const long long end = clock64();
  uint32_t x = 0;
  for (int i = 0; i < 8; i++) x ^= v[i];
  sink[blockIdx.x * blockDim.x + threadIdx.x] = x;
  if (threadIdx.x == 0) out[blockIdx.x] = end - begin;
}
template <int N, int STEPS>
void go(long long* out, float* sink) {
  std::printf("wgmma RS n%d, %d at a time:", N, STEPS);
  for (int groups : {1, 2, 4}) {
    if (N > 128 && groups > 2) continue;
    for (int i = 0; i < 2; i++) rate<N, STEPS><<<1, 128 * groups, 32768>>>(out, sink, 200);
    long long t;
    cudaMemcpy(&t, out, 8, cudaMemcpyDeviceToHost);
    std::printf("  %d groups %.1f cycles", groups, double(t) / (400.0 * STEPS * groups));
  }
  std::printf(" (%s)\n", cudaGetErrorString(cudaGetLastError()));
}
int main() {
  long long* out;
  float* sink;
  cudaMalloc(&out, 1024), cudaMalloc(&sink, 1 << 20);
  go<8, 4>(out, sink), go<16, 4>(out, sink), go<16, 8>(out, sink), go<32, 4>(out, sink), go<64, 4>(out, sink);
  go<128, 4>(out, sink), go<192, 4>(out, sink), go<256, 4>(out, sink), go<256, 2>(out, sink);
  const char* names[] = {"cvt f16x2.e4m3x2", "add bf16x2", "fma f16x2", "lop3", "cvt bf16x2.f32", "cvt f32.f16", "shr", "prmt"};
  const auto report = [&](int kind, int threads) {
    long long t;
    cudaMemcpy(&t, out, 8, cudaMemcpyDeviceToHost);
    std::printf("%s, %d threads: %.2f cycles for an instruction of a warp on a scheduler\n", names[kind], threads,
                double(t) / (64.0 * 8 * threads / 128));
  };
#define KIND(I) convert<I><<<1, 512>>>(out, (uint32_t*)sink, 3), convert<I><<<1, 512>>>(out, (uint32_t*)sink, 3), report(I, 512);
  KIND(0) KIND(1) KIND(2) KIND(3) KIND(4) KIND(5) KIND(6) KIND(7)
}
