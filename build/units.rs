//! Groups kernels into compilation units, compiles them with nvcc side by side and keeps every object by the hash of all
//! that went into it.

use crate::code;
use crate::table::{Kernel, Language, Role};
use crate::toolkit::{env, Toolkit};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// Memory that one nvcc job is given, in KiB: CUTLASS 3 kernels take up to 3 GiB.
const JOB_KIB: u64 = 3 << 20;

/// One run of nvcc: the kernels of one row for one arch, which share the parsing of their headers.
pub struct Unit {
    /// What to call it in messages.
    pub title: String,
    pub source: PathBuf,
    /// Where the headers are that it includes by name.
    pub include: PathBuf,
    /// The kernels as lines of TG_KERNEL; empty where the source names its own.
    pub rows: String,
    pub flags: Vec<String>,
}

/// The units of `kernels`, those that compile slowest first: the ones written for the very features of an arch.
pub fn units(kernels: &[Kernel], csrc: &Path, toolkit: &Toolkit) -> Vec<Unit> {
    let mut units: Vec<(&Kernel, Unit)> = Vec::new();
    for kernel in kernels {
        let Some(source) = kernel.source(csrc) else { continue };
        let row = |of: &Kernel| (of.family.clone(), of.line, of.arch.clone());
        match units.iter_mut().find(|(first, _)| row(first) == row(kernel)) {
            Some((_, unit)) => unit.rows += &kernel.cpp(),
            None => units.push((
                kernel,
                Unit {
                    title: format!(
                        "{} {}, csrc/{}/family.toml line {}",
                        kernel.family, kernel.arch, kernel.family, kernel.line
                    ),
                    source,
                    include: csrc.into(),
                    rows: kernel.cpp(),
                    flags: flags(kernel, csrc, toolkit),
                },
            )),
        }
    }
    units.sort_by_key(|(kernel, _)| !kernel.arch.ends_with('a'));
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// The unit of the registry, which knows every kernel by name.
pub fn registry(kernels: &[Kernel], csrc: &Path, out: &Path) -> Result<Unit, String> {
    let built = kernels.iter().filter(|kernel| kernel.role != Role::Vendor);
    let entries: String = built.map(|kernel| format!("TG_ENTRY({})\n", kernel.name)).collect();
    write(&out.join("tg_kernels.inc"), &entries)?;
    let includes = [csrc, out].map(|folder| ["-I".into(), folder.display().to_string()]).into_iter().flatten();
    let flags = ["-std=c++17", "-O2", "-Xcompiler=-fPIC"].map(String::from).into_iter();
    Ok(Unit {
        title: "registry".into(),
        source: csrc.join("registry.cpp"),
        include: csrc.into(),
        rows: entries,
        flags: flags.chain(includes).collect(),
    })
}

/// The unit of what is done element by element, for every arch of the build.
pub fn elementwise(archs: &[u16], csrc: &Path) -> Unit {
    let targets = archs.iter().map(|arch| format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
    let flags = common_flags(csrc).into_iter().chain(["-std=c++17".into(), "--expt-relaxed-constexpr".into()]);
    Unit {
        title: "elementwise".into(),
        source: csrc.join("common/elementwise.cu"),
        include: csrc.into(),
        rows: String::new(),
        flags: flags.chain(targets).collect(),
    }
}

fn flags(kernel: &Kernel, csrc: &Path, toolkit: &Toolkit) -> Vec<String> {
    let capability = kernel.arch.trim_start_matches("sm");
    let mut flags = common_flags(csrc);
    match kernel.language {
        Language::Tile => {
            flags.extend(["-std=c++20".into(), "--enable-tile".into(), format!("-arch=sm_{capability}")]);
        }
        Language::Cuda => {
            flags.extend(["-std=c++17".into(), "--expt-relaxed-constexpr".into()]);
            flags.extend(["-I".into(), toolkit.cutlass_include.display().to_string()]);
            flags.push(format!("-gencode=arch=compute_{capability},code=sm_{capability}"));
        }
    }
    flags.extend(kernel.flags.iter().cloned());
    flags
}

/// What every CUDA source is compiled with; `include` is where its headers are. Lines of the source are there for profilers where
/// Cargo's profile has debug information (`CARGO_PROFILE_RELEASE_DEBUG=line-tables-only`): they triple the library.
pub fn common_flags(include: &Path) -> Vec<String> {
    // NDEBUG: with CUTLASS's asserts in, ptxas serialises wgmma (C7510).
    let flags = ["-O3", "-DNDEBUG", "-Xcompiler=-fPIC", "-I"].map(String::from);
    let lines = std::env::var("DEBUG").is_ok_and(|debug| debug == "true").then(|| "-lineinfo".into());
    flags.into_iter().chain([include.display().to_string()]).chain(lines).collect()
}

/// Compiles what is not there yet and gives the objects of all units.
pub fn compile(units: &[Unit], toolkit: &Toolkit, out: &Path) -> Result<Vec<PathBuf>, String> {
    let objects = out.join("objects");
    std::fs::create_dir_all(&objects).map_err(|e| format!("cannot create {}: {e}", objects.display()))?;
    let paths: Vec<PathBuf> = units
        .iter()
        .map(|unit| Ok(objects.join(format!("{}.o", unit.hash(toolkit)?))))
        .collect::<Result<_, String>>()?;
    let missing: Vec<(&Unit, &PathBuf)> = units.iter().zip(&paths).filter(|(_, path)| !path.exists()).collect();
    if !missing.is_empty() {
        toolkit.check_host_compiler(out)?;
        run_side_by_side(&missing, toolkit)?;
    }
    remove_stale(&objects, &paths);
    Ok(paths)
}

fn run_side_by_side(missing: &[(&Unit, &PathBuf)], toolkit: &Toolkit) -> Result<(), String> {
    let queue = Mutex::new(missing.iter());
    let failures = Mutex::new(Vec::new());
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..jobs().min(missing.len()) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let Some((unit, object)) = queue.lock().unwrap().next() else { break };
                    if let Err(message) = unit.compile(object, toolkit) {
                        failed.store(true, Ordering::Relaxed);
                        failures.lock().unwrap().push(message);
                    }
                }
            });
        }
    });
    match failures.into_inner().unwrap() {
        failures if failures.is_empty() => Ok(()),
        failures => Err(failures.join("\n")),
    }
}

/// As many jobs as there are cores, and as memory holds.
fn jobs() -> usize {
    let cores = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1usize);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> = available.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok());
    cores.min(kib.map_or(cores, |kib| (kib / JOB_KIB) as usize)).max(1)
}

impl Unit {
    fn hash(&self, toolkit: &Toolkit) -> Result<String, String> {
        let mut hash = Sha256::new();
        for text in code::sources(&self.source, &self.include)?
            .iter()
            .chain(&self.flags)
            .chain([&self.rows, &toolkit.version_text])
        {
            hash.update(text);
            hash.update([0]);
        }
        Ok(hash.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn compile(&self, object: &Path, toolkit: &Toolkit) -> Result<(), String> {
        let rows = object.with_extension("inc");
        write(&rows, &self.rows)?;
        // A finished object appears under its name at once: an interrupted build leaves none behind.
        let partial = object.with_extension("partial.o");
        let mut command = Command::new(&toolkit.nvcc);
        command.args(&self.flags).arg(format!("-DTG_ROWS=\"{}\"", rows.display()));
        command.arg("-c").arg(&self.source).arg("-o").arg(&partial);
        let output = command.output().map_err(|e| format!("cannot run {}: {e}", toolkit.nvcc.display()))?;
        if !output.status.success() {
            return Err(format!(
                "nvcc failed on {}\n{}\nrows:\n{}\n{command:?}",
                self.title,
                String::from_utf8_lossy(&output.stderr),
                self.rows
            ));
        }
        std::fs::rename(&partial, object).map_err(|e| format!("cannot rename {}: {e}", partial.display()))
    }
}

/// Puts objects into a static library.
pub fn archive(objects: &[PathBuf], library: &Path) -> Result<(), String> {
    let _ = std::fs::remove_file(library); // `ar` would keep the members of an earlier build
    let ar = env("AR").unwrap_or_else(|| "ar".into());
    let status = Command::new(&ar).arg("crs").arg(library).args(objects).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{ar} failed with {status}")),
        Err(e) => Err(format!("cannot run {ar} ({e}); install binutils or set AR")),
    }
}

fn remove_stale(objects: &Path, keep: &[PathBuf]) {
    for entry in std::fs::read_dir(objects).into_iter().flatten().flatten() {
        if !keep.contains(&entry.path().with_extension("o")) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Writes a file, and leaves it alone where it holds the same text already.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
