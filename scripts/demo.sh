#!/usr/bin/env bash
# Embeds sentences with all-MiniLM-L6-v2, then SmolLM2-135M-Instruct answers a question: on CUDA where a driver answers, else on the CPU, which needs no toolkit.
# Usage: scripts/demo.sh [QUESTION]
set -euo pipefail
question=${1:-What is a matrix product, in two sentences?}
third_party/fetch.sh model smollm2
features=""
if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
  features=cuda,sm90,cutile,gguf,interpose,layers
  third_party/fetch.sh cuda-13.0 cuda-13.5 cutlass
else
  echo "no NVIDIA driver answers: running on the CPU"
  # Once, while they load: candle's products with dequantised weights are three times as fast as those with Q4_1 blocks.
  export CANDLE_DEQUANTIZE_ALL=1
fi
eval "$(third_party/fetch.sh --env)"
# In one build: the kernels are those of both.
cargo build --locked -p candle-tilegemm-examples -p candle-tilegemm-models --features "$features" --bin embed --example generate
built=${CARGO_TARGET_DIR:-target}/debug
"$built/embed"
printf '\n%s\n\n' "$question"
"$built/examples/generate" "${TILEGEMM_SMOLLM2_DIR:-third_party/dist/smollm2}/SmolLM2-135M-Instruct.Q4_1.gguf" --chat --prompt "$question" --tokens 96
