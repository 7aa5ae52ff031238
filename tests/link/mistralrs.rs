//! The kernels for fp8 and MXFP4 that a program on mistralrs 0.8.1 gets: mistralrs, its archive and this crate are stubs of some lines in tests/link/mistralrs.
//! Names and members are those of `libmistralrsquant.a`; here no crate of ours is built on mistralrs-quant, so that the order of the crates is the
//! program's.

use crate::{has, run, succeed, Linker, Profile, DEBUG, FAT, RELEASE, SOURCES, THIN};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// The functions of `blockwise_fp8_gemm.o`, `mxfp4_gemm.o` and `mxfp4_gemm_wmma.o`.
const ALL_OURS: i32 = 4 + 7 + 4;
const MEMBERS: [&str; 4] = ["blockwise_fp8.o", "blockwise_fp8_gemm.o", "mxfp4_gemm.o", "mxfp4_gemm_wmma.o"];

/// The stubs, compiled once: a folder for each level of the compiler, `.` has the archive.
fn stubs() -> &'static Path {
    static STUBS: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("link_mistralrs");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let object = |name: &str, source: &str, defines: &[&str]| {
            let source = format!("{SOURCES}/{source}.c");
            succeed(Command::new("cc").current_dir(&folder).args(["-c", "-fPIC", "-o", name, &source]).args(defines));
        };
        for (member, name) in MEMBERS.iter().enumerate() {
            object(name, "mistralrs/member", &[&format!("-DMEMBER={member}")]);
        }
        object("personality.o", "personality", &[]);
        succeed(Command::new("ar").current_dir(&folder).args(["rcs", "libmistralrsquant.a"]).args(MEMBERS));
        for Profile { crates, level, .. } in [DEBUG, RELEASE] {
            let library = |name: &str, source: &str, arguments: &[&str]| {
                let mut rustc = rustc(&folder, crates);
                rustc.args(["--crate-type=rlib", "--crate-name", name, "--out-dir", crates, level]).args(arguments);
                succeed(rustc.arg(format!("{SOURCES}/mistralrs/{source}.rs")));
            };
            // As the build script of mistralrs-quant links the archive.
            library("quant", "quant", &["-lmistralrsquant"]);
            library("mistral", "mistral", &[]);
            library("ours", "ours", &[]);
            library("part", "ours", &["--cfg=part"]);
        }
        folder
    });
    &STUBS
}

/// rustc in the folder of the stubs.
fn rustc(folder: &Path, crates: &str) -> Command {
    std::fs::create_dir_all(folder.join(crates)).unwrap();
    let mut rustc = Command::new("rustc");
    rustc.current_dir(folder).args(["--edition=2021", "-Cpanic=abort", "-Lnative=.", "-L", crates]);
    for name in ["quant", "mistral"] {
        let rlib = folder.join(format!("{crates}/lib{name}.rlib"));
        if rlib.exists() {
            rustc.arg("--extern").arg(format!("{name}={}", rlib.display()));
        }
    }
    rustc
}

/// Links tests/link/mistralrs/program.rs with a crate of ours named `first` or `last`, or with none, and runs it: the exit code, or none where the linker
/// refuses two definitions. Where the program runs, it has mistralrs's objects exactly where none of the functions is ours.
fn outcome(name: &str, linker: Linker, profile: Profile, ours: &str, place: &str, arguments: &[&str]) -> Option<i32> {
    let file = stubs().join(format!("{name}-{place}-{linker:?}-{}{}", profile.crates, profile.lto));
    let mut rustc = rustc(stubs(), profile.crates);
    rustc.args(["--crate-name=program", "-Clink-arg=-lc", "-Clink-arg=personality.o", profile.level, profile.lto]);
    rustc.args(["--cfg", place, "--extern", &format!("ours={}/lib{ours}.rlib", profile.crates)]);
    rustc.args(linker.arguments()).args(arguments).arg("-o").arg(&file);
    let output = run(rustc.arg(format!("{SOURCES}/mistralrs/program.rs")));
    let what = format!("{name}, {place}, {linker:?}, {profile:?}: {}", String::from_utf8_lossy(&output.stderr));
    if !output.status.success() {
        let duplicates = ["duplicate symbol: launch_fp8_matmul", "multiple definition of `launch_fp8_matmul"];
        assert!(duplicates.iter().any(|text| what.contains(text)), "{what}");
        return None;
    }
    assert!(linker.linked(&file), "{what}");
    let code = run(&mut Command::new(&file)).status.code().unwrap_or_else(|| panic!("{what}: no exit code"));
    for object in 1..MEMBERS.len() {
        let words = format!("mistralrs's object {object}");
        assert_eq!(has(&file, words.as_bytes()), code == 0, "{object}, {code}, {what}");
    }
    Some(code)
}

#[test]
fn a_program_on_mistralrs_gets_our_functions_in_any_order() {
    for &linker in Linker::all() {
        for profile in [DEBUG, RELEASE, THIN, FAT] {
            for (place, expected) in [("first", ALL_OURS), ("last", ALL_OURS), ("none", 0)] {
                assert_eq!(outcome("plain", linker, profile, "ours", place, &[]), Some(expected), "{place}");
            }
        }
    }
}

/// Linkers take objects whole.
#[test]
fn a_part_of_the_functions_or_the_whole_archive_is_an_error_of_the_link() {
    const WHOLE: &[&str] =
        &["-Clink-arg=-Wl,--whole-archive", "-Clink-arg=libmistralrsquant.a", "-Clink-arg=-Wl,--no-whole-archive"];
    for &linker in Linker::all() {
        for place in ["first", "last"] {
            assert_eq!(outcome("part", linker, RELEASE, "part", place, &[]), None, "{place}");
            assert_eq!(outcome("whole", linker, RELEASE, "ours", place, WHOLE), None, "{place}");
            // The program names the archive as its own: it is in front of all crates.
            assert_eq!(
                outcome("before", linker, RELEASE, "ours", place, &["-lstatic=mistralrsquant"]),
                None,
                "{place}"
            );
        }
    }
}
