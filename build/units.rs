//! Groups kernels into compilation units, compiles the units side by side and keeps every object by the hash of all its inputs.
//! The crate `cc` makes the commands.

use crate::code;
use crate::table::{Kernel, Language, Role};
use crate::toolkit::{env, Toolkit};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Mutex;

/// Memory budget of one nvcc job, in KiB: CUTLASS 3 kernels take up to 3 GiB.
const JOB_KIB: u64 = 3 << 20;

/// One run of a compiler: the kernels of one row for one arch, which share the parsing of their headers, or those of all of a family's rows.
pub struct Unit {
    /// The unit's name in messages.
    pub title: String,
    pub source: PathBuf,
    /// The folder of the headers that the source includes by name.
    pub include: PathBuf,
    /// The kernels as lines of TG_KERNEL; empty where the source names its own kernels.
    pub rows: String,
    pub compiler: cc::Build,
}

/// The units of `kernels`, the slowest to compile first: kernels written for the specific features of an arch. With few kernels of each row, a unit has
/// those of all rows, and headers are parsed once.
pub fn units(kernels: &[Kernel], are_few: bool, csrc: &Path, toolkit: &Toolkit) -> Vec<Unit> {
    let mut units: Vec<(&Kernel, Unit)> = Vec::new();
    for kernel in kernels {
        let Some(source) = kernel.source(csrc) else { continue };
        let shares = |first: &Kernel| {
            (&first.family, &first.arch) == (&kernel.family, &kernel.arch)
                && (&first.flags, &first.features) == (&kernel.flags, &kernel.features)
                && (are_few || first.line == kernel.line)
        };
        match units.iter_mut().find(|(first, _)| shares(first)) {
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
                    compiler: compiler(kernel, csrc, toolkit),
                },
            )),
        }
    }
    units.sort_by_key(|(kernel, _)| !kernel.arch.ends_with(['a', 'f']));
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// The unit of the registry, which knows every kernel by name.
pub fn registry(kernels: &[Kernel], csrc: &Path, toolkit: &Toolkit, out: &Path) -> Result<Unit, String> {
    let built = kernels.iter().filter(|kernel| kernel.role != Role::Vendor);
    let entries: String = built.map(|kernel| format!("TG_ENTRY({})\n", kernel.name)).collect();
    write(&out.join("tg_kernels.inc"), &entries)?;
    let mut compiler = toolkit.host(csrc);
    compiler.include(out);
    Ok(Unit {
        title: "registry".into(),
        source: csrc.join("registry.cpp"),
        include: csrc.into(),
        rows: entries,
        compiler,
    })
}

/// The unit of the check of every kernel's limits.
pub fn limits(csrc: &Path, toolkit: &Toolkit) -> Unit {
    Unit {
        title: "limits".into(),
        source: csrc.join("limits.cpp"),
        include: csrc.into(),
        rows: String::new(),
        compiler: toolkit.host(csrc),
    }
}

/// The unit of kernels beside the products, csrc/`name`/`name`.cu, for every arch of the build.
pub fn beside(name: &str, archs: &[u16], csrc: &Path, toolkit: &Toolkit) -> Unit {
    let mut compiler = toolkit.cuda(csrc);
    compiler.flag("-std=c++17").flag("--expt-relaxed-constexpr").flags(archs.iter().map(|&arch| machine_code(arch)));
    Unit {
        title: name.into(),
        source: csrc.join(format!("{name}/{name}.cu")),
        include: csrc.into(),
        rows: String::new(),
        compiler,
    }
}

/// The units of csrc/layer: kernels of a model's layers that are no products. Prefill attention has a kernel of its own on Hopper.
pub fn layers(archs: &[u16], csrc: &Path, toolkit: &Toolkit) -> Vec<Unit> {
    let (hopper, others): (Vec<u16>, Vec<u16>) = archs.iter().partition(|&&arch| arch == 90);
    let unit = |name: &str, archs: Vec<String>| {
        let mut compiler = toolkit.cuda(csrc);
        compiler.flag("-std=c++17").flag("--expt-relaxed-constexpr").flags(archs.iter().map(machine_code));
        compress(&mut compiler);
        let source = csrc.join(format!("layer/{name}.cu"));
        Unit { title: format!("layer {name}"), source, include: csrc.into(), rows: String::new(), compiler }
    };
    let text = |archs: &[u16]| archs.iter().map(u16::to_string).collect::<Vec<_>>();
    let mut units: Vec<Unit> = ["decode", "append", "embed_gate", "gather", "norm", "quantise", "sample"]
        .map(|name| unit(name, text(archs)))
        .into();
    let mut compiler = toolkit.host(csrc);
    if !hopper.is_empty() {
        units.insert(0, unit("prefill_sm90", vec!["90a".into()]));
        compiler.define("TG_PREFILL_SM90", None);
    }
    if !others.is_empty() {
        units.insert(0, unit("prefill_sm80", text(&others)));
        compiler.define("TG_PREFILL_SM80", None);
    }
    let source = csrc.join("layer/layer.cpp");
    units.push(Unit { title: "layer".into(), source, include: csrc.into(), rows: String::new(), compiler });
    units
}

/// The flag for machine code of an arch, such as 90 or 90a.
pub fn machine_code(arch: impl std::fmt::Display) -> String {
    format!("-gencode=arch=compute_{arch},code=sm_{arch}")
}

/// Compresses machine code, which nvcc does not by itself: a quarter of the bytes. The driver expands a module when it loads it.
fn compress(compiler: &mut cc::Build) {
    compiler.flag("-Xfatbin=-compress-all").flag("--compress-mode=size");
}

fn compiler(kernel: &Kernel, csrc: &Path, toolkit: &Toolkit) -> cc::Build {
    let arch = kernel.arch.trim_start_matches("sm");
    let mut compiler = toolkit.cuda(csrc);
    match kernel.language {
        Language::Tile => compiler.flag("-std=c++20").flag("--enable-tile").flag(format!("-arch=sm_{arch}")),
        Language::Cuda => {
            compiler.include(&toolkit.cutlass_include);
            if !kernel.features.is_empty() {
                compress(&mut compiler); // formats and experts: many kernels of which a program needs few
            }
            compiler.flag("-std=c++17").flag("--expt-relaxed-constexpr").flag(machine_code(arch))
        }
    };
    compiler.flags(&kernel.flags);
    compiler
}

/// A unit whose object is compiled in this build or exists already.
struct Job<'a> {
    unit: &'a Unit,
    tool: cc::Tool,
    object: PathBuf,
}

/// Compiles the missing objects and returns the objects of all units.
pub fn compile(units: &[Unit], toolkit: &Toolkit, out: &Path) -> Result<Vec<PathBuf>, String> {
    let shared = env("TILEGEMM_OBJECTS").map(PathBuf::from);
    let objects = shared.clone().unwrap_or_else(|| out.join("objects"));
    for folder in [out, objects.as_path()] {
        std::fs::create_dir_all(folder).map_err(|e| format!("cannot create {}: {e}", folder.display()))?;
    }
    let jobs: Vec<Job> = units.iter().map(|unit| unit.job(&objects, toolkit, out)).collect::<Result<_, String>>()?;
    let missing: Vec<&Job> = jobs.iter().filter(|job| !job.object.exists()).collect();
    if !missing.is_empty() {
        toolkit.check_host_compiler(out)?;
        run_side_by_side(&missing)?;
    }
    let paths: Vec<PathBuf> = jobs.into_iter().map(|job| job.object).collect();
    // Other builds use other objects of a shared folder.
    if shared.is_none() {
        remove_stale(&objects, &paths);
    }
    Ok(paths)
}

fn run_side_by_side(missing: &[&Job]) -> Result<(), String> {
    let queue = Mutex::new(missing.iter());
    let failures = Mutex::new(Vec::new());
    let failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..parallel_jobs().min(missing.len()) {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let Some(job) = queue.lock().unwrap().next() else { break };
                    if let Err(message) = job.run() {
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

/// The number of parallel jobs: the number of cores, bounded by memory.
fn parallel_jobs() -> usize {
    let cores = std::env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1usize);
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: Option<u64> = available.and_then(|text| text.trim().trim_end_matches(" kB").parse().ok());
    cores.min(kib.map_or(cores, |kib| (kib / JOB_KIB) as usize)).max(1)
}

impl Unit {
    /// The job of this unit: the object is named after the sources, the command, the rows and the versions of the toolkit. Line numbers for profilers
    /// name the folders of the sources; without them an object is the same wherever the tree, the toolkit and `out` are.
    fn job(&self, objects: &Path, toolkit: &Toolkit, out: &Path) -> Result<Job<'_>, String> {
        let tool = self.compiler.try_get_compiler().map_err(|e| format!("no compiler for {}: {e}", self.title))?;
        let sources = code::sources(&self.source, &self.include)?;
        let texts = [&self.rows, &toolkit.version_text, &toolkit.cutlass_version];
        let has_lines = tool.args().iter().any(|argument| argument == "-lineinfo");
        let folders = [self.include.as_path(), &toolkit.cutlass_include, &toolkit.home, out]
            .map(|folder| folder.to_string_lossy());
        let plain = |argument: &OsStr| {
            let names = folders.iter().zip(["include", "cutlass", "cuda", "out"]).filter(|_| !has_lines);
            names.fold(argument.to_string_lossy().into_owned(), |text, (folder, name)| text.replace(&**folder, name))
        };
        let command =
            [tool.path().as_os_str()].into_iter().chain(tool.args().iter().map(OsString::as_os_str)).map(plain);
        let mut hash = Sha256::new();
        for part in sources.iter().chain(texts).cloned().chain(command) {
            hash.update(part);
            hash.update([0]);
        }
        let name: String = hash.finalize()[..12].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Job { unit: self, tool, object: objects.join(name + ".o") })
    }
}

impl Job<'_> {
    fn run(&self) -> Result<(), String> {
        let Self { unit, tool, object } = self;
        let rows = object.with_extension("inc");
        write(&rows, &unit.rows)?;
        // A finished object gets its name by a rename: an interrupted build leaves no unfinished object under that name.
        let partial = object.with_extension(format!("{}.partial.o", std::process::id()));
        // Not `to_command`, which would put a RUSTC_WRAPPER like sccache before nvcc: this file caches objects by content.
        let mut command = Command::new(tool.path());
        command.args(tool.args()).envs(tool.get_envs()).arg(format!("-DTG_ROWS=\"{}\"", rows.display()));
        command.arg("-c").arg(&unit.source).arg("-o").arg(&partial);
        let output = command.output().map_err(|e| {
            format!("cannot run {} ({e}); install a g++, or set NVCC_CCBIN to one", tool.path().display())
        })?;
        if !output.status.success() {
            return Err(format!(
                "{} failed on {}\n{}\nrows:\n{}\n{command:?}",
                tool.path().display(),
                unit.title,
                String::from_utf8_lossy(&output.stderr),
                unit.rows
            ));
        }
        std::fs::rename(&partial, object).map_err(|e| format!("cannot rename {}: {e}", partial.display()))
    }
}

/// Puts objects into the static library `lib<name>.a`.
pub fn archive(objects: &[PathBuf], name: &str, out: &Path) -> Result<(), String> {
    let archive = cc::Build::new().out_dir(out).try_create_archive(name, objects);
    archive.map(drop).map_err(|e| format!("cannot make lib{name}.a ({e}); install binutils or set AR"))
}

fn remove_stale(objects: &Path, keep: &[PathBuf]) {
    for entry in std::fs::read_dir(objects).into_iter().flatten().flatten() {
        if !keep.contains(&entry.path().with_extension("o")) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Writes a file, unless the file already holds this text.
pub fn write(path: &Path, text: &str) -> Result<(), String> {
    if std::fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    std::fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
