// The kernel for many rows of X: tiles of 128 rows of X, wgmma's M side, by up to `WIDTH` rows of W, its N side.
//
// Two warp groups multiply 64 rows each, two warps load: one the tiles, by TMA, and one the factors of blocks. Blocks
// stay, and march over the tiles. Where tiles are few, two blocks of a cluster take half of K each; then block r stores
// the rows of warp group r, and receives these rows' sums from the other block.
//
// Promoted sums need registers twice: for the sums, and for the products of 128 of K. A warp group multiplies half of a
// wide tile at a time; while it adds the products to the sums, the other warp group has the tensor cores. Registers
// hold the products of a tile of up to 128 columns twice, so that a warp group adds while its next products are under
// way.
#pragma once
#include <algorithm>

#include "common/launch.hpp"
#include "common/pipeline.hpp"
#include "common/tile_order.hpp"
#include "fp8/wgmma.hpp"
#include "sm90_fp8_gemm/store.hpp"

namespace tilegemm {
namespace {

// `SPLITS`: whether two blocks take half of K each.
template <class Row, int Width, Sums SUMS, bool SPLITS>
struct Fp8Gemm {
  using Element = typename scalar<Row::dtype>::type;
  using Out = typename scalar<Row::out>::type;
  using Acc = wgmma_sum<Element>;
  static constexpr Sums sums = SUMS;
  static constexpr bool blocks = SUMS == Sums::blocks, splits = SPLITS;
  static_assert(std::is_same_v<Element, __nv_fp8_e4m3> || SUMS == Sums::whole);
  static constexpr int tile_m = 128, width = Width, depth = 128, cluster = SPLITS ? 2 : 1, consumer_warps = 8,
                       threads = 32 * (consumer_warps + 4);
  static_assert(Row::tile_m == tile_m && Width <= Row::tile_n && Row::tile_k == depth);
  static_assert(width % 16 == 0);
  static constexpr int x_bytes = tile_m * depth, w_bytes = width * depth, stage_bytes = x_bytes + w_bytes;
  // Columns that a warp group multiplies at a time.
  static constexpr int halves = SUMS != Sums::whole && width > 128 ? 2 : 1, at_once = width / halves;
  static constexpr int buffers = SUMS != Sums::whole && halves == 1 ? 2 : 1;  // of products

  static constexpr int w_factors = (width + factor_n - 2) / factor_n + 1;  // blocks that a tile has rows of, at most
  using Loader = FactorLoader<tile_m, w_factors, 1>;
  // Of a stage; or of the tile, once for each warp group.
  static constexpr int factor_bytes = blocks ? Loader::bytes : 4 * (64 + width);
  // A warp's patches: as many as find room beside the stages, two at least.
  static constexpr int of_patches = width == 224 ? 6144 : 4096, patches = of_patches / patch_of<width>,
                       patch_bytes = sizeof(Out) == 2 ? of_patches : 512;
  static constexpr int shared_per_block = 227 * 1024,
                       fixed = consumer_warps * patch_bytes + (blocks ? 0 : 2 * factor_bytes) + 8;
  static constexpr int stages =
      std::min(8, (shared_per_block - fixed) / (stage_bytes + (blocks ? factor_bytes : 0) + 16));
  static constexpr int patches_at = stages * stage_bytes, factors_at = patches_at + consumer_warps * patch_bytes,
                       barriers_at = factors_at + (blocks ? stages : 2) * factor_bytes,
                       shared_bytes = barriers_at + 16 * stages + 8;
  static_assert(stages >= 3 && shared_bytes <= shared_per_block && barriers_at % 8 == 0);
  static constexpr int inbox_bytes = 64 * width * 4;  // the sums of a warp group, in the ring
  static_assert(!splits || inbox_bytes <= patches_at);
  // Registers of a thread: 128 threads load, 256 multiply.
  static constexpr int of_loads = 40, of_products = 232;
};

struct Fp8GemmPlace {
  tg_matrix d;
  int m, n, k, w_blocks;     // w_blocks: blocks of W along N
  int x_box, w_box;          // rows of X and of W of a tile
  int prefetch;              // stages of W, to prefetch into L2 before the previous kernel ends
  TileOrder order;           // of the tiles that a cluster has at a time
  bool plain, wide, by_tma;  // the epilogue is the product alone; rows of D are aligned; TMA stores D
};

template <class C>
__global__ void __launch_bounds__(C::threads, 1)
    sm90_fp8_gemm(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap d_map, const __grid_constant__ Fp8GemmPlace p,
                  const __grid_constant__ Factors factors,
                  const __grid_constant__ Epilogue<typename C::Out, float> epilogue) {
  using Out = typename C::Out;
  using Acc = typename C::Acc;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), stage_factors = ring + C::factors_at;
  const uint32_t full = ring + C::barriers_at, empty = full + 8 * C::stages;
  const uint32_t arrived = empty + 8 * C::stages;  // barrier: the sums of the other part of K
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int rank = C::cluster > 1 ? int(cluster_rank()) : 0;
  const int first_tile = blockIdx.x / C::cluster, step = gridDim.x / C::cluster;
  const int k_blocks = (p.k + C::depth - 1) / C::depth;
  const int first = C::splits ? k_blocks * rank / 2 : 0,
            count = C::splits && rank == 0 ? k_blocks / 2 : k_blocks - first;

  if (warp == C::consumer_warps && lane == 0) {
    prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&x_map);
    prefetch_tensor_map(&d_map);
    init_ring(full, empty, C::stages, C::consumer_warps, C::blocks ? 33 : 1);
    mbarrier_init(arrived, 1);
    if (C::splits) mbarrier_arrive_expect(arrived, C::inbox_bytes);
    fence_mbarrier_init();
  }
  __syncwarp();
  if (C::cluster > 1) cluster_sync();
  else __syncthreads();

  if (warp >= C::consumer_warps) {
    setmaxnreg_dec<C::of_loads>();
    if (warp == C::consumer_warps && lane == 0) {
      if (first_tile < p.order.total) {
        const int n0 = p.order.at(first_tile).n * p.w_box;
        for (int i = 0; i < min(count, p.prefetch); i++) tma_prefetch_2(&w_map, (first + i) * C::depth, n0);
      }
      griddepcontrol_wait();
      const uint32_t bytes = (p.w_box + p.x_box) * C::depth;
      Stage at = Stage::to_fill();
      for (int t = first_tile; t < p.order.total; t += step) {
        const Tile tile = p.order.at(t);
        const int m0 = tile.m * p.x_box, n0 = tile.n * p.w_box;
        for (int i = 0; i < count; i++) {
          const uint32_t x = ring + at.s * C::stage_bytes, w = x + C::x_bytes;
          const uint32_t barrier = at.acquire(full, empty, bytes);
          const int k = (first + i) * C::depth;
          tma_load_2(&x_map, x, barrier, k, m0, evict_normal);
          tma_load_2(&w_map, w, barrier, k, n0, evict_normal);
          at.advance(C::stages);
        }
      }
      launch_dependents();
    }
    if (C::blocks && warp == C::consumer_warps + 1) {
      griddepcontrol_wait();
      Stage at = Stage::to_fill();
      for (int t = first_tile; t < p.order.total; t += step) {
        const Tile tile = p.order.at(t);
        const int m0 = tile.m * p.x_box, block = tile.n * p.w_box / factor_n;
        typename C::Loader loader(factors, m0, block, p.m - m0, p.w_blocks - block, first, lane);
        for (int i = 0; i < count; i++) {
          at.wait_warp(empty);
          loader.load(stage_factors + at.s * C::factor_bytes, 1, lane);
          mbarrier_arrive_after_copies(full + 8 * at.s);
          at.advance(C::stages);
        }
      }
      if (lane == 0) launch_dependents();
    }
    __syncwarp();
    if (C::splits) cluster_sync();
    if (C::cluster > 1) cluster_sync();
    return;
  }
  setmaxnreg_inc<C::of_products>();

  const int group = warp / 4, g = lane / 4, q = lane % 4, own_row = group * 64 + warp % 4 * 16;
  const uint32_t patch = ring + C::patches_at + warp * C::patch_bytes;
  const uint32_t own_factors = stage_factors + group * C::factor_bytes;
  const auto release = [&](int s) { release_stage(empty, s, lane, false, 1); };

  int patch_turn = 0;
  Stage at = Stage::to_read();
  for (int t = first_tile; t < p.order.total; t += step) {
    const Tile tile = p.order.at(t);
    const int m0 = tile.m * p.x_box, n0 = tile.n * p.w_box, m_end = min(m0 + p.x_box, p.m),
              n_end = min(n0 + p.w_box, p.n);

    griddepcontrol_wait();  // in the threads that read factors, C and the bias, and write D
    // Copies the factors of the group's rows of X, then of W, while the tile's first products are under way.
    const auto copy_factors = [&] {
      if constexpr (!C::blocks) {
        bar_sync(1 + group, 128);
        for (int i = threadIdx.x % 128; i < 64 + C::width; i += 128) {
          const bool of_x = i < 64;
          const int of = of_x ? m0 + group * 64 + i : n0 + i - 64;
          copy_factor(own_factors + 4 * i, of_x ? factors.x : factors.w, of * (of_x ? factors.x_m : factors.w_n),
                      of < (of_x ? m_end : n_end));
        }
        copy_async_commit();
      }
    };

    Acc sum[C::halves][C::at_once / 2];  // ((2,2,at_once/8),halves)
    if constexpr (C::sums == Sums::whole) {
      int before = 0;
#pragma unroll 1
      for (int i = 0; i < count; i++) {
        at.wait(full);
        const uint32_t x = ring + at.s * C::stage_bytes;
        pin_all(sum[0]);
        wgmma_fence();
        multiply_box<typename C::Element, C::width>(sum[0], x + group * (64 * 128), x + C::x_bytes, i > 0);
        wgmma_commit();
        if (i == 0) copy_factors();
        wgmma_wait_for<1>();
        pin_all(sum[0]);
        if (i > 0) release(before);
        before = at.s;
        at.advance(C::stages);
      }
      wgmma_commit_and_wait();
      pin_all(sum[0]);
      release(before);
    } else {
#pragma unroll
      for (int h = 0; h < C::halves; h++) wgmma_zero(sum[h]);
      float products[C::buffers][C::at_once / 2];  // ((2,2,at_once/8),buffers)
#pragma unroll
      for (int b = 0; b < C::buffers; b++) wgmma_zero(products[b]);
      const auto start = [&](float (&to)[C::at_once / 2], int s, int h) {
        const uint32_t x = ring + s * C::stage_bytes;
        pin_all(to);
        wgmma_fence();
        multiply_box<typename C::Element, C::at_once>(to, x + group * (64 * 128),
                                                      x + C::x_bytes + h * (C::at_once * 128), 0);
        wgmma_commit();
      };
      // The factors of a stage are loaded before its products start: a load would wait behind the products of both warp
      // groups, which take all that shared memory gives. They are multiplied behind the start, which would wait for the
      // loads.
      [[maybe_unused]] float of_x[2], of_w[C::w_factors];
      const auto load_factors = [&](int s) {
        if constexpr (C::blocks) {
          const uint32_t f = stage_factors + s * C::factor_bytes;
          of_x[0] = load_shared_f(f + (own_row + g) * 4), of_x[1] = load_shared_f(f + (own_row + g + 8) * 4);
#pragma unroll
          for (int b = 0; b < C::w_factors; b++) of_w[b] = load_shared_f(f + (C::tile_m + b) * 4);
        }
      };
      const auto multiply_factors = [&](float (&of)[C::w_factors][2]) {  // of the lane's rows, by block of W
        if constexpr (C::blocks) {
          pin_all(of_x);
#pragma unroll
          for (int b = 0; b < C::w_factors; b++) of[b][0] = of_x[0] * of_w[b], of[b][1] = of_x[1] * of_w[b];
        }
      };
      // `block(column)`: the block of W of sixteen columns of the tile.
      const auto add = [&](float (&to)[C::at_once / 2], const float (&from)[C::at_once / 2],
                           const float (&of)[C::w_factors][2], const auto& block, int h) {
#pragma unroll
        for (int j = 0; j < C::at_once / 8; j++) {
          if constexpr (C::blocks) {
            const int b = block((h * C::at_once + 8 * j) / 16 * 16);
            const float by[2] = {b == 0   ? of[0][0]
                                 : b == 1 ? of[1][0]
                                          : of[C::w_factors - 1][0],
                                 b == 0   ? of[0][1]
                                 : b == 1 ? of[1][1]
                                          : of[C::w_factors - 1][1]};
#pragma unroll
            for (int e = 0; e < 4; e++) to[4 * j + e] = fmaf(from[4 * j + e], by[e / 2], to[4 * j + e]);
          } else {
#pragma unroll
            for (int e = 0; e < 4; e++) to[4 * j + e] += from[4 * j + e];
          }
        }
      };
      const auto multiply = [&](const auto& block) {
        float of[C::buffers][C::w_factors][2];
        if constexpr (C::buffers == 1) {
#pragma unroll 1
          for (int i = 0; i < count; i++) {
            at.wait(full);
            load_factors(at.s);
#pragma unroll
            for (int h = 0; h < C::halves; h++) {
              start(products[0], at.s, h);
              if (h == 0) multiply_factors(of[0]);
              if (h == 0 && i == 0) copy_factors();
              wgmma_wait();
              pin_all(products[0]);
              if (h == C::halves - 1) release(at.s);
              add(sum[h], products[0], of[0], block, h);
            }
            at.advance(C::stages);
          }
        } else {
          // Starts the products of a stage in buffer b, and adds the products before.
          int before = at.s;
          const auto both = [&](auto b) {
            at.wait(full);
            load_factors(at.s);
            start(products[b], at.s, 0);
            multiply_factors(of[b]);
            wgmma_wait_for<1>();
            pin_all(products[1 - b]);
            release(before);
            add(sum[0], products[1 - b], of[1 - b], block, 0);
            before = at.s;
            at.advance(C::stages);
          };
          const auto finish = [&](auto b) {
            wgmma_wait();
            pin_all(products[b]);
            release(before);
            add(sum[0], products[b], of[b], block, 0);
          };
          constexpr std::integral_constant<int, 0> first_buffer{};
          constexpr std::integral_constant<int, 1> second_buffer{};
          at.wait(full);
          load_factors(at.s);
          start(products[0], at.s, 0);
          multiply_factors(of[0]);
          copy_factors();
          at.advance(C::stages);
          int i = 1;
#pragma unroll 1
          for (; i + 1 < count; i += 2) both(second_buffer), both(first_buffer);
          if (i < count) {
            both(second_buffer);
            finish(second_buffer);
          } else {
            finish(first_buffer);
          }
        }
      };
      // The compiler knows where blocks of W begin in a tile, except in the narrowest tiles, which seldom have rows of
      // two blocks. To select factors by column costs 19 %.
      const int offset = C::blocks ? n0 % factor_n : 0;
      if constexpr (!C::blocks || C::width % factor_n == 0) {
        multiply([](int column) { return column / factor_n; });
      } else if constexpr (C::width < factor_n) {
        if (offset + p.w_box <= factor_n) multiply([](int) { return 0; });
        else multiply([&](int column) { return offset + column >= factor_n ? 1 : 0; });
      } else {
        const auto from = [&](auto at) {
          constexpr int known = decltype(at)::value;
          if (offset == known) multiply([](int column) { return (known + column) / factor_n; });
        };
        from(std::integral_constant<int, 0>{}), from(std::integral_constant<int, 32>{});
        from(std::integral_constant<int, 64>{}), from(std::integral_constant<int, 96>{});
      }
    }
    if constexpr (!C::blocks) {
      copy_async_wait<0>();
      bar_sync(1 + group, 128);
    }

    if constexpr (C::splits) {
      cluster_sync();  // no warp reads the rings any more
      const auto four = [&](int j) { return &sum[j / (C::at_once / 8)][j % (C::at_once / 8) * 4]; };
      if (group != rank) {
        const uint32_t to = map_shared(ring + threadIdx.x % 128 * 16, 1 - rank),
                       barrier = map_shared(arrived, 1 - rank);
#pragma unroll
        for (int j = 0; j < C::width / 8; j++) {
          float4 bits;
          memcpy(&bits, four(j), sizeof bits);
          store_async(to + j * (128 * 16), barrier, bits);
        }
        break;
      }
      mbarrier_wait(arrived, 0);
#pragma unroll
      for (int j = 0; j < C::width / 8; j++) {
        const float4 bits = reinterpret_cast<const float4*>(shared)[j * 128 + threadIdx.x % 128];
        Acc v[4];
        memcpy(v, &bits, sizeof bits);
#pragma unroll
        for (int e = 0; e < 4; e++) four(j)[e] += v[e];
      }
    }

    const RowsOfD rows{p.d, m_end, n_end, p.wide};
    const int own_m0 = m0 + own_row;
    if (own_m0 >= m_end) continue;
    // Fragment j: 16 rows, and columns 8 j to 8 j + 7.
    const auto scaled = [&](int j, float by) {
      const Acc* const v = &sum[j / (C::at_once / 8)][j % (C::at_once / 8) * 4];
      return make_float4(float(v[0]) * by, float(v[1]) * by, float(v[2]) * by, float(v[3]) * by);
    };
    const auto put_boxes = [&](const auto& get) {
      store_boxes<Out, C::width, C::patches>(get, patch, patch_turn, own_m0, n0, p.w_box, lane, &d_map);
    };
    const auto put = [&](const auto& get) {
      if (p.plain) store_rows<Out, C::width>(get, patch, own_m0, n0, lane, rows);
      else finish_rows<Out, C::width>(get, patch, own_m0, n0, lane, rows, epilogue);
    };
    if constexpr (C::blocks) {
      const auto get = [&](int j) { return scaled(j, 1.0f); };
      if constexpr (sizeof(Out) == 2) {
        if (p.by_tma) {
          put_boxes(get);
          continue;
        }
      }
      put(get);
    } else {
      const uint32_t f = own_factors + (own_row - group * 64 + g) * 4;
      const float of_x[2] = {load_shared_f(f), load_shared_f(f + 32)};
      const auto get = [&](int j) {
        const float2 of_w = load_shared_2(own_factors + 4 * (64 + 8 * j + 2 * q));
        float4 v = scaled(j, 1.0f);
        v.x *= of_w.x * of_x[0], v.y *= of_w.y * of_x[0], v.z *= of_w.x * of_x[1], v.w *= of_w.y * of_x[1];
        return v;
      };
      if constexpr (sizeof(Out) == 2) {
        if (p.by_tma) {
          if (factors.x_m == 0 && factors.w_n == 0) {  // one factor each
            const float by = of_x[0] * load_shared_f(own_factors + 4 * 64);
            put_boxes([&](int j) { return scaled(j, by); });
          } else {
            put_boxes(get);
          }
          continue;
        }
      }
      put(get);
    }
  }
  if (lane == 0) tma_store_wait_read<0>();
  __syncwarp();
  if (C::cluster > 1) cluster_sync();
}

}  // namespace
}  // namespace tilegemm
