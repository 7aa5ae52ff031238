// What a warp loads of W: slots of its rows into a ring of its own, and their factors and zeros.
#pragma once
#include "common/ptx.hpp"
#include "narrow/folded.hpp"
#include "narrow_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// A warp's place in the slots that it goes through: of one item after the other, which is a tile of A's rows times a
// tile of W. Few rows: items [item, end). Otherwise every gridDim.x-th.
template <class S>
struct Cursor {
  typename S::List list;
  int item, end, place, n;     // place: of the tile of rows in the list, few rows; n: the tile of W
  int slot, first, last;       // of K
  GroupedTile tile;

  __device__ Cursor(const typename S::List& of, const NarrowPlace& p, int first_item, int end_item, int first_slot,
                    int last_slot)
      : list(of), item(first_item), end(end_item), place(0), n(0), slot(first_slot), first(first_slot), last(last_slot),
        tile{} {
    if (!exists()) return;
    if constexpr (S::few) place = p.by_n.quotient(item), n = item - place * p.n_tiles;
    find();
  }

  __device__ __forceinline__ bool exists() const { return item < end; }
  __device__ __forceinline__ bool is_last() const { return slot + 1 == last; }
  __device__ __forceinline__ void find() {
    tile = list.tile(S::few ? place : item);
    if constexpr (!S::few) n = tile.n;
  }
  __device__ __forceinline__ void advance(const NarrowPlace& p) {
    if (++slot < last) return;
    slot = first;
    if constexpr (S::few) {
      item++;
      if (++n < p.n_tiles) return;
      n = 0, place++;
    } else {
      item += gridDim.x;
    }
    if (exists()) find();
  }
  // The warp's first row of W.
  __device__ __forceinline__ int first_row(int warp) const {
    return n * S::tile_n + (S::few ? 0 : rows_of_warp * warp);
  }
};

// Piece p of 16 bytes of row r of a slot lies at place p ^ r % 8: lanes that read at once read other banks.
template <class S>
class Ring {
  const tg_gemm_args& args_;
  const NarrowPlace& p_;
  const int warp_;
  const uint32_t to_;
  int free_ = 0, stage_ = 0;

 public:
  __device__ Ring(const tg_gemm_args& args, const NarrowPlace& p, uint32_t shared, int warp)
      : args_(args), p_(p), warp_(warp), to_(shared + warp * S::stages * slot_bytes) {}

  // Starts the load of a slot, if it exists, and takes the cursor to the next one. Rows behind the last are the last.
  __device__ __forceinline__ void load(Cursor<S>& at) {
    if (at.exists()) {
      const int lane = threadIdx.x % 32, row = lane / 8, piece = lane % 8, k = at.slot * row_bytes + piece * 16;
      const int size = min(max(p_.bytes_of_k - k, 0), 16);  // zeros behind the end
      const uint32_t to = to_ + free_ * slot_bytes + row * row_bytes + (piece ^ row) * 16;
      const uint8_t* const from = static_cast<const uint8_t*>(args_.b.ptr) + at.tile.group * p_.w_matrix + k;
      const int first = at.first_row(warp_) + row, most = int(args_.n) - 1;
#pragma unroll
      for (int i = 0; i < 4; i++)
        copy_async_16((to ^ i % 2 * 64) + i * 4 * row_bytes, from + min(first + 4 * i, most) * p_.w_row, size,
                      evict_first);
      at.advance(p_);
    }
    copy_async_commit();
    if (++free_ == S::stages) free_ = 0;
  }
  // Waits for the oldest slot, and returns its place in shared memory.
  __device__ __forceinline__ int wait() {
    copy_async_wait<S::stages - 2>();
    __syncwarp();
    return (warp_ * S::stages + stage_) * slot_bytes;
  }
  __device__ __forceinline__ void advance() {
    if (++stage_ == S::stages) stage_ = 0;
  }
};

// The bits of a factor as a number.
__device__ __forceinline__ float number_of_bits(tg_format format, uint32_t bits) {
  return format == TG_F8E4M3   ? narrow::e4m3(bits)
         : format == TG_F8E8M0 ? narrow::e8m0(bits)
                               : narrow::factor_of(format, bits);
}

// Factors and zeros: a lane loads those of a row and every other unit for the next slot into registers, and stores them
// when the warp has used those of the slot before. A group has its factor at its last unit of each slot, in K or
// behind it.
template <class S>
class Beside {
  static constexpr int count = S::units / 2;
  const tg_gemm_args& args_;
  const NarrowPlace& p_;
  const int warp_;
  uint32_t* const factors_;  // (UNIT,ROW)
  uint32_t bits_[count], zeros_[S::has_zeros ? count : 1];

  // Whether a factor is used at this unit of K.
  __device__ __forceinline__ bool is_used(int unit, int group) const {
    return S::folds || unit % S::units == S::units - 1 || p_.by_group.quotient(unit + 1) != group;
  }
  template <class Bits>
  __device__ __forceinline__ uint32_t bits_at(int64_t at) const {
    return static_cast<const Bits*>(args_.b_scale.ptr)[at];
  }

 public:
  __device__ Beside(const tg_gemm_args& args, const NarrowPlace& p, uint8_t* shared, int warp)
      : args_(args), p_(p), warp_(warp),
        factors_(reinterpret_cast<uint32_t*>(shared + p.at.beside_at + warp * S::beside_bytes)) {}

  __device__ __forceinline__ void load(const Cursor<S>& at) {
    const tg_scale& scale = args_.b_scale;
    const int lane = threadIdx.x % 32, n = min(at.first_row(warp_) + lane % 16, int(args_.n) - 1);
    const int64_t of_row = at.tile.group * scale.batch_stride[1] + p_.by_columns.quotient(n) * scale.col_stride;
#pragma unroll
    for (int i = 0; i < count; i++) {
      const int unit = at.slot * S::units + 2 * i + lane / 16, group = p_.by_group.quotient(unit);
      const bool exists = scale.ptr && int64_t(group) * p_.by_group.value * unit_k < args_.k;
      const int64_t place = of_row + group * scale.row_stride;
      bits_[i] = 0;
      if (exists && is_used(unit, group)) {
        switch (scale.format) {
          case TG_F32: bits_[i] = bits_at<uint32_t>(place); break;
          case TG_F16:
          case TG_BF16: bits_[i] = bits_at<uint16_t>(place); break;
          default: bits_[i] = bits_at<uint8_t>(place); break;
        }
      }
      if constexpr (S::has_zeros)
        zeros_[i] = exists && scale.zeros ? scale.zeros[place] : uint32_t(narrow::usual_zero(S::codes));
    }
  }

  __device__ __forceinline__ void store() {
    const int lane = threadIdx.x % 32;
    const bool has_factors = args_.b_scale.ptr;
#pragma unroll
    for (int i = 0; i < count; i++) {
      uint32_t& to = factors_[i * 32 + lane];
      if constexpr (S::folds) {
        narrow::Folded<S::codes, typename S::T, unit_k> folded;
        folded.set(TG_F8E8M0, has_factors ? bits_[i] : 127);
        to = folded.high;
      } else {
        to = __float_as_uint(has_factors ? number_of_bits(args_.b_scale.format, bits_[i]) : 1.0f);
      }
      if constexpr (S::has_zeros) factors_[S::units * 16 + i * 32 + lane] = S::Codes::zero_of(zeros_[i]);
    }
  }

  __device__ __forceinline__ uint32_t factor(int unit, int row) const { return factors_[unit * 16 + row]; }
  __device__ __forceinline__ uint32_t zero(int unit, int row) const { return factors_[(S::units + unit) * 16 + row]; }
};

}  // namespace
}  // namespace tilegemm
