// What a warp loads of W: its rows into a ring of its own.
#pragma once
#include "common/ptx.hpp"
#include "common/tensor_map.hpp"
#include "narrow_gemv/shape.hpp"

namespace tilegemm {
namespace {

// Piece p of 16 bytes of row r of a slot lies at place p ^ r % 8, as TMA swizzles 128 bytes. Lanes that read at once
// read other banks: lane group g has rows first_row_of(g) and every eighth behind it.
__device__ __forceinline__ int first_row_of(int group) { return (group & 1) << 2 | group >> 1; }
// The group of a row, and the row's place among the rows of all groups.
__device__ __forceinline__ int group_of(int row) { return (row & 3) << 1 | (row >> 2 & 1); }
template <class S>
__device__ __forceinline__ int place_of(int row) {
  return group_of(row) * S::rows_of_lane + row / 8;
}

// The rows of a pass that a warp has.
struct PassRows {
  int first, existing;  // of W

  __device__ __forceinline__ PassRows(const tg_gemm_args& args, const GemvShape& shape, int team, int pass,
                                      int warp_n) {
    const int in_team = pass * shape.rows_of_pass, in_pass = warp_n * shape.rows_of_warp;
    first = team * shape.rows + in_team + in_pass;
    const int of_pass = min(min(shape.rows - in_team, shape.rows_of_pass), int(args.n) - team * shape.rows - in_team);
    existing = max(min(of_pass - in_pass, shape.rows_of_warp), 0);
  }
};

// A warp's place among the slots that it goes through: of one pass after the other.
struct SlotOf {
  int pass, slot;  // of K

  __device__ __forceinline__ void advance(int begin, int end) {
    if (++slot == end) slot = begin, pass++;
  }
};

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Slots on their way, by TMA: one lane of the warp starts the loads.
template <class S>
class CodeLoader {
  const CUtensorMap& map_;
  uint32_t to_, barriers_;
  int stage_ = 0, parity_ = 0;  // to read

 public:
  __device__ __forceinline__ CodeLoader(const CUtensorMap& map, const tg_gemm_args&, const GemvShape& shape,
                                        uint32_t shared, int warp)
      : map_(map), to_(shared + warp * shape.stages * shape.slot_pitch),
        barriers_(shared + shape.barriers_at + 16 + warp * shape.stages * 8) {
    if (threadIdx.x % 32 == 0) {
      for (int s = 0; s < shape.stages; s++) mbarrier_init(barriers_ + 8 * s, 1);
      fence_mbarrier_init();
    }
  }

  __device__ __forceinline__ void load(const GemvShape& shape, int stage, const PassRows& rows, int slot) const {
    if (threadIdx.x % 32 == 0) {
      const uint32_t barrier = barriers_ + 8 * stage;
      mbarrier_arrive_expect(barrier, shape.rows_of_warp * S::slot_bytes);
      tma_load(&map_, to_ + stage * shape.slot_pitch, barrier, slot * S::slot_bytes, rows.first, 0, evict_first);
    }
  }
  // Nothing is on its way in the place of a slot that does not exist.
  __device__ __forceinline__ void load_nothing() const {}
  // Requests a slot in L2.
  __device__ __forceinline__ void prefetch(const PassRows& rows, int slot) const {
    if (threadIdx.x % 32 == 0) tma_prefetch(&map_, slot * S::slot_bytes, rows.first, 0);
  }

  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ void wait(const GemvShape&) const {
    mbarrier_wait(barriers_ + 8 * stage_, parity_);
    __syncwarp();
  }
  __device__ __forceinline__ void advance(const GemvShape& shape) {
    if (++stage_ == shape.stages) stage_ = 0, parity_ ^= 1;
  }
};
#else
// Waits for the oldest slot on its way.
template <int behind = 1>
__device__ __forceinline__ void wait_for_copies(int stages) {
  if (stages == behind + 1) copy_async_wait<behind>();
  else if constexpr (behind + 1 < most_stages) wait_for_copies<behind + 1>(stages);
}

// Slots on their way, by the lanes' own copies.
template <class S>
class CodeLoader {
  const tg_gemm_args& args_;
  int64_t row_bytes_;
  uint32_t to_;
  int stage_ = 0;  // to read

 public:
  __device__ __forceinline__ CodeLoader(const CUtensorMap&, const tg_gemm_args& args, const GemvShape& shape,
                                        uint32_t shared, int warp)

      : args_(args), row_bytes_(narrow::bytes_of(S::codes, args.b.col_stride)),
        to_(shared + warp * shape.stages * shape.slot_pitch) {}

  __device__ __forceinline__ void load(const GemvShape& shape, int stage, const PassRows& rows, int slot) const {
    const int first = threadIdx.x % 32 / 8, piece = threadIdx.x % 8, at = slot * S::slot_bytes + piece * 16;
    const int size = min(max(shape.bytes_of_k - at, 0), 16);  // zeros behind the end
    const uint32_t to = to_ + stage * shape.slot_pitch + first * S::slot_bytes + (piece ^ first) * 16;
    const uint8_t* from = static_cast<const uint8_t*>(args_.b.ptr) + (int64_t(rows.first) + first) * row_bytes_ + at;
#pragma unroll
    for (int i = 0; i < S::rows / 4; i++, from += 4 * row_bytes_) {
      if (first + 4 * i < rows.existing)
        copy_async_16((to ^ i % 2 * 64) + i * 4 * S::slot_bytes, from, size, evict_first);
    }
    copy_async_commit();
  }
  __device__ __forceinline__ void load_nothing() const { copy_async_commit(); }
  __device__ __forceinline__ void prefetch(const PassRows&, int) const {}

  __device__ __forceinline__ int stage() const { return stage_; }
  __device__ __forceinline__ void wait(const GemvShape& shape) const {
    wait_for_copies(shape.stages);
    __syncwarp();
  }
  __device__ __forceinline__ void advance(const GemvShape& shape) {
    if (++stage_ == shape.stages) stage_ = 0;
  }
};
#endif

}  // namespace
}  // namespace tilegemm
