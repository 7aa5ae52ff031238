// Blocks of a GGUF file on their way to a warp that has one span of K: 16 rows of W after 16 rows, through a ring in
// shared memory.
#pragma once
#include "gguf/ring.hpp"

namespace tilegemm::gguf {
namespace {

// `S`: a RingShape, and the number of places that registers keep. The next 16 rows lie a multiple of 16 bytes behind:
// all places move by the same number of bytes.
template <class S>
class Loader {
 public:
  using Row = typename S::Row;

  // `matrix`: the place of W among the matrices B; `first_row`: of the first 16 rows that load() loads; a multiple
  // of 16.
  __device__ Loader(const tg_gemm_args& args, int matrix, int first_row, int span, uint8_t* ring)
      : args_(args), matrix_(matrix), span_(span), to_(uint32_t(__cvta_generic_to_shared(ring)) + lane() * 16),
        rows_left_(int(args.n) - first_row) {
    const uint64_t here = reinterpret_cast<uint64_t>(matrix_at<S::format>(args, matrix)) +
                          int64_t(first_row) * stride() + span * int64_t(Row::bytes);
    next_ = reinterpret_cast<const uint8_t*>(here & ~uint64_t(15));
    exist_ = 0;
#pragma unroll
    for (int i = 0; i < copies; i++) {
      if (i < kept) from_[i] = place_of_chunk(i, lane());
      if (row_of(i, lane()) < rows_of_warp &&
          place_of_chunk(i, lane()) < odd() + row_of(i, lane()) * stride() + bytes())
        exist_ |= 1u << i;
    }
  }

  // Loads the next 16 rows. Rows that do not exist are left out, and nothing behind W is read.
  __device__ void load(int stage) {
    if (rows_left_ > rows_of_warp && front() == 0) {
      int opaque = lane();
      asm volatile("" : "+r"(opaque));  // a compiler would keep places that do not change, in local memory
#pragma unroll
      for (int i = 0; i < copies; i++) {
        if (exist_ >> i & 1)
          copy_async_16(to_ + stage + i * 512, next_ + (i < kept ? from_[i] : place_of_chunk(i, opaque)), 16,
                        evict_first);
      }
    } else {
      load_ends(stage);
    }
    next_ += rows_of_warp * stride();
    rows_left_ -= rows_of_warp;
  }

  // Asks L2 for the first `count` times 16 rows that load() will load: two lanes for each row.
  __device__ void prefetch(int count) const {
    for (int i = 0; i < count; i++) {
      const int row = rows_of_warp * i + lane() / 2;
      if (row >= rows_left_) continue;
#pragma unroll
      for (int at = 0; at < Row::bytes; at += 256) {
        const uint32_t byte = at + lane() % 2 * 128;
        if (byte < bytes()) prefetch_l2(next_ + odd() + row * stride() + byte);
      }
    }
  }

  // The place in a stage of the span of row i.
  __device__ int place(int i) const { return i * S::pitch + int((odd() + i * stride()) & 15); }

 private:
  // Chunks of 16 bytes lie in the ring in the order of the lanes that copy them.
  static constexpr int chunks = S::pitch / 16, copies = (rows_of_warp * chunks + 31) / 32;
  static constexpr int kept = copies < S::kept ? copies : S::kept;

  // Numbers that the arguments give again, so that no register keeps them.
  __device__ static int lane() { return int(threadIdx.x) % 32; }
  __device__ static int row_of(int i, int lane) { return (i * 32 + lane) / chunks; }
  __device__ static int chunk_of(int i, int lane) { return (i * 32 + lane) % chunks; }
  // The chunk of a lane's copy i, in bytes from the multiple of 16 at or before the first row's span.
  __device__ uint32_t place_of_chunk(int i, int lane) const {
    return (odd() + row_of(i, lane) * stride() & ~15u) + 16 * chunk_of(i, lane);
  }
  __device__ uint32_t stride() const { return uint32_t(row_stride<S::format>(args_)); }
  // Bytes of the span: there may be fewer at the end of a row.
  __device__ uint32_t bytes() const {
    return uint32_t(min(Row::bytes, int(row_bytes<S::format>(args_)) - span_ * Row::bytes));
  }
  // Bytes from a multiple of 16 to the span, of each row at a multiple of 16.
  __device__ uint32_t odd() const {
    return uint32_t(reinterpret_cast<uint64_t>(matrix_at<S::format>(args_, matrix_)) + span_ * uint64_t(Row::bytes)) &
           15;
  }
  // The same of the very first bytes of W: there is nothing to read before.
  __device__ uint32_t front() const { return span_ == 0 && rows_left_ == int(args_.n) ? odd() : 0; }

  // The first rows of W where W starts at no multiple of 16 bytes, and the last rows.
  __device__ void load_ends(int stage) {
    const uint32_t end = odd() + uint32_t(min(rows_left_, rows_of_warp) - 1) * stride() + bytes();
#pragma unroll 1
    for (int i = 0; i < copies; i++) {
      const int row = row_of(i, lane());
      const uint32_t at = place_of_chunk(i, lane());
      const bool exists = row < min(rows_left_, rows_of_warp) && at >= front() && at < odd() + row * stride() + bytes();
      if (exists) copy_async_16(to_ + stage + i * 512, next_ + at, int(min(end - at, 16u)), evict_first);
    }
    // The bytes before the first multiple of 16.
    const uint32_t byte = uint32_t(lane());
    if (front() > 0 && byte >= front() && byte < 16 && byte < end)
      store_shared_8(to_ - byte * 16 + stage + byte, next_[byte]);
  }

  const tg_gemm_args& args_;
  int matrix_, span_;
  uint32_t to_;
  int rows_left_;
  const uint8_t* next_;
  uint32_t exist_;
  uint32_t from_[kept];
};

}  // namespace
}  // namespace tilegemm::gguf
