//! The machine code of every kernel in the library, against the `[[sass]]` tables of the families' files: the instructions that make a
//! family fast are there, main loops keep their numbers in registers, and their loads are as wide as the row's alignment permits. Needs
//! cuobjdump and nvdisasm of the toolkit that compiled the kernels, and no device.

#![cfg(feature = "cuda")]

use listing::{matches, Function, Listing};
use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

mod listing;
mod loops;

/// An entry of a `[[sass]]` table (build/table/sass.rs).
#[derive(Debug)]
struct Expected {
    family: &'static str,
    function: &'static str,
    arch: &'static [&'static str],
    of: &'static str,
    main: &'static str,
    needs: &'static [&'static str],
    main_needs: &'static [&'static str],
    local: usize,
    loads_early: bool,
    registers: u32,
}

include!(concat!(env!("OUT_DIR"), "/sass.rs"));

/// Functions that every source has, or that belong to no family.
const OTHERS: [&str; 11] = [
    "anchor",
    "bias_pairs",
    "clamp_pairs",
    "convert_rows",
    "copy_rows",
    "elementwise",
    "gate_rows",
    "route_choose",
    "route_few",
    "route_place",
    "sum_rows",
];

/// Whether a function is one of a family's, not of csrc/layer either.
fn is_of_family(name: &str) -> bool {
    !OTHERS.contains(&name) && !name.starts_with("layer_")
}

impl Expected {
    fn is_for(&self, function: &Function) -> bool {
        let is_arch = self.arch.is_empty() || self.arch.contains(&function.arch.as_str());
        self.family == function.family && self.function == function.name && is_arch && function.symbol.contains(self.of)
    }

    /// What is wrong with `function`, whose main loops are `loops`.
    fn faults(&self, function: &Function, loops: &[Vec<&str>]) -> Vec<String> {
        let mut faults = Vec::new();
        if function.registers > self.registers {
            faults.push(format!("{} registers, at most {} expected", function.registers, self.registers));
        }
        faults.extend(self.needs.iter().filter(|need| !function.has(need)).map(|need| format!("no {need}")));
        let early = function.load_before_the_wait().filter(|_| !self.loads_early);
        faults.extend(early.map(|load| format!("{load} before griddepcontrol.wait")));
        if self.main.is_empty() {
            return faults;
        }
        if !function.has(self.main) {
            faults.push(format!("no {}", self.main));
        } else if loops.is_empty() {
            faults.push(format!("no loop with {}", self.main));
        }
        let is_in_a_loop = |need: &&&str| loops.iter().flatten().any(|instruction| matches(instruction, need));
        let missing = self.main_needs.iter().filter(|need| !is_in_a_loop(need));
        faults.extend(missing.map(|need| format!("no {need} in a loop with {}", self.main)));
        for main_loop in loops {
            let local = main_loop.iter().filter(|i| matches(i, "LDL") || matches(i, "STL")).count();
            if local > self.local {
                faults.push(format!(
                    "{local} accesses of local memory in a main loop of {} instructions",
                    main_loop.len()
                ));
            }
        }
        faults
    }
}

/// The functions of all kernels in the library. Each core lists an object at a time.
fn library() -> Vec<Function> {
    let home = std::env::var("TILEGEMM_CUDA_HOME").or_else(|_| std::env::var("CUDA_HOME"));
    let bin = PathBuf::from(home.expect("set TILEGEMM_CUDA_HOME to the toolkit that compiled the kernels")).join("bin");
    for tool in ["cuobjdump", "nvdisasm"] {
        let path = bin.join(tool);
        assert!(
            path.exists(),
            "{} is missing; install {tool} of this toolkit (third_party/fetch.sh does)",
            path.display()
        );
    }
    let objects = objects();
    let next = AtomicUsize::new(0);
    let list = || {
        let mut functions = Vec::new();
        while let Some(object) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
            let mut listing = Listing::default();
            dump(&bin, "-sass", object, |text| listing.read_code(text));
            dump(&bin, "-res-usage", object, |text| listing.read_resources(text));
            functions.append(&mut listing.functions);
        }
        functions
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        let workers: Vec<_> = (0..cores).map(|_| scope.spawn(list)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("a listing")).collect()
    })
}

/// The objects of the library, unpacked.
fn objects() -> Vec<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sass");
    if folder.exists() {
        std::fs::remove_dir_all(&folder).expect("the objects of a run before go");
    }
    std::fs::create_dir_all(&folder).expect("a folder for objects");
    let archive = concat!(env!("OUT_DIR"), "/libtilegemm_kernels.a");
    let unpacked = Command::new("ar").args(["x", archive]).current_dir(&folder).status();
    assert!(unpacked.expect("ar of binutils starts").success(), "ar x {archive} fails");
    let files = std::fs::read_dir(&folder).expect("objects");
    files.map(|file| file.expect("an object").path()).collect()
}

/// Gives what cuobjdump writes of an object to `read`.
fn dump(bin: &Path, option: &str, object: &Path, read: impl FnOnce(ChildStdout)) {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::env::join_paths([bin.to_owned()].into_iter().chain(std::env::split_paths(&paths))).unwrap();
    let mut command = Command::new(bin.join("cuobjdump"));
    command.arg(option).arg(object).env("PATH", paths).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|e| panic!("cuobjdump does not start: {e}"));
    read(child.stdout.take().unwrap());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    // The object with the list of kernels has host code only.
    let is_host_code = errors.contains("does not contain device code");
    assert!(output.status.success() || is_host_code, "cuobjdump {option} {} fails: {errors}", object.display());
}

#[test]
fn machine_code_is_what_the_families_say() {
    let functions = library();
    assert!(!functions.is_empty(), "the library has no kernels");
    let mut faults: Vec<String> = Vec::new();
    let mut summary: BTreeMap<(&str, &str), (usize, usize, usize, u32)> = BTreeMap::new();
    for function in functions.iter().filter(|function| is_of_family(&function.name)) {
        let title = format!("{} {} {}", function.family, function.arch, function.title());
        let Some(expected) = EXPECTED.iter().find(|expected| expected.is_for(function)) else {
            faults.push(format!(
                "{title}: csrc/{}/family.toml has no [[sass]] for function {}",
                function.family, function.name
            ));
            continue;
        };
        let loops = function.innermost_loops(expected.main);
        faults.extend(expected.faults(function, &loops).into_iter().map(|fault| format!("{title}: {fault}")));
        let row = summary.entry((expected.family, expected.function)).or_default();
        let longest = loops.iter().map(Vec::len).max().unwrap_or(0);
        *row = (row.0 + 1, row.1 + loops.len(), row.2.max(longest), row.3.max(function.registers));
    }
    println!(
        "{:<20} {:<20} {:>9} {:>10} {:>9} {:>9}",
        "family", "function", "instances", "main loops", "longest", "registers"
    );
    for ((family, function), (instances, loops, longest, registers)) in &summary {
        println!("{family:<20} {function:<20} {instances:>9} {loops:>10} {longest:>9} {registers:>9}");
    }
    // An entry that fits nothing checks nothing.
    let families: BTreeSet<&str> = functions.iter().map(|function| function.family.as_str()).collect();
    let archs: BTreeSet<&str> = functions.iter().map(|function| function.arch.as_str()).collect();
    let is_built = |expected: &&Expected| {
        let is_arch = expected.arch.is_empty() || expected.arch.iter().any(|arch| archs.contains(arch));
        families.contains(expected.family) && is_arch
    };
    for idle in
        EXPECTED.iter().filter(is_built).filter(|expected| !functions.iter().any(|function| expected.is_for(function)))
    {
        faults.push(format!("csrc/{}/family.toml: no function is {} {}", idle.family, idle.function, idle.of));
    }
    faults.sort();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
