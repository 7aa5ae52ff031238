// What a warp loads of W: slots of its rows into a ring of its own, and their factors and zeros.
#pragma once
#include "common/ptx.hpp"
#include "narrow_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// A place in the items that a warp goes through: tiles of A's rows times rows of W. Few rows: a block has items [item,
// end), those of a tile in a row; the block's teams take them in turns. Otherwise every gridDim.x-th is the block's.
template <class S>
struct Cursor {
  typename S::List list;
  int item, end, place, behind;  // place: of the tile of rows in the list; behind: the first item of the next tile
  GroupedTile tile;

  // Few rows.
  __device__ Cursor(const typename S::List& of, const NarrowPlace& p, int first, int end_item, int team)
      : list(of), item(first), end(end_item), place(0), behind(0), tile{} {
    if (first >= end) return;
    place = p.by_n.quotient(first), behind = min(end, (place + 1) * p.n_tiles), item = first + team;
    skip(p, team);
    find();
  }
  __device__ explicit Cursor(const typename S::List& of)
      : list(of), item(blockIdx.x), end(list.total()), place(0), behind(0), tile{} {
    find();
  }

  __device__ __forceinline__ bool exists() const { return item < end; }
  __device__ __forceinline__ void advance(const NarrowPlace& p, int warp) {
    if constexpr (S::few) {
      item += most_warps >> p.log_team;
      if (item < behind) return;
      skip(p, warp >> p.log_team);
    } else {
      item += gridDim.x;
    }
    find();
  }
  // The warp's first row of W.
  __device__ __forceinline__ int first_row(const NarrowPlace& p, int warp) const {
    return S::few ? (item - place * p.n_tiles) * S::tile_n : tile.n * S::tile_n + rows_of_warp * warp;
  }

 private:
  __device__ __forceinline__ void skip(const NarrowPlace& p, int team) {
    while (item >= behind && behind < end) place++, item = behind + team, behind = min(end, behind + p.n_tiles);
    if (item >= behind) item = end;
  }
  __device__ __forceinline__ void find() {
    if (exists()) tile = list.tile(S::few ? place : item);
  }
};

// Piece p of 16 bytes of row r of a slot lies at place p ^ r % 8: lanes that read at once read other banks. A lane
// loads a piece of rows lane / 8, lane / 8 + 4 and so on.
template <class S>
class Ring {
  const tg_gemm_args& args_;
  const NarrowPlace& p_;
  const int warp_, first_, last_;  // slots of K
  const uint32_t to_;
  Cursor<S> at_;
  int free_ = 0, stage_ = 0;
  const uint8_t* from_ = nullptr;
  int left_ = 0, rows_ = 0, slots_ = 0;  // bytes of the row, rows of W, and slots

  __device__ __forceinline__ void begin() {
    if (!at_.exists()) return;
    const int row = at_.first_row(p_, warp_) + int(threadIdx.x) % 32 / 8, k = first_ * row_bytes + threadIdx.x % 8 * 16;
    from_ = static_cast<const uint8_t*>(args_.b.ptr) + at_.tile.group * p_.w_matrix + row * p_.w_row + k;
    left_ = p_.bytes_of_k - k, rows_ = int(args_.n) - row, slots_ = last_ - first_;
  }

 public:
  __device__ Ring(const tg_gemm_args& args, const NarrowPlace& p, const Cursor<S>& at, uint32_t shared, int warp,
                  int first, int last)
      : args_(args), p_(p), warp_(warp), first_(first), last_(last),
        to_(shared + warp * S::stages * slot_bytes + threadIdx.x % 32 / 8 * row_bytes +
            (threadIdx.x % 8 ^ threadIdx.x % 32 / 8) * 16),
        at_(at) {
    begin();
  }

  // Starts the load of the next slot, if there is one.
  __device__ __forceinline__ void load() {
    if (slots_ > 0) {
      const uint32_t to = to_ + free_ * slot_bytes;
      const int size = min(max(left_, 0), 16);  // zeros behind the end
#pragma unroll
      for (int i = 0; i < 4; i++)
        copy_async_16((to ^ i % 2 * 64) + i * 4 * row_bytes, from_ + i * 4 * p_.w_row, rows_ > 4 * i ? size : 0,
                      evict_first);
      from_ += row_bytes, left_ -= row_bytes;
      if (--slots_ == 0) {
        at_.advance(p_, warp_);
        begin();
      }
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

// The factor of weights without factors.
__device__ const float no_factor = 1.0f;

// Factors and zeros, for each `shared` units of a slot: a lane loads those of a row for the next slot into registers,
// and stores them when the warp has used those of the slot before.
template <class S>
class Beside {
  static constexpr int count = S::units / 2;
  const tg_gemm_args& args_;
  const NarrowPlace& p_;
  const int warp_;
  uint32_t* const words_;  // (UNIT / shared,ROW); zeros behind factors
  const uint8_t *of_row_ = nullptr, *zeros_of_row_ = nullptr;
  uint32_t bits_[count], zeros_[S::has_zeros ? count : 1];

  __device__ __forceinline__ tg_format format() const { return args_.b_scale.ptr ? args_.b_scale.format : TG_F32; }
  // Of those of a slot, the lane's one; beyond the slot: none.
  __device__ __forceinline__ int first_unit(int i) const { return (2 * i + int(threadIdx.x) % 32 / 16) * p_.shared; }

 public:
  __device__ Beside(const tg_gemm_args& args, const NarrowPlace& p, uint8_t* shared, int warp)
      : args_(args), p_(p), warp_(warp),
        words_(reinterpret_cast<uint32_t*>(shared + p.at.beside_at + warp * S::beside_bytes)) {}

  // Those of row g.
  __device__ __forceinline__ const uint32_t* of_lane() const { return words_ + threadIdx.x % 32 / 4; }

  __device__ __forceinline__ void begin(const Cursor<S>& at) {
    const tg_scale& scale = args_.b_scale;
    const int n = min(at.first_row(p_, warp_) + int(threadIdx.x) % 16, int(args_.n) - 1);
    const int64_t row = at.tile.group * scale.batch_stride[1] + p_.by_columns.quotient(n) * scale.col_stride;
    of_row_ = scale.ptr ? static_cast<const uint8_t*>(scale.ptr) + row * p_.factor_bytes
                        : reinterpret_cast<const uint8_t*>(&no_factor);
    if constexpr (S::has_zeros) zeros_of_row_ = scale.zeros ? scale.zeros + row : nullptr;
  }

  __device__ __forceinline__ void load(int slot) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      if (2 * i * p_.shared >= S::units) break;
      const int unit = slot * S::units + first_unit(i);
      const bool exists = first_unit(i) < S::units && unit < p_.units_of_k;
      const int group = p_.by_group.quotient(unit);
      const uint8_t* const from = of_row_ + group * p_.group_bytes;
      bits_[i] = 0;
      if (exists) {
        switch (p_.factor_bytes) {
          case 4: bits_[i] = *reinterpret_cast<const uint32_t*>(from); break;
          case 2: bits_[i] = *reinterpret_cast<const uint16_t*>(from); break;
          default: bits_[i] = *from; break;
        }
      }
      if constexpr (S::has_zeros)
        zeros_[i] =
            exists && zeros_of_row_ ? zeros_of_row_[group * p_.group_of_zeros] : uint32_t(narrow::usual_zero(S::codes));
    }
  }

  __device__ __forceinline__ void store() const {
    const int lane = threadIdx.x % 32;
    const auto each = [&](auto number) {
#pragma unroll
      for (int i = 0; i < count; i++) {
        if (2 * i * p_.shared >= S::units) break;
        words_[i * 32 + lane] = __float_as_uint(number(bits_[i]));
        if constexpr (S::has_zeros) words_[S::factors_bytes / 4 + i * 32 + lane] = S::Codes::zero_of(zeros_[i]);
      }
    };
    switch (format()) {
      case TG_F8E4M3: each([](uint32_t bits) { return narrow::e4m3(bits); }); break;
      case TG_F8E8M0: each([](uint32_t bits) { return narrow::e8m0(bits); }); break;
      case TG_F16: each([](uint32_t bits) { return __half2float(__ushort_as_half(uint16_t(bits))); }); break;
      case TG_BF16: each([](uint32_t bits) { return __uint_as_float(bits << 16); }); break;
      default: each([](uint32_t bits) { return __uint_as_float(bits); }); break;
    }
  }
};

}  // namespace
}  // namespace tilegemm
