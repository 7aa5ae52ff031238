// Gathers columns of rows by a list in device memory.
#include "layer/gather.h"

#include "layer/launch.hpp"

namespace tilegemm {
namespace {

// A thread copies a number: block (x, y) those of columns 256 y ... of row x.
template <class T>
__global__ __launch_bounds__(256) void layer_gather(const T* x, const uint32_t* columns, T* out, int64_t x_stride,
                                                    int64_t out_stride, int width, int count) {
  const int column = blockIdx.y * 256 + threadIdx.x;
  const int64_t row = blockIdx.x;
  griddepcontrol_wait();
  launch_dependents();
  if (column >= count) return;
  const uint32_t from = columns[column];
  out[row * out_stride + column] = from < uint32_t(width) ? x[row * x_stride + from] : T(0);
}

template <class T>
tg_status gather(const tg_gather& a, const tg_launch& launch) {
  return start<const T*, const uint32_t*, T*, int64_t, int64_t, int, int>(
      launch, dim3(a.rows, (a.count + 255) / 256), 256, 0, 1, layer_gather<T>, static_cast<const T*>(a.x), a.columns,
      static_cast<T*>(a.out), a.x_stride, a.out_stride, a.width, a.count);
}

}  // namespace
}  // namespace tilegemm

extern "C" tg_status tg_gather_launch(const tg_gather* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_gather& a = *args;
  if ((a.bytes != 2 && a.bytes != 4) || a.rows < 0 || a.width < 0 || a.count < 0 || a.count > 1 << 23 ||
      !at_multiple(a.x, a.bytes) || !at_multiple(a.out, a.bytes)) {
    return TG_UNSUPPORTED;
  }
  if (a.rows == 0 || a.count == 0) return TG_OK;
  return a.bytes == 2 ? gather<uint16_t>(a, *launch) : gather<uint32_t>(a, *launch);
}

extern "C" tg_status tg_load_layer_gather() { return tilegemm::load_own_module(); }
