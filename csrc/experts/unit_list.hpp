// The work of a launch in units, by the numbers of rows on the device.
#pragma once
#include "common/ptx.hpp"
#include "experts/groups.hpp"

namespace tilegemm {
namespace {

// The part of the product that a block computes at a time: rows `first` to `first` + `height` - 1, columns from `n` *
// tile_n on.
struct GroupedTile {
  int group, first, height, n;
  bool shares_w;  // with the other block of the cluster, whose rows are others of the same group
};

// Rows `first` to `end` - 1 of the product lie between the first group's first row and the last group's end.
struct GroupedSpan {
  int first, end;
};

// Zeroes the rows of D of the rows of no group, such as a token's experts that another GPU has. `columns` and `stride`
// of D are in numbers of T. `thread` of `threads` in each block takes part.
template <class T>
__device__ __forceinline__ void zero_rows_of_no_group(const GroupedRows& rows, GroupedSpan of_groups, T* d,
                                                      int64_t stride, int columns, int thread, int threads) {
  const int count = int(rows.m) - (of_groups.end - of_groups.first);
#pragma unroll 1
  for (int i = blockIdx.x; i < count; i += gridDim.x) {
    const int64_t row = rows.row_of_d(i < of_groups.first ? i : i - of_groups.first + of_groups.end);
    if (row < 0) continue;
#pragma unroll 1
    for (int column = thread; column < columns; column += threads) d[row * stride + column] = T{};
  }
}

// A list of the groups that have rows, in shared memory, and the units before each group. A unit is the work of a
// cluster between two choices of work.
//
// A group has `count` tiles along M, of equal height but for the last: a multiple of `Step` rows. Without clusters a
// unit is a tile, and the tiles that share W are neighbours. In a cluster of two, each tile of W makes units of two
// tiles along M, whose blocks share W. With an odd count, the last tile along M and two tiles of W make another unit.
template <int Most, int Cluster, int Step = 8>
class UnitList {
 public:
  static_assert(Most % Step == 0);
  static constexpr int bytes_of_entry = 4 * 4;
  static __host__ __device__ constexpr int bytes(int entries) { return (entries + 1) * bytes_of_entry; }

  // The list for `entries` entries at `at`, of which `n_tiles` tiles of W each.
  __device__ UnitList(void* at, int entries, int n_tiles, int rank)
      : capacity_(entries), first_(static_cast<int*>(at)), rows_(first_ + entries + 1), unit_(rows_ + entries + 1),
        group_(unit_ + entries + 1), n_tiles_(n_tiles), rank_(rank) {}

  // Fills the list, and returns the rows that have groups. Every thread of the block takes part; `temporary` holds a
  // number for each group and two more.
  __device__ GroupedSpan fill(const GroupedRows& rows, int* temporary, int warp, int lane) {
    const int count = int(rows.count());
    const bool few = rows.groups.group_of_row && rows.m <= few_rows;
    if (!few) {
      for (int g = threadIdx.x; g <= count; g += blockDim.x) temporary[g] = int(rows.first_row(g));
      __syncthreads();
    }
    if (warp == 0) {
      GroupedSpan of_groups{0, 0};
      const int entries = few ? find_changes(rows, count, lane, of_groups.end) : find_groups(temporary, count, lane);
      if (!few) of_groups = {temporary[0], temporary[count]};
      __syncwarp();
      const int units = add_units(entries, lane);
      __syncwarp();
      if (lane == 0)
        unit_[entries] = units, temporary[0] = units, temporary[1] = of_groups.first, temporary[2] = of_groups.end;
    }
    __syncthreads();
    total_ = __shfl_sync(~0u, temporary[0], 0);
    const GroupedSpan of_groups{temporary[1], temporary[2]};
#if __CUDA_ARCH__ >= 900
    fence_proxy_async();  // TMA may be the next that writes the bytes of `temporary`
#endif
    __syncthreads();
    return of_groups;
  }

  __device__ int total() const { return total_; }

  // The tile of this block in unit u; calls have ascending units.
  __device__ GroupedTile tile(int u) {
    while (unit_[entry_ + 1] <= u) entry_++;
    const int rows = rows_[entry_], count = tiles_of(rows), place = u - unit_[entry_], turn = place / count;
    int n = turn, m = place - turn * count;
    bool shares_w = false;
    if constexpr (Cluster == 2) {
      const int pairs = count / 2, wide = 2 * turn + 1 < n_tiles_ ? 2 : 1, rest = m;
      shares_w = rest < wide * pairs;
      const int second = shares_w && rest >= pairs;
      n = 2 * turn + (shares_w ? second : rank_);
      m = shares_w ? 2 * (rest - second * pairs) + rank_ : count - 1;
    }
    const int height = ((rows + count - 1) / count + Step - 1) / Step * Step;
    return {group_[entry_], first_[entry_] + m * height, max(0, min(height, rows - m * height)), n, shares_w};
  }

 private:
  // Rows up to which a warp looks at the group of every row. A binary search for every group takes a load after the
  // other.
  static constexpr int few_rows = 256;

  // Entries of the rows after which the group changes; as many as the list has room for. Sets `end` to the first row of
  // no group.
  __device__ int find_changes(const GroupedRows& rows, int count, int lane, int& end) {
    uint32_t groups[few_rows / 32];
#pragma unroll
    for (int i = 0; i < few_rows / 32; i++)
      groups[i] = i * 32 + lane < rows.m ? rows.groups.group_of_row[i * 32 + lane] : ~0u;
    int entries = 0;
    uint32_t last = ~0u;
#pragma unroll
    for (int i = 0; i < few_rows / 32; i++) {
      if (i * 32 >= rows.m || end < i * 32) break;  // the same in all lanes
      const uint32_t own = groups[i], left = __shfl_up_sync(~0u, own, 1), before = lane == 0 ? last : left;
      const unsigned of_none = __ballot_sync(~0u, own >= uint32_t(count)),
                     inside = of_none ? (1u << (__ffs(of_none) - 1)) - 1 : ~0u;
      const unsigned changes = __ballot_sync(~0u, own != before) & inside;
      const int entry = entries + __popc(changes & ((1u << lane) - 1));
      if ((changes >> lane & 1) && entry < capacity_) first_[entry] = i * 32 + lane, group_[entry] = own;
      entries = min(entries + __popc(changes), capacity_);
      end += __popc(inside);
      last = __shfl_sync(~0u, own, 31);
    }
    __syncwarp();
    for (int entry = lane; entry < entries; entry += 32)
      rows_[entry] = (entry + 1 < entries ? first_[entry + 1] : end) - first_[entry];
    return entries;
  }

  // Entries of the groups that have rows, by the first row of each group.
  __device__ int find_groups(const int* first_rows, int count, int lane) {
    int entries = 0;
    for (int g0 = 0; g0 < count; g0 += 32) {
      const int g = g0 + lane, first = g < count ? first_rows[g] : 0, own = g < count ? first_rows[g + 1] - first : 0;
      const unsigned with_rows = __ballot_sync(~0u, own > 0);
      const int entry = entries + __popc(with_rows & ((1u << lane) - 1));
      // Bounds that do not ascend: no list has room for all of the rows that they claim.
      if (own > 0 && entry < capacity_) first_[entry] = first, rows_[entry] = own, group_[entry] = g;
      entries = min(entries + __popc(with_rows), capacity_);
    }
    return entries;
  }

  // Sets the units before each entry, and returns the number of units.
  __device__ int add_units(int entries, int lane) {
    int units = 0;
    for (int entry0 = 0; entry0 < entries; entry0 += 32) {
      const int entry = entry0 + lane, own = entry < entries ? units_of(rows_[entry]) : 0;
      int before = own;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(~0u, before, d);
        if (lane >= d) before += other;
      }
      if (entry < entries) unit_[entry] = units + before - own;
      units += __shfl_sync(~0u, before, 31);
    }
    return units;
  }

  static __device__ int tiles_of(int rows) { return (rows + Most - 1) / Most; }
  __device__ int units_of(int rows) const {
    const int count = tiles_of(rows);
    return Cluster == 1 ? count * n_tiles_ : n_tiles_ / 2 * count + n_tiles_ % 2 * ((count + 1) / 2);
  }

  int capacity_;
  int *first_, *rows_, *unit_, *group_;
  int n_tiles_, rank_, entry_ = 0, total_ = 0;
};

}  // namespace
}  // namespace tilegemm
