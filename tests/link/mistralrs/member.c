// The members of mistralrs-quant's archive with the functions that this crate defines, by MEMBER: 1 is blockwise_fp8_gemm.o, 2 mxfp4_gemm.o and 3
// mxfp4_gemm_wmma.o. Each exports these functions and no others. 0 is blockwise_fp8.o, which stays.
#define DEFINE(name) \
  void name(int *from) { *from = 1; }
#if MEMBER == 1
// The test looks for the words in programs.
__attribute__((used)) static const char *const theirs = "mistralrs's object 1";
void launch_fp8_matmul_f16(int *from) { *from = theirs[0] == 'm' ? 1 : 0; }
DEFINE(launch_fp8_matmul_bf16)
DEFINE(launch_fp8_indexed_moe_gemm_f16)
DEFINE(launch_fp8_indexed_moe_gemm_bf16)
#elif MEMBER == 2
__attribute__((used)) static const char *const theirs = "mistralrs's object 2";
void launch_mxfp4_matmul_f16(int *from) { *from = theirs[0] == 'm' ? 1 : 0; }
DEFINE(launch_mxfp4_matmul_bf16)
DEFINE(launch_mxfp4_indexed_moe_gemm_f16)
DEFINE(launch_mxfp4_indexed_moe_gemm_bf16)
DEFINE(launch_mxfp4_moe_grouped_gemm_f16)
DEFINE(launch_mxfp4_moe_grouped_gemm_bf16)
DEFINE(mxfp4_get_max_smem_optin)
#elif MEMBER == 3
__attribute__((used)) static const char *const theirs = "mistralrs's object 3";
void launch_mxfp4_matmul_f16(int *from);
void launch_mxfp4_matmul_bf16(int *from);
void launch_mxfp4_matmul_wmma_f16(int *from) { launch_mxfp4_matmul_f16(from), *from = theirs[0] == 'm' ? *from : 0; }
void launch_mxfp4_matmul_wmma_bf16(int *from) { launch_mxfp4_matmul_bf16(from); }
DEFINE(launch_mxfp4_moe_grouped_gemm_wmma_f16)
DEFINE(launch_mxfp4_moe_grouped_gemm_wmma_bf16)
#else
DEFINE(launch_dequant_fp8_blockwise_kernel_f32)
#endif
