#!/usr/bin/env bash
# Builds the documentation as docs.rs does: with the features and arguments of Cargo.toml, and without CUDA.
set -euo pipefail
mapfile -t arguments < <(cargo metadata --locked --no-deps --format-version 1 | python3 -c '
import json, sys
packages = json.load(sys.stdin)["packages"]
docs = next(p for p in packages if p["name"] == "candle-tilegemm")["metadata"]["docs"]["rs"]
print("--features", ",".join(docs["features"]), *docs["cargo-args"], sep="\n")')
# The path of this machine, without its compilers of CUDA.
path=$(tr : '\n' <<<"$PATH" | while read -r dir; do [[ -e $dir/nvcc ]] || echo "$dir"; done | paste -sd:)
# A folder of its own: with another nvcc candle's kernels would be built again in the folder of the other builds.
env -u CUDA_HOME -u CUDA_PATH -u TILEGEMM_CUDA_HOME -u CUTLASS_DIR -u NVCC -u LIBRARY_PATH -u LD_LIBRARY_PATH -u CUDARC_CUDA_VERSION -u CUDA_COMPUTE_CAP -u CANDLE_TESTS \
  PATH="$path" DOCS_RS=1 RUSTDOCFLAGS="${RUSTDOCFLAGS:-} --cfg docsrs" \
  cargo doc --locked --no-deps --lib --target-dir target/docs "${arguments[@]}"
for item in nn/index launch/fn.launch launch/fn.prepare layer/struct.RmsNorm interpose/fn.stats interpose/fn.experts_are_active interpose/fn.mistralrs_is_active; do
  [[ -e target/docs/doc/candle_tilegemm/$item.html ]] || { echo "docs_rs.sh: the documentation lacks $item" >&2; exit 1; }
done
# A method has no page of its own.
group=target/docs/doc/candle_tilegemm/nn/parallel/struct.Group.html
grep -q 'id="method.cards"' "$group" || { echo "docs_rs.sh: the documentation lacks Group::cards" >&2; exit 1; }
