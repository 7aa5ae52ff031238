#!/bin/bash
# Builds libfp8.so of the families' objects, the registry and the quantiser, for check.py. From the root of the tree.
eval "$(third_party/fetch.sh --env)"; out=target/fp8gpu; mkdir -p $out
flags="-gencode=arch=compute_90a,code=sm_90a -std=c++17 --expt-relaxed-constexpr -DNDEBUG -O3 -I csrc -Xcompiler=-fPIC -Xptxas -v"
for family in sm90_fp8_few_rows sm90_fp8_gemm; do
  python3 drafts/fp8_proof/rows.py $family $out
  for rows in $out/$family-*.rows; do
    o=${rows%.rows}.o
    [ $o -nt $rows ] && [ -z "$(find csrc/fp8 csrc/$family csrc/common -newer $o -name '*.*pp' -o -newer $o -path "*/$family/*.cu" | head -1)" ] && continue
    /usr/bin/time -f "%U" nice -n 10 $TILEGEMM_CUDA_HOME/bin/nvcc $flags -DTG_ROWS="\"$PWD/$rows\"" -c csrc/$family/$family.cu -o $o 2> $o.log || { grep -v ptxas $o.log | head -30; exit 1; }
    echo "$o $(tail -1 $o.log) s $(stat -c %s $o) bytes $(grep -c 'bytes spill' $o.log) functions"
  done
done
cat $out/*.names > $out/tg_kernels.inc
nice -n 10 $TILEGEMM_CUDA_HOME/bin/nvcc $flags -I $out -c csrc/registry.cpp -o $out/registry.o && nice -n 10 $TILEGEMM_CUDA_HOME/bin/nvcc $flags -c csrc/limits.cpp -o $out/limits.o || exit 1
if [ -e csrc/layer/quantise.cu ]; then nice -n 10 $TILEGEMM_CUDA_HOME/bin/nvcc $flags -c csrc/layer/quantise.cu -o $out/quantise.o || exit 1; fi
g++ -shared -o libfp8.so $out/sm90*.o $out/registry.o $out/limits.o $(ls $out/quantise.o 2>/dev/null) $CUDA_HOME/lib64/libcudart_static.a -lpthread -ldl -lrt && strip libfp8.so && ls -la libfp8.so
