// An operand of products by mma.sync: its layout in shared memory, the copies that fill a stage, and the loads of
// fragments.
//
// CuTe states the layouts. Addresses are stepped by constants and exclusive ors. CuTe's own tensors evaluate the
// swizzle anew for each access, which doubles the number of instructions beside the products.
#pragma once
#include <cute/tensor.hpp>

#include "common/kernel.hpp"

namespace tilegemm {
namespace {

using namespace cute;

// Copies `SIZE` bytes to shared memory without waiting: the first `bytes` from global memory, the others zeros.
template <int SIZE>
CUTE_DEVICE void copy_async(uint32_t to, const char* from, int bytes) {
  if constexpr (SIZE == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(SIZE), "r"(bytes)
                 : "memory");
  }
}

// Four matrices of 8 x 16 bytes, as they are, or of 8 x 8 numbers of 16 bits, transposed.
CUTE_DEVICE void load_matrices(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}
CUTE_DEVICE void load_matrices_transposed(uint32_t (&to)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from));
}

// One operand in blocks of MN rows by K numbers of BYTES bytes. The "rows" of B are the columns of B. In shared memory
// a line is contiguous along K (K_MAJOR) or along MN. LINES has the layout of a block, and says whether lines have
// padding; otherwise they are swizzled. ALIGN: bytes that pointers and strides are multiples of, and bytes of a copy by
// cp.async. Numbers at odd addresses pass through registers, two at a time.
template <class LINES, int BYTES, bool K_MAJOR, int MN, int K, int STAGES, int ALIGN, int THREADS>
struct Stages {
  using Block = typename LINES::Block;
  static constexpr bool k_major = K_MAJOR, padded = LINES::padded;
  static constexpr int bytes = BYTES;
  static constexpr bool async = ALIGN >= 4;                 // cp.async copies 4 bytes at least
  static constexpr int vector = async ? ALIGN / BYTES : 2;  // numbers of a copy
  static constexpr int stage_bytes = (int(cosize_v<Block>) * BYTES + 127) / 128 * 128,
                       ring_bytes = STAGES * stage_bytes;

  // The place of a number in a stage, in bytes.
  CUTE_HOST_DEVICE static constexpr uint32_t place(int mn, int k) { return uint32_t(Block{}(mn, k)) * BYTES; }

  // Bits of an address that pieces of 16 bytes of a line differ in. A stage is a multiple of 128 bytes.
  static constexpr uint32_t swizzled = 0x70;
  // The place that is `step` further than `first`, where the two differ in other bits.
  CUTE_HOST_DEVICE static constexpr uint32_t stepped(uint32_t first, uint32_t step) {
    return padded ? first + step : (first ^ (step & swizzled)) + (step & ~swizzled);
  }

  // Adjacent threads copy adjacent vectors of a line.
  static constexpr int line = K_MAJOR ? K : MN, lines = K_MAJOR ? MN : K;
  static constexpr int across = line / vector, lines_at_a_time = THREADS / across, copies = lines / lines_at_a_time;
  static_assert(THREADS % across == 0 && lines % lines_at_a_time == 0,
                "every thread copies the same number of vectors");

  // A thread's copies of the blocks of an operand.
  struct Loader {
    const char* from;               // the thread's first vector of the next block
    int64_t next_line, next_block;  // bytes
    uint32_t to;                    // the thread's first vector in stage 0
    int line_left, across_left;  // numbers of the thread's line and across lines that exist, counted from the thread's
                                 // first vector
    uint32_t held[async ? 1 : copies];

    // `mn_stride`, `k_stride`: of the numbers; `mn_left`: rows that exist.
    CUTE_DEVICE Loader(const void* matrix, int64_t mn_stride, int64_t k_stride, uint32_t ring, int mn_left) {
      const int at_line = int(threadIdx.x) / across, at = int(threadIdx.x) % across * vector;
      const int mn = K_MAJOR ? at_line : at, k = K_MAJOR ? at : at_line;
      from = static_cast<const char*>(matrix) + (mn * mn_stride + k * k_stride) * BYTES;
      next_line = lines_at_a_time * (K_MAJOR ? mn_stride : k_stride) * BYTES;
      next_block = K * k_stride * BYTES;
      to = ring + place(mn, k);
      line_left = mn_left - mn, across_left = -k;
    }

    // Copies the block that is `ahead` blocks away to a stage; through registers, `put` stores the block. Numbers
    // outside of the operand count as zeros, so that no infinity meets a zero in K. Sums of rows outside are never
    // stored. `k_left`: k's of the block that exist.
    template <bool whole_k>
    CUTE_DEVICE void copy(uint32_t stage, int64_t ahead, int k_left) {
      const char* source = from + ahead * next_block;
      CUTE_UNROLL
      for (int i = 0; i < copies; i++) {
        int numbers = vector;
        if constexpr (K_MAJOR) {
          if (!whole_k) numbers = max(0, min(numbers, k_left + across_left));
          numbers = line_left > i * lines_at_a_time ? numbers : 0;
        } else {
          numbers = max(0, min(numbers, line_left));
          if (!whole_k) numbers = k_left + across_left > i * lines_at_a_time ? numbers : 0;
        }
        if constexpr (async) {
          copy_async<ALIGN>(copy_at(to + stage, i), source, numbers * BYTES);
        } else {
          const auto* const two = reinterpret_cast<const uint16_t*>(source);
          held[i] = (numbers > 0 ? __ldg(two) : 0u) | (numbers > 1 ? uint32_t(__ldg(two + 1)) << 16 : 0u);
        }
        source += next_line;
      }
    }
    CUTE_DEVICE void put(uint32_t stage) const {
      CUTE_UNROLL
      for (int i = 0; i < copies && !async; i++) {
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(copy_at(to + stage, i)), "r"(held[i]) : "memory");
      }
    }
    CUTE_DEVICE void advance() { from += next_block; }
  };

  // The place of a thread's copy `i`, from the place of its copy 0, whose line is below `lines_at_a_time`.
  CUTE_HOST_DEVICE static constexpr uint32_t copy_at(uint32_t first, int i) {
    return stepped(first, K_MAJOR ? place(i * lines_at_a_time, 0) : place(0, i * lines_at_a_time));
  }
};

// A block of an operand that mma.sync takes as it is. Pieces of 16 bytes of eight neighbouring lines, which ldmatrix
// reads at the same time, lie in different banks.
template <int BYTES, bool K_MAJOR, int MN, int K>
struct Lines {
  // Lines along K of 64 or 128 bytes; lines along MN of 64 numbers of 16 bits.
  static constexpr int log2_piece = BYTES == 2 ? 3 : 2;
  using Rows = decltype(composition(Swizzle < K * BYTES == 64 ? 2 : 3, log2_piece, 3 > {},
                                    Layout<Shape<_8, Int<K>>, Stride<Int<K>, _1>>{}));
  using Columns = decltype(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_64, _8>, Stride<_1, _64>>{}));
  // ldmatrix does not transpose 32 bits. Threads read eight numbers of four lines at a time.
  using Padded = Layout<Shape<Int<MN>, Int<K>>, Stride<_1, Int<MN + 8>>>;
  static constexpr bool padded = !K_MAJOR && BYTES == 4;
  using Block =
      conditional_t<padded, Padded,
                    decltype(tile_to_shape(conditional_t<K_MAJOR, Rows, Columns>{}, Shape<Int<MN>, Int<K>>{}))>;
  static_assert(!K_MAJOR || K * BYTES == 64 || K * BYTES == 128);
  static_assert(K_MAJOR || MN % 64 == 0);
};

// Such an operand, and its fragments of 16 rows by 32 bytes of K: for A the fragment of an instruction, for B those of
// two instructions.
template <int BYTES, bool K_MAJOR, int MN, int K, int STAGES, int ALIGN, int THREADS>
struct Operand : Stages<Lines<BYTES, K_MAJOR, MN, K>, BYTES, K_MAJOR, MN, K, STAGES, ALIGN, THREADS> {
  using Base = Stages<Lines<BYTES, K_MAJOR, MN, K>, BYTES, K_MAJOR, MN, K, STAGES, ALIGN, THREADS>;
  using Base::padded, Base::place, Base::swizzled;
  static constexpr int piece = 16 / BYTES;

  // The row and the k at which a lane of ldmatrix reads, or the first of a lane's numbers.
  template <bool IS_A>
  CUTE_HOST_DEVICE static constexpr int row_of(int lane) {
    return padded ? lane / 4 : (K_MAJOR ? lane % 8 : 0) + 8 * (IS_A ? lane / 8 % 2 : lane / 16);
  }
  template <bool IS_A>
  CUTE_HOST_DEVICE static constexpr int k_of(int lane) {
    const int half = IS_A ? lane / 16 : lane / 8 % 2;
    return padded ? lane % 4 : K_MAJOR ? half * piece : lane % 8 + 8 * half;
  }

  // The place of fragment `i` of a warp at step `step` of a stage, from the place of fragment 0 at step 0.
  CUTE_HOST_DEVICE static constexpr uint32_t fragment_at(uint32_t first, int step, int i) {
    const uint32_t mn_step = place(16 * i, 0), k_step = place(0, 32 / BYTES * step);
    if (padded) return first + mn_step + k_step;
    if (K_MAJOR) return (first ^ k_step) + mn_step;
    return (first ^ (mn_step & swizzled)) + (mn_step & ~swizzled) + k_step;
  }

  // A warp's fragments, `warp_mn` being the first row of the warp.
  template <bool IS_A>
  struct Fragments {
    uint32_t from;

    CUTE_DEVICE Fragments(uint32_t ring, int warp_mn) {
      const int lane = int(threadIdx.x) % 32;
      from = ring + place(warp_mn + row_of<IS_A>(lane), k_of<IS_A>(lane));
    }

    // Fragment `i` of the warp at step `step` of the stage at `stage`.
    CUTE_DEVICE void load(uint32_t (&to)[4], uint32_t stage, int step, int i) const {
      const uint32_t at = fragment_at(from + stage, step, i);
      if constexpr (padded) {
        CUTE_UNROLL
        for (int j = 0; j < 4; j++) {
          const int mn = 8 * (IS_A ? j % 2 : j / 2), k = 4 * (IS_A ? j / 2 : j % 2);
          asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[j]) : "r"(at + place(mn, k)));
        }
      } else if constexpr (K_MAJOR) {
        load_matrices(to, at);
      } else {
        load_matrices_transposed(to, at);
      }
    }
  };
};

}  // namespace
}  // namespace tilegemm
