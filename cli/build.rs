//! The device code of the command's own: the rungs of `tilegemm bench --ladder`, and the programs that print what `tilegemm layout` shows.

#[path = "build/ladder.rs"]
mod ladder;
#[path = "build/layout.rs"]
mod layout;

use candle_tilegemm_build::toolkit::Toolkit;
use candle_tilegemm_build::{compiles_kernels, has, table, units};
use std::path::PathBuf;

fn main() {
    if let Err(message) = run() {
        eprintln!("\ntilegemm: {message}\n");
        std::process::exit(1);
    }
}

fn run() -> Result<(), String> {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    // What candle-tilegemm's build script says of its build.
    let of_library = |name: &str| std::env::var(format!("DEP_CANDLE_TILEGEMM_{name}")).unwrap_or_default();
    let csrc = PathBuf::from(of_library("CSRC"));
    for path in ["build", "build.rs", "ladder"] {
        println!("cargo:rerun-if-changed={path}");
    }
    println!("cargo:rerun-if-changed={}", csrc.display());
    println!("cargo:rustc-env=TILEGEMM_NVCC_VERSION={}", of_library("NVCC"));

    let kernels = table::read(&csrc)?;
    let measures = has("bench") && has("cuda");
    let toolkit = (compiles_kernels() && (has("layout") || measures)).then(|| Toolkit::find(&csrc)).transpose()?;
    let mut pages = Vec::new();
    if let Some(toolkit) = &toolkit {
        if has("layout") {
            pages = layout::pages(&kernels, &csrc, toolkit, &out)?;
        }
        if measures {
            let archs: Vec<u16> = of_library("ARCHS").split(',').filter_map(|arch| arch.parse().ok()).collect();
            ladder::build(&manifest.join("ladder"), &archs, of_library("TILE") == "true", toolkit, &out)?;
        }
    }
    units::write(&out.join("layouts.rs"), &layout::rust(&pages, &kernels, &csrc))
}
