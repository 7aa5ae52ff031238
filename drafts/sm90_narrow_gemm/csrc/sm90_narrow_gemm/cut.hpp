#pragma once
#include "narrow/weights.hpp"

namespace tilegemm {

// How a problem is cut: `share` blocks along N share X; K has `split` parts, which are blocks of a cluster or meet in the
// workspace; so many clusters run at a time, 0: one for each tile.
struct Cut {
  int share = 1, split = 1;
  bool in_cluster = true;
  int clusters = 0;
};

}  // namespace tilegemm
