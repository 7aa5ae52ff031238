#!/bin/bash
# build.sh FILE...: compiles bench/FILE.cu; build.sh link
eval "$(cd ../.. && third_party/fetch.sh --env)"
cd "$(dirname "$0")"
B=target/ngemm-build; mkdir -p $B
FLAGS="-gencode=arch=compute_90a,code=sm_90a -std=c++17 --expt-relaxed-constexpr -DNDEBUG -O3 -Icsrc -Ibench -I ../../csrc -DPART1"
if [ "$1" = link ]; then shift
  $TILEGEMM_CUDA_HOME/bin/nvcc -cudart static $FLAGS -o ngemm $B/main.o $(for f in "$@"; do echo $B/$f.o; done) && strip ngemm && ls -la ngemm
  exit
fi
for f in "$@"; do
  nice -n 2 $TILEGEMM_CUDA_HOME/bin/nvcc $FLAGS -Xptxas -v -c bench/$f.cu -o $B/$f.o > $B/$f.log 2>&1; echo "$f: $?"
  grep -E "error|C75" $B/$f.log | cut -c1-200
  c++filt < $B/$f.log | grep -A2 "Compiling entry.*sm90_narrow_gemm<" | grep -E "Compiling|spill|Used" | sed 's/.*Shape<//; s/tilegemm:://g; s/(anonymous namespace):://g' | grep -E "Code|spill" | paste - - | grep -v "0 bytes spill stores" | cut -c1-230
done
