#!/bin/bash
# Builds the driver beside the kernels of this tree, without cargo: ./build.sh [ARCH]; then ./driver check [configurations of a case] [cases], or ./driver.
cd "$(dirname "$0")"; A=${1:-90}; O=../../target/narrow_gemv_driver; mkdir -p $O; O=$(cd $O && pwd)
F="-gencode=arch=compute_$A,code=sm_$A -std=c++17 --expt-relaxed-constexpr -DNDEBUG -O3 -I ../../csrc -I $O"
python3 rows.py $O $A
for b in u4 f8e4m3 f4e2m1 i8 u8; do nvcc $F -DTG_ROWS="\"$O/$b.inc\"" -c -o $O/$b.o ../../csrc/narrow_gemv/narrow_gemv.cu & done; wait
nvcc $F -o $O/driver $O/*.o driver.cu -x cu ../../csrc/registry.cpp ../../csrc/limits.cpp && echo $O/driver
