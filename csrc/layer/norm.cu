// RMS norm of rows, with an addition before it: a block for a row, which it reads once.
#include <type_traits>

#include "layer/launch.hpp"

namespace tilegemm {
namespace {

constexpr int all = ~0;

struct Norm {
  const char *x, *residual, *weight;
  char *sum, *y;
  int64_t x_stride, residual_stride, sum_stride, y_stride;
  int columns;
  float eps;
};

template <class T, int width> struct alignas(sizeof(T) * width < 16 ? sizeof(T) * width : 16) Piece {
  T x[width];
};

// `each` pieces of `width` numbers a thread: piece j of thread t is piece t + j * threads of the row. Y: T, or float.
template <class T, class Y, int width, int each, bool adds>
__global__ __launch_bounds__(1024) void layer_rms_norm(const __grid_constant__ Norm a) {
  using P = Piece<T, width>;
  __shared__ float partial[32];
  griddepcontrol_wait();
  launch_dependents();
  const int64_t row = blockIdx.x;
  const P* const x = reinterpret_cast<const P*>(reinterpret_cast<const T*>(a.x) + row * a.x_stride);
  const P* const residual =
      reinterpret_cast<const P*>(reinterpret_cast<const T*>(a.residual) + row * a.residual_stride);
  const P* const weight = reinterpret_cast<const P*>(a.weight);
  P* const sum = reinterpret_cast<P*>(reinterpret_cast<T*>(a.sum) + row * a.sum_stride);
  auto* const y = reinterpret_cast<Piece<Y, width>*>(reinterpret_cast<Y*>(a.y) + row * a.y_stride);
  const int pieces = a.columns / width;
  constexpr bool keeps = each * sizeof(P) <= 32;  // the weights, too, before the sum
  P own[each], factors[keeps ? each : 1];
#pragma unroll
  for (int j = 0; j < each; j++) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < pieces) {
      own[j] = x[p];
      if (adds) {
        const P more = residual[p];
#pragma unroll
        for (int e = 0; e < width; e++) own[j].x[e] = from_float<T>(to_float(own[j].x[e]) + to_float(more.x[e]));
      }
      if (keeps) factors[j] = weight[p];
    }
  }
  float squares = 0;
#pragma unroll
  for (int j = 0; j < each; j++) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < pieces) {
#pragma unroll
      for (int e = 0; e < width; e++) {
        const float v = to_float(own[j].x[e]);
        squares += v * v;
      }
      if (adds) sum[p] = own[j];
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(all, squares, d);
  const int lane = threadIdx.x % 32;
  if (lane == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  squares = lane < blockDim.x / 32 ? partial[lane] : 0;
#pragma unroll
  for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(all, squares, d);
  const float factor = rsqrtf(squares / a.columns + a.eps);
#pragma unroll
  for (int j = 0; j < each; j++) {
    const int p = threadIdx.x + j * blockDim.x;
    if (p < pieces) {
      const P f = keeps ? factors[keeps ? j : 0] : weight[p];
      Piece<Y, width> result;
#pragma unroll
      for (int e = 0; e < width; e++) {
        result.x[e] = from_float<Y>(to_float(own[j].x[e]) * factor * to_float(f.x[e]));
      }
      y[p] = result;
    }
  }
}

template <class T, class Y, int width, int each>
tg_status of_addition(const Norm& a, int rows, int threads, const tg_launch& launch) {
  const dim3 grid{unsigned(rows)};
  if (!a.residual) return start(launch, grid, threads, 0, 1, layer_rms_norm<T, Y, width, each, false>, a);
  if constexpr (std::is_same_v<T, Y>) {
    return start(launch, grid, threads, 0, 1, layer_rms_norm<T, T, width, each, true>, a);
  }
  return TG_UNSUPPORTED;
}

// The threads, and so the order of the sum, follow from the columns and the alignment alone.
template <class T, class Y, int width>
tg_status of_width(const Norm& a, int rows, const tg_launch& launch) {
  const int pieces = a.columns / width;
  int each = 1;
  while ((pieces + each - 1) / each > 1024) each *= 2;
  const int threads = ((pieces + each - 1) / each + 31) / 32 * 32;
  switch (each) {
    case 1: return of_addition<T, Y, width, 1>(a, rows, threads, launch);
    case 2: return of_addition<T, Y, width, 2>(a, rows, threads, launch);
    case 4: return of_addition<T, Y, width, 4>(a, rows, threads, launch);
    case 8:
      if constexpr (width == 1) return of_addition<T, Y, width, 8>(a, rows, threads, launch);
      break;
    case 16:
      if constexpr (width == 1) return of_addition<T, Y, width, 16>(a, rows, threads, launch);
      break;
  }
  return TG_UNSUPPORTED;
}

template <class T, class Y = T>
tg_status run(const Norm& a, int rows, const tg_launch& launch) {
  constexpr int width = 16 / sizeof(T);
  const bool whole = a.columns % width == 0 && (rows == 1 || (a.x_stride % width == 0 && a.y_stride % width == 0)) &&
                     (!a.residual || rows == 1 || (a.residual_stride % width == 0 && a.sum_stride % width == 0)) &&
                     at_multiple(a.x, 16) && at_multiple(a.y, 16) && at_multiple(a.weight, 16) &&
                     at_multiple(a.residual, 16) && at_multiple(a.sum, 16);
  return whole ? of_width<T, Y, width>(a, rows, launch) : of_width<T, Y, 1>(a, rows, launch);
}

}  // namespace
}  // namespace tilegemm

extern "C" tg_status tg_rms_norm_launch(const tg_rms_norm* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_rms_norm& x = *args;
  if (x.rows < 0 || x.columns < 1 || x.columns > 16384) return TG_UNSUPPORTED;
  if (x.rows == 0) return TG_OK;
  const Norm a = {static_cast<const char*>(x.x),
                  static_cast<const char*>(x.residual),
                  static_cast<const char*>(x.weight),
                  static_cast<char*>(x.sum),
                  static_cast<char*>(x.y),
                  x.x_stride,
                  x.residual_stride,
                  x.sum_stride,
                  x.y_stride,
                  x.columns,
                  x.eps};
  if (x.y_format == TG_F32 && x.format == TG_F16) return run<__half, float>(a, x.rows, *launch);
  if (x.y_format == TG_F32 && x.format == TG_BF16) return run<__nv_bfloat16, float>(a, x.rows, *launch);
  if (x.y_format != x.format) return TG_UNSUPPORTED;
  switch (x.format) {
    case TG_F16: return run<__half>(a, x.rows, *launch);
    case TG_BF16: return run<__nv_bfloat16>(a, x.rows, *launch);
    case TG_F32: return run<float>(a, x.rows, *launch);
    default: return TG_UNSUPPORTED;
  }
}

extern "C" tg_status tg_load_layer_norm() { return tilegemm::load_own_module(); }
