// Groups of rows that have a matrix B each (tg_groups): the row of A, the row of D and the factor of a row of the
// product.
#pragma once
#include "common/kernel.hpp"

namespace tilegemm {

// The numbers on the device decide nothing but these functions' results: whatever the numbers are, no row outside of A,
// B and D results.
struct GroupedRows {
  tg_groups groups;
  int64_t m;

  __host__ __device__ int64_t count() const { return groups.count; }

  // The first row of group g; m for g = count. Rows of no group lie before the first group or behind the last.
  __device__ int64_t first_row(int64_t g) const {
    if (groups.first_row) {
      const int64_t row = groups.first_row[g];
      return row < 0 ? 0 : row < m ? row : m;
    }
    int64_t low = 0, high = m;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (groups.group_of_row[middle] < g) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The group of row i; -1 of a row of no group.
  __device__ int64_t group_of(int64_t i) const {
    if (groups.group_of_row) return groups.group_of_row[i] < groups.count ? int64_t(groups.group_of_row[i]) : -1;
    int64_t low = 0, high = groups.count;  // the last group that starts at or before i
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (groups.first_row[middle] <= i) low = middle + 1;
      else high = middle;
    }
    return low > 0 && i < groups.first_row[low] ? low - 1 : -1;
  }

  // The row of D of row i; -1 where there is none.
  __device__ int64_t row_of_d(int64_t i) const {
    if (!groups.pairs) return i;
    return groups.pairs[i] < m ? int64_t(groups.pairs[i]) : -1;
  }
  // The row of A of a row of D.
  __device__ int64_t row_of_a(int64_t row_of_d) const { return row_of_d / groups.pairs_per_row; }
  __device__ float scale_of(int64_t row_of_d) const { return groups.scales ? groups.scales[row_of_d] : 1.0f; }
};

}  // namespace tilegemm
