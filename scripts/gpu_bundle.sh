#!/usr/bin/env bash
# Packs the GPU tests, also those of decoders, benches, examples, the command line and the preload library, stripped, with a run.sh, for a GPU host without Rust.
# Usage: scripts/gpu_bundle.sh FEATURES [kernels] [candle-0.9] [nccl]; the environment is that of `third_party/fetch.sh --env`. With `kernels`, the GPU tests and the examples moe
# and quantized are also built with the feature interpose-kernels, as gpu-kernels, moe-kernels and quantized-kernels. With `candle-0.9`, the program of
# tests/candle-0.9 is built, and candle 0.9.2's kernels for it. With `nccl`, all binaries have the feature nccl, and need libnccl.so.2 to start.
set -euo pipefail
features=$1
[[ " ${*:2} " != *" nccl "* ]] || features+=,nccl
bundle=target/gpu-bundle
rm -rf "$bundle" && mkdir -p "$bundle"

# The crate, the command and the examples in one build.
all="-p candle-tilegemm -p tilegemm -p candle-tilegemm-examples -p candle-tilegemm-engine -p candle-tilegemm-models"

# Packs executables that cargo builds: pack SUFFIX NAMES OPTION...
pack() {
  local suffix=$1 names=$2
  cargo build --locked --message-format json "${@:3}" |
    NAMES=$names python3 -c '
import json, os, sys
wanted = os.environ["NAMES"].split()
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] in wanted:
        print(message["target"]["name"], message["executable"])' |
    while read -r name path; do strip -o "$bundle/$name$suffix" "$path"; done
}

pack "" "gpu decoders overhead embed engine experts generate llama moe perplexity quantized tilegemm" $all \
  --features "$features,candle,interpose,bench,layout,models" --bins --test gpu --test decoders --bench overhead --example generate --example perplexity
if [[ " ${*:2} " == *" kernels "* ]]; then
  pack -kernels "gpu moe quantized" $all --features "$features,interpose-kernels" --test gpu --bin moe --bin quantized
fi

if [[ " ${*:2} " == *" candle-0.9 "* ]]; then
  export CUDA_PATH=$CUDA_HOME
  # `make test` leaves empty kernels of candle 0.9.2, whose build script runs again where a host compiler is named, and makes what is missing.
  find target/debug/build -path '*/candle-kernels-*/out/*.ptx' -size -2 -delete
  NVCC_CCBIN=${NVCC_CCBIN:-$(command -v g++)} pack "" "candle-0-9-program" -p candle-0-9-program
fi

archs=$(grep -oE 'sm[0-9]+' <<<"$features" | paste -sd,),cutile
cargo build --locked -p candle-tilegemm-preload --features "$archs"
strip --strip-unneeded -o "$bundle/libtilegemm_preload.so" target/debug/libtilegemm_preload.so

cp preload/torch_{check,decode,decoder}.py docs/dispatch.md "$bundle"
cp scripts/bundle_run.sh "$bundle/run.sh"
# The binaries share most of their bytes: a window larger than one of them finds that.
tar -C target -cf - gpu-bundle | xz --lzma2=preset=1,dict=160MiB > gpu-bundle.tar.xz
ls -l gpu-bundle.tar.xz
