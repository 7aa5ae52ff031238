// The shape of a block: a tile of W on wgmma's M side, and rows of A on wgmma's N side.
#pragma once
#include "common/kernel.hpp"
#include "sm90_grouped_gemm/store.hpp"

namespace tilegemm {
namespace {

// `Consumers` warp groups multiply `WRows` rows of W by up to `Most` rows of A; `Producers` warp groups load.
// `Cluster`: blocks that may share W.
template <class T, int WRows, int Most, int Consumers, int Producers, int Cluster>
struct GroupedShape {
  using Element = T;
  static constexpr int w_rows = WRows, most = Most, consumers = Consumers, producers = Producers, cluster = Cluster;
  static constexpr int m64 = WRows / 64 / Consumers;  // instructions of a warp group along W
  static constexpr int depth = 64, w_box = 64;        // of a stage along K; rows of W of a TMA load
  static constexpr int w_bytes = WRows * 128, a_bytes = Most * 128, stage_bytes = w_bytes + a_bytes;
  static constexpr int threads = 128 * (Consumers + Producers), most_stages = 16;
  static constexpr int barriers_bytes = 16 * (most_stages + 2);
  static constexpr int places_bytes = 2 * 2 * 4 * Most;  // the factor and the row of D of each row, of two tiles
  static constexpr int shared_limit = 227 * 1024;
  // Registers of a thread of the two roles; all start with 65536 / threads.
  static constexpr int consumer_registers = Consumers == 1 ? 0 : Producers == 1 ? 224 : 208;
  static constexpr int producer_registers = Producers == 1 ? 56 : 48;

  static_assert(WRows % (w_box * Cluster) == 0 && Most % 8 == 0);
  static constexpr int least_stages = Consumers + 1;  // one while rows of D leave the others
  static_assert(Most * row_pitch <= stage_bytes, "a warp group's rows of D fit into a stage");
  static_assert(m64 == 2, "a warp group has the gates in one instruction's sums, and the gated numbers in the other's");

  static constexpr int fixed_bytes(int list_bytes) { return barriers_bytes + places_bytes + list_bytes; }
  static constexpr int stages(int list_bytes) {
    const int fit = (shared_limit - fixed_bytes(list_bytes)) / stage_bytes;
    return fit < most_stages ? fit : most_stages;
  }
};

}  // namespace
}  // namespace tilegemm
