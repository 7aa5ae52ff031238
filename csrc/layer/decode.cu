// Attention of one query row a sequence over a static cache (decode.cuh has the arithmetic).
//
// A unit of work is a part of K of one kv head of one sequence: `cut` parts a sequence by its length alone. The warps
// of a block share a unit, tile by tile, and their sums are added in shared memory. Two kernels differ in how blocks go
// through the units and how parts are put together; the bits are the same.
//
// - stream: a fixed grid; each block takes a run of neighbouring units, and reads on into the next unit while it
//   finishes one. Sums of parts go through global memory; the block that ends the last part of a pair (sequence, kv
//   head) adds them.
// - clustered, from Hopper on, for few pairs: a cluster for each pair; sums of parts stay in shared memory.
#include "layer/decode.hpp"

namespace tilegemm {
namespace {

// A part of a sequence for one kv head.
struct Unit {
  int sequence, kv_head, part, parts, size, slot, start, end;

  __device__ int first() const { return start + part * size; }
  __device__ int last_row() const { return min(end, first() + size); }
};

// The unit of this number; or false, and `number` less all units. For whole warps; own_length: of sequence `lane`.
__device__ inline bool find(const Decode& a, int& number, int own_length, Unit& unit) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < a.sequences; base += 32) {
    const int length = base == 0 ? own_length : length_of(a, base + lane);
    const Cut own = cut(a, length);
    const int units = base + lane < a.sequences ? own.parts * a.kv_heads : 0;
    int up_to = units;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int below = __shfl_up_sync(all, up_to, d);
      if (lane >= d) up_to += below;
    }
    const int total = __shfl_sync(all, up_to, 31);
    if (number < total) {
      const int which = __popc(__ballot_sync(all, up_to <= number));
      const int before = __shfl_sync(all, up_to - units, which);
      unit.parts = __shfl_sync(all, own.parts, which), unit.size = __shfl_sync(all, own.size, which);
      unit.start = __shfl_sync(all, own.first, which), unit.end = __shfl_sync(all, own.end, which);
      unit.sequence = base + which;
      unit.kv_head = (number - before) / unit.parts;
      unit.part = (number - before) - unit.kv_head * unit.parts;
      unit.slot = a.slots ? a.slots[unit.sequence] : unit.sequence;
      return true;
    }
    number -= total;
  }
  return false;
}

// The next unit of the list.
__device__ inline void advance(const Decode& a, int own_length, Unit& unit) {
  if (++unit.part < unit.parts) return;
  unit.part = 0;
  if (++unit.kv_head < a.kv_heads) return;
  unit.kv_head = 0;
  const int sequence = ++unit.sequence;
  int length;
  if (sequence < 32) length = __shfl_sync(all, own_length, sequence);
  else length = length_of(a, sequence);
  const Cut x = cut(a, length);
  unit.parts = x.parts, unit.size = x.size, unit.start = x.first, unit.end = x.end;
  unit.slot = a.slots ? a.slots[sequence] : sequence;
}

template <class C>
__device__ __forceinline__ const char* q_of(const Decode& a, int sequence, int kv_head) {
  return a.q + 2 * (sequence * a.q_stride + int64_t(kv_head) * a.group * C::head);
}
template <class C>
__device__ __forceinline__ char* out_of(const Decode& a, int sequence, int kv_head) {
  return a.out + 2 * (sequence * a.out_stride + int64_t(kv_head) * a.group * C::head);
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
__device__ __forceinline__ Piece whole_of_warps(const float* sums, const float2* tops, int group, int workers, int i) {
  const int h = i / (C::head / 4);
  return whole_of(
      workers, [&](int w) { return tops[w * group + h]; },
      [&](int w) { return reinterpret_cast<const float4*>(sums + w * group * C::head)[i]; });
}

template <class C>
__global__ __launch_bounds__(32 * C::warps, C::blocks) void layer_decode(const __grid_constant__ Decode a) {
  extern __shared__ float4 shared[];
  __shared__ bool is_last;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
  const int row = a.group * C::head, pieces = row / 4;                                // of four numbers
  float* const all_sums = reinterpret_cast<float*>(shared);                           // [2][warp][group][head]
  float2* const all_tops = reinterpret_cast<float2*>(all_sums + 2 * C::warps * row);  // [2][warp][group]
  float2* const pair_tops = all_tops + 2 * C::warps * a.group;                        // [part][group]
  if (!a.early) griddepcontrol_wait();
  const int length = length_of(a, lane);
  Unit unit;
  int end = INT_MAX;
  find(a, end, length, unit);
  const int units = INT_MAX - end;
  int number = int(int64_t(blockIdx.x) * units / gridDim.x);
  end = int(int64_t(blockIdx.x + 1) * units / gridDim.x);
  if (number == end) {
    if (a.early) griddepcontrol_wait();
    return;
  }
  int place = number;
  find(a, place, length, unit);
  Worker<C> w;
  Rows<C> rows(a, unit.slot, unit.kv_head, unit.first(), unit.last_row());
  if (warp < rows.steps()) w.load_k(rows, warp * C::step, r, c), w.load_v(rows, warp * C::step, r, c);
  if (a.early) {
    griddepcontrol_wait();
    // The last row of a sequence is new.
    if (unit.part == unit.parts - 1 && warp == rows.steps() - 1) {
      w.template load_k<true>(rows, warp * C::step, r, c), w.template load_v<true>(rows, warp * C::step, r, c);
    }
  }
  w.load_q(q_of<C>(a, unit.sequence, unit.kv_head), a.group, r, c);
  int half = 0, run = 0;  // of shared memory; parts of this pair that the block has done
  for (; number < end; number++) {
    Unit after = unit;
    const bool goes_on = number + 1 < end;
    if (goes_on) advance(a, length, after);
    const bool same_pair = after.part > 0 && goes_on;
    const Rows<C> next(a, after.slot, after.kv_head, after.first(), after.last_row());
    go_through(w, a, rows, next, goes_on ? next.steps() : 0, warp, r, c);
    float* const sums = all_sums + half * C::warps * row;
    float2* const tops = all_tops + half * C::warps * a.group;
    const int steps = rows.steps();
    if (warp < steps) w.leave(sums + warp * row, tops + warp * a.group, a.group, r, c);
    if (goes_on && !same_pair) w.load_q(q_of<C>(a, after.sequence, after.kv_head), a.group, r, c);
    __syncthreads();
    const int pair = unit.sequence * a.kv_heads + unit.kv_head;
    float4* const part_sums = reinterpret_cast<float4*>(a.part_sums + int64_t(pair) * a.max_parts * row);
    float2* const part_tops = a.part_tops + int64_t(pair) * a.max_parts * a.group;
    for (int i = threadIdx.x; i < pieces; i += 32 * C::warps) {
      const Piece p = whole_of_warps<C>(sums, tops, a.group, min(C::warps, steps), i);
      if (unit.parts == 1) {
        store_out<C>(out_of<C>(a, unit.sequence, unit.kv_head) + 8 * i, p, steps == 0);
      } else {
        __stcg(part_sums + unit.part * pieces + i, p.x);
        if (i % (C::head / 4) == 0) __stcg(part_tops + unit.part * a.group + i / (C::head / 4), p.top);
      }
    }
    run++;
    if (unit.parts > 1 && !same_pair) {
      __threadfence();
      __syncthreads();
      if (threadIdx.x == 0) {
        is_last = atomicAdd(a.arrived + pair, run) + run == unsigned(unit.parts);
        __threadfence();
      }
      __syncthreads();
      if (is_last) {
        if (threadIdx.x == 0) a.arrived[pair] = 0;
        for (int i = threadIdx.x; i < unit.parts * a.group; i += 32 * C::warps) pair_tops[i] = __ldcg(part_tops + i);
        __syncthreads();
        for (int i = threadIdx.x; i < pieces; i += 32 * C::warps) {
          const int h = i / (C::head / 4);
          const Piece p = whole_of(
              unit.parts, [&](int part) { return pair_tops[part * a.group + h]; },
              [&](int part) { return __ldcg(part_sums + part * pieces + i); });
          store_out<C>(out_of<C>(a, unit.sequence, unit.kv_head) + 8 * i, p, false);
        }
      }
    }
    if (!same_pair) run = 0;
    half ^= 1;
    unit = after, rows = next;
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
__device__ __forceinline__ void store_at(uint32_t address, uint32_t rank, float2 x) {
  asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(map_shared(address, rank)), "f"(x.x), "f"(x.y)
               : "memory");
}
#endif

// Block `rank` of a cluster of 2^log_size blocks takes parts rank, rank + size, ... of the cluster's pair, and writes
// piece i of each part's sum to block i % size, which adds the parts.
template <class C>
__global__ __launch_bounds__(32 * C::warps, C::blocks) void layer_decode_clustered(const __grid_constant__ Decode a,
                                                                                   int log_size) {
#if TG_CLUSTERS && defined(__CUDA_ARCH__)
  extern __shared__ float4 shared[];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
  const int size = 1 << log_size, row = a.group * C::head, pieces = row / 4,
            own_pieces = (pieces + size - 1) >> log_size;
  float* const all_sums = reinterpret_cast<float*>(shared);                                   // [2][warp][group][head]
  float2* const all_tops = reinterpret_cast<float2*>(all_sums + 2 * C::warps * row);          // [2][warp][group]
  float4* const part_sums = reinterpret_cast<float4*>(all_tops + 2 * C::warps * a.group);     // [part][own piece]
  float2* const part_tops = reinterpret_cast<float2*>(part_sums + a.max_parts * own_pieces);  // [part][group]
  const int pair = blockIdx.x >> log_size, rank = blockIdx.x & (size - 1);
  const int sequence = pair / a.kv_heads, kv_head = pair % a.kv_heads;
  if (!a.early) griddepcontrol_wait();
  const int slot = a.slots ? a.slots[sequence] : sequence;
  const Cut x = cut(a, length_of(a, sequence));
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
  char* const out = out_of<C>(a, sequence, kv_head);
  const auto at = uint32_t(__cvta_generic_to_shared(part_sums)),
             tops_at = uint32_t(__cvta_generic_to_shared(part_tops));
  bool all_there = false;
  for (int half = 0; part < x.parts; part += size, half ^= 1) {
    const bool goes_on = part + size < x.parts;
    const Rows<C> next = rows_of(goes_on ? part + size : part);
    go_through(w, a, rows, next, goes_on ? next.steps() : 0, warp, r, c);
    float* const sums = all_sums + half * C::warps * row;
    float2* const tops = all_tops + half * C::warps * a.group;
    const int steps = rows.steps();
    if (warp < steps) w.leave(sums + warp * row, tops + warp * a.group, a.group, r, c);
    __syncthreads();
    if (x.parts > 1 && !all_there) cluster_wait(), all_there = true;
    for (int i = threadIdx.x; i < pieces; i += 32 * C::warps) {
      const Piece p = whole_of_warps<C>(sums, tops, a.group, min(C::warps, steps), i);
      if (x.parts == 1) {
        store_out<C>(out + 8 * i, p, steps == 0);
      } else {
        store_at(at + 16 * (part * own_pieces + (i >> log_size)), i & (size - 1), p.x);
        if (i % (C::head / 4) == 0) {
          for (int b = 0; b < size; b++) store_at(tops_at + 8 * (part * a.group + i / (C::head / 4)), b, p.top);
        }
      }
    }
    rows = next;
  }
  launch_dependents();
  if (x.parts == 1) return;  // all blocks of the cluster do
  if (!all_there) cluster_wait();
  cluster_sync();
  for (int i = rank + size * int(threadIdx.x); i < pieces; i += size * 32 * C::warps) {
    const int h = i / (C::head / 4);
    const Piece p = whole_of(
        x.parts, [&](int part) { return part_tops[part * a.group + h]; },
        [&](int part) { return part_sums[part * own_pieces + (i >> log_size)]; });
    store_out<C>(out + 8 * i, p, false);
  }
#endif
}

// ---- The host's side ------------------------------------------------------------------------------------------------

// Counters of pairs, of which there are at most as many as query heads.
int64_t pairs_of(int sequences, int heads) { return (int64_t(sequences) * heads + 31) / 32 * 32; }

constexpr int most_shared = 200 * 1024;

// A block a multiprocessor where blocks have 8 warps: then they all run at once.
template <class C>
tg_status run_stream(const Decode& a, const tg_launch& launch) {
  const int row = a.group * C::head;
  const int shared = 2 * C::warps * (row * 4 + a.group * 8) + a.max_parts * a.group * 8;
  if (shared > most_shared) return TG_UNSUPPORTED;
  if (const cudaError_t error = allow<C>(layer_decode<C>, most_shared, false)) return cuda_status(error);
  const int64_t most = int64_t(a.sequences) * a.kv_heads * a.max_parts;
  const int64_t wave = int64_t(multiprocessors_of(launch)) * C::blocks;
  return start(launch, dim3(unsigned(most < wave ? most : wave)), 32 * C::warps, shared, 1, layer_decode<C>, a);
}

template <class C>
int shared_of_cluster(const Decode& a, int log_size) {
  const int row = a.group * C::head, size = 1 << log_size;
  return 2 * C::warps * (row * 4 + a.group * 8) + a.max_parts * ((row / 4 + size - 1) / size * 16 + a.group * 8);
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
                  : run_either<Config<T, 64, 1, fp8, 8, 2, 1>>(a, launch);
    case 96:
      return wide ? run_either<Config<T, 96, 2, fp8, 8, 1, 1>>(a, launch)
                  : run_either<Config<T, 96, 1, fp8, 8, short_rows, 1>>(a, launch);
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
  a.lengths = x.lengths, a.slots = x.slots;
  a.group = x.heads / y.kv_heads, a.shares = 1;
  if (y.head == 256) {
    while (a.group > 8 || x.heads / y.kv_heads % a.group) a.group--;
    a.shares = x.heads / y.kv_heads / a.group;
  }
  char* const workspace = static_cast<char*>(x.workspace);
  a.part_sums = reinterpret_cast<float*>(workspace);
  // At the end, where no sums of a launch with fewer sequences reach.
  a.arrived = reinterpret_cast<unsigned*>(workspace + x.workspace_bytes - 4 * pairs_of(x.sequences, x.heads));
  a.part_tops = reinterpret_cast<float2*>(a.part_sums + int64_t(x.sequences) * x.heads * most_parts * y.head);
  a.q_stride = x.q_stride, a.out_stride = x.out_stride;
  a.slot_stride = y.slot_stride, a.head_stride = y.head_stride, a.row_stride = y.row_stride;
  a.scale_slot_stride = y.scale_slot_stride, a.scale_head_stride = y.scale_head_stride;
  a.sequences = x.sequences, a.kv_heads = y.kv_heads * a.shares, a.slots_count = y.slots;
  a.capacity = y.capacity, a.window = x.window, a.min_part = 128;
  // As many parts as fill a card of some 128 multiprocessors with one sequence. They are no matter of the device, so
  // that bits are none.
  a.max_parts = y.kv_heads >= 8 ? 16 : y.kv_heads <= 2 ? 64 : 128 / y.kv_heads;
  a.early = x.after_append && launch->overlap;
  a.scale_log2 = x.scale * 1.4426950408889634f;
  if (y.format == TG_F8E4M3) a.scale_log2 *= x.format == TG_F16 ? f16_rest : fp8_rest;
  return choose(a, y.head, a.group > 8, x.format, y.format == TG_F8E4M3, *launch);
}

extern "C" tg_status tg_load_layer_decode() { return tilegemm::load_own_module(); }
