#!/usr/bin/env bash
# Packs the crate as `cargo publish` does, and builds and runs a program outside of the tree on the packed crate. The program finds the toolkits where
# `tilegemm toolchain` puts them, without a variable, and the kernels' objects in TILEGEMM_OBJECTS. Usage: scripts/packed.sh FEATURES; the rest of the
# environment is that of scripts/test.sh.
set -euo pipefail
tree=$PWD
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
cargo package --quiet --locked --allow-dirty --no-verify
version=$(cargo pkgid | sed 's/.*[#@]//')
tar -C "$outside" -xf "target/package/candle-tilegemm-$version.crate"
ls -l "target/package/candle-tilegemm-$version.crate"

mkdir -p "$outside/cache/candle-tilegemm/toolchain" "$outside/program/src"
ln -s "$tree/third_party/dist" "$outside/cache/candle-tilegemm/toolchain/dist"
cp Cargo.lock "$outside/program"
cat >"$outside/program/Cargo.toml" <<END
[package]
name = "program"
version = "0.0.0"
edition = "2021"

[dependencies]
candle-tilegemm = { path = "../candle-tilegemm-$version", default-features = false, features = [$(sed 's/[^,]*/"&"/g' <<<"$1")] }

# In a profile with debug information the kernels have line numbers, and other objects.
[profile.dev]
debug = false
END
cat >"$outside/program/src/main.rs" <<'END'
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::{Format, Layout, Problem};

fn main() -> candle_tilegemm::Result<()> {
    let linked = candle_tilegemm::launch::verify_library()?;
    let problem = Problem::dense(2048, 4096, 4096, 1, Layout::NT, Format::BF16);
    let plan = Dispatcher::new(DeviceInfo::h100()).plan(&problem, Policy::own())?;
    println!("{linked} kernels are linked; {problem} runs on {}", plan.kernel);
    Ok(())
}
END
cd "$outside/program"
env -u TILEGEMM_CUDA_HOME -u CUTLASS_DIR XDG_CACHE_HOME="$outside/cache" CARGO_TARGET_DIR="$tree/target/outside" cargo run --quiet --offline
