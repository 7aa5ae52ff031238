// Blocks of a kernel on the CPU: each thread is a fiber, and a random one of those that can goes on. Copies by threads happen when they
// are waited for, TMA and wgmma at once; barriers, shuffles, swizzles, fragments and descriptors are those of the hardware, and a wait that nothing ends is an error.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <vector>
#undef __noinline__
#define __noinline__ __attribute__((noinline))
#undef __forceinline__
#define __forceinline__ inline
#undef __launch_bounds__
#define __launch_bounds__(...)
using std::isfinite; using std::isnan; using std::max; using std::min;

namespace emu {
constexpr uint32_t shared_at = 0x400;  // the address of shared memory, a multiple of 1024
inline uint8_t* shared; inline size_t shared_bytes;
struct Fiber { ucontext_t context; std::vector<char> stack; bool done = false; std::function<bool()> ready; std::vector<std::vector<std::function<void()>>> copies{1}; };
inline std::vector<Fiber> fibers; inline int current; inline ucontext_t scheduler; inline dim3 block, thread, size, grid;
inline uint64_t seed = 1; inline uint64_t rnd() { seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17; return seed; }
[[noreturn]] inline void fail(const char* what) { printf("EMULATOR: %s (block %u, thread %d)\n", what, block.x, current); exit(2); }
inline void wait_until(const std::function<bool()>& ready) {
  if (ready()) return;
  fibers[current].ready = ready;
  swapcontext(&fibers[current].context, &scheduler);
}
inline void yield() { if (rnd() % 4 == 0) { fibers[current].ready = nullptr; swapcontext(&fibers[current].context, &scheduler); } }
inline uint8_t* at(uint32_t address, size_t bytes) {
  if (address < shared_at || address - shared_at + bytes > shared_bytes) fail("outside of shared memory");
  if (address % bytes && bytes <= 16) fail("misaligned shared memory");
  return shared + (address - shared_at);
}
template <class T> T load(uint32_t from) { T x; memcpy(&x, at(from, sizeof x), sizeof x); return x; }
template <class T> void store(uint32_t to, T x) { memcpy(at(to, sizeof x), &x, sizeof x); }

// ---- Copies of a thread, in groups; the last one is open. They happen when somebody waits for them.
inline void later(std::function<void()> copy) { fibers[current].copies.back().push_back(std::move(copy)); }
// All but the last `left` groups; -1: the open one, too.
inline void end_copies(int left) {
  auto& all = fibers[current].copies; const size_t count = left < 0 ? all.size() : std::max<size_t>(all.size() - 1, left) - left;
  for (size_t i = 0; i < count; i++) for (auto& copy : all[i]) copy();
  all.erase(all.begin(), all.begin() + count); if (all.empty()) all.emplace_back();
}

// ---- Warps: all lanes give a value, and get all values.
struct Exchange { int arrived = 0, left = 0; uint64_t turn = 0; uint64_t in[2][32][8]; };
inline std::vector<Exchange> warps;
inline const uint64_t (&exchange(const uint64_t (&own)[8]))[32][8] {
  Exchange& e = warps[current / 32];
  const uint64_t turn = e.turn;
  memcpy(e.in[turn % 2][current % 32], own, sizeof own);
  if (++e.arrived == 32) e.arrived = 0, e.turn++;
  else wait_until([&e, turn] { return e.turn != turn; });
  return e.in[turn % 2];
}
inline const uint64_t (&exchange(uint64_t own))[32][8] { const uint64_t all[8] = {own}; return exchange(all); }

// ---- Barriers.
struct Mbarrier { uint32_t expected = 0, pending = 0; int64_t bytes = 0; int phase = 0; };
inline std::map<uint32_t, Mbarrier> mbarriers;
inline Mbarrier& mbarrier(uint32_t at) { auto found = mbarriers.find(at); if (found == mbarriers.end()) fail("no barrier there"); return found->second; }
inline void settle(Mbarrier& b) { if (b.pending == 0 && b.bytes == 0) b.phase ^= 1, b.pending = b.expected; }
inline void arrive(uint32_t at, int64_t bytes = 0) { Mbarrier& b = mbarrier(at); if (b.pending == 0) fail("too many arrivals"); b.bytes += bytes, b.pending--; settle(b); yield(); }
inline void complete(uint32_t at, int64_t bytes) { Mbarrier& b = mbarrier(at); b.bytes -= bytes; settle(b); }
struct Bar { int count = 0; uint64_t turn = 0; };
inline Bar bars[16];
inline void bar(int i, int threads, bool waits) {
  Bar& b = bars[i]; const uint64_t turn = b.turn;
  if (++b.count == threads) b.count = 0, b.turn++;
  else if (waits) wait_until([&b, turn] { return b.turn != turn; });
}

inline void run(dim3 blocks, dim3 threads, int bytes, const std::function<void()>& body) {
  std::vector<uint8_t> memory(bytes + 1024);
  shared = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.data()) + 1023) / 1024 * 1024), shared_bytes = size_t(bytes), size = threads, grid = blocks;
  for (unsigned y = 0; y < blocks.y; y++) for (unsigned x = 0; x < blocks.x; x++) {
    block = dim3(x, y, 0); mbarriers.clear(); for (Bar& b : bars) b = {};
    for (auto& b : memory) b = uint8_t(rnd());  // any bytes
    fibers = std::vector<Fiber>(threads.x); warps = std::vector<Exchange>((threads.x + 31) / 32);
    static const std::function<void()>* code; code = &body;
    for (Fiber& f : fibers) {
      f.stack.resize(256 << 10); getcontext(&f.context); f.context.uc_stack.ss_sp = f.stack.data(), f.context.uc_stack.ss_size = f.stack.size(), f.context.uc_link = &scheduler;
      makecontext(&f.context, static_cast<void (*)()>([] { (*code)(); fibers[current].done = true; }), 0);
    }
    for (size_t left = threads.x; left > 0;) {
      const size_t first = rnd() % threads.x; bool ran = false;
      for (size_t i = 0; i < threads.x; i++) {
        Fiber& f = fibers[current = int((first + i) % threads.x)];
        if (f.done || (f.ready && !f.ready())) continue;
        f.ready = nullptr, thread = dim3(current, 0, 0), ran = true;
        swapcontext(&scheduler, &f.context);
        if (f.done) { left--; for (auto& group : f.copies) if (!group.empty()) fail("a thread ends before its copies"); }
      }
      if (!ran) { for (size_t i = 0; i < threads.x; i++) if (!fibers[i].done && i % 32 == 0) printf("warp %zu waits\n", i / 32); fail("all threads wait"); }
    }
    for (const Bar& b : bars) if (b.count) fail("a barrier of the block is left half full");
  }
}
}  // namespace emu

// `thread` changes with the fiber.
#define threadIdx (dim3(unsigned(emu::current), 0, 0))
#define blockIdx (emu::block)
#define blockDim (emu::size)
#define gridDim (emu::grid)
inline void __syncthreads() { emu::bar(0, int(emu::size.x), true); }
inline void __syncwarp(unsigned = ~0u) { emu::exchange(0); }
template <class T> T __shfl_sync(unsigned, T x, int from) { uint64_t bits = 0; memcpy(&bits, &x, sizeof x); const uint64_t got = emu::exchange(bits)[from & 31][0]; memcpy(&x, &got, sizeof x); return x; }
template <class T> T __shfl_up_sync(unsigned m, T x, int by) { const int lane = emu::current % 32; return __shfl_sync(m, x, lane >= by ? lane - by : lane); }
template <class T> T __shfl_xor_sync(unsigned m, T x, int by) { return __shfl_sync(m, x, emu::current % 32 ^ by); }
inline unsigned __ballot_sync(unsigned, bool x) { const auto& all = emu::exchange(x); unsigned bits = 0; for (int i = 0; i < 32; i++) bits |= unsigned(all[i][0] != 0) << i; return bits; }
inline bool __any_sync(unsigned m, bool x) { return __ballot_sync(m, x) != 0; }
inline bool __all_sync(unsigned m, bool x) { return __ballot_sync(m, x) == ~0u; }
inline uint32_t __float_as_uint(float x) { uint32_t y; memcpy(&y, &x, 4); return y; }
inline float __uint_as_float(uint32_t x) { float y; memcpy(&y, &x, 4); return y; }
inline int __ffs(unsigned x) { return __builtin_ffs(int(x)); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t s) { const uint64_t both = uint64_t(y) << 32 | x; uint32_t r = 0; for (int i = 0; i < 4; i++) r |= uint32_t(both >> 8 * (s >> 4 * i & 7) & 255) << 8 * i; return r; }
inline uint32_t __cvta_generic_to_shared(const void* p) { return uint32_t(static_cast<const uint8_t*>(p) - emu::shared) + emu::shared_at; }
// Exact but for one rounding from f64, as is all but one case in 2^30 of a fused operation.
inline __half2 __hfma2(__half2 x, __half2 y, __half2 z) {
  const auto one = [](__half x, __half y, __half z) { return __double2half(double(__half2float(x)) * __half2float(y) + __half2float(z)); };
  return {one(x.x, y.x, z.x), one(x.y, y.y, z.y)};
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 x, __nv_bfloat162 y, __nv_bfloat162 z) {
  const auto one = [](__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) { return __double2bfloat16(double(__bfloat162float(x)) * __bfloat162float(y) + __bfloat162float(z)); };
  return {one(x.x, y.x, z.x), one(x.y, y.y, z.y)};
}
