#!/usr/bin/env bash
# Everything that can be checked without a GPU: format, lints, CPU tests, the kernels' build and link, and the start of
# CUDA binaries on a machine without a device. Usage: scripts/test.sh CUDA_FEATURES
set -euo pipefail
cuda=$1
# What the command has beside.
measures=bench,layout,models
log=$(mktemp)
clock=$(mktemp)
page=$(mktemp --suffix=.html)
# What CI leaves out of candle's own kernels a later build must not find.
drop_candle_kernels() { [[ -z ${CI:-} ]] || rm -rf target/debug/{build,.fingerprint}/candle-kernels-*; }
trap 'rm -f "$log" "$clock" "$page" "$page.log"; drop_candle_kernels' EXIT
export RUSTFLAGS=${RUSTFLAGS:-} RUSTDOCFLAGS="-D warnings"
# CI compiles this project's crates a dozen times, and computes little with them. Level 3 takes three times as long to compile, and its tests as long to run.
[[ -z ${CI:-} ]] || export CARGO_PROFILE_DEV_OPT_LEVEL=1

# Runs cargo, and checks the size of the library of kernels that it builds: below MIB COMMAND OPTION...
below() {
  local out bytes
  out=$(cargo "$2" --locked --message-format json-render-diagnostics "${@:3}" | grep -oE '/[^"]*/build/candle-tilegemm-[0-9a-f]+/out' | tail -n 1)
  bytes=$(stat -c %s "$out/libtilegemm_kernels.a")
  echo "the library of kernels: $((bytes >> 20)) MiB"
  ((bytes <= $1 << 20)) || { echo "it is above $1 MiB"; exit 1; }
}

# Minutes of each step and what they took of processors, for the table at the end.
minutes=""
began=$SECONDS
worked=0
end_step() {
  local before=$worked
  times >"$clock"  # in a subshell it would be the subshell's
  worked=$(awk -F '[ms ]' 'NR == 2 { print $1 * 60 + $2 + $4 * 60 + $5 }' "$clock")
  [[ -z ${current:-} ]] || minutes+=$(row $((SECONDS - began)) "$worked - $before" "$current")$'\n'
  began=$SECONDS
}
row() { awk -v name="$3" "BEGIN { printf \"%6.1f min %6.1f of a processor  %s\", $1 / 60, ($2) / 60, name }"; }
step() { end_step; current=$*; printf '\n\033[1m== %s\033[0m\n' "$*"; }
# Runs tests and keeps their totals for the last line.
tests() { cargo test --locked --no-fail-fast "$@" 2>&1 | tee -a "$log"; }

step "format and file sizes"
cargo fmt --all --check
third_party/fetch.sh clang-format
scripts/format_csrc.sh --dry-run --Werror
# The suite is data, and bindgen writes bindings.rs.
long=$(git ls-files '*.rs' '*.cu' '*.hpp' '*.h' '*.cpp' '*.sh' 'Makefile' '*.md' '*.toml' ':!benches/suite.toml' ':!csrc/bindings.rs' | xargs wc -l |
  awk '$2 != "total" && $1 > 500')
[[ -z $long ]] || { echo "files above 500 lines:" && echo "$long" && exit 1; }
(($(cat docs/*.md | wc -w) <= 25000)) || { echo "docs/*.md have more than 25,000 words"; exit 1; }
(($(wc -l <README.md) <= 150)) || { echo "README.md has more than 150 lines"; exit 1; }

# Builds of one feature set share what they compile; other sets of packages and targets have other features of macros' crates, which are then built again.
step "clippy without CUDA, and bindings"
third_party/fetch.sh
eval "$(third_party/fetch.sh --env)"
export CUDA_COMPUTE_CAP=${CUDA_COMPUTE_CAP:-90} CANDLE_TESTS=$(scripts/candle_tests.sh)
# The crate, the command and the examples. The crate alone has the same features of candle's dependencies, so that candle is built once for all commands.
crates="-p candle-tilegemm -p candle-tilegemm-build -p tilegemm -p candle-tilegemm-examples -p candle-tilegemm-models"
# The program on candle-cublaslt's functions, which `[patch]` gives it.
cublaslt="-p candle-cublaslt -p cublaslt-program"
cargo clippy --locked $crates $cublaslt --no-default-features --features candle-tilegemm/candle,tilegemm/models --all-targets -- -D warnings
# The command as README installs it, and bindings.rs as the header has it.
cargo clippy --locked -p candle-tilegemm -p tilegemm --no-default-features --features candle-tilegemm/bindgen --all-targets -- -D warnings

step "tests on the CPU"
tests $crates $cublaslt --no-default-features --features candle-tilegemm/candle,tilegemm/models
tests --no-default-features --lib  # clippy has compiled the other tests

step "the documentation, as docs.rs builds it"
scripts/docs_rs.sh

step "the page of a record, in a browser"
record=benches/record/h100/2026-11-22.json
target/debug/tilegemm bench --from "$record" --html "$page" >/dev/null
# A developer's system is theirs; CI's is bare.
if [[ -n ${CI:-} ]] && ! command -v chromium >/dev/null && ((EUID == 0)) && command -v apt-get >/dev/null; then
  { apt-get update && apt-get install -y --no-install-recommends chromium; } >"$page.log" 2>&1 || tail -n 5 "$page.log"
fi
rc=0; scripts/check_report.sh "$page" || rc=$?
if ((rc == 3)); then echo "skipped: no Chromium"; elif ((rc)); then exit 1; fi

step "clippy with CUDA"
# candle's own kernels do not run in CI: clippy has none of them.
[[ -z ${CI:-} ]] || export NVCC=$PWD/third_party/stand-in/nvcc
export TILEGEMM_SKIP_KERNELS=1
for features in cuda candle,cuda candle,gguf candle,experts candle,layers layers interpose-mistralrs; do
  cargo clippy --locked --no-default-features --features "$features" --lib --test tables -- -D warnings
done
cargo clippy --locked $crates --no-default-features --features "candle,$cuda,$measures,interpose-kernels,candle-tilegemm/interpose-mistralrs" --all-targets -- -D warnings
cargo clippy --locked -p candle-tilegemm -p tilegemm -p candle-tilegemm-models --no-default-features \
  --features candle-tilegemm/candle,tilegemm/nccl,tilegemm/models,candle-tilegemm-models/layers,candle-tilegemm-models/nccl --lib --example generate --test decoders -- -D warnings
for program in preload engine; do cargo clippy --locked -p candle-tilegemm-$program -- -D warnings; done
unset TILEGEMM_SKIP_KERNELS

# For links CI compiles candle's statically linked kernels, unoptimised and without machine code.
drop_candle_kernels
if [[ -n ${CI:-} ]]; then
  mkdir -p target/nvcc/bin
  ln -sfn "$CUDA_HOME"/{include,lib64,nvvm} target/nvcc
  scripts/unoptimised_nvcc.sh "$CUDA_HOME/bin/nvcc" "$NVCC" >target/nvcc/bin/nvcc
  chmod +x target/nvcc/bin/nvcc
  export NVCC=$PWD/target/nvcc/bin/nvcc
fi

# The builds below share their objects.
export TILEGEMM_OBJECTS=$PWD/target/kernels

# The other tests are the same in a build with CUDA.
step "kernels, and what of the CUDA build runs here"
kernels="$cuda,interpose-kernels,candle-tilegemm/interpose-mistralrs"
both="-p candle-tilegemm -p tilegemm --features $kernels,$measures"
tests $both -p candle-tilegemm-models --lib $(printf -- '--test %s ' cli decoders gpu interpose sass tables)
tests $both --test plan explain
tests $both --doc
below 60 build $crates --features "$kernels,$measures" --bins --bench overhead

step "calls of candle and mistralrs for experts and quantised weights, by two linkers"
for calls in experts "quantised weights" "experts with quantised weights"; do
  { target/debug/tilegemm doctor || true; } | grep "calls for $calls arrive at the dispatcher" || { echo "by rustc's own linker they do not"; exit 1; }
done
# GNU ld. A test links with the dependencies that are built; a program without tests would build some of them again.
cargo rustc --locked --features "$kernels" --test interpose -- -Clinker-features=-lld -Clink-arg=-fuse-ld=bfd
program=$(ls -t target/debug/deps/interpose-* | grep -v '\.d$' | head -n 1)
! grep -q "Linker: LLD" "$program" || { echo "$program is not linked by GNU ld"; exit 1; }
"$program" | tee -a "$log"

step "the preload library: its tests, its symbols, and the calls of a program"
archs=$(grep -oE 'sm[0-9]+' <<<"$cuda" | paste -sd,),cutile
tests $both,preload --lib interpose  # with the dependencies that are built
below 36 build -p candle-tilegemm-preload --features "$archs"  # with `narrow`
# A dense build: its objects are there. A check runs the build script, too.
below 32 check -p candle-tilegemm --no-default-features --features "$archs"
scripts/check_preload.sh target/debug/libtilegemm_preload.so

step "README.md's program on the packed crate, and examples/engine, outside of the tree"
scripts/packed.sh

step "kernels of the other architectures: the first of each row for one of them, and of each family for each"
others=$(sed 's/sm90/sm80,sm89,sm100,sm120/' <<<"$kernels")
# Packages and features are those of the builds above, so that candle is not built again.
TILEGEMM_PROFILE=sample tests $crates --features "$others,$measures" --test sass --test tables

# Last of the builds, whose variables are others. candle's own kernels are empty in this one.
step "a program on candle 0.9.2"
CUDA_PATH=$CUDA_HOME PATH=$PWD/third_party/stand-in:$PATH cargo run --locked -p candle-0-9-program

step "without a device a CUDA binary starts and says so"
scripts/start_without_gpu.sh

end_step
printf '\n%s%s\n' "$minutes" "$(row $SECONDS "$worked" "in all")"
awk '/^test result:/ { passed += $4; failed += $6; skipped += $8 }
  END { printf "\n%d passed, %d failed, %d skipped\n", passed, failed, skipped; exit failed > 0 }' "$log"
