// The loads of a block: tile after tile, so that the ring is full while a tile is stored.
#pragma once
#include "sm80_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// A thread copies 16 bytes of some rows of A, which lie anywhere, and 16 bytes of some rows of W. Rows of the tile that
// do not exist are not copied: whatever the ring has there, the sums of such rows and columns are not stored.
template <class S>
class Loader {
  using A = typename S::A;
  using W = typename S::W;

 public:
  __device__ Loader(const GroupedPlace& p, const typename S::List& list, uint32_t ring_a, uint32_t ring_w)
      : p_(p), list_(list), u_(blockIdx.x), step_of_w_((W::lines_at_a_time >> p.halves) * p.w_stride) {
    to_a_ = ring_a + A::place(threadIdx.x / A::across, first_k());
    to_w_ = ring_w + W::place(threadIdx.x / W::across, first_k());
    begin();
  }

  // Loads the next block of K to a stage; nothing after the last tile.
  __device__ void load(int stage) {
    if (u_ >= list_.total()) return;
    if (k_ == first_k()) find_rows();
    const int bytes = k_ < p_.k ? 16 : 0;  // zeros behind the end of K
#pragma unroll
    for (int i = 0; i < A::copies; i++) {
      if (rows_ >> i & 1)
        copy_async<16>(A::copy_at(to_a_ + stage * A::stage_bytes, i), reinterpret_cast<const char*>(a_[i]), bytes);
      a_[i] += 2 * S::tile_k;
    }
    const char* w = w_;
#pragma unroll
    for (int i = 0; i < W::copies; i++) {
      if (w_left_ > i * W::lines_at_a_time) copy_async<16>(W::copy_at(to_w_ + stage * W::stage_bytes, i), w, bytes);
      w += step_of_w_;
    }
    w_ += 2 * S::tile_k;
    k_ += S::tile_k;
    if (k_ - first_k() >= p_.k) {
      u_ += gridDim.x;
      begin();
    }
  }

 private:
  static_assert(A::across == W::across && A::copies <= 32 && W::lines_at_a_time % 2 == 0);
  static __device__ int first_k() { return int(threadIdx.x) % A::across * A::vector; }

  // Begins the next tile. The pairs are requested here and read by find_rows(), one block of K later.
  __device__ void begin() {
    if (u_ >= list_.total()) return;
    const GroupedTile tile = list_.tile(u_);
    k_ = first_k();
#pragma unroll
    for (int i = 0; i < A::copies; i++) {
      const int r = threadIdx.x / A::across + i * A::lines_at_a_time, row = tile.first + r;
      a_[i] = r >= tile.height ? none : p_.rows.groups.pairs ? p_.rows.groups.pairs[row] : row;
    }
    const int n = tile.n * S::tile_n + threadIdx.x / W::across;
    w_left_ = p_.n - n;
    w_ = p_.w + tile.group * p_.w_of_group + (n >> p_.halves) * p_.w_stride + (n & p_.halves) * p_.w_half + 2 * k_;
  }

  // From pairs to addresses in A.
  __device__ void find_rows() {
    rows_ = 0;
#pragma unroll
    for (int i = 0; i < A::copies; i++) {
      const bool exists = int64_t(a_[i]) < p_.rows.m;
      const int row = exists ? p_.pairs_per_row.quotient(int(a_[i])) : 0;
      rows_ |= uint32_t(exists) << i;
      a_[i] = reinterpret_cast<uint64_t>(p_.a + row * p_.a_stride + 2 * k_);
    }
  }

  static constexpr uint64_t none = UINT32_MAX;  // no M is as large

  const GroupedPlace& p_;
  typename S::List list_;
  int u_, k_;              // the tile, and the thread's first k of the next block
  int64_t step_of_w_;      // from one of the thread's rows of W to the next
  uint64_t a_[A::copies];  // pairs, then addresses
  const char* w_;
  uint32_t to_a_, to_w_;  // in stage 0
  uint32_t rows_;         // a bit for each row of A that exists
  int w_left_;            // rows of W from the thread's first row on
};

}  // namespace
}  // namespace tilegemm
