# On the GPU machine, in a folder with this one's files, csrc (the tree's, with narrow_grouped_gemm in it), and blockwise_fp8_gemm.cu, mxfp4_gemm.cu and
# mxfp4_gemm_wmma.cu of the published mistralrs-quant 0.8.1. 80 seconds with 16 cores.
set -u
export LD_LIBRARY_PATH=$(ls -d /usr/local/cuda*/lib64|head -1)
NV=$(ls /usr/local/cuda*/bin/nvcc | head -1)
W=$(mktemp -d)
python3 rows.py
D="-Dmxfp4_get_max_smem_optin=theirs_smem"
for n in fp8_matmul fp8_indexed_moe_gemm mxfp4_matmul mxfp4_matmul_wmma mxfp4_indexed_moe_gemm mxfp4_moe_grouped_gemm mxfp4_moe_grouped_gemm_wmma; do
  for t in f16 bf16; do D="$D -Dlaunch_${n}_$t=theirs_${n}_$t"; done
done
A="-std=c++17 -O3 --expt-relaxed-constexpr -gencode=arch=compute_90,code=sm_90"
U="-U__CUDA_NO_HALF_OPERATORS__ -U__CUDA_NO_HALF_CONVERSIONS__ -U__CUDA_NO_HALF2_OPERATORS__ -U__CUDA_NO_BFLOAT16_CONVERSIONS__"
for f in blockwise_fp8_gemm mxfp4_gemm mxfp4_gemm_wmma; do $NV $A $D $U --expt-extended-lambda --use_fast_math -c $f.cu -o $W/$f.o & done
$NV $A -Icsrc -I. -DTG_ROWS="\"$PWD/rows.inc\"" -c csrc/narrow_grouped_gemm/narrow_grouped_gemm.cu -o $W/ngg.o &
for f in experts/experts elementwise/elementwise; do $NV $A -Icsrc -I. -c csrc/$f.cu -o $W/$(basename $f).o & done
for f in registry limits; do $NV $A -Icsrc -I. -x cu -c csrc/$f.cpp -o $W/$f.o & done
$NV $A -Icsrc -I. -c bench.cu -o $W/bench.o &
wait
$NV -o $W/bench $W/*.o && timeout 60 $W/bench > $OUT/mistral-bench.txt 2>&1
echo rc $?; tail -5 $OUT/mistral-bench.txt
