#!/usr/bin/env bash
# Checks libtilegemm_preload.so without a GPU: its symbols and its libraries, and that a program's calls reach a stub of cuBLAS unchanged and are counted.
# Usage: scripts/check_preload.sh LIBRARY; the environment is that of `third_party/fetch.sh --env`.
set -euo pipefail
library=$(realpath "$1")
fail() { echo "check_preload.sh: $*" >&2; exit 1; }

defined="cublasDgemmStridedBatched cublasDgemm_v2 cublasGemmBatchedEx cublasGemmEx cublasGemmStridedBatchedEx cublasHgemm cublasHgemmStridedBatched
  cublasLtMatmul cublasSgemmBatched cublasSgemmStridedBatched cublasSgemm_v2 tilegemm_stats"
exported=$(nm -D --defined-only "$library" | awk '{ print $NF }' | sort)
diff <(tr -s ' \n' '\n' <<<"$defined" | LC_ALL=C sort) <(LC_ALL=C sort <<<"$exported") || fail "the symbols of $library are other ones"
# The library must not bring libraries that the program has in another version.
needed=$(readelf -d "$library" | awk '/NEEDED/ { gsub(/[][]/, "", $NF); print $NF }')
! grep -E 'libcublas|libcudart|libstdc\+\+' <<<"$needed" || fail "$library loads these libraries into every program"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
compile() { g++ -std=c++17 -isystem "$CUDA_HOME/include" "$@"; }
compile -fsyntax-only tests/preload/products.cpp  # which needs a GPU, and cuBLAS itself
# The numbers of cublasLt.h. Those of version 12 alone end with a comment.
{
  echo '#include <cublasLt.h>'
  sed -nE 's/^pub const (\w+): c_int = ([0-9]+);$/static_assert(CUBLASLT_\1 == \2, "\1");/p' src/interpose/lt_header.rs
} >"$folder/numbers.cpp"
(($(grep -c static_assert "$folder/numbers.cpp") > 30)) || fail "src/interpose/lt_header.rs has no numbers"
compile -fsyntax-only "$folder/numbers.cpp"
for version in 13 12; do
  lib=$folder/$version
  mkdir "$lib"
  # A library with the name and the symbol versions of NVIDIA's: stub NAME OPTION...
  stub() {
    echo "lib$1.so.$version { global: cublas*; local: *; };" >"$folder/versions"
    compile -shared -fPIC -Wl,-soname,"lib$1.so.$version" -Wl,--version-script="$folder/versions" tests/preload/stub.cpp -o "$lib/lib$1.so.$version" "${@:2}"
  }
  stub cublasLt -DLT
  stub cublas -DVERSION=$version -L"$lib" -l:libcublasLt.so.$version
  compile -no-pie tests/preload/program.cpp -o "$lib/program" -L"$lib" -l:libcublas.so.$version -l:libcublasLt.so.$version
  # The program alone, with every call forwarded, and as the library decides: without a device that is the same.
  run() { LD_LIBRARY_PATH=$lib:${LD_LIBRARY_PATH:-} "$@" "$lib/program"; }
  run env >"$folder/alone"
  grep -qx "15 calls" "$folder/alone" || fail "the program alone does not make 15 calls"
  modes=off
  nvidia-smi -L &>/dev/null || modes="off on" # the operands are no memory of a device
  for mode in $modes; do
    about="with cuBLAS $version, TILEGEMM=$mode"
    run env LD_PRELOAD="$library" TILEGEMM=$mode TILEGEMM_STATS=on >"$folder/with" 2>"$folder/stats" ||
      { cat "$folder/stats"; fail "$about: it ends with an error"; }
    diff "$folder/alone" "$folder/with" || fail "$about: calls arrive changed"
    case $mode in
      off) counts='["off",15]' ;;
      on) counts='["pointer_mode",1],["types",1],["compute_type",1],["arguments",1],["pointer_arrays",2],["attributes",1],["failed",8]' ;;
    esac
    grep -F "\"ours\":0,\"forwarded\":[$counts],\"refused\":0" "$folder/stats" >/dev/null || { cat "$folder/stats"; fail "$about: other counters"; }
  done
done

# cuBLAS in the program itself: no call arrives, and the library says why.
compile -c -DLT tests/preload/stub.cpp -o "$folder/lt.o"
compile -DSTATIC tests/preload/program.cpp tests/preload/stub.cpp "$folder/lt.o" -o "$folder/static"
LD_PRELOAD=$library TILEGEMM_STATS=on "$folder/static" 2>&1 >/dev/null | grep -F "cuBLAS is linked into $folder/static statically" >/dev/null ||
  fail "a program with a static cuBLAS is not told of"
LD_PRELOAD=$library TILEGEMM_STATS=on env true 2>&1 | grep "has not loaded libcublas" >/dev/null || fail "a program without cuBLAS is not told of"
LD_PRELOAD=$library env true 2>&1 | (! grep .) || fail "it says something unasked"
echo "its symbols are there, calls of cuBLAS 12 and 13 arrive unchanged, and are counted"
