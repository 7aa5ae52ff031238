//! The toolkits that build.rs searches, in the same order. A finished build needs none of them at run time.

use super::finding::{Finding, Status};
use crate::toolchain;
use std::path::{Path, PathBuf};
use std::process::Command;

type Version = (u32, u32);

/// The oldest CUDA versions for our kernels and for cuTile C++ kernels, as in build/toolkit.rs.
const OLDEST: Version = (12, 8);
const OLDEST_TILE: Version = (13, 3);

pub fn findings() -> Vec<Finding> {
    let dists = dists();
    vec![our_nvcc(&dists), candle_nvcc(&dists), cutlass(&dists), host_compiler(), loader()]
}

/// third_party/dist of the current checkout, and the folder of `tilegemm toolchain`.
fn dists() -> Vec<PathBuf> {
    let here = std::env::current_dir().unwrap_or_default();
    let root = here.ancestors().find(|dir| dir.join("third_party/fetch.sh").is_file());
    let folders = [root.map(|root| root.join("third_party")), toolchain::folder()];
    folders.into_iter().flatten().map(|folder| folder.join("dist")).collect()
}

fn folder(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

fn path_entry(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

fn our_nvcc(dists: &[PathBuf]) -> Finding {
    const SUBJECT: &str = "nvcc";
    const FETCH: &str = "run `tilegemm toolchain`, or set TILEGEMM_CUDA_HOME to a CUDA >= 13.3";
    let fetched = dists.iter().map(|dist| dist.join("cuda-13.5")).find(|home| home.join("bin/nvcc").is_file());
    let home = folder("TILEGEMM_CUDA_HOME").or(fetched).or_else(|| folder("CUDA_HOME")).or_else(|| folder("CUDA_PATH"));
    let Some(nvcc) = home.map(|home| home.join("bin/nvcc")).or_else(|| path_entry("nvcc")) else {
        return Finding::problem(Status::Missing, SUBJECT, "no CUDA toolkit for our kernels", FETCH);
    };
    let place = nvcc.display();
    match nvcc_version(&nvcc) {
        None => Finding::problem(Status::Broken, SUBJECT, format!("{place} does not run"), FETCH),
        Some(version) if version < OLDEST => {
            Finding::problem(Status::Broken, SUBJECT, format!("{} is too old: {place}", cuda(version)), FETCH)
        }
        Some(version) if version < OLDEST_TILE => {
            Finding::problem(Status::Warn, SUBJECT, format!("{} has no cuTile C++: {place}", cuda(version)), FETCH)
        }
        Some(version) => Finding::ok(SUBJECT, format!("{} for our kernels: {place}", cuda(version))),
    }
}

const ENV: &str = "run `eval \"$(tilegemm toolchain --env)\"`, in a checkout `eval \"$(third_party/fetch.sh --env)\"`";

/// cudarc runs the nvcc on PATH; candle-kernels tries the nvcc of CUDA_HOME first.
fn candle_nvcc(dists: &[PathBuf]) -> Finding {
    const SUBJECT: &str = "nvcc, candle";
    const FETCH: &str =
        "run `tilegemm toolchain cuda-13.0`, then `eval \"$(tilegemm toolchain --env)\"`; or put a CUDA no newer than the driver on PATH";
    let home = folder("CUDA_HOME").or_else(|| folder("CUDA_PATH")).map(|home| home.join("bin/nvcc"));
    match home.or_else(|| path_entry("nvcc")).and_then(|nvcc| Some((nvcc_version(&nvcc)?, nvcc))) {
        Some((version, nvcc)) if newer_than_driver(version) => {
            let what = format!("{} is newer than the driver: {}", cuda(version), nvcc.display());
            Finding::problem(
                Status::Warn,
                SUBJECT,
                what,
                "candle's kernels would not load; use CUDA 13.0, or update the driver",
            )
        }
        Some((version, nvcc)) => {
            Finding::ok(SUBJECT, format!("{} for candle's kernels: {}", cuda(version), nvcc.display()))
        }
        None => match dists.iter().find(|dist| dist.join("cuda-13.0/bin/nvcc").is_file()) {
            Some(dist) => {
                let is_of_cache = toolchain::folder().is_some_and(|folder| dist.starts_with(folder));
                let exports = if is_of_cache { "tilegemm toolchain" } else { "third_party/fetch.sh" };
                let remedy =
                    format!("run `eval \"$({exports} --env)\"`, or put a CUDA no newer than the driver on PATH");
                Finding::problem(Status::Warn, SUBJECT, "is fetched, but this shell does not point to it", remedy)
            }
            None => Finding::problem(Status::Missing, SUBJECT, "neither in CUDA_HOME nor on PATH", FETCH),
        },
    }
}

/// candle ships PTX, and a driver compiles only PTX of toolkits no newer than the driver.
#[cfg(feature = "cuda")]
fn newer_than_driver((major, minor): Version) -> bool {
    candle_tilegemm::launch::driver_version().is_ok_and(|driver| major * 1000 + minor * 10 > driver)
}

#[cfg(not(feature = "cuda"))]
fn newer_than_driver(_: Version) -> bool {
    false
}

fn cutlass(dists: &[PathBuf]) -> Finding {
    const FETCH: &str =
        "run `tilegemm toolchain`, or set CUTLASS_DIR to a CUTLASS 4.2 (the folder with include/cutlass)";
    let fetched = || dists.iter().map(|dist| dist.join("cutlass")).find(|dir| dir.join("include").is_dir());
    let Some(dir) = folder("CUTLASS_DIR").or_else(fetched) else {
        return Finding::problem(Status::Missing, "CUTLASS", "not found", FETCH);
    };
    match std::fs::read_to_string(dir.join("include/cutlass/version.h")) {
        Ok(header) => {
            let parts = ["MAJOR", "MINOR", "PATCH"].map(|part| define(&header, &format!("CUTLASS_{part}")));
            Finding::ok("CUTLASS", format!("{}: {}", parts.join("."), dir.display()))
        }
        Err(_) => Finding::problem(Status::Missing, "CUTLASS", format!("not in {}", dir.display()), FETCH),
    }
}

fn host_compiler() -> Finding {
    let name = std::env::var("NVCC_CCBIN").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "g++".into());
    match first_line(Path::new(&name)) {
        Some(line) => Finding::ok("C++ compiler", line),
        None => {
            let remedy = "install a g++ that nvcc supports, or set NVCC_CCBIN to one";
            Finding::problem(Status::Missing, "C++ compiler", format!("{name} does not run"), remedy)
        }
    }
}

/// A program with the feature `cuda` names libcudart and no folder for it, and neither cargo nor this crate can give the program one.
fn loader() -> Finding {
    const SUBJECT: &str = "loader";
    let dirs = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let by_variable = std::env::split_paths(&dirs).find_map(|dir| {
        let names = ["libcudart.so.13", "libcudart.so.12"].map(|name| dir.join(name));
        names.into_iter().find(|file| file.is_file()).map(|file| file.display().to_string())
    });
    let by_cache = || {
        let output = Command::new("/sbin/ldconfig").arg("-p").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Some(text.lines().find(|line| line.contains("libcudart.so.1"))?.trim().to_string())
    };
    match by_variable.or_else(by_cache) {
        Some(place) => Finding::ok(SUBJECT, format!("finds the CUDA runtime: {place}")),
        None => {
            let what = "finds no libcudart.so.13, without which a program with the feature `cuda` does not start";
            Finding::problem(Status::Warn, SUBJECT, what, format!("{ENV}, in each shell that runs the program"))
        }
    }
}

fn nvcc_version(nvcc: &Path) -> Option<Version> {
    let output = Command::new(nvcc).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let (major, minor) = text.split("release ").nth(1)?.split(',').next()?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn first_line(program: &Path) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_string())
}

fn cuda((major, minor): Version) -> String {
    format!("CUDA {major}.{minor}")
}

/// The value of a macro in a C header.
fn define(header: &str, name: &str) -> String {
    let line = header.lines().find_map(|line| line.trim().strip_prefix("#define ")?.trim().strip_prefix(name));
    line.map_or("?", str::trim).to_string()
}
