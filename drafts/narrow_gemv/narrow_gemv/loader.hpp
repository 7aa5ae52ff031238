// What a warp loads: its rows of W into a ring of its own, and their scales.
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

  __device__ __forceinline__ PassRows(const tg_gemm_args& args, const GemvShape& shape, int team, int pass, int warp_n) {
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
  __device__ __forceinline__ CodeLoader(const CUtensorMap& map, const tg_gemm_args&, const NarrowWeights&,
                                        const GemvShape& shape, uint32_t shared, int warp)
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
  const NarrowWeights& w_;
  uint32_t to_;
  int stage_ = 0;  // to read

 public:
  __device__ __forceinline__ CodeLoader(const CUtensorMap&, const tg_gemm_args& args, const NarrowWeights& w,
                                        const GemvShape& shape, uint32_t shared, int warp)
      : args_(args), w_(w), to_(shared + warp * shape.stages * shape.slot_pitch) {}

  __device__ __forceinline__ void load(const GemvShape& shape, int stage, const PassRows& rows, int slot) const {
    const int first = threadIdx.x % 32 / 8, piece = threadIdx.x % 8, at = slot * S::slot_bytes + piece * 16;
    const int size = min(max(shape.bytes_of_k - at, 0), 16);  // zeros behind the end
    const uint32_t to = to_ + stage * shape.slot_pitch + first * S::slot_bytes + (piece ^ first) * 16;
    const uint8_t* from = w_.codes + (int64_t(rows.first) + first) * w_.row_bytes + at;
#pragma unroll
    for (int i = 0; i < S::rows / 4; i++, from += 4 * w_.row_bytes) {
      if (first + 4 * i < rows.existing) copy_async_16((to ^ i % 2 * 64) + i * 4 * S::slot_bytes, from, size, evict_first);
    }
    copy_async_commit();
  }
  __device__ __forceinline__ void load_nothing() const { copy_async_commit(); }

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

// Scales and zeros: a lane loads those of a row for the next slot into registers, and stores them in f32 when the warp
// has used those of the slot before.
template <class S>
class ScaleLoader {
  static constexpr int at_once = 32 / S::rows;  // scales of a row
  static constexpr bool is_nvfp4 = S::way == Way::nvfp4;
  static constexpr int of_lane = S::scales ? S::scales / at_once : 1, words = S::scales * S::rows / 128;
  static constexpr int of_word = S::rows / 4;  // words of a scale of all rows
  const NarrowWeights& w_;
  const GemvShape& shape_;
  const uint8_t* of_row_ = nullptr;
  const uint8_t* zeros_of_row_ = nullptr;
  int all_ = 0;  // scales of the lane's rows; 0: no row
  uint32_t pending_[is_nvfp4 ? words : of_lane], zeros_[S::has_zeros ? of_lane : 1];

  __device__ __forceinline__ const uint8_t* at(int scale) const {
    return of_row_ + uint64_t(uint32_t(shape_.by_group.quotient(scale))) * shape_.scale_stride;
  }

  template <class Bits>
  __device__ __forceinline__ void load_each(int first) {
#pragma unroll
    for (int i = 0; i < of_lane; i++) {
      const int scale = first + i * at_once;
      pending_[i] = scale < all_ ? uint32_t(*reinterpret_cast<const Bits*>(at(scale))) : 0;
    }
  }

 public:
  __device__ __forceinline__ ScaleLoader(const NarrowWeights& w, const GemvShape& shape) : w_(w), shape_(shape) {}

  __device__ __forceinline__ void begin_pass(const tg_gemm_args& args, const PassRows& rows) {
    const int row = threadIdx.x % (is_nvfp4 && shape_.scales_in_words ? of_word : S::rows) *
                    (is_nvfp4 && shape_.scales_in_words ? 4 : 1);
    all_ = row < rows.existing ? int(ceil_div(args.k, S::scaled)) : 0;
    const int64_t at = row < rows.existing ? shape_.by_rows.quotient(rows.first + row) * w_.stride_n : 0;
    of_row_ = static_cast<const uint8_t*>(w_.scales) + at * size_of(w_.format);
    if constexpr (S::has_zeros) zeros_of_row_ = w_.zeros + at;
  }

  // Loads those of a slot of K.
  __device__ __forceinline__ void load(int slot) {
    if constexpr (S::scales > 0) {
      const int lane = threadIdx.x % 32, first = slot * S::scales + lane / S::rows;
      if constexpr (is_nvfp4) {
        if (!shape_.scales_in_words) return;
#pragma unroll
        for (int i = 0; i < words; i++) {
          const int scale = slot * S::scales + lane / of_word + i * (32 / of_word);
          pending_[i] = scale < all_ ? *reinterpret_cast<const uint32_t*>(at(scale)) : 0;
        }
      } else {
        if (w_.format == Scales::f32) load_each<uint32_t>(first);
        else if (w_.format == Scales::f16 || w_.format == Scales::bf16) load_each<uint16_t>(first);
        else load_each<uint8_t>(first);
        if constexpr (S::has_zeros) {
#pragma unroll
          for (int i = 0; i < of_lane; i++) {
            const int scale = first + i * at_once;
            zeros_[i] = scale < all_ ? zeros_of_row_[shape_.by_group.quotient(scale) * w_.stride_k] : 0;
          }
        }
      }
    }
  }

  // Stores them: (SCALE,GROUP,ROW), rows of a lane side by side.
  __device__ __forceinline__ void store(uint8_t* scales, uint8_t* zeros, int slot) {
    if constexpr (S::scales > 0) {
      const int lane = threadIdx.x % 32;
      if constexpr (is_nvfp4) {
        if (shape_.scales_in_words) {
          const int row = lane % of_word * 4;
          // Rows row to row + 3: groups two apart.
          uint8_t* const to = scales + lane / of_word * S::rows + place_of<S>(row);
#pragma unroll
          for (int i = 0; i < words; i++) {
#pragma unroll
            for (int r = 0; r < 4; r++)
              to[i * 128 + r * 2 * S::rows_of_lane] = uint8_t(pending_[i] >> 8 * r);
          }
          return;
        }
#pragma unroll 1
        for (int i = lane; i < S::scales * S::rows; i += 32) {
          const int scale = slot * S::scales + i / S::rows;
          scales[i / S::rows * S::rows + place_of<S>(i % S::rows)] = scale < all_ ? *at(scale) : 0;
        }
      } else {
        const int place = lane / S::rows * S::rows + place_of<S>(lane % S::rows);
        const auto put = [&](auto to_float) {
#pragma unroll
          for (int i = 0; i < of_lane; i++) reinterpret_cast<float*>(scales)[place + i * 32] = to_float(pending_[i]);
        };
        switch (w_.format) {
          case Scales::f32: put([](uint32_t x) { return narrow::scale_to_float(Scales::f32, x); }); break;
          case Scales::f16: put([](uint32_t x) { return narrow::scale_to_float(Scales::f16, x); }); break;
          case Scales::bf16: put([](uint32_t x) { return narrow::scale_to_float(Scales::bf16, x); }); break;
          case Scales::e8m0: put([](uint32_t x) { return narrow::scale_to_float(Scales::e8m0, x); }); break;
          default: put([](uint32_t x) { return narrow::scale_to_float(Scales::e4m3, x); }); break;
        }
        if constexpr (S::has_zeros) {
#pragma unroll
          for (int i = 0; i < of_lane; i++)
            reinterpret_cast<uint32_t*>(zeros)[place + i * 32] = narrow::less_zero(zeros_[i]);
        }
      }
    }
  }
};

}  // namespace
}  // namespace tilegemm
