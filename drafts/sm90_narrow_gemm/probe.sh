#!/bin/bash
# probe.sh "SHAPE args" name
eval "$(cd ../.. && third_party/fetch.sh --env)"
cd "$(dirname "$0")"
mkdir -p target/ngemm-build
mkdir -p target/ngemm-build/$2.d; echo "#define SHAPE $1" > target/ngemm-build/$2.d/shape.inc
nice -n 2 $TILEGEMM_CUDA_HOME/bin/nvcc -gencode=arch=compute_90a,code=sm_90a -std=c++17 --expt-relaxed-constexpr -DNDEBUG -O3 -Icsrc -I ../../csrc -Xptxas -v -Itarget/ngemm-build/$2.d -cubin probe.cu -o target/ngemm-build/$2.cubin 2>&1 | grep -v "^$" | grep -E "error|warning|spill|Used|serializ|C75" 
$TILEGEMM_CUDA_HOME/bin/cuobjdump -sass target/ngemm-build/$2.cubin > target/ngemm-build/$2.sass
