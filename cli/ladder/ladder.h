// The ladder: one product, D[M,N] = A[M,K] @ B[N,K]^T, f16 in, f32 sums, f32 out, as a row of kernels that each add one
// idea. It measures what an idea is worth; nothing of it is dispatched to. `tilegemm bench --ladder` runs it.
//
// All matrices are row-major and dense, so both operands are contiguous along K.
#pragma once
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum tg_rung_status {
  TG_RUNG_OK = 0,
  TG_RUNG_UNSUPPORTED = 1,  // the rung is not written for this size; nothing was launched
  TG_RUNG_CUDA_ERROR = 2    // the launch failed
};

typedef struct tg_rung {
  const char* name;
  const char* why;  // the one idea that it adds to the rung before
  // M, N and K of what is computed from operands loaded once: m * n * k multiply-adds for (m + n) * k elements.
  int tile[3];
  // Launches on `stream`, a cudaStream_t, and does not wait. Pointers are aligned to 256 bytes, as by cudaMalloc.
  int (*launch)(const void* a, const void* b, void* d, int m, int n, int k, void* stream);
} tg_rung;

// The rungs of this build, from the bottom up.
const tg_rung* const* tg_rungs(size_t* count);

// Reads `bytes` of device memory once and does nothing else: the ceiling of the memory. The 64-bit words are xored into
// the one at `sink`, which makes every load count. `data` and `bytes` are multiples of 16.
int tg_stream_read(const void* data, size_t bytes, void* sink, int sm_count, void* stream);

extern const tg_rung tg_rung_simt, tg_rung_wmma;
extern const tg_rung tg_rung_tile_naive, tg_rung_tile_aligned, tg_rung_tile_static;
extern const tg_rung tg_rung_tile_64x128, tg_rung_tile_256x256;
extern const tg_rung tg_rung_cute_multistage, tg_rung_cutlass_sm90;

#ifdef __cplusplus
}
#endif
