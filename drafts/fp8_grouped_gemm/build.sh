# On a machine with a GPU and nvcc, in this folder: bash build.sh, then bench right, bench few (for compute-sanitizer), bench time.
set -eu
NV=$(ls /usr/local/cuda*/bin/nvcc | head -1)
python3 rows.py
A="-std=c++17 -O3 -DNDEBUG --expt-relaxed-constexpr -I../../csrc -I."
for t in 32 144; do $NV $A -arch=sm_90a -Xptxas=-v -DTG_ROWS="\"$PWD/rows_sfg_$t.inc\"" -c ../../csrc/sm90_fp8_grouped_gemm/sm90_fp8_grouped_gemm.cu -o sfg_$t.o 2>sfg_$t.ptxas & done
for t in 32 176; do $NV -w $A -arch=sm_90a -DTG_ROWS="\"$PWD/rows_bf16_$t.inc\"" -c ../../csrc/sm90_grouped_gemm/sm90_grouped_gemm.cu -o bf16_$t.o & done
for f in ../../csrc/registry.cpp ../../csrc/limits.cpp bench.cpp; do $NV $A -x cu -c $f -o $(basename $f).o & done
wait
$NV -o bench *.o
grep -l C75 *.ptxas || true  # wgmma that ptxas serialises
