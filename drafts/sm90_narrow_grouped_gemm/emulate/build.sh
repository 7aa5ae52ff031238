# The kernel on the CPU, by emulate.hpp: bash build.sh CUDA, then build/emulate. CUDA: a toolkit's folder, for its headers.
set -eu
CUDA=$1 CSRC=../../../csrc
mkdir -p build/csrc && cp -r $CSRC/. build/csrc/
python3 patch.py build/csrc
: >build/rows.inc
g++ -std=c++20 -O1 -w -DTG_ROWS="\"$PWD/build/rows.inc\"" -I. -Ibuild/csrc -I$CUDA/include -I$CUDA/targets/x86_64-linux/include main.cpp -o build/emulate
