#!/bin/bash
# Builds the draft's driver: ./build.sh [ARCH]
cd "$(dirname "$0")"; A=${1:-90a}; U=${2:-1}; O=target/narrow_gemv_o$U
NV=../../third_party/dist/cuda-13.5/bin/nvcc
F="-gencode=arch=compute_$A,code=sm_$A -std=c++17 --expt-relaxed-constexpr -DNDEBUG -O3 -DNGEMV_TRACE -DNGEMV_UNROLL=$U -I . -I ../../csrc"
mkdir -p $O; FAIL=0
for f in v_f8 v_8 v_u4 v_e2m1 driver; do
  if [ ! -e $O/$f.$A.o ] || [ -n "$(find . ../../csrc/common ../../csrc/tilegemm.h -newer $O/$f.$A.o \( -name '*.hpp' -o -name $f.cu -o -name '*.h' \) | head -1)" ]; then
    nice -n 2 $NV $F -Xptxas -v -c -o $O/$f.$A.o $f.cu > $O/$f.log 2>&1 || { FAIL=1; grep -E "error" $O/$f.log | head; }
  fi
done
[ $FAIL = 0 ] && $NV -gencode=arch=compute_$A,code=sm_$A -cudart static -o driver.$A.$U $O/{v_f8,v_8,v_u4,v_e2m1,driver}.$A.o && strip driver.$A.$U && gzip -k9f driver.$A.$U && rm driver.$A.$U && ls -la driver.$A.$U.gz
