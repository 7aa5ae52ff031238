// The layouts of sm90_wave.cu: the widest tiles of a row, with an unsplit K.
#ifndef __CUDA_ARCH__                          // nothing for the device
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED  // every width that is a multiple of 8

#include "common/layout/program.hpp"

#include "sm90_wave/sm90_wave.cu"
#include "swap_ab/layout.hpp"

namespace tilegemm {

template <class Row>
void describe(layout::Page& page) {
  describe_tma<Wave<Row, widest(typename Row::widths{})>>(page);
}

}  // namespace tilegemm

#endif
