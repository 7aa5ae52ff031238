# Usage, from the root of the checkout: MISTRALRS_QUANT=FOLDER THEIRS=FOLDER theirs.sh. The first is the unpacked source of mistralrs-quant 0.8.1, the second gets libtheirs.a.
set -euo pipefail
eval "$(third_party/fetch.sh --env)"
cd "${THEIRS:?names the folder for libtheirs.a}"
D=""
for n in fp8_matmul_f16 fp8_matmul_bf16 fp8_indexed_moe_gemm_f16 fp8_indexed_moe_gemm_bf16 mxfp4_matmul_f16 mxfp4_matmul_bf16 mxfp4_matmul_wmma_f16 mxfp4_matmul_wmma_bf16 mxfp4_indexed_moe_gemm_f16 mxfp4_indexed_moe_gemm_bf16 mxfp4_moe_grouped_gemm_f16 mxfp4_moe_grouped_gemm_bf16 mxfp4_moe_grouped_gemm_wmma_f16 mxfp4_moe_grouped_gemm_wmma_bf16; do D="$D -Dlaunch_$n=theirs_$n"; done
D="$D -Dmxfp4_get_max_smem_optin=theirs_smem"
for f in blockwise_fp8/blockwise_fp8_gemm mxfp4/mxfp4_gemm mxfp4/mxfp4_gemm_wmma; do
  $CUDA_HOME/bin/nvcc $D -std=c++17 -O3 -U__CUDA_NO_HALF_OPERATORS__ -U__CUDA_NO_HALF_CONVERSIONS__ -U__CUDA_NO_HALF2_OPERATORS__ -U__CUDA_NO_BFLOAT16_CONVERSIONS__ --expt-relaxed-constexpr --expt-extended-lambda --use_fast_math -Xcompiler -fPIC -gencode=arch=compute_90,code=sm_90 -c "${MISTRALRS_QUANT:?names the source of mistralrs-quant 0.8.1}/kernels/$f.cu" -o r_$(basename $f).o
done
rm -f libtheirs.a; ar rcs libtheirs.a r_*.o; nm libtheirs.a | grep " T "
echo done
