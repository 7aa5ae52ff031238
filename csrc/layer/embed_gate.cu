// Gathers rows of an embedding by tokens in device memory; gates that no product has fused.
#include "gguf/blocks.hpp"
#include "layer/gate.hpp"

namespace tilegemm {
namespace {

// Pieces of 16 bytes: block (x, y) copies piece y * 128 + thread of token x.
__global__ __launch_bounds__(128) void layer_embedding(const uint32_t* tokens, const uint4* table, uint4* out,
                                                       int32_t* error, int vocabulary, int pieces) {
  griddepcontrol_wait();
  launch_dependents();
  const int piece = blockIdx.y * 128 + threadIdx.x;
  const int64_t row = blockIdx.x;
  if (piece >= pieces) return;
  const uint32_t token = tokens[row];
  const bool known = token < uint32_t(vocabulary);
  out[row * pieces + piece] = known ? table[int64_t(token) * pieces + piece] : make_uint4(0, 0, 0, 0);
  if (!known && piece == 0 && error) *error = int32_t(1 + row);
}

// A thread makes a number: block (x, y) makes numbers 128 y ... of token x.
template <class T>
__global__ __launch_bounds__(128) void layer_embedding_of_blocks(const uint32_t* tokens, const uint8_t* table, T* out,
                                                                 int32_t* error, int vocabulary, int columns,
                                                                 tg_format format) {
  griddepcontrol_wait();
  launch_dependents();
  const int column = blockIdx.y * 128 + threadIdx.x;
  const int64_t row = blockIdx.x;
  if (column >= columns) return;
  const uint32_t token = tokens[row];
  const bool known = token < uint32_t(vocabulary);
  float x = 0;
  if (known) {
    const gguf::Block block = gguf::block_of(format);
    const int64_t at = int64_t(token) * (columns / block.elements) + column / block.elements;
    x = gguf::number(format, table + at * block.bytes, column % block.elements);
  }
  out[row * columns + column] = from_float<T>(x);
  if (!known && column == 0 && error) *error = int32_t(1 + row);
}

template <class T>
tg_status gather_blocks(const tg_embedding& x, const tg_launch& launch) {
  return start<const uint32_t*, const uint8_t*, T*, int32_t*, int, int, tg_format>(
      launch, dim3(x.count, (x.columns + 127) / 128), 128, 0, 1, layer_embedding_of_blocks<T>, x.tokens,
      static_cast<const uint8_t*>(x.table), static_cast<T*>(x.out), x.error, x.vocabulary, x.columns, x.table_format);
}

struct Gated {
  const char* in;
  char* out;
  int64_t in_stride, out_stride;
  int columns;
};

// A thread makes 8 numbers; block (x, y) makes numbers 1024 y ... of row x.
template <class T, tg_gate_function function, bool interleaved>
__global__ __launch_bounds__(128) void layer_gated(const __grid_constant__ Gated a) {
  struct alignas(16) Eight {
    T x[8];
  };
  griddepcontrol_wait();
  launch_dependents();
  const int column = (blockIdx.y * 128 + threadIdx.x) * 8;
  const int64_t row = blockIdx.x;
  if (column >= a.columns) return;
  const T* in = reinterpret_cast<const T*>(a.in) + row * a.in_stride;
  const Eight first = *reinterpret_cast<const Eight*>(in + (interleaved ? 2 * column : column));
  const Eight second = *reinterpret_cast<const Eight*>(in + (interleaved ? 2 * column + 8 : a.columns + column));
  Eight result;
#pragma unroll
  for (int e = 0; e < 8; e++) {
    const T gate = interleaved ? (e < 4 ? first : second).x[2 * (e % 4)] : first.x[e];
    const T up = interleaved ? (e < 4 ? first : second).x[2 * (e % 4) + 1] : second.x[e];
    result.x[e] = from_float<T>(gate_of<function>(to_float(gate)) * to_float(up));
  }
  *reinterpret_cast<Eight*>(reinterpret_cast<T*>(a.out) + row * a.out_stride + column) = result;
}

template <class T, tg_gate_function function>
tg_status of_layout(const Gated& a, int rows, bool interleaved, const tg_launch& launch) {
  const dim3 grid{unsigned(rows), unsigned((a.columns / 8 + 127) / 128)};
  return interleaved ? start(launch, grid, 128, 0, 1, layer_gated<T, function, true>, a)
                     : start(launch, grid, 128, 0, 1, layer_gated<T, function, false>, a);
}
template <class T>
tg_status of_function(const Gated& a, int rows, const tg_gated& x, const tg_launch& launch) {
  switch (x.function) {
    case TG_SWIGLU: return of_layout<T, TG_SWIGLU>(a, rows, x.interleaved, launch);
    case TG_GEGLU_TANH: return of_layout<T, TG_GEGLU_TANH>(a, rows, x.interleaved, launch);
    case TG_GEGLU_ERF: return of_layout<T, TG_GEGLU_ERF>(a, rows, x.interleaved, launch);
    case TG_RELU2: return of_layout<T, TG_RELU2>(a, rows, x.interleaved, launch);
    default: return TG_UNSUPPORTED;
  }
}

}  // namespace
}  // namespace tilegemm

extern "C" tg_status tg_embedding_launch(const tg_embedding* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_embedding& x = *args;
  const int size = x.format == TG_F32 ? 4 : x.format == TG_F16 || x.format == TG_BF16 ? 2 : 0;
  if (!size || x.count < 0 || x.vocabulary < 0 || x.columns < 1 || x.columns > 1 << 20) return TG_UNSUPPORTED;
  if (gguf::is_block(x.table_format)) {
    if (x.columns % gguf::block_of(x.table_format).elements) return TG_UNSUPPORTED;
    if (x.count == 0) return TG_OK;
    switch (x.format) {
      case TG_F16: return gather_blocks<__half>(x, *launch);
      case TG_BF16: return gather_blocks<__nv_bfloat16>(x, *launch);
      default: return gather_blocks<float>(x, *launch);
    }
  }
  if (x.table_format != x.format || x.columns * int64_t(size) % 16 || !at_multiple(x.table, 16) ||
      !at_multiple(x.out, 16)) {
    return TG_UNSUPPORTED;
  }
  if (x.count == 0) return TG_OK;
  const int pieces = int(x.columns * int64_t(size) / 16);
  return start<const uint32_t*, const uint4*, uint4*, int32_t*, int, int>(
      *launch, dim3(x.count, (pieces + 127) / 128), 128, 0, 1, layer_embedding, x.tokens,
      static_cast<const uint4*>(x.table), static_cast<uint4*>(x.out), x.error, x.vocabulary, pieces);
}

extern "C" tg_status tg_gated_launch(const tg_gated* args, const tg_launch* launch) {
  using namespace tilegemm;
  const tg_gated& x = *args;
  if ((x.format != TG_F16 && x.format != TG_BF16) || x.rows < 0 || x.columns < 1 || x.columns % 8 || x.in_stride % 8 ||
      x.columns > 1 << 25 || x.out_stride % 8 || !at_multiple(x.in, 16) || !at_multiple(x.out, 16)) {
    return TG_UNSUPPORTED;
  }
  if (x.rows == 0) return TG_OK;
  const Gated a = {static_cast<const char*>(x.in), static_cast<char*>(x.out), x.in_stride, x.out_stride, x.columns};
  return x.format == TG_F16 ? of_function<__half>(a, x.rows, x, *launch)
                            : of_function<__nv_bfloat16>(a, x.rows, x, *launch);
}

extern "C" tg_status tg_load_layer_embed_gate() { return tilegemm::load_own_module(); }
