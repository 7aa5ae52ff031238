#!/usr/bin/env bash
# Runs what `make gpu-bundle` packed, on a GPU host: run.sh [doctor|test|planted|bench|overhead|engine|llama|experts|moe|quantized|embed|generate|encode|sanitize|
# torch|torch-decode|decoder|torch-decoder|cards|perplexity|narrow|narrow-errors|candle-0.9]...; the steps from experts on only where they are named. `run.sh bench` takes
# about ten minutes, narrow $BUDGET for each of $CLASSES, by default 90s for all that have narrow weights;
# tilegemm bench --help says what else it measures. decoder and torch-decoder take three minutes for each of $DECODERS, by default llama3-8b; BUDGET=90s cuts that.
# Needs the driver and CUDA 13's libcudart, libcublas, libcurand and libnvrtc; embed also needs TILEGEMM_MODEL_DIR, generate and perplexity TILEGEMM_SMOLLM2_DIR,
# torch, torch-decode and torch-decoder a python3 with PyTorch.
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

# Whole decoders with random weights: ours and stock.
decoder() {
  local size
  for size in ${DECODERS:-llama3-8b}; do ./tilegemm bench --decoder "$size" --budget "${BUDGET:-180s}" --json "decoder-$size.json"; done
}

# Products with narrow weights of models, dense and of experts.
narrow() {
  local class
  for class in ${CLASSES:-fp8 w4a16 mxfp4 fp8-experts w4a16-experts mxfp4-experts}; do
    ./tilegemm bench --class "$class" --budget "${BUDGET:-90s}" --json "$class.json"
  done
}

# Tests on two GPUs, and decoders on one and on $CARDS (2) of the same host; a bundle with nccl.
cards() {
  local size cards
  ./decoders ranks_
  for size in ${DECODERS:-llama3-8b}; do
    for cards in 1 ${CARDS:-2}; do
      ./tilegemm bench --decoder "$size" --cards "$cards" --arms captured --prefill 2048,8192 --context 2048 --sequences 1,8,32 --budget "${BUDGET:-90s}" \
        --json "decoder-$size-x$cards.json"
    done
  done
}

# The same in PyTorch, beside the records of `decoder`. ARMS=plain compiles nothing.
torch_decoder() {
  local size budget=${BUDGET:-180s} beside
  for size in ${DECODERS:-llama3-8b}; do
    [[ $size != *-q4* ]] || continue  # PyTorch has no products with such blocks
    beside=()
    [[ ! -e decoder-$size.json ]] || beside=(--beside "decoder-$size.json")
    python3 torch_decoder.py --model "$size" --arms "${ARMS:-plain,compiled}" --budget "${budget%s}" "${beside[@]}" --json "torch-decoder-$size.json"
  done
}

# Every family of this build as it ships, by each tool of compute-sanitizer: the tests family_* (tests/gpu/families.rs), each in a process of its own, because
# no kernel runs after an error.
sanitize() {
  local tool family families found began PATH=$PATH summary="" failed=0 clean log=sanitize.log
  for found in /usr/local/cuda*/bin; do PATH+=:$found; done
  command -v compute-sanitizer >/dev/null ||
    { echo "run.sh: compute-sanitizer is not on PATH; install CUDA's compute-sanitizer, or add its folder to PATH" >&2; exit 1; }
  families=$(./gpu --list family_ | sed -n 's/^\(family_.*\): test$/\1/p')
  : >"$log"
  for tool in memcheck racecheck initcheck synccheck; do
    began=$SECONDS clean=0
    for family in $families; do
      # Without --error-exitcode the exit code is the program's, whatever the tool has found.
      if found=$(compute-sanitizer --tool "$tool" --error-exitcode 9 ./gpu --exact "$family" 2>&1) && [[ $found == *" 1 passed;"* ]]; then
        clean=$((clean + 1))
      else
        failed=1
        echo "$tool: $family: $(grep -E 'SUMMARY|^=+ +(at|[A-Z].*(error|Error|Invalid|Race|Uninit))' <<<"$found" | sort -u | head -n 3 | cut -c1-200)"
      fi
      printf '== %s %s\n%s\n' "$tool" "$family" "$found" >>"$log"
    done
    summary+=$(printf '%-10s %2d of %d families without an error, %d s' "$tool" "$clean" "$(wc -w <<<"$families")" $((SECONDS - began)))$'\n'
  done
  echo "families:" ${families//family_/}
  printf '%s' "$summary"
  ((failed == 0)) || { echo "run.sh: compute-sanitizer has found something, or a family did not run; $log has the reports" >&2; exit 1; }
}

for step in "${@:-doctor test planted bench overhead engine llama}"; do
  for name in $step; do
    echo "== $name"
    case $name in
      doctor) ./tilegemm doctor ;;
      test) ./gpu --jobs 4 && ./decoders ;;
      bench) ./tilegemm bench --json bench.json --html bench.html ;;
      planted) planted ;;
      overhead) ./overhead --bench ;;
      engine) ./engine ;;
      llama) ./llama --config tiny --dtype bf16 && ./llama --config 1b --prompt 128 --decode 8 ;;
      experts) for model in qwen3 mixtral; do ./experts --model $model; done ;;
      moe) moe ;;
      quantized) quantized ;;
      sanitize) sanitize ;;
      embed) ./embed --device cuda ;;
      generate) for graphs in on off; do TILEGEMM_GRAPHS=$graphs ./generate "$TILEGEMM_SMOLLM2_DIR"/*.gguf --chat --tokens 256; done ;;
      encode)
        for model in minilm bert-base; do
          ./tilegemm bench --model $model --prompt 512 --batch 32 --runs 15 --json "encode-$model.json"
        done
        ;;
      candle-0.9) ./candle-0-9-program ;;
      decoder) decoder ;;
      torch-decoder) torch_decoder ;;
      cards) cards ;;
      perplexity) ./perplexity --text dispatch.md --json perplexity.json ;;
      narrow) narrow ;;
      narrow-errors) ./tilegemm errors narrow --json errors-narrow.json ;;
      torch-decode) python3 torch_decode.py ./libtilegemm_preload.so --json torch-decode.json ;;
      torch) python3 torch_check.py ./libtilegemm_preload.so --speed --json torch.json ;;
      *) echo "run.sh: there is no step '$name'" >&2 && exit 2 ;;
    esac
  done
done
