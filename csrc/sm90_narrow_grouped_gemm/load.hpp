// The warps that load: a thread codes, a warp factors and zeros, and two warps rows of A, which tell the warps that
// multiply one tile after the other. Each goes through the list by itself.
#pragma once
#include "narrow/factors.hpp"
#include "narrow/multiply.hpp"
#include "sm90_narrow_grouped_gemm/shape.hpp"

namespace tilegemm {
namespace {

// Calls use(tile) for each tile of the block.
template <class List, class Use>
__device__ __forceinline__ void each_tile(List& list, const Use& use) {
  for (int u = blockIdx.x; u < list.total(); u += gridDim.x) use(list.tile(u));
}

template <class S>
__device__ __forceinline__ int first_row_of_w(const Problem& p, int n_tile) {
  return narrow::first_row_of_tile<S>(n_tile * S::height, int(p.args.n));
}

// Stages of codes of a tile.
template <class S>
__device__ __forceinline__ int stages_of(const Problem& p) {
  return (p.batches + S::batches - 1) / S::batches;
}

// The thread that loads codes, with the group as a coordinate.
template <class S>
__device__ __forceinline__ void load_codes(const CUtensorMap& w_map, const Problem& p, const narrow::Rings& rings,
                                           typename S::List& list) {
  const int stages = stages_of<S>(p);
  // Groups of few rows have one tile of them.
  const uint64_t policy = S::width <= 32 ? evict_first : evict_normal;
  Stage w = Stage::to_fill();
  each_tile(list, [&](const GroupedTile& tile) {
    const int n0 = first_row_of_w<S>(p, tile.n);
#pragma unroll 1
    for (int stage = 0; stage < stages; stage++) {
      const uint32_t barrier = w.acquire(rings.w_full, rings.w_empty, S::w_bytes);
#pragma unroll
      for (int i = 0; i < S::k_parts; i++)
        tma_load(&w_map, rings.w + w.s * S::w_bytes + i * S::w_box_bytes, barrier,
                 (stage * S::k_parts + i) * narrow::w_row, n0, tile.group, policy);
      w.advance(S::w_stages);
    }
  });
  launch_dependents();
}

// The warp that copies factors and zeros.
template <class S>
__device__ __forceinline__ void load_factors(const Problem& p, const narrow::Rings& rings, typename S::List& list,
                                             int lane) {
  const narrow::FactorCopier<S, Problem> copier(p, rings.factors, lane);
  const tg_scale& scale = p.args.b_scale;
  Stage f = Stage::to_fill();
  each_tile(list, [&](const GroupedTile& tile) {
    const int64_t first = tile.group * scale.batch_stride[1];
    tg_scale of_group = scale;
    if (scale.ptr) of_group.ptr = static_cast<const uint8_t*>(scale.ptr) + first * p.factor_bytes;
    if (scale.zeros) of_group.zeros = scale.zeros + first;
    copier.run(of_group, first_row_of_w<S>(p, tile.n), 0, stages_of<S>(p), f, rings.w_full, rings.w_empty);
  });
}

// The thread's side of the ring of rows of A. A stage is full when its copies have ended, some stages later: the thread
// that wrote tells wgmma, which reads by another way (fence_proxy_async), so the warps that multiply need not.
template <class S>
class FullStages {
  uint32_t full_;
  int s_ = 0, open_ = 0;

  __device__ __forceinline__ void arrive() {
    mbarrier_arrive(full_ + 8 * s_);
    if (++s_ == S::x_stages) s_ = 0;
  }

 public:
  // Stages whose copies may be under way behind those of the latest.
  static constexpr int behind = S::x_stages < 6 ? S::x_stages - 2 : 4;
  static_assert(behind >= 1);
  __device__ explicit FullStages(uint32_t full) : full_(full) {}

  // The copies of a stage have begun.
  __device__ __forceinline__ void add() {
    copy_async_commit();
    if (open_ < behind) {
      open_++;
      return;
    }
    copy_async_wait<behind>();
    fence_proxy_async();
    arrive();
  }
  __device__ __forceinline__ void end() {
    copy_async_wait<0>();
    fence_proxy_async();
    for (; open_ > 0; open_--) arrive();
  }
};

// Copies 16 bytes where `exists`, without a branch.
__device__ __forceinline__ void copy_16_if(bool exists, uint32_t to, const void* from) {
  asm volatile("{\n .reg .pred p;\n setp.ne.b32 p, %2, 0;\n @p cp.async.cg.shared.global [%0], [%1], 16;\n}" ::"r"(to),
               "l"(from), "r"(int(exists))
               : "memory");
}

// The warps that copy rows of A. Eight threads copy a row of a batch to where
// TMA's 128-byte swizzle would put it: piece i of 16 bytes of row r lies at place i ^ r % 8.
template <class S>
__device__ __forceinline__ void load_rows(const Problem& p, const narrow::Rings& rings, const PlaceBarriers& barriers,
                                          typename S::Places* places, typename S::List& list, int thread) {
  constexpr int at_once = of_gather / 8, of_thread = S::width / at_once;
  const int piece = thread % 8, row0 = thread / 8;
  const uint32_t to_thread = rings.x + row0 * 128 + ((piece ^ row0) << 4);
  Stage x = Stage::to_fill(), at = Stage::to_fill();
  FullStages<S> full(rings.x_full);
  each_tile(list, [&](const GroupedTile& tile) {
    at.wait(barriers.used);
    typename S::Places& to = places[at.s];
    if (thread == 0) to.group = tile.group, to.n = tile.n, to.height = tile.height;
    for (int i = thread; i < S::width; i += of_gather) {
      const int64_t row = i < tile.height ? p.rows.row_of_d(tile.first + i) : -1;
      to.rows[i] = int(row);
      const int64_t from = row < 0 ? 0 : p.pairs_per_row.quotient(int(row)) * p.a_stride;
      to.from[i % at_once][i / at_once] = uint32_t(from / 16);
      to.scales[i] = row < 0 ? 0.0f : p.rows.scale_of(row);
    }
    mbarrier_arrive(barriers.known + 8 * at.s);
    bar_sync(gather_barrier, of_gather);
    uint32_t from[of_thread];
#pragma unroll
    for (int i = 0; i < of_thread; i++) from[i] = to.from[row0][i];
    // A batch of all rows. wgmma reads eight rows at a time, and what it makes of those behind the last is not stored.
    const auto copy = [&](int box, int number) {
      const int k = number * narrow::batch + piece * 8, end = int(p.args.k);
      const uint8_t* a = p.a + 2 * k;
      asm volatile("" : "+l"(a));  // one addition for each address
      const uint32_t there = to_thread + x.s * S::x_bytes + box * S::x_box_bytes;
      if ((number + 1) * narrow::batch > end) {
        const int bytes = 2 * max(0, min(end - k, 8));
#pragma unroll
        for (int i = 0; i < of_thread; i++) {
          if (at_once * i < tile.height)
            copy_async_16(there + at_once * i * 128, a + uint64_t(from[i]) * 16, bytes, evict_normal);
        }
        return;
      }
      // A branch for four copies: with one for each, the copies took as long as the products.
#pragma unroll
      for (int i = 0; i < of_thread; i++) {
        if (i % 4 == 0 && at_once * i >= tile.height) break;
        copy_16_if(at_once * i < tile.height, there + at_once * i * 128, a + uint64_t(from[i]) * 16);
      }
    };
#pragma unroll 1
    for (int b = 0; b < p.batches; b += S::batches) {
#pragma unroll 1
      for (int i = 0; i < min(S::own_batches, p.batches - b); i += S::x_own) {
        x.wait(rings.x_empty);
#pragma unroll
        for (int part = 0; part < S::k_parts; part++) {
#pragma unroll
          for (int j = 0; j < S::x_own; j++) {
            const int of_stage = part * S::own_batches + i + j;
            if (b + of_stage < p.batches) copy(part * S::x_own + j, b + of_stage);
          }
        }
        full.add();
        x.advance(S::x_stages);
      }
    }
    at.advance(2);
    // Nobody ends the tile before while stages of it are open.
    if (p.batches < full.behind * S::batches) full.end();
  });
  full.end();
  at.wait(barriers.used);
  if (thread == 0) places[at.s].height = 0;
  mbarrier_arrive(barriers.known + 8 * at.s);
}

}  // namespace
}  // namespace tilegemm
