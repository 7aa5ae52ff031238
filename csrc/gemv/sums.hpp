// From the sums of a tile to D, and what the epilogue adds to the sums. Part of gemv.cu.
#pragma once
#include "common/cuda_cores.hpp"
#include "common/epilogue.hpp"

namespace tilegemm {
namespace {

// The numbers of C and of the bias for one element of D. They are on their way while the element's weights are: a
// round trip to L2 behind the sums of every tile would cost as much as a third of the product. The kernel before may
// have written the numbers, and C may be D: the thread that stores the element loads them.
template <class T>
class Added {
 public:
  __device__ void load(const Epilogue<T, float>& epilogue, int i, int j, const Batch& batch) {
    if (epilogue.bias.ptr) bias_ = of(epilogue.bias, i, j, batch);
    if (epilogue.beta != 0) c_ = of(epilogue.c, i, j, batch);
  }

  __device__ T finish(float sum, const Epilogue<T, float>& epilogue) const {
    float x = epilogue.alpha * sum;
    if (epilogue.bias.ptr) x += number(bias_);
    if (epilogue.activation != TG_IDENTITY) x = activate<accuracy_of<T>>(epilogue.activation, x);
    if (epilogue.beta != 0) x += epilogue.beta * number(c_);
    return T(x);
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, uint32_t>;
  static_assert(sizeof(T) == sizeof(Bits));

  __device__ static Bits of(const tg_matrix& matrix, int i, int j, const Batch& batch) {
    const T* const from = batch.of<const T>(matrix) + i * matrix.row_stride + j * matrix.col_stride;
    Bits bits;  // the compiler leaves the load where it is
    if constexpr (sizeof(T) == 2) asm volatile("ld.global.u16 %0, [%1];" : "=h"(bits) : "l"(from));
    else asm volatile("ld.global.u32 %0, [%1];" : "=r"(bits) : "l"(from));
    return bits;
  }
  __device__ static float number(const Bits& bits) { return float(reinterpret_cast<const T&>(bits)); }

  Bits c_, bias_;
};

// A block is (lanes, split, teams): teams of `split` warps. A team has ROWS rows of W, and each warp of the team a part
// of K. TeamSums adds the parts' sums. Each part has VALUES sums, (m, row), with STRIDE sums from one m to the next,
// and up to M of A's rows. For AHEAD sums of a thread, the numbers that the epilogue adds are on their way. A thread
// adds some of the sums of its team in a fixed order, and stores the totals. The addresses are computed before the
// first sums exist: a warp that has a multiprocessor to itself takes some five cycles for an instruction, and nothing
// hides this time at the last tile.
template <int ROWS, int VALUES, int STRIDE, int M, int AHEAD, class T>
class TeamSums {
 public:
  __device__ explicit TeamSums(const GemvProblem<T>& p) {
    const int value =
        threadIdx.y * lanes + threadIdx.x;  // the thread's first sum; further sums follow at steps of `split` * lanes
    row_ = threadIdx.z * ROWS + value % ROWS, m_ = value / ROWS;
    from_ = int(threadIdx.z * blockDim.y) * VALUES + m_ * STRIDE + value % ROWS;
    d_ = Batch(p.inner_batch).of<T>(p.d) + m_ * p.d.row_stride + row_ * p.d.col_stride;
  }

  // Loads what the epilogue adds to the sums of the tile from `first_row` on, ahead of the tile's weights.
  __device__ void load(int first_row, const GemvProblem<T>& p, const Epilogue<T, float>& epilogue) {
    if (p.plain) return;
    const int n = first_row + row_, m_step = m_step_of(blockDim.y);
    if (n >= p.n) return;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
      const int m = m_ + i * m_step;
      if (m < p.m) added_[i].load(epilogue, m, n, Batch(p.inner_batch));
    }
  }

  __device__ void store(const float* partial, int first_row, const GemvProblem<T>& p,
                        const Epilogue<T, float>& epilogue) {
    const int split = blockDim.y, n = first_row + row_, m_step = m_step_of(split);
    if (n >= p.n) return;
    const float* from = partial + from_;
    T* to = d_ + first_row * p.d.col_stride;
    for (int m = m_; m < p.m; m += m_step) {
      float total = from[0];
#pragma unroll
      for (int i = 1; i < most_split; i *= 2) {
        if (i == split) break;
#pragma unroll
        for (int j = i; j < 2 * i; j++) total += from[j * VALUES];
      }
      if (p.plain) {
        *to = T(total);
      } else {
        *to = added_[0].finish(total, epilogue);
#pragma unroll
        for (int i = 1; i < AHEAD; i++) added_[i - 1] = added_[i];
        const int later = m + AHEAD * m_step;
        if (most_sums > AHEAD && later < p.m) added_[AHEAD - 1].load(epilogue, later, n, Batch(p.inner_batch));
      }
      from += m_step * STRIDE, to += m_step * p.d.row_stride;
    }
  }

 private:
  static constexpr int most_split = 16;  // a power of two, like every split
  static_assert(lanes % ROWS == 0);
  __device__ static int m_step_of(int split) { return lanes / ROWS * split; }
  static constexpr int most_sums = (M + lanes / ROWS - 1) / (lanes / ROWS);  // of a thread and a tile
  T* d_;
  int from_, row_, m_;
  Added<T> added_[AHEAD];
};

}  // namespace
}  // namespace tilegemm
