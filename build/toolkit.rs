//! Finds nvcc, CUTLASS and a host compiler. Where one of them is missing or too old, one sentence states the remedy.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The tools that compile the kernels.
pub struct Toolkit {
    /// The folder that holds `bin/nvcc`.
    pub home: PathBuf,
    nvcc: PathBuf,
    /// The settings with which `cc` calls nvcc and the host compiler. Clones share the results of `cc`'s queries to the compilers.
    cuda: cc::Build,
    host: cc::Build,
    /// The output of `nvcc --version`; part of every object's hash.
    pub version_text: String,
    pub version: (u32, u32),
    /// The folder that holds `cutlass/` and `cute/`.
    pub cutlass_include: PathBuf,
    /// The text of CUTLASS's `version.h`, for the same.
    pub cutlass_version: String,
    /// Folders with libcudart.so.
    pub library_dirs: Vec<PathBuf>,
}

const FETCH: &str = "run `tilegemm toolchain` (`cargo install --locked --path cli` in a checkout of candle-tilegemm), \
                     or `third_party/fetch.sh` in that checkout";
/// The oldest nvcc that compiles the CUTLASS 4.2 kernels for sm_90a and newer.
const OLDEST: (u32, u32) = (12, 8);
/// The oldest nvcc with cuTile C++ and sm_90 (the tile IR assembler knows Hopper from 13.3).
const OLDEST_TILE: (u32, u32) = (13, 3);

/// An environment variable that the build depends on; empty counts as unset.
pub fn env(name: &str) -> Option<String> {
    println!("cargo:rerun-if-env-changed={name}");
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

impl Toolkit {
    /// The toolkit of the environment, else the toolkit that `third_party/fetch.sh` has put into the tree of `csrc`, or `tilegemm toolchain`
    /// into the user's cache.
    pub fn find(csrc: &Path) -> Result<Self, String> {
        let dists: Vec<PathBuf> =
            [csrc.parent().unwrap_or(csrc).join("third_party/dist")].into_iter().chain(cached()).collect();
        let home = env("TILEGEMM_CUDA_HOME").map(PathBuf::from);
        let candle_home = env("CUDA_HOME").or_else(|| env("CUDA_PATH")).map(PathBuf::from);
        let fetched = dists.iter().map(|dist| dist.join("cuda-13.5")).find(|dir| dir.join("bin/nvcc").is_file());
        let home = home.or(fetched).or(candle_home.clone()).or_else(nvcc_on_path).ok_or_else(|| {
            format!("no CUDA toolkit: {FETCH}, or set TILEGEMM_CUDA_HOME to a CUDA >= 13.3 of your own")
        })?;
        let nvcc = home.join("bin/nvcc");
        let (version_text, version) = nvcc_version(&nvcc)?;
        if version < OLDEST {
            return Err(too_old(&nvcc, version, OLDEST, "the kernels"));
        }
        let own = env("CUTLASS_DIR").map(PathBuf::from);
        let folders = own.map_or_else(|| dists.iter().map(|dist| dist.join("cutlass")).collect(), |own| vec![own]);
        let includes = folders.iter().map(|folder| folder.join("include"));
        let found = includes.into_iter().find(|include| include.join("cutlass/cutlass.h").is_file());
        let cutlass_include = found.ok_or_else(|| {
            let folders = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ");
            format!("no CUTLASS in {folders}: {FETCH}, or set CUTLASS_DIR to a CUTLASS 4.2 (the folder with include/cutlass)")
        })?;
        // candle's toolkit first: one libcudart for both.
        let homes = candle_home.into_iter().chain([home.clone()]);
        let library_dirs: Vec<_> = homes
            .flat_map(|home| ["lib64", "lib", "targets/x86_64-linux/lib"].map(|lib| home.join(lib)))
            .filter(|dir| dir.join("libcudart.so").exists())
            .collect();
        if library_dirs.is_empty() {
            return Err(format!("no libcudart.so in {}: {FETCH}, or install the CUDA runtime", home.display()));
        }
        let cutlass_version = std::fs::read_to_string(cutlass_include.join("cutlass/version.h")).unwrap_or_default();
        let (cuda, host) = compilers(&nvcc, &home);
        Ok(Self { home, nvcc, cuda, host, version_text, version, cutlass_include, cutlass_version, library_dirs })
    }

    /// Why the toolkit cannot compile cuTile C++, if it cannot.
    pub fn lacks_tile(&self) -> Option<String> {
        let too_old = || too_old(&self.nvcc, self.version, OLDEST_TILE, "the cuTile C++ kernels (feature `cutile`)");
        (self.version < OLDEST_TILE).then(too_old)
    }

    /// nvcc, with headers from `include`. Where Cargo's profile has debug information (`CARGO_PROFILE_RELEASE_DEBUG=line-tables-only`), the
    /// kernels have line numbers for profilers, which triple the size of the library.
    pub fn cuda(&self, include: &Path) -> cc::Build {
        let mut build = self.cuda.clone();
        // NDEBUG: with CUTLASS's asserts in, ptxas serialises wgmma (C7510). -O1 is for host code, a launch; device code is optimised in any case.
        build.include(include).flag("-O1").flag("-DNDEBUG").flag("-Xcompiler=-fPIC");
        if std::env::var("DEBUG").is_ok_and(|debug| debug == "true") {
            build.flag("-lineinfo");
        }
        build
    }

    /// nvcc for a program that the build runs, with headers from `include`.
    pub fn program(&self, include: &Path) -> cc::Build {
        let mut build = self.cuda.clone();
        build.include(include).flag("-O0").flag("-DNDEBUG").flag("-w");
        build
    }

    /// The host compiler, with headers from `include` and CUDA's.
    pub fn host(&self, include: &Path) -> cc::Build {
        let mut build = self.host.clone();
        build.include(include);
        build
    }

    /// The folder of the host compiler's libstdc++.a.
    pub fn cpp_library_dir(&self) -> PathBuf {
        let output = self.host.get_compiler().to_command().arg("-print-file-name=libstdc++.a").output();
        let path =
            output.map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())).unwrap_or_default();
        path.parent().map(Path::to_path_buf).unwrap_or_default()
    }

    /// Compiles an empty source with the host compiler, so that one message reports a missing or old compiler instead of a page of errors.
    pub fn check_host_compiler(&self, scratch: &Path) -> Result<(), String> {
        env("NVCC_CCBIN");
        let source = scratch.join("host_compiler.cu");
        std::fs::write(&source, "#include <cstddef>\n")
            .map_err(|e| format!("cannot write {}: {e}", source.display()))?;
        let output = Command::new(&self.nvcc).arg("-E").arg(&source).output();
        let output = output.map_err(|e| format!("cannot run {}: {e}", self.nvcc.display()))?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let reason = stderr
            .lines()
            .find(|line| line.contains("error") || line.contains("unsupported") || line.contains("fatal"));
        Err(format!(
            "nvcc {}.{} cannot use the host compiler ({}): install a g++ that it supports (`apt-get install g++`, or g++-14 \
             where yours is newer) and set NVCC_CCBIN to it",
            self.version.0,
            self.version.1,
            reason.unwrap_or("no message").trim()
        ))
    }
}

/// nvcc and the host compiler as `cc` calls them. `cc` takes nvcc from the variable NVCC, and the host compiler from CXX. Where
/// NVCC_CCBIN is set, CXX has to name the same compiler.
fn compilers(nvcc: &Path, home: &Path) -> (cc::Build, cc::Build) {
    std::env::set_var("NVCC", nvcc);
    if let Some(host) = env("NVCC_CCBIN").map(PathBuf::from) {
        std::env::set_var("CXX", if host.is_dir() { host.join("g++") } else { host });
    }
    let mut cuda = cc::Build::new();
    // In a profile with debug information cc's own flags have -G, device code without optimisation. nvcc finds NVCC_CCBIN itself.
    cuda.cuda(true).no_default_flags(true).ccbin(false).inherit_rustflags(false);
    let mut host = cc::Build::new();
    host.cpp(true).std("c++17").include(home.join("include"));
    for build in [&mut cuda, &mut host] {
        build.warnings(false).cargo_warnings(false); // this file reports what is missing, once
    }
    (cuda, host)
}

/// Where `tilegemm toolchain` puts toolkits: the folder of cli/src/toolchain.rs.
fn cached() -> Option<PathBuf> {
    // The XDG Base Directory Specification says to ignore relative paths.
    let cache = env("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(|| Some(Path::new(&env("HOME")?).join(".cache")))?;
    Some(cache.join("candle-tilegemm/toolchain/dist"))
}

fn nvcc_on_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let bin = std::env::split_paths(&path).find(|dir| dir.join("nvcc").is_file())?;
    Some(bin.parent()?.to_path_buf())
}

fn nvcc_version(nvcc: &Path) -> Result<(String, (u32, u32)), String> {
    let hint = "set TILEGEMM_CUDA_HOME to the folder that holds bin/nvcc";
    let output = Command::new(nvcc).arg("--version").output();
    let output = output.map_err(|e| format!("cannot run {} ({e}); {hint}", nvcc.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let release = text.split("release ").nth(1).and_then(|rest| rest.split(',').next());
    let version = release.and_then(|release| {
        let (major, minor) = release.trim().split_once('.')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    });
    version
        .map(|version| (text.clone(), version))
        .ok_or_else(|| format!("{} --version does not name a release; {hint}", nvcc.display()))
}

fn too_old(nvcc: &Path, have: (u32, u32), need: (u32, u32), what: &str) -> String {
    format!(
        "{} is CUDA {}.{}, but {what} need >= {}.{}: {FETCH}, or set TILEGEMM_CUDA_HOME to a newer one",
        nvcc.display(),
        have.0,
        have.1,
        need.0,
        need.1
    )
}
