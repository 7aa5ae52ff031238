#!/usr/bin/env bash
# Packs the crates as `cargo publish` does, and follows README.md with the packed crates instead of a checkout: the lines of "First success on a GPU" are taken
# from README.md itself, and run in an environment of HOME, PATH and what these lines set. Then builds and starts examples/engine, which has no candle.
# Usage: scripts/packed.sh; the toolkits are those of third_party/dist. TILEGEMM_OBJECTS has the kernels' objects, NVCC the compiler of candle's kernels.
set -euo pipefail
tree=$PWD
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
fail() { echo "packed.sh: $*" >&2; exit 1; }

packages="-p candle-tilegemm-build -p candle-tilegemm -p candle-tilegemm-models -p tilegemm"
cargo publish --dry-run --quiet --locked --allow-dirty --no-verify $packages  # what a registry would refuse
cargo package --quiet --locked --allow-dirty --no-verify $packages
version=$(cargo pkgid | sed 's/.*[#@]//')
# unpack NAME FOLDER: a packed crate, at its place in a checkout.
unpack() {
  ls -l "target/package/$1-$version.crate"
  tar -C "$outside" -xf "target/package/$1-$version.crate"
  mv "$outside/$1-$version" "$outside/$2"
}
unpack candle-tilegemm candle-tilegemm
unpack candle-tilegemm-build candle-tilegemm/build
unpack candle-tilegemm-models candle-tilegemm/models
unpack tilegemm candle-tilegemm/cli

# A newcomer's home, with this machine's Rust and crates, and the toolkits as `tilegemm toolchain` would fetch them. Nothing here computes much: no program is optimised.
home=$outside/home
cargo_home=${CARGO_HOME:-$HOME/.cargo}
mkdir -p "$home/.cargo/bin" "$home/.cache/candle-tilegemm"
ln -s "$tree/third_party" "$home/.cache/candle-tilegemm/toolchain"
[[ ! -e ${RUSTUP_HOME:-$HOME/.rustup} ]] || ln -s "${RUSTUP_HOME:-$HOME/.rustup}" "$home/.rustup"
for part in registry git; do [[ ! -e $cargo_home/$part ]] || ln -s "$cargo_home/$part" "$home/.cargo/$part"; done
{
  printf '[net]\noffline = true\n\n[build]\ntarget-dir = "%s"\n\n[env]\n' "$tree/target"
  for name in NVCC TILEGEMM_OBJECTS TILEGEMM_PROFILE; do [[ -z ${!name:-} ]] || printf '%s = "%s"\n' $name "${!name}"; done
  printf '\n[patch.crates-io]\n'
  for name in candle-tilegemm-build:/build candle-tilegemm-models:/models candle-tilegemm: ; do printf '%s = { path = "%s" }\n' "${name%:*}" "$outside/candle-tilegemm${name#*:}"; done
  printf '\n[profile.release]\nopt-level = 0\n'
} >"$home/.cargo/config.toml"
path=$home/.cargo/bin:$(dirname "$(command -v cargo)"):/usr/local/bin:/usr/bin:/bin
# Runs lines in a folder of $outside, in an environment of HOME and PATH: lines_in FOLDER LINES.
lines_in() { (cd "$outside/$1" && env -i HOME="$home" PATH="$path" bash -euo pipefail -c "$2"); }

# A code block of that section of README.md: block LANGUAGE NUMBER.
block() {
  awk -v fence="\`\`\`$1" -v wanted="$2" '
    /^## / { here = $0 == "## First success on a GPU" }
    $0 == "```" { if (inside) exit }
    inside
    here && $0 == fence { inside = ++count == wanted }' README.md | grep . || fail "README.md has no block $2 of $1 in \"First success on a GPU\""
}

# The command `tilegemm`, and the toolkits, which are there.
# A packed crate's lock file names a registry that does not have the others yet: without --locked the versions are those that this machine has.
lines_in candle-tilegemm "$(block sh 1 | sed 's/ --locked//')" >"$outside/exports"
grep -q '^export LD_LIBRARY_PATH=' "$outside/exports" || fail "tilegemm toolchain prints no LD_LIBRARY_PATH"
for_linker=$(sed -n 's/^export LIBRARY_PATH=//p' "$outside/exports")
[[ -n $for_linker ]] || fail "tilegemm toolchain prints no LIBRARY_PATH"
for dir in ${for_linker//:/ }; do
  [[ ! -e $dir/libcuda.so.1 ]] || fail "$dir, a folder for the linker, has a libcuda.so.1, which the loader would take for the driver"
done

# The program.
mkdir -p "$outside/program/src"
cp Cargo.lock "$outside/program"
{
  printf '[package]\nname = "program"\nversion = "0.0.0"\nedition = "2021"\n\n'
  block toml 1
} >"$outside/program/Cargo.toml"
block rust 1 >"$outside/program/src/main.rs"
lines_in program "$(block sh 2)" 2>&1 | tee "$outside/said"
# One line of the program for each of the three runs.
on=Cpu
! nvidia-smi -L &>/dev/null || on=Cuda
[[ $(grep -c "^$on" "$outside/said") == 3 ]] || fail "README.md's program does not start three times on $on"
nm "$tree/target/release/program" >"$outside/symbols"
grep -q ' [Tt] cublasGemmStridedBatchedEx$' "$outside/symbols" || fail "README.md's program has candle's products on cuBLAS alone"

# The engine, without candle; our build finds its toolkits without a variable. The number of linked kernels is that of the table, or it fails.
sed 's|path = "../.."|path = "../candle-tilegemm"|' examples/engine/Cargo.toml >"$outside/engine.toml"
mkdir "$outside/engine"
mv "$outside/engine.toml" "$outside/engine/Cargo.toml"
cp examples/engine/main.rs Cargo.lock "$outside/engine"
lines_in engine 'eval "$(tilegemm toolchain --env)"; unset TILEGEMM_CUDA_HOME CUTLASS_DIR; cargo tree --prefix none -e normal; cargo run --release --quiet' | tee "$outside/said"
! grep '^candle-core' "$outside/said" || fail "the engine depends on candle"
grep -q 'kernels are linked' "$outside/said" && grep -q ' runs on ' "$outside/said" || fail "the engine shows no plan"
