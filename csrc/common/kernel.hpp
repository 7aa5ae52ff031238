// From a row of the table (csrc/<family>/family.toml) to a kernel descriptor.
//
// build.rs compiles a family's .cu once per unit with -DTG_ROWS="<file>": for each kernel its limits and a TG_KERNEL
// line. The family defines `template <class Row> tg_status launch(const tg_gemm_args*)` in namespace tilegemm
// and includes TG_ROWS last. `launch` gets problems within the limits, with at least one element of D.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <climits>
#include <cstring>

#include "common/limits.hpp"
#include "tilegemm.h"

namespace tilegemm {

// The C++ type of a format, and the type in which products of the format are accumulated.
template <tg_format> struct scalar;
template <> struct scalar<TG_F16> {
  using type = __half;
  using accumulator = float;
};
template <> struct scalar<TG_BF16> {
  using type = __nv_bfloat16;
  using accumulator = float;
};
template <> struct scalar<TG_F32> {
  using type = float;
  using accumulator = float;
};
template <> struct scalar<TG_F64> {
  using type = double;
  using accumulator = double;
};

enum class Schedule { none, cooperative, pingpong };

// A list of numbers as a type.
template <int... numbers> struct Widths {};

// Remembers `error` for tg_last_cuda_error() and returns the status for `error`; in registry.cpp.
tg_status cuda_status(cudaError_t error);

// A launch function that runs while a thread has a rehearsal makes all checks of a launch, calls neither driver nor
// device, and launches nothing: so a kernel can tell without a device which problems and configurations the kernel
// takes. In registry.cpp.
class Rehearsal {
 public:
  Rehearsal();
  ~Rehearsal();
  Rehearsal(const Rehearsal&) = delete;
  static bool is_on();  // on this thread
  // Whether this thread has a rehearsal, which then knows that a launch gives blocks so much dynamic shared memory.
  static bool knows(int shared_bytes);
};

// Lets `kernel` have `bytes` of dynamic shared memory on the current device. cudaFuncSetAttribute would forget an
// earlier error of the program; in registry.cpp.
cudaError_t set_shared_memory(const void* kernel, int bytes);

// Loads every kernel of the module that `kernel` is in; in registry.cpp.
tg_status load_module(const void* kernel);

#ifdef __CUDACC__
// nvcc puts tile kernels into a module of their own: a source of such kernels defines TG_ANCHOR otherwise.
#ifndef TG_ANCHOR
#define TG_ANCHOR __global__
#endif
namespace {

// load_module() finds the module of a source by this kernel, which does nothing. The kernel is a template, because nvcc
// gives the host side of other kernels a global symbol.
template <int>
TG_ANCHOR void anchor() {}
static tg_status load_own_module() { return load_module(reinterpret_cast<const void*>(anchor<0>)); }

}  // namespace
#endif

// Whether two configurations differ.
inline bool operator!=(const tg_config& x, const tg_config& y) { return std::memcmp(&x, &y, sizeof x) != 0; }

// The first element of a matrix of the batch. `Index`: int where 32 bits hold the indices.
template <class T, class Index>
__device__ __forceinline__ T* matrix_of(const tg_matrix& batch, Index batch0, Index batch1) {
  return static_cast<T*>(batch.ptr) + batch0 * batch.batch_stride[0] + batch1 * batch.batch_stride[1];
}

// The logarithm of a power of two from 1 to `most`; -1 of any other number.
constexpr int log2_of(int x, int most) {
  for (int log2 = 0; 1 << log2 <= most; log2++) {
    if (1 << log2 == x) return log2;
  }
  return -1;
}

// A number that kernels divide by, from 1 to 2^31 - 1, for dividends that are not negative. A division takes some forty
// instructions, which delay a kernel's first load; quotient() takes three instructions (Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994).
struct Divisor {
  uint32_t value, multiplier, shift;
  explicit Divisor(int64_t by) : value(uint32_t(by)), shift(0) {
    while ((uint64_t(1) << shift) < value) shift++;
    multiplier = uint32_t((uint64_t(1) << 32) * ((uint64_t(1) << shift) - value) / value + 1);
  }
  __device__ int quotient(int x) const {
    return int((uint32_t(uint64_t(multiplier) * uint32_t(x) >> 32) + uint32_t(x)) >> shift);
  }
};

// Whether each of a matrix's `count` lines, `stride` apart, starts at a multiple of `unit` elements, in the whole
// batch. The stride of a single line or matrix has no effect.
template <class T>
bool lines_at_multiples(int unit, const tg_matrix& matrix, int64_t stride, int64_t count, const int64_t (&batch)[2]) {
  const auto whole = [unit](int64_t stride, int64_t extent) { return extent == 1 || stride % unit == 0; };
  return whole(stride, count) && whole(matrix.batch_stride[0], batch[0]) && whole(matrix.batch_stride[1], batch[1]) &&
         reinterpret_cast<uintptr_t>(matrix.ptr) % (unit * sizeof(T)) == 0;
}
template <class T>
bool rows_at_multiples(int unit, const tg_matrix& matrix, int64_t count, const int64_t (&batch)[2]) {
  return lines_at_multiples<T>(unit, matrix, matrix.row_stride, count, batch);
}

}  // namespace tilegemm

#ifndef TG_KERNEL
#define TG_KERNEL(NAME, ARCH, DTYPE, B, OUT, MATH, LAYOUT, TILE_M, TILE_N, TILE_K, CLUSTER_M, CLUSTER_N, SPLIT, \
                  STAGES, WARPS, ALIGN, SCHEDULE, ...)                                                          \
  namespace tilegemm {                                                                                          \
  struct NAME##_row {                                                                                           \
    static constexpr int arch = ARCH;                                                                           \
    static constexpr tg_format dtype = DTYPE, b = B, out = OUT; /* of A; of B; of C, the bias and D */          \
    static constexpr tg_math math = MATH;                                                                       \
    static constexpr tg_layout layout = LAYOUT;                                                                 \
    static constexpr int tile_m = TILE_M, tile_n = TILE_N, tile_k = TILE_K;                                     \
    static constexpr int cluster_m = CLUSTER_M, cluster_n = CLUSTER_N;                                          \
    static constexpr int split = SPLIT, stages = STAGES, warps = WARPS, align = ALIGN;                          \
    static constexpr Schedule schedule = Schedule::SCHEDULE;                                                    \
    using widths = Widths<__VA_ARGS__>;                                                                         \
  };                                                                                                            \
  }                                                                                                             \
  TG_DESCRIBE(NAME, DTYPE, B, OUT, MATH, LAYOUT, TILE_M, TILE_N, TILE_K, CLUSTER_M, CLUSTER_N, ALIGN,           \
              tilegemm::launch<tilegemm::NAME##_row>)
#endif

// The descriptor itself; a family whose kernels cannot be templates over a row defines TG_KERNEL by means of
// TG_DESCRIBE.
#define TG_DESCRIBE(NAME, DTYPE, B, OUT, MATH, LAYOUT, TILE_M, TILE_N, TILE_K, CLUSTER_M, CLUSTER_N, ALIGN, LAUNCH) \
  namespace tilegemm {                                                                                              \
  constexpr Contract NAME##_contract = {                                                                            \
      {DTYPE, B, OUT, OUT, DTYPE == TG_F64 ? TG_F64 : TG_F32}, LAYOUT, ALIGN, NAME##_limits()};                     \
  static tg_status NAME##_launch(const tg_gemm_args* args) { return launch_within(NAME##_contract, LAUNCH, args); } \
  static tg_status NAME##_rehearse(const tg_gemm_args* args) { return rehearse(NAME##_contract, LAUNCH, args); }    \
  }                                                                                                                 \
  extern "C" {                                                                                                      \
  extern const tg_kernel NAME;                                                                                      \
  const tg_kernel NAME = {#NAME,                                                                                    \
                          tilegemm::NAME##_contract.types,                                                          \
                          MATH,                                                                                     \
                          LAYOUT,                                                                                   \
                          {TILE_M, TILE_N, TILE_K},                                                                 \
                          {CLUSTER_M, CLUSTER_N},                                                                   \
                          ALIGN,                                                                                    \
                          tilegemm::NAME##_launch,                                                                  \
                          tilegemm::NAME##_rehearse,                                                                \
                          tilegemm::load_own_module};                                                               \
  }
