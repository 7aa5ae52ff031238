#!/usr/bin/env bash
# Packs the GPU tests, benches, examples and the command line, stripped, with a run.sh, for a GPU host without Rust.
# Usage: scripts/gpu_bundle.sh FEATURES; the environment is that of `third_party/fetch.sh --env`.
set -euo pipefail
features=$1
bundle=target/gpu-bundle
rm -rf "$bundle" && mkdir -p "$bundle"

# The executables that cargo built, as `name path` lines.
cargo build --locked --features "$features" --bins --examples --test gpu --bench overhead --message-format json |
  python3 -c '
import json, sys
wanted = {"gpu", "overhead", "embed", "experts", "llama", "tilegemm"}
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] in wanted:
        print(message["target"]["name"], message["executable"])' |
  while read -r name path; do strip -o "$bundle/$name" "$path"; done

cp scripts/bundle_run.sh "$bundle/run.sh"
# The binaries share most of their bytes: a window larger than one of them finds that.
tar -C target -cf - gpu-bundle | xz --lzma2=preset=1,dict=160MiB > gpu-bundle.tar.xz
ls -l gpu-bundle.tar.xz
