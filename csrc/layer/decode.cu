// Attention of one query row a sequence over a static cache (decode.hpp has the arithmetic).
//
// A unit of work is a part of K of one kv head of one sequence: `cut` parts a sequence by its length alone. The warps
// of a block share a unit, tile by tile, and their sums are added in shared memory. Two kernels differ in how blocks go
// through the units and how parts are put together; the bits are the same.
//
// - stream: a fixed grid; each block takes a run of neighbouring units, and reads on into the next unit, through shared
//   memory, while it finishes one. Sums of parts go through global memory; the block that ends the last part of a pair
//   (sequence, kv head) adds them.
// - clustered, from Hopper on, for few pairs: a cluster for each pair; sums of parts stay in shared memory.
#include <algorithm>

#include "layer/decode_rows.hpp"

namespace tilegemm {
namespace {

template <class C>
__device__ __forceinline__ const char* q_of(const Decode& a, int sequence, int kv_head) {
  return a.q + 2 * (sequence * a.q_stride + int64_t(kv_head) * a.group * C::head);
}

// Goes through the steps of a unit that are the warp's, of which the first one is read already; reads the warp's first
// step of `next` meanwhile.
template <class C>
__device__ __forceinline__ void go_through(Worker<C>& w, const Decode& a, const Rows<C>& rows, const Rows<C>& next,
                                           int next_steps, int warp, int r, int c) {
  const int steps = rows.steps();
  w.clear();
  for (int step = warp; step < steps; step += C::warps) {
    float s[C::tiles][C::columns][4];
    w.scores(s);
    const bool stays = step + C::warps < steps;
    Rows<C> then = rows;  // a copy: a choice between addresses would go through local memory
    if (!stays) then = next;
    const int at = stays ? step + C::warps : warp;
    const bool reads = stays || warp < next_steps;
    if constexpr (!C::fp8) {
      if (reads) w.load_k(then, at * C::step, r, c);
    }
    w.soften(s, a.scale_log2, rows.last + 1 - step * C::step, r);
    if constexpr (C::fp8) {
      if (reads) w.load_k(then, at * C::step, r, c);
    }
    w.add(s);
    if (reads) w.load_v(then, at * C::step, r, c);
  }
  if (warp >= steps && warp < next_steps) {
    w.load_k(next, warp * C::step, r, c);
    w.load_v(next, warp * C::step, r, c);
  }
}

// The sum of the warps' sums.
template <class C>
__device__ __forceinline__ Quad whole_of_warps(const float4* sums, const float4* tops, int lanes, int workers, int i,
                                               int top) {
  return whole_of(
      workers, [&](int w) { return tops[w * C::columns * lanes + top]; },
      [&](int w) { return sums[w * C::quads(lanes) + i]; });
}

// Sums of a part in memory, and back from there.
template <class C>
__device__ __forceinline__ void leave_part(const Decode& a, int64_t part, int h, int pair, const Quad& p) {
  float2* const to = a.part_sums + ((part * a.group + h) * (C::head / 2) + pair);
  float2* const top = a.part_tops + (part * a.group + h);
  if (h < a.group) __stcg(to, make_float2(p.x.x, p.x.z));
  if (h + 1 < a.group) __stcg(to + C::head / 2, make_float2(p.x.y, p.x.w));
  if (h < a.group && pair == 0) __stcg(top, make_float2(p.top.x, p.top.y));
  if (h + 1 < a.group && pair == 0) __stcg(top + 1, make_float2(p.top.z, p.top.w));
}
template <class C>
__device__ __forceinline__ float4 sum_of_part(const Decode& a, int64_t part, int h, int pair) {
  const float2* const from = a.part_sums + ((part * a.group + h) * (C::head / 2) + pair);
  float2 x = make_float2(0, 0), y = x;
  if (h < a.group) x = __ldcg(from);
  if (h + 1 < a.group) y = __ldcg(from + C::head / 2);
  return make_float4(x.x, y.x, x.y, y.y);
}
template <class C>
__device__ __forceinline__ float4 top_of_part(const Decode& a, int64_t part, int two) {
  const int h = 8 * (two / a.lanes) + two % a.lanes * 2;
  float2 x = make_float2(0, 0), y = x;
  if (h < a.group) x = __ldcg(a.part_tops + part * a.group + h);
  if (h + 1 < a.group) y = __ldcg(a.part_tops + part * a.group + h + 1);
  return make_float4(x.x, x.y, y.x, y.y);
}

template <class C>
__global__ __launch_bounds__(32 * C::warps, C::blocks) void layer_decode(const __grid_constant__ Decode a,
                                                                         Divisor by_blocks) {
  extern __shared__ __align__(128) char memory[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
  const int quads = C::quads(a.lanes), heads = C::columns * a.lanes;                   // two heads
  float4* const sums = reinterpret_cast<float4*>(memory + C::warps * Step<C>::bytes);  // [warp][quad]
  float4* const tops = sums + C::warps * quads;                                        // [warp][two heads]
  float4* const pair_tops = tops + C::warps * heads;                                   // [part][two heads]
  bool* const is_last = reinterpret_cast<bool*>(pair_tops + a.max_parts * heads);
  if (!a.early) griddepcontrol_wait();
  const Units units(a);
  const int block = int(blockIdx.x), each = by_blocks.quotient(units.count), rest = units.count - each * int(gridDim.x);
  int number = block * each + min(block, rest);
  const int end = number + each + (block < rest);
  if (number == end) {
    if (a.early) griddepcontrol_wait();
    return;
  }
  Unit unit = units.find(number);
  Ahead<C> ahead(units, unit, number, end, uint32_t(__cvta_generic_to_shared(memory)));
  bool waits = a.early;
  if (waits && ahead.is_new()) griddepcontrol_wait(), waits = false;
  ahead.copy_k(), ahead.copy_v();
  if (waits) griddepcontrol_wait();
  Worker<C> w;
  w.load_q(q_of<C>(a, unit.sequence, unit.kv_head), a.group, r, c);
  int run = 0;  // parts of this pair that the block has done
  for (; number < end; number++) {
    const int steps = unit.steps<C>(), rows = unit.last_row() - unit.first();
    w.clear();
    for (int step = warp; step < steps; step += C::warps) {
      float s[C::tiles][C::columns][4];
      ahead.wait();
      take_k(w, ahead.memory, r, c);
      __syncwarp();
      ahead.copy_k();
      w.scores(s);
      w.soften(s, a.scale_log2, rows - step * C::step, r);
      ahead.wait();
      take_v(w, ahead.memory, r, c);
      __syncwarp();
      ahead.copy_v();
      w.add(s);
    }
    Unit after = unit;
    const bool goes_on = number + 1 < end;
    if (goes_on) units.advance(after);
    const bool same_pair = after.part > 0 && goes_on;
    __syncthreads();  // the sums of the unit before have been read
    if (warp < steps) w.leave(sums + warp * quads, tops + warp * heads, a.lanes, r, c);
    if (goes_on && !same_pair) w.load_q(q_of<C>(a, after.sequence, after.kv_head), a.group, r, c);
    __syncthreads();
    const int pair = unit.sequence * a.kv_heads + unit.kv_head;
    const int64_t first_part = int64_t(pair) * a.max_parts;
    for (int i = threadIdx.x; i < quads; i += 32 * C::warps) {
      const Place<C> place(i, a.lanes);
      const Quad p = whole_of_warps<C>(sums, tops, a.lanes, min(C::warps, steps), i, place.top);
      if (unit.parts == 1) {
        store_out(a, unit.sequence, unit.kv_head, place, p, steps == 0);
      } else {
        const int at = place.pair_of(i, a.lanes);
        leave_part<C>(a, first_part + unit.part, place.h, at, p);
        if (at == 0) pair_tops[unit.part * heads + place.top] = p.top;
      }
    }
    run++;
    if (unit.parts > 1 && !same_pair) {
      // All parts are this block's own; or those of other blocks are there, too.
      bool is_whole = run == unit.parts;
      if (!is_whole) {
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
          *is_last = atomicAdd(a.arrived + pair, run) + run == unsigned(unit.parts);
          __threadfence();
        }
        __syncthreads();
        is_whole = *is_last;
        if (is_whole) {
          if (threadIdx.x == 0) a.arrived[pair] = 0;
          for (int i = threadIdx.x; i < unit.parts * heads; i += 32 * C::warps) {
            pair_tops[i] = top_of_part<C>(a, first_part + i / heads, i % heads);
          }
        }
      }
      if (is_whole) {
        __syncthreads();
        for (int i = threadIdx.x; i < quads; i += 32 * C::warps) {
          const Place<C> place(i, a.lanes);
          const int at = place.pair_of(i, a.lanes);
          const Quad p = whole_of(
              unit.parts, [&](int part) { return pair_tops[part * heads + place.top]; },
              [&](int part) { return sum_of_part<C>(a, first_part + part, place.h, at); });
          store_out(a, unit.sequence, unit.kv_head, place, p, false);
        }
      }
    }
    if (!same_pair) run = 0;
    unit = after;
  }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define TG_CLUSTERS 1
#else
#define TG_CLUSTERS 0
#endif

#if TG_CLUSTERS
// Stores to shared memory of a block of the cluster.
__device__ __forceinline__ void store_at(uint32_t address, uint32_t rank, float4 x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(map_shared(address, rank)), "f"(x.x), "f"(x.y),
               "f"(x.z), "f"(x.w)
               : "memory");
}
#endif

// Block `rank` of a cluster of 2^log_size blocks takes parts rank, rank + size, ... of the cluster's pair, and writes
// piece i of each part's sum to block i % size, which adds the parts.
template <class C>
__global__ __launch_bounds__(32 * C::warps, 1) void layer_decode_clustered(const __grid_constant__ Decode a,
                                                                           int log_size) {
#if TG_CLUSTERS && defined(__CUDA_ARCH__)
  extern __shared__ float4 shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
  const int size = 1 << log_size, quads = C::quads(a.lanes), own_quads = (quads + size - 1) >> log_size,
            heads = C::columns * a.lanes;
  float4* const all_tops = shared + 2 * C::warps * quads;         // [2][warp][two heads]; sums: [2][warp][quad]
  float4* const part_sums = all_tops + 2 * C::warps * heads;      // [part][own quad]
  float4* const part_tops = part_sums + a.max_parts * own_quads;  // [part][two heads]
  const int pair = blockIdx.x >> log_size, rank = blockIdx.x & (size - 1);
  const int sequence = a.by_kv_heads.quotient(pair), kv_head = pair - sequence * a.kv_heads;
  if (!a.early) griddepcontrol_wait();
  const int slot = slot_of(a, sequence);
  const Cut x = cut(a, length_of(a, sequence, slot));
  const auto rows_of = [&](int part) {
    const int first = x.first + part * x.size;
    return Rows<C>(a, slot, kv_head, first, min(x.end, first + x.size));
  };
  Worker<C> w;
  int part = rank;
  Rows<C> rows = rows_of(part);
  const int steps_before = part < x.parts ? rows.steps() : 0;
  if (warp < steps_before) w.load_k(rows, warp * C::step, r, c), w.load_v(rows, warp * C::step, r, c);
  if (a.early) {
    griddepcontrol_wait();
    if (part == x.parts - 1 && warp == steps_before - 1) {
      w.template load_k<true>(rows, warp * C::step, r, c), w.template load_v<true>(rows, warp * C::step, r, c);
    }
  }
  if (part < x.parts) w.load_q(q_of<C>(a, sequence, kv_head), a.group, r, c);
  if (x.parts > 1) cluster_arrive_relaxed();  // the blocks that others write to have started
  const auto at = uint32_t(__cvta_generic_to_shared(part_sums)),
             tops_at = uint32_t(__cvta_generic_to_shared(part_tops));
  bool all_there = false;
  for (int half = 0; part < x.parts; part += size, half ^= 1) {
    const bool goes_on = part + size < x.parts;
    const Rows<C> next = rows_of(goes_on ? part + size : part);
    go_through(w, a, rows, next, goes_on ? next.steps() : 0, warp, r, c);
    float4* const sums = shared + half * C::warps * quads;
    float4* const tops = all_tops + half * C::warps * heads;
    const int steps = rows.steps();
    if (warp < steps) w.leave(sums + warp * quads, tops + warp * heads, a.lanes, r, c);
    __syncthreads();
    if (x.parts > 1 && !all_there) cluster_wait(), all_there = true;
    for (int i = threadIdx.x; i < quads; i += 32 * C::warps) {
      const Place<C> place(i, a.lanes);
      const Quad p = whole_of_warps<C>(sums, tops, a.lanes, min(C::warps, steps), i, place.top);
      if (x.parts == 1) {
        store_out(a, sequence, kv_head, place, p, steps == 0);
      } else {
        store_at(at + 16 * (part * own_quads + (i >> log_size)), i & (size - 1), p.x);
        if (place.pair_of(i, a.lanes) == 0) {
          for (int b = 0; b < size; b++) store_at(tops_at + 16 * (part * heads + place.top), b, p.top);
        }
      }
    }
    rows = next;
  }
  launch_dependents();
  if (x.parts == 1) return;  // all blocks of the cluster do
  if (!all_there) cluster_wait();
  cluster_sync();
  for (int i = rank + size * int(threadIdx.x); i < quads; i += size * 32 * C::warps) {
    const Place<C> place(i, a.lanes);
    const Quad p = whole_of(
        x.parts, [&](int part) { return part_tops[part * heads + place.top]; },
        [&](int part) { return part_sums[part * own_quads + (i >> log_size)]; });
    store_out(a, sequence, kv_head, place, p, false);
  }
#endif
}

// ---- The host's side ------------------------------------------------------------------------------------------------

// Counters of pairs, of which there are at most as many as query heads.
int64_t pairs_of(int sequences, int heads) { return (int64_t(sequences) * heads + 31) / 32 * 32; }

constexpr int most_shared = 200 * 1024;

// The most shared memory of a block on the current device.
int most_shared_here() {
  static std::atomic<int> known[64];
  int device, bytes = 0;
  if (cudaGetDevice(&device) || device >= 64) return 48 * 1024;
  if ((bytes = known[device].load(std::memory_order_relaxed))) return bytes;
  if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)) return 48 * 1024;
  known[device].store(bytes, std::memory_order_relaxed);
  return bytes;
}

// As many blocks as run at once.
template <class C>
tg_status run_stream(const Decode& a, const tg_launch& launch) {
  const int heads = C::columns * a.lanes, most = most_shared_here();
  const int shared =
      C::warps * Step<C>::bytes + 16 * (C::warps * (C::quads(a.lanes) + heads) + a.max_parts * heads + 1);
  if (shared > most) return TG_UNSUPPORTED;
  if (const cudaError_t error = allow<C>(layer_decode<C>, most, false)) return cuda_status(error);
  const int64_t units = int64_t(a.sequences) * a.kv_heads * a.max_parts;
  const int64_t blocks = std::min<int64_t>(units, std::max(1, multiprocessors_of(launch)) * C::blocks);
  return start(launch, dim3(unsigned(blocks)), 32 * C::warps, shared, 1, layer_decode<C>, a, Divisor(blocks));
}

template <class C>
int shared_of_cluster(const Decode& a, int log_size) {
  const int quads = C::quads(a.lanes), heads = C::columns * a.lanes, size = 1 << log_size;
  return 16 * (2 * C::warps * (quads + heads) + a.max_parts * ((quads + size - 1) / size + heads));
}

// Clusters of so many blocks that the current device runs at once; asked once per device.
template <class C>
int clusters_at_once(const Decode& a, int log_size) {
  static std::atomic<int> known[64][5];  // the number + 1
  int device;
  if (cudaGetDevice(&device) || device >= 64) return 0;
  std::atomic<int>& answer = known[device][log_size];
  if (const int count = answer.load(std::memory_order_relaxed)) return count - 1;
  int major = 0, count = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  if (major >= 9 && allow<C>(layer_decode_clustered<C>, most_shared, true) == cudaSuccess) {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {1u << log_size, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(1u << log_size), config.blockDim = dim3(32 * C::warps);
    config.dynamicSmemBytes = size_t(shared_of_cluster<C>(a, log_size));
    config.attrs = &attribute, config.numAttrs = 1;
    if (cudaOccupancyMaxActiveClusters(&count, layer_decode_clustered<C>, &config)) count = 0, cudaGetLastError();
  }
  answer.store(count + 1, std::memory_order_relaxed);
  return count;
}

template <class C>
tg_status run_clustered(const Decode& a, const tg_launch& launch, int log_size) {
  const int shared = shared_of_cluster<C>(a, log_size);
  if (shared > most_shared) return TG_UNSUPPORTED;
  if (const cudaError_t error = allow<C>(layer_decode_clustered<C>, most_shared, true)) return cuda_status(error);
  const dim3 grid(unsigned(a.sequences * a.kv_heads) << log_size);
  return start(launch, grid, 32 * C::warps, shared, 1 << log_size, layer_decode_clustered<C>, a, log_size);
}

// Clusters where all pairs run at once, and the cache is short enough that the multiprocessors without a cluster are no
// loss.
constexpr int longest_for_clusters = 8192;
template <class C>
tg_status run_either(const Decode& a, const tg_launch& launch) {
  int log_size = 0;
  if (a.capacity <= longest_for_clusters) {
    const int64_t pairs = int64_t(a.sequences) * a.kv_heads;
    for (int log = 4; log >= 3 && log_size == 0; log--) {
      if (shared_of_cluster<C>(a, log) <= most_shared && pairs <= 16 && pairs <= clusters_at_once<C>(a, log))
        log_size = log;
    }
  }
  return log_size > 0 ? run_clustered<C>(a, launch, log_size) : run_stream<C>(a, launch);
}

template <class T, bool fp8>
tg_status of_head(const Decode& a, int head, bool wide, const tg_launch& launch) {
  constexpr int short_rows = fp8 ? 2 : 1;  // tiles at once where rows are short
  switch (head) {
    case 64:
      return wide ? run_either<Config<T, 64, 2, fp8, 8, short_rows, 1>>(a, launch)
                  : run_either<Config<T, 64, 1, fp8, 8, 2, 2>>(a, launch);
    case 96:
      return wide ? run_either<Config<T, 96, 2, fp8, 8, 1, 1>>(a, launch)
                  : run_either<Config<T, 96, 1, fp8, 8, short_rows, 2>>(a, launch);
    case 128:
      return wide ? run_either<Config<T, 128, 2, fp8, 8, 1, 1>>(a, launch)
                  : run_either<Config<T, 128, 1, fp8, 8, short_rows, 1>>(a, launch);
    default: return run_either<Config<T, 256, 1, fp8, 8, 1, 1>>(a, launch);
  }
}
tg_status choose(const Decode& a, int head, bool wide, tg_format format, bool fp8, const tg_launch& launch) {
  const auto run = format == TG_F16 ? fp8 ? of_head<__half, true> : of_head<__half, false>
                   : fp8 ? of_head<__nv_bfloat16, true>
                                    : of_head<__nv_bfloat16, false>;
  return run(a, head, wide, launch);
}

}  // namespace
}  // namespace tilegemm

extern "C" int64_t tg_attention_decode_workspace(int32_t sequences, int32_t heads, int32_t head) {
  const int64_t parts = int64_t(sequences) * heads * tilegemm::most_parts;
  return 4 * tilegemm::pairs_of(sequences, heads) + parts * (head * 4 + 8);
}

extern "C" tg_status tg_attention_decode_launch(const tg_attention_decode* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_attention_decode& x = *args;
  const tg_cache& y = x.cache;
  if (x.sequences < 0 || x.heads <= 0 || y.kv_heads <= 0 || x.heads % y.kv_heads || x.heads / y.kv_heads > 16) {
    return TG_UNSUPPORTED;
  }
  if (y.head != 64 && y.head != 96 && y.head != 128 && y.head != 256) return TG_UNSUPPORTED;
  if ((x.format != TG_F16 && x.format != TG_BF16) || (y.format != x.format && y.format != TG_F8E4M3)) {
    return TG_UNSUPPORTED;
  }
  const int unit = y.format == TG_F8E4M3 ? 16 : 8;  // elements of 16 bytes
  if (y.slot_stride % unit || y.head_stride % unit || y.row_stride % unit || x.q_stride % 4 || x.out_stride % 4 ||
      !at_multiple(y.k, 16) || !at_multiple(y.v, 16) || !at_multiple(x.q, 8) || !at_multiple(x.out, 8) ||
      !at_multiple(x.workspace, 16) || x.workspace_bytes % 16) {
    return TG_UNSUPPORTED;
  }
  if (!(x.scale > 0) || y.capacity < 0 || x.window < 0 || (y.format == TG_F8E4M3 && (!y.k_scale || !y.v_scale)) ||
      x.workspace_bytes < tg_attention_decode_workspace(x.sequences, x.heads, y.head)) {
    return TG_UNSUPPORTED;
  }
  if (x.sequences == 0) return TG_OK;
  Decode a{};
  a.q = static_cast<const char*>(x.q), a.out = static_cast<char*>(x.out);
  a.k = static_cast<const char*>(y.k), a.v = static_cast<const char*>(y.v);
  a.k_scale = y.k_scale, a.v_scale = y.v_scale;
  a.lengths = x.lengths, a.slots = x.slots, a.sinks = x.sinks;
  a.group = x.heads / y.kv_heads, a.shares = 1;
  if (y.head == 256) {
    while (a.group > 8 || x.heads / y.kv_heads % a.group) a.group--;
    a.shares = x.heads / y.kv_heads / a.group;
  }
  char* const workspace = static_cast<char*>(x.workspace);
  a.part_sums = reinterpret_cast<float2*>(workspace);
  // At the end, where no sums of a launch with fewer sequences reach.
  a.arrived = reinterpret_cast<unsigned*>(workspace + x.workspace_bytes - 4 * pairs_of(x.sequences, x.heads));
  a.part_tops = a.part_sums + int64_t(x.sequences) * x.heads * most_parts * (y.head / 2);
  a.lanes = a.group <= 2 ? 1 : a.group <= 4 ? 2 : 4;
  a.q_stride = x.q_stride, a.out_stride = x.out_stride;
  a.slot_stride = y.slot_stride, a.head_stride = y.head_stride, a.row_stride = y.row_stride;
  a.scale_slot_stride = y.scale_slot_stride, a.scale_head_stride = y.scale_head_stride;
  a.sequences = x.sequences, a.kv_heads = y.kv_heads * a.shares, a.slots_count = y.slots;
  a.capacity = y.capacity, a.window = x.window, a.min_part = 128;
  // As many parts as fill a card of some 128 multiprocessors with one sequence. They are no matter of the device, so
  // that bits are none.
  a.max_parts = y.kv_heads >= 8 ? 16 : y.kv_heads <= 2 ? 64 : 128 / y.kv_heads;
  a.by_half = Divisor(a.max_parts / 2 * 64), a.by_all = Divisor(a.max_parts * 64), a.by_kv_heads = Divisor(a.kv_heads);
  a.early = x.after_append && launch->overlap;
  a.scale_log2 = x.scale * 1.4426950408889634f;
  if (y.format == TG_F8E4M3) a.scale_log2 *= x.format == TG_F16 ? f16_rest : fp8_rest;
  return choose(a, y.head, a.group > 8, x.format, y.format == TG_F8E4M3, *launch);
}

extern "C" tg_status tg_load_layer_decode() { return tilegemm::load_own_module(); }
