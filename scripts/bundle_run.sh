#!/usr/bin/env bash
# Runs what `make gpu-bundle` packed, on a GPU host: run.sh [doctor|test|bench|llama|embed]..., all but embed by default.
# Needs the driver and CUDA 13's libcudart, libcublas, libcurand and libnvrtc; embed also needs TILEGEMM_MODEL_DIR.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
missing=$(ldd gpu | awk '/not found/ { print $1 }' | sort -u)
if [[ -n $missing ]]; then
  echo "run.sh: not found:" $missing "- put CUDA 13's lib64 on LD_LIBRARY_PATH" >&2
  exit 1
fi
export TILEGEMM_REQUIRE_GPU=1
for step in "${@:-doctor test bench llama}"; do
  for name in $step; do
    echo "== $name"
    case $name in
      doctor) ./tilegemm doctor ;;
      test) ./gpu ;;
      bench) ./kernels ;;
      llama) ./llama --config tiny --dtype bf16 && ./llama --config 1b --prompt 128 --decode 8 ;;
      embed) ./embed --device cuda ;;
      *) echo "run.sh: there is no step '$name'" >&2 && exit 2 ;;
    esac
  done
done
