// A W whose lines start anywhere, for few_rows.hpp.
//
// TMA's tensor maps need lines at multiples of 16 bytes. Here four warps copy W by cp.async: whole pieces of 16 bytes,
// from the piece with the first number of a line to the piece with the last number. Lanes then read W as wgmma's first
// operand from registers, number by number or in pairs, from where the line's first number lies.
//
//     K contiguous (nt):   a line is a row of W, `depth` of K        word k / 2 of a row; two in a row at an odd number
//     N contiguous (nn):   a line is one K, the rows of the tile     a number of each of two lines
//
// A line has 16 bytes more in shared memory than in W, so that the lanes of a warp read from different banks. Bulk
// copies of such lines were slower: a multiprocessor takes some 50 cycles to start a bulk copy.
#pragma once
#include "common/pipeline.hpp"
#include "swap_ab/tiles.hpp"

namespace tilegemm {

// Where W lies, and a block's place in W.
template <class C>
struct RawW {
  static constexpr int line_bytes = C::k_major ? 2 * C::depth : 2 * C::w_rows, pitch = line_bytes + 16;
  static constexpr int lines = C::k_major ? C::w_rows : C::depth, bytes = lines * pitch;
  static_assert(C::depth % 128 == 0 && lines % 32 == 0 && pitch % 128 == 16 && sizeof(typename C::Element) == 2);

  uint64_t first;  // address of the block's first row at K = 0
  int64_t stride;  // bytes from one line to the next
  int rows, k;     // rows of W from the block's first row on, and K

  __device__ RawW(const tg_matrix& b, int n, int k, int row0, int batch0, int batch1)
      : stride((C::k_major ? b.col_stride : b.row_stride) * 2), rows(n - row0), k(k) {
    first = reinterpret_cast<uint64_t>(matrix_of<typename C::Element>(b, batch0, batch1)) +
            (C::k_major ? row0 * stride : row0 * 2);
  }

  // Requests this warp's quarter of a stage in L2, K from k0 on.
  __device__ __forceinline__ void prefetch(int k0, int quarter) const {
    constexpr int mine = lines / 4;
    const int lane = threadIdx.x % 32, line = quarter * mine + lane;
    if (lane >= mine || line >= (C::k_major ? rows : k - k0)) return;
    const uint64_t start = first + (C::k_major ? line * stride + k0 * 2 : (k0 + line) * stride);
    const int length = C::k_major ? min(line_bytes, (k - k0) * 2) : min(line_bytes, rows * 2);
    for (int i = 0; i < length; i += 128) prefetch_l2(reinterpret_cast<const void*>(start + i));
  }

  // Copies this warp's quarter of a stage, K from k0 on. Zeros follow the end of a line, and are in place of lines that
  // do not exist.
  __device__ __forceinline__ void load(uint32_t to, int k0, int quarter) const {
    constexpr int pieces = line_bytes / 16, at_once = 32 / pieces, mine = lines / 4;
    const int lane = threadIdx.x % 32, count = C::k_major ? rows : k - k0;  // lines that exist
    const int length = C::k_major ? min(line_bytes, (k - k0) * 2) : min(line_bytes, rows * 2);
    const auto copy = [&](int line, int piece) {
      const uint64_t start = first + (C::k_major ? line * stride + k0 * 2 : (k0 + line) * stride);
      const uint64_t from = (start & ~uint64_t(15)) + piece * 16;
      const int left = int(start - from) + length, size = line < count ? min(max(left, 0), 16) : 0;
      copy_async_16(to + line * pitch + piece * 16,
                    reinterpret_cast<const void*>(size > 0 ? from : start & ~uint64_t(15)), size, evict_first);
    };
#pragma unroll 4
    for (int i = 0; i < mine; i += at_once) copy(quarter * mine + i + lane / pieces, lane % pieces);
    if (lane < mine) copy(quarter * mine + lane, pieces);
  }
};

// A lane's part of wgmma's first operand: rows g and g + 8 of a warp's 16, at K = 2 q, 2 q + 1, 2 q + 8 and 2 q + 9
// of 16.
template <class C>
class RawFragments {
  using W = RawW<C>;
  uint32_t at_[2];   // offsets of rows g and g + 8; or of K = 2 q and 2 q + 1, in row g
  uint32_t odd_[2];  // prmt's selectors of four bytes of two words, from byte 0 or from byte 2 on

 public:
  // The stages of a block start at multiples of `depth`, so that a line starts at the same place of a 16-byte piece in
  // every stage.
  __device__ RawFragments(const W& w, int warp, int lane) {
    const int g = lane / 4, q = lane % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if constexpr (C::k_major) {
        const int row = warp * 16 + g + 8 * i;
        const uint32_t shift = uint32_t(w.first + row * w.stride) & 15;
        at_[i] = row * W::pitch + (shift & ~3u) + 4 * q, odd_[i] = shift & 2 ? 0x5432 : 0x3210;
      } else {
        const int line = 2 * q + i;
        at_[i] = line * W::pitch + (uint32_t(w.first + line * w.stride) & 15) + (warp * 16 + g) * 2;
      }
    }
  }

  // The fragment of step j of a stage.
  __device__ __forceinline__ void load(uint32_t (&f)[4], uint32_t stage, int j) const {
#pragma unroll
    for (int e = 0; e < 4; e++) {  // e % 2: row g + 8; e / 2: K + 8
      if constexpr (C::k_major) {
        const uint32_t at = stage + at_[e % 2] + j * 32 + e / 2 * 16;
        f[e] = __byte_perm(load_shared(at), load_shared(at + 4), odd_[e % 2]);
      } else {
        const uint32_t at = stage + (j * 16 + e / 2 * 8) * W::pitch + e % 2 * 16;
        f[e] = __byte_perm(load_shared_16(at + at_[0]), load_shared_16(at + at_[1]), 0x5410);
      }
    }
  }
};

// Adds the products of a stage to the sums. On return the products of the stage before have ended.
template <class C>
__device__ __forceinline__ void multiply_raw(float (&sum)[C::width / 2], uint32_t (&f)[2][4][4],
                                             const RawFragments<C>& fragments, uint32_t w, uint32_t a) {
#pragma unroll
  for (int half = 0; half < C::depth / 64; half++) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      fragments.load(f[half % 2][j], w, 4 * half + j);
#pragma unroll
      for (int e = 0; e < 4; e++) asm volatile("" : "+r"(f[half % 2][j][e])::"memory");  // loaded here
    }
    wgmma_pin(sum);
    wgmma_fence();
#pragma unroll
    for (int j = 0; j < 4; j++) {
      wgmma<typename C::Element, C::width>(sum, f[half % 2][j],
                                           wgmma_descriptor(a + half * (C::a_rows * 128) + j * 32));
    }
    wgmma_commit_and_wait<1>();
    wgmma_pin(sum);
  }
}

}  // namespace tilegemm
