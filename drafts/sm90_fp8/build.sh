#!/bin/bash
# Builds libw8a8.so from the drafts. Usage: build.sh [UNIT...]
cd "$(dirname "$0")" || exit 1
eval "$(cd ../.. && third_party/fetch.sh --env)"
out=target/w8a8-build; mkdir -p $out
flags="-gencode=arch=compute_90a,code=sm_90a -std=c++17 --expt-relaxed-constexpr -DNDEBUG -O3 -I . -I ../../csrc -Xcompiler=-fPIC -Xptxas -v $FLAGS"
for unit in ${@:-stubs quantise few gemm sanitize}; do
  echo "== $unit"
  nice -n 5 $TILEGEMM_CUDA_HOME/bin/nvcc $flags -c $unit.cu -o $out/$unit.o 2> $out/$unit.log || { grep -v "^ptxas info" $out/$unit.log | head -40; exit 1; }
  grep -iE "warning|C75|error|spill" $out/$unit.log | grep -v "0 bytes spill stores, 0 bytes spill loads" | sort | uniq -c | head -20
done
g++ -shared -o libw8a8.so $out/{stubs,quantise,few,gemm}.o $CUDA_HOME/lib64/libcudart_static.a -lpthread -ldl -lrt && strip libw8a8.so || exit 1
[ -f $out/sanitize.o ] && g++ -o sanitize $out/sanitize.o -Wl,-rpath,'$ORIGIN' ./libw8a8.so $CUDA_HOME/lib64/libcudart_static.a -lpthread -ldl -lrt && strip sanitize
python3 -c "
import ctypes; l = ctypes.CDLL('./libw8a8.so'); l.w8a8_few, l.w8a8_gemm, l.w8a8_quantise"
ls -la libw8a8.so sanitize && echo done
