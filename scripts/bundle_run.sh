#!/usr/bin/env bash
# Runs what `make gpu-bundle` packed, on a GPU host: run.sh [doctor|test|planted|bench|overhead|llama|experts|moe|quantized|embed|encode|torch]..., all but
# experts, moe, quantized, embed, encode and torch by default. `run.sh bench` takes about ten minutes; tilegemm bench --help says what else it measures.
# Needs the driver and CUDA 13's libcudart, libcublas, libcurand and libnvrtc; embed also needs TILEGEMM_MODEL_DIR, torch a python3 with PyTorch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
missing=$(ldd gpu | awk '/not found/ { print $1 }' | sort -u)
if [[ -n $missing ]]; then
  echo "run.sh: not found:" $missing "- put CUDA 13's lib64 on LD_LIBRARY_PATH" >&2
  exit 1
fi
export TILEGEMM_REQUIRE_GPU=1

# The benchmark has to catch mistakes that are planted in it.
planted() {
  local out
  out=$(mktemp)
  ! ./tilegemm bench --only llama3-8b-o-m2048,square-2048-nt-f32 --arms own --plant short-k >"$out" ||
    { cat "$out"; echo "run.sh: a kernel that skips its last K tile passed" >&2; exit 1; }
  [[ $(grep -c "WRONG: planted" "$out") == 2 ]] || { cat "$out"; echo "run.sh: it is not said which arm is wrong" >&2; exit 1; }
  ! grep -q "WRONG: own" "$out" || { cat "$out"; echo "run.sh: a right kernel is called wrong" >&2; exit 1; }
  ! ./tilegemm bench --only llama3-8b-o-m2048 --arms own --plant zeros >"$out" ||
    { cat "$out"; echo "run.sh: zeros were measured" >&2; exit 1; }
  grep -q "not N(0, 1) data" "$out" || { cat "$out"; echo "run.sh: it is not said that the data is zeros" >&2; exit 1; }
  echo "a kernel that skips its last K tile is called wrong, zeros are refused"
}

# Qwen3-30B-A3B, which needs 80 GB, and a block of Mixtral's; moe-kernels is the build with the experts on our kernels.
moe() {
  local run=(--config full --prompt 1024 --decode 32)
  ./moe --model mixtral "${run[@]}"
  ./moe --model layer --config full
  ./moe "${run[@]}" --save-logits stock.safetensors
  [[ ! -e moe-kernels ]] || ./moe-kernels "${run[@]}" --compare stock.safetensors
}

# A quantized_llama on a file with the shapes of Llama 3 8B; quantized-kernels is the build with quantised weights on our kernels.
quantized() {
  local run=(--config 8b --prompt 2048 --decode 32 --gguf 8b.gguf)
  ./quantized "${run[@]}" --write --save-logits stock-gguf.safetensors
  [[ ! -e quantized-kernels ]] || ./quantized-kernels "${run[@]}" --compare stock-gguf.safetensors
}

for step in "${@:-doctor test planted bench overhead llama}"; do
  for name in $step; do
    echo "== $name"
    case $name in
      doctor) ./tilegemm doctor ;;
      test) ./gpu ;;
      bench) ./tilegemm bench --json bench.json --html bench.html ;;
      planted) planted ;;
      overhead) ./overhead --bench ;;
      llama) ./llama --config tiny --dtype bf16 && ./llama --config 1b --prompt 128 --decode 8 ;;
      experts) for model in qwen3 mixtral; do ./experts --model $model; done ;;
      moe) moe ;;
      quantized) quantized ;;
      embed) ./embed --device cuda ;;
      encode)
        for model in minilm bert-base; do
          ./tilegemm bench --model $model --prompt 512 --batch 32 --runs 15 --json "encode-$model.json"
        done
        ;;
      torch) python3 torch_check.py ./libtilegemm_preload.so --speed --json torch.json ;;
      *) echo "run.sh: there is no step '$name'" >&2 && exit 2 ;;
    esac
  done
done
