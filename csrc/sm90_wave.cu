// Hopper, some 65 to 512 rows of A: D = A @ B with K contiguous in both, in one wave of the tensor cores.
//
// At these sizes the columns of B, called W's rows here, are still what costs, and a handful of tiles decides: 132
// multiprocessors want 132 tiles or a little fewer. So widths are chosen to divide what models have, and not powers of two.
//
//     rows of A  |  tile 0  |  tile 1  |       two tiles of A share each load of W (multicast to a cluster of two),
//        K       |  part 0 : part 1    |       or the blocks of a cluster take half of K each
//
// A producer thread keeps a ring of TMA loads full; two or three warp groups multiply, and let go of a stage when the next
// is under way. Parts of K meet in distributed shared memory, each block finishing half of the columns: no workspace, the
// same bits every time. Where few rows leave wgmma's M side half empty, the operands trade places.
//
// Rows that TMA finds outside of a tensor cost it 2 ns each, so nothing is loaded that is not there: tiles of A are as high
// as M divided by their number, and the last tile of W moves back to end with N.
#include <algorithm>
#include <climits>
#include <cstring>

#include "epilogue.hpp"
#include "kernel.hpp"
#include "ptx.hpp"
#include "sm90.hpp"
#include "wgmma.hpp"

namespace tilegemm {
namespace {

// One shape of tile. P is wgmma's M side, Q its N side: A and W, or exchanged W and A. `Share`: tiles of A in a cluster.
template <class T, bool Exchange, int WarpGroups, int Width, int Depth, int Share, int Split>
struct Config {
  using Element = T;
  static constexpr bool exchange = Exchange;
  static constexpr int width = Width, depth = Depth, share = Share, split = Split, cluster = share * split;
  static constexpr int p_rows = 64 * WarpGroups, q_rows = width;
  static constexpr int a_rows = exchange ? q_rows : p_rows, w_rows = exchange ? p_rows : q_rows;
  static constexpr int w_slice = w_rows / share;  // what a block loads of the W that it shares
  static constexpr int box = 128 / int(sizeof(T)), boxes = depth / box;  // of K, in one swizzled row
  static constexpr int w_bytes = boxes * w_rows * 128, stage_bytes = w_bytes + boxes * a_rows * 128;
  static_assert(sizeof(T) == 2 && depth % box == 0 && w_slice % 8 == 0 && split <= 2 && share <= 2);
  static_assert(!exchange || (WarpGroups == 1 && share == 1));

  static constexpr int consumer_warps = 4 * WarpGroups, threads = 32 * (consumer_warps + 1);

  // A fragment is what a warp holds of 16 rows of P and 8 of Q: a float4 per lane. Of the parts of K, block r finishes
  // the fragments first_column(r) to first_column(r + 1); those of the other come into its inbox.
  static constexpr int columns = q_rows / 8, owned = (columns + split - 1) / split, fragment_bytes = 32 * 16;
  __host__ __device__ static constexpr int first_column(int r) { return columns * r / split; }
  static constexpr int parts_bytes = (split - 1) * consumer_warps * owned * fragment_bytes;
  // A large inbox takes the place of the ring, at the price of a barrier of the cluster.
  static constexpr bool inbox_in_ring = parts_bytes > 20000;
  static constexpr int inbox_bytes = inbox_in_ring ? 0 : parts_bytes;
  // Neighbouring fragments that are stored at a time, 16 bytes by each lane.
  static constexpr int group = exchange ? 2 : 4;

  static constexpr int most_stages = 16, barriers_bytes = 8 * (2 * most_stages + 1);
  static constexpr int shared_per_block(int residents) { return 228 * 1024 / residents - 1024; }  // CUDA takes a KiB
  static constexpr int stages(int residents) {
    return std::min(most_stages, (shared_per_block(residents) - barriers_bytes - inbox_bytes) / stage_bytes);
  }
  // Blocks of exchanged tiles may be small enough for two to share a multiprocessor, where there are that many.
  static constexpr int most_residents = exchange && stages(2) >= 3 ? 2 : 1;
  static_assert(stages(most_residents) >= 3);
  static_assert(consumer_warps * columns * fragment_bytes <= 3 * stage_bytes);  // an epilogue's loop goes over the ring
};

struct Place {
  tg_matrix d;
  int m, n, k, batch1;
  int a_box;             // rows of a tile of A
  int m_groups, groups;  // clusters along M, and in all
  int stages, prefetch;  // of the ring; of W, to go to L2 before the kernel before this one ends
  bool wide;     // rows of D are aligned to 16 bytes
  bool plain;    // the product is all there is to do
};

// The part of D that a warp stores: rows of P from p0, of Q from q0. What is left of n_from is another tile's.
template <class T>
struct Part {
  T* d;
  int64_t stride;
  int p0, q0, m_end, n_from, n;
  bool wide;
};

template <class T>
__device__ __forceinline__ uint32_t pack(float x, float y) {
  const T both[2] = {T(x), T(y)};
  uint32_t word;
  memcpy(&word, both, 4);
  return word;
}

// v[b] of lane q of a quad goes to v[q] of lane b.
__device__ __forceinline__ void quad_transpose(uint32_t (&v)[4], int q) {
  const bool odd = q & 1, high = q & 2;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t got = __shfl_xor_sync(~0u, odd ? v[i] : v[i + 1], 1);
    v[i] = odd ? got : v[i], v[i + 1] = odd ? v[i + 1] : got;
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint32_t got = __shfl_xor_sync(~0u, high ? v[i] : v[i + 2], 2);
    v[i] = high ? got : v[i], v[i + 2] = high ? v[i + 2] : got;
  }
}

// Eight numbers of a row of D, as far as it goes.
template <class T>
__device__ __forceinline__ void put(T* to, const uint32_t (&v)[4], bool wide, int left) {
  if (wide && left >= 8) {
    *reinterpret_cast<uint4*>(to) = make_uint4(v[0], v[1], v[2], v[3]);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const uint16_t bits = uint16_t(v[i / 2] >> (16 * (i % 2)));
    if (i < left) memcpy(to + i, &bits, 2);
  }
}

// Fragments j to j + count, count <= C::group, to D. For whole warps.
template <class C>
__device__ __forceinline__ void store(const float4 (&v)[C::group], int count, int j,
                                      const Part<typename C::Element>& part) {
  using T = typename C::Element;
  const int lane = threadIdx.x % 32, q = lane % 4;
  if constexpr (C::exchange) {
    uint32_t words[4] = {movmatrix(pack<T>(v[0].x, v[0].y)), movmatrix(pack<T>(v[0].z, v[0].w)),
                         movmatrix(pack<T>(v[1].x, v[1].y)), movmatrix(pack<T>(v[1].z, v[1].w))};
    quad_transpose(words, q);
    const int row = part.q0 + 8 * (j + q / 2) + lane / 4, column = part.p0 + 8 * (q % 2);
    if (q / 2 < count && row < part.m_end && column >= part.n_from && column < part.n) {
      put(part.d + row * part.stride + column, words, part.wide, part.n - column);
    }
  } else {
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; i++) low[i] = pack<T>(v[i].x, v[i].y), high[i] = pack<T>(v[i].z, v[i].w);
    quad_transpose(low, q);
    quad_transpose(high, q);
    const int row = part.p0 + lane / 4, column = part.q0 + 8 * (j + q);
    if (q < count && column >= part.n_from && column < part.n) {
      T* const to = part.d + row * part.stride + column;
      if (row < part.m_end) put(to, low, part.wide, part.n - column);
      if (row + 8 < part.m_end) put(to + 8 * part.stride, high, part.wide, part.n - column);
    }
  }
}

// Whether anything of fragments j and further is in D, whatever the lane.
template <class C>
__device__ __forceinline__ bool reaches(int j, const Part<typename C::Element>& part) {
  return (C::exchange ? part.q0 + 8 * j : part.p0) < part.m_end;
}

// Fragments from to end - 1, get(j) each, to D.
template <class C, int from, int end, class Get>
__device__ __forceinline__ void store_all(const Get& get, const Part<typename C::Element>& part) {
#pragma unroll
  for (int j = from; j < end; j += C::group) {
    if (!reaches<C>(j, part)) break;
    float4 v[C::group];
#pragma unroll
    for (int i = 0; i < C::group; i++) v[i] = j + i < end ? get(j + i < end ? j + i : from) : make_float4(0, 0, 0, 0);
    store<C>(v, end - j < C::group ? end - j : C::group, j, part);
  }
}

// Fragments from to end - 1 through the epilogue to D, out of shared memory: a loop, since unrolled over the registers it
// would be too large.
template <class C>
__device__ __forceinline__ void finish_all(const float4* parked, int from, int end, const Part<typename C::Element>& part,
                                           const Epilogue<typename C::Element, float>& epilogue, int batch0, int batch1) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int j = from; j < end && reaches<C>(j, part); j += C::group) {
    float x[4 * C::group];
    int m[4 * C::group], n[4 * C::group];
    bool inside[4 * C::group];
#pragma unroll
    for (int e = 0; e < 4 * C::group; e++) {
      const int i = e / 4, p = part.p0 + lane / 4 + (e % 4 / 2) * 8, q = part.q0 + 8 * (j + i) + lane % 4 * 2 + e % 2;
      m[e] = C::exchange ? q : p, n[e] = C::exchange ? p : q;
      inside[e] = j + i < end && m[e] < part.m_end && n[e] >= part.n_from && n[e] < part.n;
    }
#pragma unroll
    for (int i = 0; i < C::group; i++) {
      const float4 v = j + i < end ? parked[(j + i - from) * 32] : make_float4(0, 0, 0, 0);
      x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
    }
    epilogue.each(x, m, n, inside, batch0, batch1);
    float4 v[C::group];
#pragma unroll
    for (int i = 0; i < C::group; i++) v[i] = make_float4(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
    store<C>(v, min(end - j, C::group), j, part);
  }
}

// Clusters march over the tiles of D where there are more than fit, which only bare products of an unsplit K do: the loads
// of the next tile are under way while this one is stored.
template <class C>
__global__ void __launch_bounds__(C::threads, C::most_residents)
    wave(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap a_map,
         const __grid_constant__ Place p, const __grid_constant__ Epilogue<typename C::Element, float> epilogue) {
  using T = typename C::Element;
  extern __shared__ __align__(1024) uint8_t shared[];
  const int stages = p.stages;
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)), ring_bytes = stages * C::stage_bytes;
  const uint32_t inbox = ring + (C::inbox_in_ring ? 0 : ring_bytes);
  const uint32_t full = ring + ring_bytes + C::inbox_bytes, empty = full + 8 * stages;
  const uint32_t arrived = empty + 8 * stages;  // the other part of our fragments

  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  const int rank = C::cluster > 1 ? int(cluster_rank()) : 0, a_at = rank % C::share, part = rank / C::share;
  const int leader = part * C::share;  // the first of the blocks that share W
  const int batch = blockIdx.y, batch0 = gridDim.y == 1 ? 0 : batch / p.batch1, batch1 = batch - batch0 * p.batch1;
  const int k_tiles = (p.k + C::depth - 1) / C::depth;
  const int first = k_tiles * part / C::split, count = k_tiles * (part + 1) / C::split - first;
  const int group0 = blockIdx.x / C::cluster, step = gridDim.x / C::cluster;
  // Along M first: tiles of one W run at the same time.
  const auto m0_of = [&](int group) { return (group % p.m_groups * C::share + a_at) * p.a_box; };
  const auto from_of = [&](int group) { return group / p.m_groups * C::w_rows; };
  // The last tile of W ends with N, as far as whole 16 bytes of D go.
  const int last_n0 = (max(p.n - C::w_rows, 0) + 7) / 8 * 8;
  const auto n0_of = [&](int group) { return min(from_of(group), last_n0); };

  if (warp == C::consumer_warps) {
    if (lane == 0) {
      prefetch_tensor_map(&w_map);
      prefetch_tensor_map(&a_map);
      for (int s = 0; s < stages; s++) {
        mbarrier_init(full + 8 * s, 1);
        mbarrier_init(empty + 8 * s, C::consumer_warps * C::share);
      }
      mbarrier_init(arrived, 1);
      if (C::split > 1) {
        const int fragments = C::consumer_warps * (C::first_column(part + 1) - C::first_column(part));
        mbarrier_arrive_expect(arrived, fragments * C::fragment_bytes);
      }
      fence_mbarrier_init();
    }
    __syncwarp();
    // Without a cluster its barrier is that of the block, where nobody arrives without waiting.
    if (C::cluster > 1) cluster_arrive_relaxed();
    else __syncthreads();
    if (lane == 0) {
      const int row = n0_of(group0) + a_at * C::w_slice;
      for (int i = 0; i < min(count, p.prefetch); i++) {
#pragma unroll
        for (int j = 0; j < C::boxes; j++) tma_prefetch(&w_map, (first + i) * C::depth + j * C::box, row, batch);
      }
    }
    __syncwarp();
    if (C::share > 1) cluster_wait();  // the barriers of the other block, whose loads come here, too
    if (lane == 0) {
      griddepcontrol_wait();
      [[maybe_unused]] const uint16_t sharing = uint16_t(((1 << C::share) - 1) << leader);
      const uint64_t w_policy = p.m_groups > 1 ? evict_normal : evict_first;
      const uint32_t bytes = C::w_bytes + C::boxes * p.a_box * 128;
      int s = 0, parity = 1, done = 0;
      for (int group = group0; group < p.groups; group += step) {
        const int m0 = m0_of(group), n0 = n0_of(group) + a_at * C::w_slice;
        for (int i = 0; i < count; i++, done++) {
          if (done >= stages) mbarrier_wait(empty + 8 * s, parity);
          const uint32_t w = ring + s * C::stage_bytes, a = w + C::w_bytes, barrier = full + 8 * s;
          mbarrier_arrive_expect(barrier, bytes);
#pragma unroll
          for (int j = 0; j < C::boxes; j++) {
            const int k = (first + i) * C::depth + j * C::box;
            const uint32_t to = w + (j * C::w_rows + a_at * C::w_slice) * 128;
            if constexpr (C::share > 1) tma_load_multicast(&w_map, to, barrier, k, n0, batch, w_policy, sharing);
            else tma_load(&w_map, to, barrier, k, n0, batch, w_policy);
            tma_load(&a_map, a + j * C::a_rows * 128, barrier, k, m0, batch, evict_last);
          }
          if (++s == stages) s = 0, parity ^= 1;
        }
      }
      launch_dependents();  // earlier, the next kernel would take a share of the multiprocessors from this one
    }
    __syncwarp();
    if (C::share == 1 && C::cluster > 1) cluster_wait();
    if (C::share > 1 || C::inbox_in_ring) {
      cluster_arrive();
      cluster_wait();
    }
    return;
  }

  if (C::cluster > 1) {
    cluster_arrive_relaxed();
    cluster_wait();
  } else {
    __syncthreads();
  }
  // Lane t tells the t-th block of those that share W that a stage is free.
  const uint32_t empty_there = C::share > 1 && lane < C::share ? map_shared(empty, leader + lane) : empty;
  const auto release = [&](int s) {
    if constexpr (C::share > 1) {
      if (lane < C::share) mbarrier_arrive_cluster(empty_there + 8 * s);
    } else {
      if (lane == 0) mbarrier_arrive(empty + 8 * s);
    }
  };

  T* const d = static_cast<T*>(p.d.ptr) + batch0 * p.d.batch_stride[0] + batch1 * p.d.batch_stride[1];
  // Stages to give back. Nobody waits for the last ones, and the other block may be gone.
  int left = (p.groups - group0 + step - 1) / step * count - stages;
  int s = 0, parity = 0;
  for (int group = group0; group < p.groups; group += step) {
    float sum[C::width / 2] = {};
    int before = 0;
    for (int i = 0; i < count; i++) {
      mbarrier_wait(full + 8 * s, parity);
      const uint32_t w = ring + s * C::stage_bytes, a = w + C::w_bytes;
      const uint32_t p_side = (C::exchange ? w : a) + warp / 4 * (64 * 128), q_side = C::exchange ? a : w;
      wgmma_pin(sum);
      wgmma_fence();
#pragma unroll
      for (int j = 0; j < C::depth / 16; j++) {
        constexpr int per_box = C::box / 16;
        wgmma<T, C::width>(sum, wgmma_descriptor(p_side + j / per_box * (C::p_rows * 128) + j % per_box * 32),
                           wgmma_descriptor(q_side + j / per_box * (C::q_rows * 128) + j % per_box * 32));
      }
      wgmma_commit_and_wait<1>();
      wgmma_pin(sum);
      if (i > 0 && left-- > 0) release(before);
      before = s;
      if (++s == stages) s = 0, parity ^= 1;
    }
    wgmma_commit_and_wait();
    wgmma_pin(sum);
    if (count > 0 && left-- > 0) release(before);
    if (C::share > 1 && !C::inbox_in_ring && group + step >= p.groups) cluster_arrive();

    griddepcontrol_wait();  // of the threads that read C and the bias and write D
    const auto own = [&](int j) { return make_float4(sum[4 * j], sum[4 * j + 1], sum[4 * j + 2], sum[4 * j + 3]); };
    const int m0 = m0_of(group), n0 = n0_of(group), p_at = warp / 4 * 64 + warp % 4 * 16;
    const Part<T> to{d, p.d.row_stride, p_at + (C::exchange ? n0 : m0), C::exchange ? m0 : n0, min(m0 + p.a_box, p.m),
                     from_of(group), p.n, p.wide};
    if constexpr (C::split == 1) {
      if (p.plain) {
        store_all<C, 0, C::columns>(own, to);
        continue;
      }
      asm volatile("bar.sync 1, %0;" ::"n"(32 * C::consumer_warps) : "memory");  // nobody reads the ring any more
      float4* const parked = reinterpret_cast<float4*>(shared) + warp * C::columns * 32 + lane;
#pragma unroll
      for (int j = 0; j < C::columns; j++) parked[j * 32] = own(j);
      finish_all<C>(parked, 0, C::columns, to, epilogue, batch0, batch1);
    } else {
      if (C::inbox_in_ring) {
        cluster_arrive();
        cluster_wait();
      }
      const uint32_t other = (1 - part) * C::share + a_at;  // the same tile, the other part of K
      const uint32_t slot = warp * C::owned * C::fragment_bytes + lane * 16;
      float4* const received = reinterpret_cast<float4*>(shared + (inbox - ring) + slot);
      const uint32_t there = map_shared(inbox + slot, other), barrier = map_shared(arrived, other);
      const auto meet = [&](auto mine, auto theirs) {
        constexpr int from = C::first_column(mine), end = C::first_column(mine + 1), sent = C::first_column(theirs);
#pragma unroll
        for (int j = sent; j < C::first_column(theirs + 1); j++) {
          store_async(there + (j - sent) * C::fragment_bytes, barrier, own(j));
        }
        mbarrier_wait(arrived, 0);
        const auto both = [&](int j) {
          const float4 x = own(j), y = received[(j - from) * 32];
          return make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
        };
        if (p.plain) {
          store_all<C, from, end>(both, to);
          return;
        }
#pragma unroll
        for (int j = from; j < end; j++) received[(j - from) * 32] = both(j);
        finish_all<C>(received, from, end, to, epilogue, batch0, batch1);
      };
      if (part == 0) meet(std::integral_constant<int, 0>{}, std::integral_constant<int, 1>{});
      else meet(std::integral_constant<int, 1>{}, std::integral_constant<int, 0>{});
    }
  }
  if (C::share > 1 && !C::inbox_in_ring) cluster_wait();
}

// How a product is cut up.
struct Cut {
  int64_t m_tiles, n_tiles, batches;
  int a_box;
};

template <class C>
tg_status run(const tg_gemm_args& args, const Cut& cut) {
  using T = typename C::Element;
  CUtensorMap w_map, a_map;
  if (!tensor_map<T>(&w_map, args.b, args.b.col_stride, args.n, args.k, args.batch, C::w_slice) ||
      !tensor_map<T>(&a_map, args.a, args.a.row_stride, args.m, args.k, args.batch, cut.a_box)) {
    return TG_UNSUPPORTED;
  }
  const tg_matrix& d = args.d;
  const bool wide = reinterpret_cast<uintptr_t>(d.ptr) % 16 == 0 && d.batch_stride[0] % 8 == 0 &&
                    d.batch_stride[1] % 8 == 0 && (args.m == 1 || d.row_stride % 8 == 0);
  const int64_t groups = cut.m_tiles / C::share * cut.n_tiles;
  const int residents = groups * cut.batches * C::cluster > args.sm_count ? C::most_residents : 1;
  const int64_t at_once = std::max<int64_t>(1, int64_t(args.sm_count) * residents / C::cluster);
  Epilogue<T, float> epilogue(args);
  const bool plain = epilogue.is_plain(), marches = plain && C::split == 1 && cut.batches == 1;
  const int stages = C::stages(residents), ahead = args.overlap ? 2 : 0;
  Place place{d, int(args.m), int(args.n), int(args.k), int(args.batch[1]), cut.a_box, int(cut.m_tiles / C::share),
              int(groups), stages, ahead, wide, plain};

  const void* kernel = reinterpret_cast<const void*>(wave<C>);
  if (const cudaError_t error = allow_shared_memory<C>(kernel, C::shared_per_block(1))) return cuda_status(error);
  const int bytes = stages * C::stage_bytes + C::inbox_bytes + C::barriers_bytes;
  void* parameters[] = {&w_map, &a_map, &place, &epilogue};
  const dim3 grid(unsigned((marches ? std::min(groups, at_once) : groups) * C::cluster), unsigned(cut.batches));
  return Launch(args, grid, dim3(C::threads), bytes, dim3(C::cluster))(kernel, parameters);
}

// Tiles of A: as many as needed, in whole clusters, and then of even height.
int64_t tiles_of_a(int64_t m, int rows, int share) {
  const int64_t tiles = ceil_div(m, rows);
  return tiles == 1 ? 1 : ceil_div(tiles, share) * share;
}

// One kind of tile: shares W where there are several tiles of A, and splits K where that leaves nobody waiting. A cluster
// that has no second tile of A to share W with splits K instead.
template <class Row, bool exchange, int warp_groups, int width>
tg_status cut_up(const tg_gemm_args& args) {
  using T = typename scalar<Row::dtype>::type;
  constexpr int pair = Row::cluster_m;
  constexpr bool may_split = pair > 1 || Row::split > 1;
  using Single = Config<T, exchange, warp_groups, width, Row::tile_k, 1, 1>;
  using Halves = Config<T, exchange, warp_groups, width, Row::tile_k, 1, may_split ? 2 : 1>;
  const int64_t m_tiles = tiles_of_a(args.m, Single::a_rows, pair);
  const Cut cut{m_tiles, ceil_div(args.n, Single::w_rows), args.batch[0] * args.batch[1], int(ceil_div(args.m, m_tiles))};
  // Clusters of four leave some multiprocessors out: of an H100's 132 they get 120.
  [[maybe_unused]] const auto splits = [&](int share) {
    const int64_t blocks = 2 * cut.m_tiles * cut.n_tiles * cut.batches, slots = args.sm_count * Halves::most_residents;
    return args.k >= 4 * Row::tile_k && blocks <= (share > 1 ? slots * 9 / 10 : slots);
  };
  if constexpr (pair > 1) {
    if (cut.m_tiles > 1) {
      if constexpr (Row::split > 1) {
        if (splits(pair)) return run<Config<T, exchange, warp_groups, width, Row::tile_k, pair, 2>>(args, cut);
      }
      return run<Config<T, exchange, warp_groups, width, Row::tile_k, pair, 1>>(args, cut);
    }
  }
  if constexpr (may_split) {
    if (splits(1)) return run<Halves>(args, cut);
  }
  return run<Single>(args, cut);
}

}  // namespace

template <class Row>
tg_status launch(const tg_gemm_args* problem) {
  static_assert(Row::layout == TG_NT && (Row::tile_m == 128 || Row::tile_m == 192) && Row::cluster_n == 1);
  const tg_gemm_args& args = *problem;
  const int64_t batches = args.batch[0] * args.batch[1];
  if (args.m == 0 || args.n == 0 || batches == 0) return TG_OK;
  if (args.m > INT_MAX / 2 || args.n > INT_MAX / 2 || args.k == 0 || args.k > INT_MAX / 2 || batches > 65535 ||
      ceil_div(args.m, 128) * ceil_div(args.n, Row::tile_n) > INT_MAX / 8 || args.a.col_stride != 1 ||
      args.b.row_stride != 1 || (args.d.col_stride != 1 && args.n > 1)) {
    return TG_UNSUPPORTED;
  }
  if constexpr (Row::tile_n == 64) {
    if (args.m <= 72) return cut_up<Row, true, 1, 72>(args);
    if (args.m <= 80) return cut_up<Row, true, 1, 80>(args);
    if (args.m <= 96) return cut_up<Row, true, 1, 96>(args);
  }
  if constexpr (Row::tile_m == 192) {
    const auto padded = [&](int rows) { return rows * tiles_of_a(args.m, rows, Row::cluster_m); };
    if (padded(192) < padded(128)) return cut_up<Row, false, 3, Row::tile_n>(args);
  }
  return cut_up<Row, false, 2, Row::tile_n>(args);
}

}  // namespace tilegemm

#include TG_ROWS
