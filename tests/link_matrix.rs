//! The definition that a program gets where candle-kernels' archive and this crate both define a function (feature `interpose-kernels`), by linker, profile,
//! link-time optimisation and kind of program.
//!
//! Small crates stand for candle-kernels with its archive `libmoe.a`, for candle-nn, and for this crate: how the linker finds a definition does not depend on
//! what the functions do. The test is the same in every build, and runs in builds without CUDA alone.

#![cfg(not(feature = "cuda"))]

use std::path::{Path, PathBuf};
use std::process::Command;

/// candle's kernel for experts is an object of the archive of its own, beside objects with other functions.
const MOE_WMMA: &str = "const char *candles_wmma(void) { return \"candle's moe_wmma.o is linked\"; }\n\
                        void moe_gemm_wmma(int *d) { *d = candles_wmma()[0] == 'c' ? 1 : 0; }\n";
const MOE_GGUF: &str = "void moe_gemm_gguf(int *d) { *d = 2; }\n";
const KERNELS: &str = "unsafe extern \"C\" { pub fn moe_gemm_wmma(d: *mut i32); pub fn moe_gemm_gguf(d: *mut i32); }\n";
const NN: &str = "pub fn wmma() -> i32 { let mut d = 0; unsafe { kernels::moe_gemm_wmma(&mut d) }; d }\n\
                  pub fn gguf() -> i32 { let mut d = 0; unsafe { kernels::moe_gemm_gguf(&mut d) }; d }\n";
const OURS: &str = "const _: unsafe extern \"C\" fn(*mut i32) = kernels::moe_gemm_wmma;\n\
                    #[unsafe(no_mangle)] pub unsafe extern \"C\" fn moe_gemm_wmma(d: *mut i32) { unsafe { *d = 3 } }\n";
const MAIN: &str = "#[cfg(with_use)] use ours as _;\nfn main() { println!(\"{} {}\", nn::wmma(), nn::gguf()); }\n";
const PLUGIN: &str = "#[cfg(with_use)] use ours as _;\n\
                      #[unsafe(no_mangle)] pub extern \"C\" fn run() -> i32 { 10 * nn::wmma() + nn::gguf() }\n";
const HOST: &str = "#include <dlfcn.h>\n#include <stdio.h>\nint main(int n, char **names) {\n\
                    void *plugin = dlopen(names[n - 1], RTLD_NOW);\n if (!plugin) { puts(dlerror()); return 1; }\n\
                    printf(\"%d\\n\", ((int (*)(void))dlsym(plugin, \"run\"))());\n}\n";
/// A library of others with a function of the same name, as engines have. The function's arguments are others.
const FOREIGN: &str = "const char *foreign_wmma(void) { return \"the other library's kernel is linked\"; }\n\
                       void moe_gemm_wmma(int a, int *d) { *d = foreign_wmma()[0] == 't' ? a : 0; }\n";
const FOREIGN_CALL: &str = "void moe_gemm_wmma(int a, int *d);\nvoid foreign_layer(int *d) { moe_gemm_wmma(5, d); }\n";

const CANDLES: &str = "candle's moe_wmma.o is linked";
const OTHERS: &str = "the other library's kernel is linked";

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tilegemm-link-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        std::fs::write(self.0.join(name), text).unwrap();
        self.0.join(name)
    }

    /// Runs a program in the folder; its output, or what it says of the failure.
    fn run(&self, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(program).args(arguments).current_dir(&self.0).env_remove("RUSTFLAGS").output();
        let output = output.unwrap_or_else(|e| panic!("{}: {e}", program.display()));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        match output.status.success() {
            true => Ok(text(&output.stdout)),
            false => Err(text(&output.stdout) + &text(&output.stderr)),
        }
    }

    fn archive(&self, name: &str, sources: &[(&str, &str)]) {
        let mut objects = Vec::new();
        for (source, text) in sources {
            self.file(source, text);
            self.run("cc".as_ref(), &["-c", "-O1", "-fPIC", source]).unwrap();
            objects.push(source.replace(".c", ".o"));
        }
        let mut arguments = vec!["rcs", name];
        arguments.extend(objects.iter().map(String::as_str));
        self.run("ar".as_ref(), &arguments).unwrap();
    }

    fn rustc(&self, arguments: &[&str]) -> Result<String, String> {
        let rustc = std::env::var_os("RUSTC").unwrap_or("rustc".into());
        let mut all = vec!["--edition=2024", "-L", "."];
        all.extend(arguments);
        self.run(rustc.as_ref(), &all)
    }

    /// The crates, in this profile.
    fn crates(&self, optimise: &str) {
        self.archive("libmoe.a", &[("moe_wmma.c", MOE_WMMA), ("moe_gguf.c", MOE_GGUF)]);
        for (name, text) in [("kernels", KERNELS), ("nn", NN), ("ours", OURS)] {
            let source = self.file(&format!("{name}.rs"), text);
            let mut arguments = vec!["--crate-type=rlib", optimise, source.to_str().unwrap()];
            match name {
                // As candle-kernels' build script says.
                "kernels" => arguments.push("-lmoe"),
                _ => arguments.extend(["--extern", "kernels=libkernels.rlib"]),
            }
            self.rustc(&arguments).unwrap();
        }
    }

    fn program(&self, kind: &str, text: &str, arguments: &[&str]) -> Result<PathBuf, String> {
        let source = self.file("program.rs", text);
        let mut all = vec![kind, "--extern", "nn=libnn.rlib", "--extern", "ours=libours.rlib", "-o", "program"];
        all.push(source.to_str().unwrap());
        all.extend(arguments);
        self.rustc(&all).map(|_| self.0.join("program"))
    }

    fn has(&self, program: &Path, words: &str) -> bool {
        std::fs::read(program).unwrap().windows(words.len()).any(|window| window == words.as_bytes())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The default linker of the target, which is rust-lld, and GNU ld.
const LINKERS: [&[&str]; 2] = [&[], &["-Clinker-features=-lld", "-Clink-arg=-fuse-ld=bfd"]];
const PROFILES: [(&str, &[&str]); 2] =
    [("-Copt-level=0", &["-Clto=off"]), ("-Copt-level=3", &["-Clto=off", "-Clto=thin", "-Clto=fat"])];

#[test]
fn the_use_line_decides_whose_kernel_a_program_has() {
    for (optimise, ltos) in PROFILES {
        let folder = Folder::new(&optimise[1..]);
        folder.crates(optimise);
        for (linker, lto) in LINKERS.into_iter().flat_map(|linker| ltos.iter().map(move |lto| (linker, *lto))) {
            for with_use in [true, false] {
                let mut arguments = vec![optimise, lto];
                arguments.extend(linker);
                if with_use {
                    arguments.extend(["--cfg", "with_use"]);
                }
                let program = folder.program("--crate-type=bin", MAIN, &arguments).unwrap();
                let said = folder.run(&program, &[]).unwrap();
                assert_eq!(said, if with_use { "3 2" } else { "1 2" }, "{arguments:?}");
                assert_eq!(folder.has(&program, CANDLES), !with_use, "{arguments:?}");
            }
        }
    }
}

/// A shared library in Rust, loaded by a program in C.
#[test]
fn a_shared_library_has_our_kernel_too() {
    let folder = Folder::new("cdylib");
    folder.crates("-Copt-level=3");
    folder.file("host.c", HOST);
    folder.run("cc".as_ref(), &["host.c", "-o", "host", "-ldl"]).unwrap();
    for linker in LINKERS {
        for with_use in [true, false] {
            let mut arguments = linker.to_vec();
            if with_use {
                arguments.extend(["--cfg", "with_use"]);
            }
            let plugin = folder.program("--crate-type=cdylib", PLUGIN, &arguments).unwrap();
            let said = folder.run(&folder.0.join("host"), &[plugin.to_str().unwrap()]).unwrap();
            assert_eq!(said, if with_use { "32" } else { "12" }, "{arguments:?}");
        }
    }
}

/// An archive of others with the same name, first in the link and last.
#[test]
fn the_place_in_the_link_decides_about_a_library_of_others() {
    let folder = Folder::new("foreign");
    folder.crates("-Copt-level=3");
    let main = MAIN
        .replace("fn main()", "unsafe extern \"C\" { fn foreign_layer(d: *mut i32); }\nfn main()")
        .replace("println!(", "let mut d = [0; 2]; unsafe { foreign_layer(&mut d[0]) }; println!(");
    let apart: &[(&str, &str)] = &[("foreign.c", FOREIGN), ("foreign_call.c", FOREIGN_CALL)];
    let (_, call) = FOREIGN_CALL.split_once('\n').unwrap();
    let both = format!("{FOREIGN}{call}");
    // A call with the arguments of the other definition would be wild: the programs are linked and not run.
    // Where the archive comes first in the link, its object takes the place of both definitions. Where the archive comes last, nothing needs the
    // object, and the archive's own calls arrive at ours; an object with more functions defines the name a second time.
    for (sources, first, expected) in [
        (apart, true, Some(true)),
        (apart, false, Some(false)),
        (&[("both.c", both.as_str())][..], true, Some(true)),
        (&[("both.c", both.as_str())][..], false, None),
    ] {
        folder.archive("libforeign.a", sources);
        for linker in LINKERS {
            let archive = if first { "-lforeign" } else { "-Clink-arg=-lforeign" };
            let mut arguments = vec!["--cfg", "with_use", archive, "-Clink-arg=-L."];
            arguments.extend(linker);
            match folder.program("--crate-type=bin", &main, &arguments) {
                Ok(program) => {
                    assert_eq!(Some(folder.has(&program, OTHERS)), expected, "{arguments:?}");
                    assert!(!folder.has(&program, CANDLES), "{arguments:?}");
                }
                Err(error) => {
                    assert_eq!(None, expected, "{arguments:?}: {error}");
                    let is_twice = error.contains("duplicate symbol") || error.contains("multiple definition");
                    assert!(is_twice && error.contains("moe_gemm_wmma"), "{error}");
                }
            }
        }
        std::fs::remove_file(folder.0.join("libforeign.a")).unwrap();
    }
}
