#!/usr/bin/env bash
# Embeds sentences with all-MiniLM-L6-v2: on CUDA where a driver answers, else on the CPU, which needs no toolkit.
set -euo pipefail
third_party/fetch.sh model
features=""
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
  features=cuda,sm90,cutile,interpose
  third_party/fetch.sh cuda-13.0 cuda-13.5 cutlass
else
  echo "no NVIDIA driver answers: running on the CPU"
fi
eval "$(third_party/fetch.sh --env)"
cargo run --locked -p candle-tilegemm-examples --features "$features" --bin embed -- "$@"
