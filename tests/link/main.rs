//! The definition of moe_gemm_wmma that a program gets (docs/interposer.md): candle-kernels, candle-nn and this crate are stubs of some lines in
//! tests/link, so that a link takes a fraction of a second. The stubs need rustc, a C compiler and ar, but neither CUDA nor a GPU.
//! The test is the same in every build, and runs in builds without CUDA alone.
#![cfg(all(not(feature = "cuda"), target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]

mod mistralrs;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/link");

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a command that has to succeed.
fn succeed(command: &mut Command) {
    let output = run(command);
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn has(file: &Path, words: &[u8]) -> bool {
    std::fs::read(file).unwrap().windows(words.len()).any(|bytes| bytes == words)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linker {
    Lld,
    Gnu,
}

impl Linker {
    /// The linkers of this machine. rustc of rust-lang.org links with rust-lld unless told; other builds of rustc may lack rust-lld.
    fn all() -> &'static [Self] {
        static HAS_LLD: LazyLock<bool> = LazyLock::new(|| {
            let has_lld = Linker::Lld.linked(&link("linker", Linker::Lld, RELEASE, &[], &[]).file);
            if !has_lld {
                // Not `println`, which is shown for tests that fail only.
                let _ = writeln!(std::io::stderr(), "skipped: rust-lld, with which this rustc does not link");
            }
            has_lld
        });
        if *HAS_LLD {
            &[Self::Lld, Self::Gnu]
        } else {
            &[Self::Gnu]
        }
    }

    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Lld => &[],
            Self::Gnu => &["-Clinker-features=-lld", "-Clink-arg=-fuse-ld=bfd"],
        }
    }

    /// Whether the linker made the file: LLD leaves its name.
    fn linked(self, file: &Path) -> bool {
        has(file, b"Linker: LLD") == (self == Self::Lld)
    }
}

/// How the crates and the program are compiled.
#[derive(Debug, Clone, Copy)]
struct Profile {
    /// The folder of the crates.
    crates: &'static str,
    /// Flags for the crates and the program.
    level: &'static str,
    /// Flags for the program alone.
    lto: &'static str,
}

const DEBUG: Profile = Profile { crates: "debug", level: "-Copt-level=0", lto: "-Clto=off" };
const RELEASE: Profile = Profile { crates: "release", level: "-Copt-level=3", lto: "-Clto=off" };
const THIN: Profile = Profile { lto: "-Clto=thin", ..RELEASE };
const FAT: Profile = Profile { lto: "-Clto=fat", ..RELEASE };
/// `ours` without its second symbol.
const NO_ANCHOR: Profile = Profile { crates: "no_anchor", ..RELEASE };

/// The stubs, compiled once: `debug`, `release` and `no_anchor` have the crates, `.` the objects and archives.
fn stubs() -> &'static Path {
    static STUBS: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("link_matrix");
        let _ = std::fs::remove_dir_all(&folder);
        for name in ["debug", "release", "no_anchor", "candle", "one_object"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
        }
        let object = |name: &str, source: &str, defines: &[&str]| {
            let source = format!("{SOURCES}/{source}.c");
            succeed(Command::new("cc").current_dir(&folder).args(["-c", "-fPIC", "-o", name, &source]).args(defines));
        };
        let command = |program: &str, words: &[&str]| succeed(Command::new(program).current_dir(&folder).args(words));
        object("moe_wmma.o", "definition", &["-DDEFINITION=1"]);
        object("moe_gguf.o", "caller", &["-DCALLER=moe_gemm_gguf"]);
        object("moe.o", "definition", &["-DDEFINITION=1", "-DWITH=moe_gemm_gguf"]);
        object("alone.o", "definition", &["-DDEFINITION=3"]);
        object("caller.o", "caller", &["-DCALLER=foreign", "-DCALLS=moe_gemm_wmma"]);
        object("together.o", "definition", &["-DDEFINITION=3", "-DWITH=foreign"]);
        object("personality.o", "personality", &[]);
        command("ar", &["rcs", "candle/libmoe.a", "moe_wmma.o", "moe_gguf.o"]);
        command("ar", &["rcs", "one_object/libmoe.a", "moe.o"]);
        command("ar", &["rcs", "libalone.a", "alone.o", "caller.o"]);
        command("ar", &["rcs", "libtogether.a", "together.o"]);
        command("cc", &["-shared", "-o", "libshared.so", "together.o"]);
        command("cc", &["-shared", "-Wl,-Bsymbolic", "-o", "libsymbolic.so", "together.o"]);
        let host = format!("{SOURCES}/host.c");
        command("cc", &["-o", "host", &host, "-ldl"]);
        command("cc", &["-o", "host_with_a_definition", "-DFOREIGN", "-rdynamic", &host, "-ldl"]);
        for Profile { crates, level, .. } in [DEBUG, RELEASE, NO_ANCHOR] {
            for name in ["kernels", "nn", "ours"] {
                let mut rustc = rustc(&folder, crates);
                rustc.args(["--crate-type=rlib", "--crate-name", name, "--out-dir", crates, level]);
                rustc.args(["--cfg", crates]);
                // As the build script of candle-kernels links the archive.
                rustc.args(if name == "kernels" { &["-lmoe"][..] } else { &[] });
                succeed(rustc.arg(format!("{SOURCES}/{name}.rs")));
            }
        }
        folder
    });
    &STUBS
}

/// rustc in the folder of the stubs, with the crates of a folder.
fn rustc(folder: &Path, crates: &str) -> Command {
    let mut rustc = Command::new("rustc");
    rustc.current_dir(folder).args(["--edition=2021", "-Cpanic=abort", "-L", crates]);
    for name in ["kernels", "nn", "ours"] {
        rustc.args(["--extern", &format!("{name}={crates}/lib{name}.rlib")]);
    }
    rustc
}

/// Whose definition a call reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Definition {
    Candle,
    Ours,
    Foreign,
}

/// The definitions that calls reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Calls {
    candle: Definition,
    /// A call of the other library itself.
    foreign: Option<Definition>,
    /// `experts_are_active`.
    active: Option<bool>,
}

const CANDLES: Outcome = Outcome::Runs(Calls { candle: Definition::Candle, foreign: None, active: None });
const OURS: Outcome = Outcome::Runs(Calls { candle: Definition::Ours, foreign: None, active: None });

impl Calls {
    /// From the exit code of tests/link/program.rs.
    fn of(code: Option<i32>) -> Option<Self> {
        let from = |bits: i32| {
            [None, Some(Definition::Candle), Some(Definition::Ours), Some(Definition::Foreign)][(bits & 3) as usize]
        };
        let code = code.filter(|code| *code < 1 << 6)?;
        let active = [None, Some(false), Some(true)].get((code >> 4) as usize).copied()?;
        Some(Self { candle: from(code)?, foreign: from(code >> 2), active })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Runs(Calls),
    /// The linker refuses two definitions.
    Duplicate,
}

/// A link and its output.
struct Linked {
    file: PathBuf,
    output: Output,
    what: String,
}

/// Links tests/link/program.rs.
fn link(name: &str, linker: Linker, profile: Profile, configurations: &[&str], arguments: &[&str]) -> Linked {
    let file = stubs().join(format!("{name}-{linker:?}-{}{}", profile.crates, profile.lto));
    let mut rustc = rustc(stubs(), profile.crates);
    rustc.args(["--crate-name=program", "-Clink-arg=-lc", "-Clink-arg=personality.o", profile.level, profile.lto]);
    rustc.args(["--crate-type", if configurations.contains(&"library") { "cdylib" } else { "bin" }, "-o"]).arg(&file);
    rustc.args(linker.arguments());
    rustc.args(configurations.iter().flat_map(|name| ["--cfg", name]));
    // The first folder that has an archive counts.
    rustc.args(arguments).args(["-Lnative=candle", "-Lnative=."]);
    let output = run(rustc.arg(format!("{SOURCES}/program.rs")));
    let what = format!("{name}, {linker:?}, {profile:?}: {}", String::from_utf8_lossy(&output.stderr));
    Linked { file, output, what }
}

impl Linked {
    fn run(&self) -> Outcome {
        self.run_by(&mut Command::new(&self.file))
    }

    fn run_by(&self, command: &mut Command) -> Outcome {
        let Self { file, output, what } = self;
        if output.status.success() {
            let code = run(command.arg(file)).status.code();
            return Outcome::Runs(Calls::of(code).unwrap_or_else(|| panic!("{what}: exit code {code:?}")));
        }
        let duplicates = ["duplicate symbol: moe_gemm_wmma", "multiple definition of `moe_gemm_wmma'"];
        assert!(duplicates.iter().any(|text| what.contains(text)), "{what}");
        Outcome::Duplicate
    }
}

#[test]
fn a_program_that_uses_the_crate_gets_our_definition() {
    for &linker in Linker::all() {
        for profile in [DEBUG, RELEASE, THIN, FAT] {
            for (name, configurations, expected) in [("uses", &["uses"][..], OURS), ("uses_not", &[], CANDLES)] {
                let linked = link(name, linker, profile, configurations, &[]);
                assert_eq!(linked.run(), expected, "{}", linked.what);
                assert!(linker.linked(&linked.file), "{}", linked.what);
                assert_eq!(has(&linked.file, b"candle's moe_wmma.o"), expected == CANDLES, "{}", linked.what);
            }
        }
    }
}

/// The loader asks the program first. With `-Bsymbolic-functions` the library keeps its own definition.
#[test]
fn a_library_gets_our_definition_unless_its_host_has_one() {
    const OWN: &[&str] = &["-Clink-arg=-Wl,-Bsymbolic-functions"];
    let ours = Outcome::Runs(Calls { candle: Definition::Ours, foreign: None, active: Some(true) });
    for &linker in Linker::all() {
        for profile in [RELEASE, THIN, FAT] {
            let host = || Command::new(stubs().join("host"));
            let other_host = || Command::new(stubs().join("host_with_a_definition"));
            let linked = link("library", linker, profile, &["library", "uses", "asks"], &[]);
            assert_eq!(linked.run_by(&mut host()), ours, "{}", linked.what);
            let Outcome::Runs(calls) = linked.run_by(&mut other_host()) else { panic!("{}", linked.what) };
            // With lto the compiler may have chosen before the loader.
            assert!(calls.candle == Definition::Foreign || profile.lto != RELEASE.lto, "{calls:?}, {}", linked.what);
            assert_eq!(calls.active, Some(false), "{}", linked.what);
            let linked = link("library_without", linker, profile, &["library"], &[]);
            assert_eq!(linked.run_by(&mut host()), CANDLES, "{}", linked.what);
            let linked = link("library_of_its_own", linker, profile, &["library", "uses", "asks"], OWN);
            assert_eq!(
                [host(), other_host()].map(|mut host| linked.run_by(&mut host)),
                [ours, ours],
                "{}",
                linked.what
            );
        }
    }
}

/// Another library that has a function of the same name, and calls the function.
#[test]
fn two_definitions_are_an_error_of_the_link_or_ours_wins() {
    const RPATH: &str = "-Clink-arg=-Wl,-rpath,$ORIGIN";
    let with = |foreign| Outcome::Runs(Calls { candle: Definition::Ours, foreign: Some(foreign), active: None });
    let cases: [(&str, &[&str], Outcome); 6] = [
        ("alone_behind", &["-Clink-arg=libalone.a"], with(Definition::Ours)),
        ("together_behind", &["-Clink-arg=libtogether.a"], Outcome::Duplicate),
        ("alone_before", &["-lstatic=alone"], Outcome::Duplicate),
        ("together_before", &["-lstatic=together"], Outcome::Duplicate),
        ("shared", &["-ldylib=shared", RPATH], with(Definition::Ours)),
        ("symbolic", &["-ldylib=symbolic", RPATH], with(Definition::Foreign)),
    ];
    for &linker in Linker::all() {
        for profile in [DEBUG, RELEASE, THIN, FAT] {
            for (name, arguments, expected) in &cases {
                // lto has our definition in the program before the linker looks into archives.
                let expected = match *name {
                    "alone_before" if profile.lto != RELEASE.lto => with(Definition::Ours),
                    _ => *expected,
                };
                let linked = link(name, linker, profile, &["uses", "calls_foreign"], arguments);
                assert_eq!(linked.run(), expected, "{}", linked.what);
            }
        }
        let linked = link("before", linker, NO_ANCHOR, &["uses", "calls_foreign"], &["-lstatic=alone"]);
        let foreign = Calls { candle: Definition::Foreign, foreign: Some(Definition::Foreign), active: None };
        assert_eq!(linked.run(), Outcome::Runs(foreign), "without a second symbol: {}", linked.what);
    }
}

/// Linkers take objects whole: where candle's object has another function that the program calls, or the whole archive is linked.
#[test]
fn an_object_of_candle_that_is_linked_for_another_reason_is_an_error_of_the_link() {
    const WHOLE: &[&str] =
        &["-Clink-arg=-Wl,--whole-archive", "-Clink-arg=candle/libmoe.a", "-Clink-arg=-Wl,--no-whole-archive"];
    for &linker in Linker::all() {
        for (name, arguments) in [("one_object", &["-Lnative=one_object"][..]), ("whole", WHOLE)] {
            let linked = link(name, linker, RELEASE, &["uses"], arguments);
            assert_eq!(linked.run(), Outcome::Duplicate, "{}", linked.what);
        }
    }
}
