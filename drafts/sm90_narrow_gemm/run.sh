#!/bin/bash
# First turn: correctness of all kernels, then times.
gunzip -kf ngemm.gz; chmod +x ngemm
timeout 10 ./ubench
date +%T; timeout 22 ./ngemm test > test.txt 2>&1; grep -v " 0 failures" test.txt | grep -E "FAIL|failures|CUDA|status|TEST" | cut -c1-150 | head -30; grep -A3 -E "FAIL" test.txt | grep " at " | head -12
date +%T; SHAPES=2 timeout 20 ./ngemm bench > bench.txt; cut -c1-150 bench.txt | head -c 8000
date +%T; timeout 20 python3 bench/torch_ref.py
date +%T; grep "^ok.*rms" test.txt | sed 's/share.*bad, //' | head -12
cp test.txt bench.txt "${OUT:-.}" 2>/dev/null; rm -f ngemm
