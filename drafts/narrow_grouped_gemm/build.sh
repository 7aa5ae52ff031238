# On a machine with a GPU and nvcc, in this folder: bash build.sh, then bench right [B A], bench few (for compute-sanitizer), bench time.
set -eu
NV=$(ls /usr/local/cuda*/bin/nvcc | head -1)
python3 rows.py
A="-std=c++17 -O3 -DNDEBUG --expt-relaxed-constexpr -I../../csrc -I."
for t in 8 32; do $NV $A -arch=sm_90 -DTG_ROWS="\"$PWD/rows_$t.inc\"" -c ../../csrc/narrow_grouped_gemm/narrow_grouped_gemm.cu -o ngg$t.o & done
for t in bf16_32 bf16_176; do $NV -w $A -arch=sm_90a -DTG_ROWS="\"$PWD/rows_$t.inc\"" -c ../../csrc/sm90_grouped_gemm/sm90_grouped_gemm.cu -o $t.o & done
for r in rows_sng_*.inc; do $NV $A -arch=sm_90a -Xptxas=-v -DTG_ROWS="\"$PWD/$r\"" -c ../../csrc/sm90_narrow_grouped_gemm/sm90_narrow_grouped_gemm.cu -o ${r%.inc}.o 2>${r%.inc}.ptxas & done
for f in ../../csrc/registry.cpp ../../csrc/limits.cpp bench.cpp; do $NV $A -x cu -c $f -o $(basename $f).o & done
wait
$NV -o bench *.o
grep -l C75 *.ptxas || true  # wgmma that ptxas serialises
