//! `tilegemm toolchain`: the pinned toolkits in the user's folder for caches, where build.rs finds them without a variable.

use super::{print, words, Failure, Result};
use candle_tilegemm::internal::{settings, TOOLCHAIN};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Fetch the pinned CUDA and CUTLASS into the user's cache, where builds of this crate find them
///
/// Wheels are taken only with the SHA-256 of their pin, as `third_party/fetch.sh` of a checkout takes them. The command needs x86_64 Linux with
/// Python 3, pip and gcc. stdout has the shell exports of all sets that are installed: each shell that builds or runs a program with the feature `cuda`
/// needs them, `eval "$(tilegemm toolchain --env)"`.
#[derive(clap::Args)]
pub struct Args {
    /// What to fetch; also cuda-13.0, where the machine has no CUDA for candle, and nccl for several GPUs
    #[arg(value_name = "SET", default_values = ["cuda-13.5", "cutlass"], value_parser = words::names(["cuda-13.0", "cuda-13.5", "cutlass", "nccl"]))]
    sets: Vec<String>,
    /// Fetch nothing, and print the exports of what is there
    #[arg(long, conflicts_with = "sets")]
    env: bool,
}

pub fn run(args: &Args) -> Result {
    let folder = folder().ok_or("no folder for caches is known; set XDG_CACHE_HOME or HOME")?;
    let script = provide(&folder)?;
    if !args.env {
        // stdout is for the exports.
        let status = Command::new("bash").arg(&script).args(&args.sets).stdout(Stdio::from(std::io::stderr())).status();
        let status = status.map_err(|e| format!("cannot run bash: {e}"))?;
        if !status.success() {
            return Err(Failure::Silent);
        }
    }
    let output = Command::new("bash").arg(&script).arg("--env").stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cannot run bash: {e}"))?;
    let exports = String::from_utf8_lossy(&output.stdout);
    match (output.status.success(), exports.trim_end()) {
        (false, _) => Err(Failure::Silent),
        // A shell that evaluates nothing says nothing: the message is on stderr.
        (true, "") => Err(format!("no toolkit is in {}; run `tilegemm toolchain` first, or `tilegemm toolchain cuda-13.0 cuda-13.5 cutlass` where candle's build lacks a CUDA", folder.display()).into()),
        (true, exports) => print(exports),
    }
}

/// The folder of scripts, pins and, in `dist`, toolkits. build/toolkit.rs searches the same folder.
pub fn folder() -> Option<PathBuf> {
    Some(settings::cache_folder()?.join("candle-tilegemm/toolchain"))
}

/// Writes the files where they are not as they are here, and gives the path of the script.
fn provide(folder: &Path) -> Result<PathBuf> {
    for (name, text) in TOOLCHAIN {
        let path = folder.join(name);
        if std::fs::read_to_string(&path).is_ok_and(|there| there == text) {
            continue;
        }
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
            std::fs::write(&path, text)?;
            #[cfg(unix)]
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
            Ok(())
        };
        write().map_err(|e| format!("cannot write {}: {e}", path.display()))?;
    }
    Ok(folder.join("fetch.sh"))
}
