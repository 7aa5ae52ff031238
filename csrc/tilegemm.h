/* The C ABI between the kernels and Rust, and the only input of bindgen.
 *
 * There is one operation, over `batch[0] x batch[1]` matrices, which are row-major in this notation:
 *
 *     D = activation(alpha * A @ B + bias) + beta * C        A: m x k, B: k x n, C and D: m x n
 *
 * Products are accumulated in f32 (f64 for f64, whole numbers for TG_I8 by TG_I8). Each matrix has a format of its own;
 * the bias has C's format. Strides count elements and may be zero. A kernel of layout TG_ANY takes any strides; every
 * other kernel needs one of the two strides of A and of B to be 1.
 *
 * Infinities and NaN propagate as IEEE 754 says, with these rules for all kernels:
 *   - C is never read when beta is 0.
 *   - A and B count as absent when alpha is 0: the caller passes a k of 0, and the product is 0.
 *   - An activation of NaN is NaN, of inf inf, and of -inf the activation's limit: 0 or -0 (-inf for TG_IDENTITY).
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a type below changes or a function goes. Rust refuses a library with another number. */
#define TG_ABI_VERSION 15

typedef enum tg_status {
  TG_OK = 0,
  TG_UNSUPPORTED = 1, /* the kernel cannot run this problem; nothing was launched */
  TG_CUDA_ERROR = 2   /* a CUDA call failed; tg_last_cuda_error() says which error */
} tg_status;

/* Gated products: N is the columns of the gates and of the gated numbers together, D has N / 2 columns, and
 * D[i, j] = activation(gate[i, j]) * up[i, j], where gate and up are columns of alpha * A @ B + bias. TG_GATE_HALVES:
 * the gates are the first N / 2 columns. TG_GATE_INTERLEAVED: column 2 j is gate j, and column 2 j + 1 is up j. Such a
 * product has a beta of 0. TG_GATE_C: every column of the product is a gate, and D[i, j] = activation(gate[i, j]) *
 * (beta * C[i, j]); beta is not 0. */
typedef enum tg_gate { TG_UNGATED = 0, TG_GATE_HALVES = 1, TG_GATE_INTERLEAVED = 2, TG_GATE_C = 3 } tg_gate;

/* How the numbers of a matrix are stored (src/problem/format.rs): each by itself, or in blocks of consecutive numbers
 * along K. Formats of A and B: up to TG_F8E4M3, and TG_I8. Formats of B: blocks of GGUF (TG_Q4_0 to TG_Q6K, TG_MXFP4 to
 * TG_IQ4_XS), and beside an A in f16, bf16 or f32 narrow weights, whose factors and zeros are matrices of their own
 * (tg_scale):
 *   TG_F8E4M3, and TG_I8 in two's complement.
 *   TG_U4, TG_U8: a code less its zero; the zero is 8, and 128, where tg_scale has none.
 *   TG_F4E2M1: bit 3 is the sign, the others are 0, .5, 1, 1.5, 2, 3, 4, 6.
 * TG_U4 and TG_F4E2M1 have 32 numbers in 16 bytes: nibble i of word t is number 2 t + 8 (i % 4) + i / 4, words and
 * nibbles from the lowest. The last block of a row of W may have fewer numbers, and is as long. TG_F8E8M0 is a format
 * of factors: 2^(code - 127), and NaN for 255. */
typedef enum tg_format {
  TG_F16 = 0,
  TG_BF16 = 1,
  TG_F32 = 2,
  TG_F64 = 3,
  TG_F8E4M3 = 4,
  TG_U4 = 5,
  TG_Q4_0 = 6,
  TG_Q4_1 = 7,
  TG_Q5_0 = 8,
  TG_Q5_1 = 9,
  TG_Q8_0 = 10,
  TG_Q2K = 11,
  TG_Q3K = 12,
  TG_Q4K = 13,
  TG_Q5K = 14,
  TG_Q6K = 15,
  TG_F4E2M1 = 16,
  TG_I8 = 17,
  TG_U8 = 18,
  TG_F8E8M0 = 19,
  TG_MXFP4 = 20,
  TG_IQ4_NL = 21,
  TG_IQ4_XS = 22
} tg_format;

/* How a kernel multiplies. TG_NATIVE: in the format itself; for f32, by fused multiply-adds. TG_TF32: f32 inputs
 * rounded to TF32. TG_BF16X6: f32 by three bf16 parts of each input and six products of these parts, with no more error
 * than fused multiply-adds. TG_FAST_ACCUM: fp8 whose sums are the tensor core's over all of K, which keep some 13 bits;
 * TG_NATIVE adds them up in f32 every 128 of K. */
typedef enum tg_math { TG_NATIVE = 0, TG_TF32 = 1, TG_BF16X6 = 2, TG_FAST_ACCUM = 3 } tg_math;

/* Layouts of (A, B), row-major. The first letter is `n` when A's rows are contiguous (m x k, K-major). The second
 * letter is `t` when B's columns are contiguous (n x k transposed, K-major). TG_ANY: any strides. */
typedef enum tg_layout { TG_NN = 0, TG_NT = 1, TG_TN = 2, TG_TT = 3, TG_ANY = 4 } tg_layout;

typedef enum tg_activation {
  TG_IDENTITY = 0,
  TG_RELU = 1,
  TG_GELU_ERF = 2,
  TG_GELU_TANH = 3,
  TG_SILU = 4
} tg_activation;

typedef struct tg_matrix {
  void* ptr;
  int64_t row_stride;
  int64_t col_stride;
  int64_t batch_stride[2];
} tg_matrix;

/* The configuration that a plan has chosen (src/config.rs). A field is 0 where the kernel has nothing to choose. A
 * kernel launches the instance that the configuration names, and refuses a configuration that has no instance or does
 * not fit the problem. */
typedef struct tg_config {
  int32_t tile_m, tile_n;       /* of D, that a thread block computes, or a warp of the kernels for few rows */
  int32_t cluster_m, cluster_n; /* blocks of a cluster along M and N, which share loads */
  int32_t split;                /* parts of K, whose sums are added up in the end */
  int32_t stages;               /* of the pipeline in shared memory */
  int32_t warps;                /* of a thread block */
  int32_t swap_ab;              /* 1: B is on the tensor cores' M side */
} tg_config;

/* The formats of the matrices, and the type that products are added up in. */
typedef struct tg_types {
  tg_format a, b, c, d, acc;
} tg_types;

/* Factors of a matrix: element (i, j) counts times factor (i / rows, j / columns). Null pointer: no factors and no
 * zeros. Formats: f32, f16, bf16, TG_F8E8M0 and TG_F8E4M3. Zeros are numbers of 8 bits at the indices of the factors,
 * for TG_U4 and TG_U8. */
typedef struct tg_scale {
  const void* ptr;
  const uint8_t* zeros; /* null: none */
  tg_format format;
  uint32_t rows, columns;  /* that share a factor; UINT32_MAX: all */
  int64_t row_stride;      /* from a factor to that of the next rows */
  int64_t col_stride;      /* from a factor to that of the next columns */
  int64_t batch_stride[2]; /* from the factors of a matrix to those of the next; of groups as tg_matrix has it */
} tg_scale;

/* Groups of rows that have a matrix B each; the matrices are B's batch_stride[1] apart. Count 0: one B for all rows.
 * Pointers are to the device, and m is the rows of all groups. The row of D of a row of no group is zero. A kernel
 * leaves out a row with a pair that is not below m, and a row of D that no pair names. A problem with groups has one
 * matrix A and D, and a beta of 0. Its bias has a row for each group, batch_stride[1] apart. A factor multiplies what
 * the activation returns. */
typedef struct tg_groups {
  const int32_t* first_row;     /* the first row of each group, and the end of the last group; or null: */
  const uint32_t* group_of_row; /* the group of each row, ascending */
  const uint32_t*
      pairs; /* row i of the product is pair p = pairs[i], of row p / pairs_per_row of A and row p of D; null: p = i */
  const float* scales;   /* factor p of row p of D; null: no factors */
  int64_t pairs_per_row; /* 1 or more */
  int64_t count;
  int64_t expected_rows; /* of a group that has rows */
} tg_groups;

typedef struct tg_gemm_args {
  int64_t m, n, k;
  int64_t batch[2];
  tg_matrix a, b, c, d;
  tg_matrix bias; /* element (i, j) of every batch at i * row_stride + j * col_stride; null pointer: no bias */
  double alpha, beta;
  tg_activation activation;
  tg_config config;
  int32_t sm_count; /* multiprocessors that a persistent grid may fill */
  int32_t overlap;  /* not 0: a kernel that can may start while the kernel before in the stream still runs */
  void* stream;     /* cudaStream_t */

  /* Device memory, aligned to 256 bytes, through which one kernel of this call passes data to the next; null where the
   * call needs none. The workspace holds copies of operands in another order or format, or the sums of each part of K.
   * src/family/<family>.rs states how many bytes a kernel needs: `footprint` for copies, for each matrix of the batch,
   * with K rounded up to 64; `scratch_bytes` for sums. A comment at the top of csrc/<family>/<family>.cu names the
   * contents. A launch function refuses a workspace that is too small. The caller cuts a larger product into pieces,
   * each a call of its own: some matrices of the batch, or a part of one matrix, cut along N and M at multiples of tile
   * * cluster. The caller puts no other kernel into the stream between the kernels of a call. A call makes no use of
   * the workspace's earlier contents.
   *
   * With `overlap`, a kernel may start while the kernel before in the stream still runs: a kernel that fills the
   * workspace may start while the kernel of the product before still reads the workspace. So every thread passes
   * griddepcontrol.wait before the thread reads or writes the workspace, and every kernel of a call has threads that
   * pass griddepcontrol.wait. This instruction waits for the end of the kernel before. That end is the end of all
   * earlier kernels only if the kernel before has waited, too. */
  void* workspace;
  uint64_t workspace_bytes;

  tg_types types; /* the kernel's types */
  tg_scale a_scale, b_scale, d_scale;
  tg_groups groups;
  tg_gate gate;
} tg_gemm_args;

/* The descriptor of a built kernel; checked against the table when the library is loaded. */
typedef struct tg_kernel {
  const char* name;
  tg_types types;
  tg_math math;
  tg_layout layout;
  int32_t tile[3];
  int32_t cluster[2];
  int32_t align; /* alignment of pointers and strides, in bytes */
  tg_status (*launch)(const tg_gemm_args* args);
  /* What `launch` would answer, except for errors of CUDA: TG_OK or TG_UNSUPPORTED. Launches nothing, calls neither
   * driver nor device, and reads no memory behind the pointers of `args`. */
  tg_status (*can_implement)(const tg_gemm_args* args);
  /* Loads this kernel, and all kernels that are compiled with it, on the current device, as a first launch does.
   * Invalidates no capture, on any stream and thread. Kernels that are compiled together have the same function. */
  tg_status (*load)(void);
} tg_kernel;

/* The choice of the experts of each token, and the lists for a product with groups of rows: the groups are the experts,
 * and pair p is choice p % top_k of token p / top_k. Pointers are to the device. At most 1024 experts. */
typedef struct tg_routing {
  int64_t tokens, experts, top_k;
  const void* logits; /* tokens x experts, `row_stride` apart; null: `chosen` is given, and scales are not written */
  int64_t row_stride;
  tg_format format; /* of the logits: f16, bf16 or f32 */
  int32_t
      normalise;    /* not 0: the scales of a token add up to 1; 0: scales are shares of the softmax over all experts */
  uint32_t* chosen; /* tokens x top_k: experts by falling logit, equal logits by rising expert. A given number may be
                       that of no expert */
  float* scales;    /* tokens x top_k */
  int32_t* first_row; /* experts + 1, as tg_groups has it */
  uint32_t* pairs;  /* tokens x top_k: by expert, and for each expert by rising pair; last the pairs without an expert,
                       in no group */
  uint32_t* counts; /* blocks x experts, scratch; unused with one block */
  int32_t blocks;   /* thread blocks, each with a part of the tokens */
  int32_t overlap;  /* as in tg_gemm_args */
  void* stream;
} tg_routing;
tg_status tg_route(const tg_routing* routing);

/* Over dense matrices. tg_sum_rows: row i of D, m x n, is the sum of rows i k to i k + k - 1 of A, in this order, in
 * f32. tg_gate_rows: D, m x n / 2, is the gated A, m x n, by `gate` and `activation`. Formats: f16, bf16, f32. */
tg_status tg_sum_rows(tg_format format, const tg_gemm_args* args);
tg_status tg_gate_rows(tg_format format, const tg_gemm_args* args);

/* Elementwise operations over m x n matrices A, C and D of any strides. The first two ignore k. They ignore alpha and
 * the workspace. A may be D. tg_epilogue: D = activation(A + bias) + beta * C, with TG_GATE_C activation(A + bias) *
 * (beta * C): the part of an epilogue that a GEMM kernel does not fuse.
 *   Beside a D in 16 bits A may be in f32, so that D is rounded once; then A is not D.
 * tg_slope: D = the derivative of the activation at A: at infinities the limits, 0 and 1, and NaN at NaN.
 * tg_copy: D = A, which has k columns; the columns of D from k on are zero. Where rows are not contiguous, k is n. A is
 * not D, and has no negative strides. Where D's type is bf16 and A's is not, D is A in bf16, of one matrix of
 * contiguous rows, which may be blocks of GGUF. D in bf16 or f16 is also A in narrow weights times their factors,
 * `a_scale`, of one matrix of contiguous rows. */
tg_status tg_epilogue(tg_format format, const tg_gemm_args* args);
tg_status tg_slope(tg_format format, const tg_gemm_args* args);
tg_status tg_copy(tg_format format, const tg_gemm_args* args);

int32_t tg_abi_version(void);

/* The kernels in this library, in the order of the table. */
const tg_kernel* const* tg_kernels(size_t* count);

/* The version of the CUDA runtime that is loaded, as 1000 * major + 10 * minor. Needs no driver. */
int32_t tg_runtime_version(void);

/* The CUDA error behind the latest TG_CUDA_ERROR of this thread, as "cudaErrorName: description". */
const char* tg_last_cuda_error(void);

#ifdef __cplusplus
}
#endif
