// Blocks of a GGUF file on their way to a warp: 16 rows of W, span after span, through a ring in shared memory.
#pragma once
#include "common/ptx.hpp"
#include "gguf/fragment.hpp"

namespace tilegemm::gguf {
namespace {

constexpr int rows_of_warp = 16;
// A warp's 16 rows span less than 2^32 bytes. The families' .rs files have the same number.
constexpr int64_t most_stride = 1 << 27;

// Whether K and the strides of B are whole blocks, and rows of W within the reach of a warp.
template <tg_format F>
bool has_whole_blocks(const tg_gemm_args& args) {
  return is_whole(F, args) && args.b.col_stride <= most_stride;
}

// The first block of a matrix B: the matrices of groups of rows are B's inner batch stride apart.
template <tg_format F>
__device__ __forceinline__ const uint8_t* matrix_at(const tg_gemm_args& args, int i) {
  constexpr Block block = block_of(F);
  return static_cast<const uint8_t*>(args.b.ptr) + i * (args.b.batch_stride[1] / block.elements * block.bytes);
}

// Bytes from a row of W to the next.
template <tg_format F>
__device__ __forceinline__ int row_stride(const tg_gemm_args& args) {
  constexpr Block block = block_of(F);
  return int(args.b.col_stride / block.elements * block.bytes);
}

// Bytes of a row of W.
template <tg_format F>
__device__ __forceinline__ uint32_t row_bytes(const tg_gemm_args& args) {
  constexpr Block block = block_of(F);
  return uint32_t(args.k) / block.elements * block.bytes;
}

// Bytes in shared memory from `bytes` bytes of a row to those of the next row, for a row at any byte: an odd multiple
// of 16, which spreads eight rows over all banks.
constexpr int shared_pitch(int bytes) {
  const int least = (bytes + 15 + 15) / 16 * 16;
  return least % 32 ? least : least + 16;
}

// The ring of a warp: the blocks of a span of each row, as they lie in the file.
template <tg_format F, int STAGES>
struct RingShape {
  using Row = gguf::Row<F>;
  static constexpr tg_format format = F;
  static constexpr int pitch = shared_pitch(Row::bytes), stages = STAGES;
  static constexpr int stage_bytes = rows_of_warp * pitch, ring_bytes = stages * stage_bytes;
  // Behind the last row a word may touch 4 bytes.
  static constexpr int bytes_behind = 16;
};

// The spans of a warp's 16 rows, loaded one after the other. Places are bytes from a multiple of 16 at or before the
// first row's first byte. Slot i of a stage has row 2 (i % 8) + i / 8: of the slots that a lane multiplies, g and g +
// 8, results are neighbours in D.
template <class S>
class Ring {
 public:
  using Row = typename S::Row;

  // `matrix`: the place of W among the matrices B; `span`: the first span that load() loads.
  __device__ Ring(const tg_gemm_args& args, int matrix, int first_row, int span, uint8_t* ring)
      : rows_left_(int(args.n) - 1 - first_row), row_bytes_(row_bytes<S::format>(args)),
        stride_(row_stride<S::format>(args)) {
    const uint64_t first = reinterpret_cast<uint64_t>(matrix_at<S::format>(args, matrix)),
                   here = first + int64_t(min(first_row, int(args.n) - 1)) * stride_;
    base_ = reinterpret_cast<const uint8_t*>(here & ~uint64_t(15));
    odd_ = uint32_t(here & 15);
    front_ = here == first ? odd_ : 0;
    // Rows behind the end of W are the last row.
    end_ = odd_ + uint32_t(min(max(rows_left_, 0), rows_of_warp - 1)) * stride_ + row_bytes_;
    to_ = uint32_t(__cvta_generic_to_shared(ring)) + int(threadIdx.x) % 32 * 16;
    passed_ = span * Row::bytes;
    is_aligned_ = Row::bytes % 16 == 0 && odd_ == 0 && stride_ % 16 == 0 && row_bytes_ % Row::bytes == 0;
#pragma unroll
    for (int i = 0; i < copies; i++) rows_[i] = place(slot_of(i)) + (is_aligned_ ? 16 * chunk_of(i) : 0);
  }

  // Loads the next span.
  __device__ void load(int stage) {
    if (is_aligned_) {
      // A span is whole chunks of memory, and nothing else.
#pragma unroll
      for (int i = 0; i < copies; i++) {
        const bool exists =
            (rows_of_warp * chunks % 32 == 0 || slot_of(i) < rows_of_warp) && 16 * chunk_of(i) < Row::bytes;
        if (exists)
          copy_async_16(to_ + stage * S::stage_bytes + i * 32 * 16, base_ + rows_[i] + passed_, 16, evict_first);
      }
      passed_ += Row::bytes;
      return;
    }
#pragma unroll
    for (int i = 0; i < copies; i++) {
      // Of a row's last span there may be fewer blocks.
      const uint32_t from = rows_[i] + passed_, last = min(from + Row::bytes, rows_[i] + row_bytes_),
                     at = (from & ~15u) + 16 * chunk_of(i);
      const uint32_t until = Row::block.elements == gguf::span ? from + Row::bytes : last;
      const bool exists = (rows_of_warp * chunks % 32 == 0 || slot_of(i) < rows_of_warp) && at >= front_ && at < until;
      if (exists)
        copy_async_16(to_ + stage * S::stage_bytes + i * 32 * 16, base_ + at, int(min(end_ - at, 16u)), evict_first);
    }
    passed_ += Row::bytes;
  }

  // Loads the first bytes of W, where these do not start at a multiple of 16 bytes: `load` leaves them out.
  __device__ void load_front(int stage) const {
    const int byte = int(threadIdx.x) % 32;
    if (front_ > 0 && byte >= front_ && byte < 16 && byte < end_) {
      store_shared_8(to_ - byte * 16 + stage * S::stage_bytes + byte, base_[byte]);
    }
  }

  // The bytes between the span in slot i and the multiple of 16 before, with which the span has arrived in shared
  // memory.
  __device__ uint32_t odd_bytes(int i, int span) const { return (place(i) + span * Row::bytes) & 15; }

 private:
  // Chunks of 16 bytes lie in the ring in the order of the lanes that copy them.
  static constexpr int chunks = S::pitch / 16, copies = (rows_of_warp * chunks + 31) / 32;

  __device__ static int slot_of(int i) { return (i * 32 + int(threadIdx.x) % 32) / chunks; }
  __device__ static int chunk_of(int i) { return (i * 32 + int(threadIdx.x) % 32) % chunks; }
  // Of the row in slot i.
  __device__ uint32_t place(int i) const {
    return odd_ + uint32_t(min(i % 8 * 2 + i / 8, max(rows_left_, 0))) * stride_;
  }

  const uint8_t* base_;
  uint32_t odd_, front_, end_, to_;
  int rows_left_;
  uint32_t row_bytes_;
  int stride_;
  bool is_aligned_;        // spans of all rows are whole chunks
  uint32_t passed_;        // bytes of a row before the next span
  uint32_t rows_[copies];  // where a lane's rows start; its chunks, where spans are whole chunks
};

// Two numbers for each scale of a span, of each of a warp's 16 rows, in shared memory from a multiple of 16 bytes on.
template <class Row>
struct Factors {
  static constexpr int count = gguf::span / Row::scaled, pitch = count + 2;  // rows in different banks
  static constexpr int bytes = rows_of_warp * pitch * int(sizeof(float2));
  float2* table;

  // `Two`: the type of two numbers.
  template <class Two>
  __device__ Two at(int row, int i) const {
    static_assert(sizeof(Two) == sizeof(float2));
    return reinterpret_cast<const Two*>(table)[row * pitch + i];
  }
  // The numbers of scales i and i + 1; i is even.
  __device__ float4 two_at(int row, int i) const { return *reinterpret_cast<const float4*>(table + row * pitch + i); }

  // Two lanes compute the numbers of a row: `of`(scale, minimum) of each scale. Scales from `existing` on do not exist,
  // and get zeros.
  template <class Of>
  __device__ void fill(const Row& row, int lane, int existing, const Of& of) const {
    float4 two;
    row.each_factor(lane % 2, [&](int i, float scale, float min) {
      float2 one = of(scale, min);
      if (Row::block.elements < gguf::span && i >= existing) one = {0.0f, 0.0f};
      if (i % 2 == 0) two.x = one.x, two.y = one.y;
      else two.z = one.x, two.w = one.y, *reinterpret_cast<float4*>(table + lane / 2 * pitch + i - 1) = two;
    });
  }
};

}  // namespace
}  // namespace tilegemm::gguf
