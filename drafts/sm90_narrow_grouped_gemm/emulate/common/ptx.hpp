#pragma once
#include "emulate.hpp"
namespace tilegemm {
constexpr uint64_t evict_normal = 0, evict_first = 1, evict_last = 2;
inline void launch_dependents() {}
inline void griddepcontrol_wait() {}
inline void mbarrier_init(uint32_t at, uint32_t arrivals) { if (at % 8) emu::fail("barrier"); emu::mbarriers[at] = {arrivals, arrivals, 0, 0}; }
inline void fence_mbarrier_init() {}
inline void fence_proxy_async() {}
inline void mbarrier_arrive_expect(uint32_t at, uint32_t bytes) { emu::arrive(at, bytes); }
inline void mbarrier_arrive(uint32_t at) { emu::arrive(at); }
inline void mbarrier_arrive_cluster(uint32_t) { emu::fail("cluster"); }
inline void mbarrier_wait(uint32_t at, uint32_t parity) { emu::wait_until([=] { return emu::mbarrier(at).phase != int(parity); }); }
inline void mbarrier_wait_warp(uint32_t at, uint32_t parity) { emu::exchange(0); mbarrier_wait(at, parity); emu::exchange(0); }
inline bool mbarrier_try_warp(uint32_t at, uint32_t parity) { mbarrier_wait_warp(at, parity); return true; }
inline void copy_async_16(uint32_t to, const void* from, int size, uint64_t) {
  if (size < 0 || size > 16 || (size && reinterpret_cast<uintptr_t>(from) % 16)) emu::fail("cp.async");
  emu::later([=] { uint8_t bytes[16] = {}; memcpy(bytes, from, size_t(size)); memcpy(emu::at(to, 16), bytes, 16); });
}
inline void copy_async_4(uint32_t to, const void* from) { emu::later([=] { memcpy(emu::at(to, 4), from, 4); }); }
inline void copy_async_commit() { emu::fibers[emu::current].copies.emplace_back(); }
template <int groups> inline void copy_async_wait() { emu::end_copies(groups); }
inline void mbarrier_arrive_after_copies(uint32_t at) { emu::end_copies(-1); emu::arrive(at); }
template <int> inline void setmaxnreg_dec() {}
template <int> inline void setmaxnreg_inc() {}
inline void bar_sync(int i, int threads) { emu::bar(i, threads, true); }
inline void bar_arrive(int i, int threads) { emu::bar(i, threads, false); }
inline uint32_t load_shared(uint32_t from) { return emu::load<uint32_t>(from); }
inline uint32_t load_shared_16(uint32_t from) { return emu::load<uint16_t>(from); }
inline void store_shared_8(uint32_t to, uint8_t x) { emu::store(to, x); }
inline void store_shared(uint32_t to, float x) { emu::store(to, x); }
inline uint32_t opaque(uint32_t x) { emu::exchange(0); return x; }
inline void prefetch_tensor_map(const void*) {}
// What a map is to the emulator.
struct Map { const uint8_t* ptr; uint64_t extents[3], strides[2]; uint32_t box[3]; };
inline void tma_load(const void* map, uint32_t to, uint32_t barrier, int x, int y, int z, uint64_t) {
  Map m; memcpy(&m, map, sizeof m);
  if (to % 1024) emu::fail("a box begins at no multiple of 1024");
  for (uint32_t r = 0; r < m.box[1]; r++) for (uint32_t b = 0; b < m.box[0]; b++) {
    const uint64_t i = uint64_t(x) + b, j = uint64_t(y) + r; uint32_t address = to + r * m.box[0] + b;
    address ^= (address >> 7 & 7) << 4;
    *emu::at(address, 1) = i < m.extents[0] && j < m.extents[1] && uint64_t(z) < m.extents[2] ? m.ptr[i + j * m.strides[0] + uint64_t(z) * m.strides[1]] : 0;
  }
  emu::complete(barrier, int64_t(m.box[0]) * m.box[1]);
  emu::yield();
}
}  // namespace tilegemm
