//! Joins `csrc/*/family.toml` into the table of kernels, compiles the kernels of the chosen archs into one static library, and provides the
//! bindings. Never downloads, never asks for a GPU, writes to OUT_DIR only.

use candle_tilegemm_build::table::{self, Kernel, Language, Role};
use candle_tilegemm_build::toolkit::{env, Toolkit};
use candle_tilegemm_build::{archs, candle_tests, cards, code, compiles_kernels, has, tuning, units};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

type Result<T> = std::result::Result<T, String>;

/// The static library of the kernels.
const LIBRARY: &str = "tilegemm_kernels";

fn main() {
    if let Err(message) = run() {
        eprintln!("\ncandle-tilegemm: {message}\n");
        std::process::exit(1);
    }
}

fn run() -> Result<()> {
    let manifest = PathBuf::from(std::env::var("CARGO_MANIFEST_DIR").unwrap());
    let out = PathBuf::from(std::env::var("OUT_DIR").unwrap());
    let csrc = manifest.join("csrc");
    let tuning = manifest.join("tuning");
    for path in [&csrc, &tuning] {
        watch(path);
    }

    let kernels = kernels(&csrc)?;
    let archs = if has("cuda") { chosen_archs()? } else { Vec::new() };
    let profile = profile()?;
    let has_kernels = has("cuda") && compiles_kernels();
    let toolkit = has_kernels.then(|| Toolkit::find(&csrc)).transpose()?;
    let lacks_tile = toolkit.as_ref().and_then(Toolkit::lacks_tile).filter(|_| has("cutile"));
    if let Some(lack) = &lacks_tile {
        println!("cargo:warning={lack}; this build has none of them");
    }
    let is_built = |kernel: &Kernel| {
        is_built(kernel, &archs, profile) && !(lacks_tile.is_some() && kernel.language == Language::Tile)
    };
    units::write(&out.join("kernels.rs"), &rust_table(&kernels, &archs, is_built))?;
    units::write(&out.join("cards.rs"), &cards::rust(&kernels, &tuning)?)?;
    units::write(&out.join("cases.rs"), &table::cases(&csrc)?)?;
    units::write(&out.join("sass.rs"), &table::sass(&csrc)?)?;
    units::write(&out.join("tuning.rs"), &tuning::rust(&tuning)?)?;
    provide_bindings(&csrc, &out)?;
    candle_tests(&out)?;
    let mut nvcc = "no kernels".to_string();
    if let Some(toolkit) = toolkit {
        let built: Vec<Kernel> = kernels.into_iter().filter(is_built).collect();
        nvcc = format!("{}.{}", toolkit.version.0, toolkit.version.1);
        let mut units = units::units(&built, profile == Profile::Sample, &csrc, &toolkit);
        let beside = ["elementwise", "experts"].into_iter().filter(|name| *name != "experts" || has("experts"));
        let archs = beside_products(&archs, profile);
        units.extend(beside.map(|name| units::beside(name, &archs, &csrc, &toolkit)));
        if has("layers") {
            units.extend(units::layers(&archs, &csrc, &toolkit));
        }
        units.push(units::registry(&built, &csrc, &toolkit, &out)?);
        units.push(units::limits(&csrc, &toolkit));
        let objects = units::compile(&units, &toolkit, &out)?;
        units::archive(&objects, LIBRARY, &out)?;
        link(&toolkit, &out);
    }
    // For measured tables.
    println!("cargo:rustc-env=TILEGEMM_NVCC_VERSION={nvcc}");
    // For the build script of the command: where csrc is, what this build has, and by which nvcc.
    let archs: Vec<String> = archs.iter().map(u16::to_string).collect();
    println!("cargo:csrc={}", csrc.display());
    println!("cargo:archs={}", archs.join(","));
    println!("cargo:tile={}", has("cutile") && lacks_tile.is_none());
    println!("cargo:nvcc={nvcc}");
    Ok(())
}

/// The archs of kernels that are no products. A sample has their code for the oldest arch and for the newest.
fn beside_products(archs: &[u16], profile: Profile) -> Vec<u16> {
    let is_sampled = |at: usize| profile != Profile::Sample || at == 0 || at + 1 == archs.len();
    archs.iter().enumerate().filter(|(at, _)| is_sampled(*at)).map(|(_, arch)| *arch).collect()
}

/// One line for each file and folder below: cargo watches a named folder for new and deleted files.
fn watch(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
    for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
        watch(&entry.path());
    }
}

/// Adds candle's own tests to tests/gpu, where the Makefile names the folders of candle's crates.
fn candle_tests(out: &Path) -> Result<()> {
    println!("cargo:rustc-check-cfg=cfg(candle_tests)");
    let Some(folders) = env("CANDLE_TESTS") else { return Ok(()) };
    println!("cargo:rustc-cfg=candle_tests");
    candle_tests::generate(&folders, out)
}

/// The table, with the hash of each kernel's code: of its sources, and of its row with its limits.
fn kernels(csrc: &Path) -> Result<Vec<Kernel>> {
    let mut kernels = table::read(csrc)?;
    let mut digests: BTreeMap<(PathBuf, u16), String> = BTreeMap::new();
    for kernel in &mut kernels {
        let source = kernel.source(csrc).map(|source| (source, kernel.capability()));
        if let Some(source) = source.as_ref().filter(|source| !digests.contains_key(*source)) {
            digests.insert(source.clone(), code::digest(&source.0, csrc, source.1)?);
        }
        let row = format!("{}{}\n{}", kernel.cpp(), kernel.epilogue, kernel.flags.join(" "));
        kernel.code = code::hash(&row, source.and_then(|source| digests.get(&source)).map(String::as_str));
    }
    Ok(kernels)
}

/// The compute capabilities to build for: the arch features, else CUDA_COMPUTE_CAP, else 90.
fn chosen_archs() -> Result<Vec<u16>> {
    let features: Vec<u16> = archs::KNOWN.into_iter().filter(|arch| has(&format!("sm{arch}"))).collect();
    let asked = env("CUDA_COMPUTE_CAP");
    match asked {
        _ if !features.is_empty() => Ok(features),
        None => Ok(vec![90]),
        Some(asked) => archs::of_list(&asked),
    }
}

/// How many of the kernels are compiled.
#[derive(Clone, Copy, PartialEq)]
enum Profile {
    /// All.
    Full,
    /// A few, for development: these run every product that the other kernels run, but more slowly.
    Fast,
    /// The first of each row for one arch, and the first of each family for each arch, by name or not, for a look at the machine code; what is no product for
    /// two archs.
    Sample,
    /// All, and those that run by name only.
    Every,
}

fn profile() -> Result<Profile> {
    match env("TILEGEMM_PROFILE").as_deref() {
        None | Some("full") => Ok(Profile::Full),
        Some("fast") => Ok(Profile::Fast),
        Some("sample") => Ok(Profile::Sample),
        Some("every") => Ok(Profile::Every),
        Some(other) => Err(format!(
            "TILEGEMM_PROFILE={other} is not understood; set it to full, fast, sample or every, or unset it"
        )),
    }
}

fn is_built(kernel: &Kernel, archs: &[u16], profile: Profile) -> bool {
    let has_features = kernel.features.iter().all(|feature| has(feature));
    let is_in_profile = match profile {
        Profile::Every => true,
        Profile::Full => kernel.role != Role::ByName,
        Profile::Fast => kernel.role != Role::ByName && kernel.fast,
        Profile::Sample => kernel.sample,
    };
    has_features && (kernel.role == Role::Vendor || archs.contains(&kernel.capability()) && is_in_profile)
}

/// The static tables that `src/family/mod.rs` includes.
fn rust_table(kernels: &[Kernel], archs: &[u16], is_built: impl Fn(&Kernel) -> bool) -> String {
    let row = |(index, kernel): (usize, &Kernel)| kernel.rust(index, is_built(kernel), &cards::room(kernel, kernels));
    let rows: String = kernels.iter().enumerate().map(row).collect();
    format!(
        "/// Every kernel of the table, in its order, built or not.\n#[rustfmt::skip]\n\
         pub static KERNELS: &[KernelDesc] = &[\n{rows}];\n\n\
         /// Compute capabilities whose kernels are in this build.\npub static BUILT_ARCHS: &[u16] = &{archs:?};\n\n{}",
        table::features()
    )
}

/// The checked-in bindings, or with feature `bindgen` fresh ones, which must be the same.
fn provide_bindings(csrc: &Path, out: &Path) -> Result<()> {
    let checked_in = csrc.join("bindings.rs");
    let target = out.join("bindings.rs");
    #[cfg(feature = "bindgen")]
    {
        env("LIBCLANG_PATH");
        generate_bindings(&csrc.join("bindings.h"), &target)?;
        let same = std::fs::read(&target).ok() == std::fs::read(&checked_in).ok();
        if same {
            Ok(())
        } else {
            Err(format!(
                "csrc/bindings.rs is not what bindgen makes of csrc/bindings.h; run `cp {} csrc/bindings.rs`",
                target.display()
            ))
        }
    }
    #[cfg(not(feature = "bindgen"))]
    {
        std::fs::copy(&checked_in, &target).map(drop).map_err(|e| format!("cannot copy {}: {e}", checked_in.display()))
    }
}

#[cfg(feature = "bindgen")]
fn generate_bindings(header: &Path, target: &Path) -> Result<()> {
    let bindings = bindgen::Builder::default()
        .header(header.display().to_string())
        .clang_arg(format!("-I{}", header.parent().unwrap_or(Path::new(".")).display()))
        .allowlist_item("(tg|TG)_.*")
        .default_enum_style(bindgen::EnumVariation::NewType { is_bitfield: false, is_global: false })
        .prepend_enum_name(false)
        .formatter(bindgen::Formatter::Prettyplease)
        .layout_tests(false)
        .generate()
        .map_err(|e| {
            format!("bindgen: {e}; set LIBCLANG_PATH to a folder with libclang (third_party/fetch.sh libclang)")
        })?;
    bindings.write_to_file(target).map_err(|e| format!("cannot write {}: {e}", target.display()))
}

fn link(toolkit: &Toolkit, out: &Path) {
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static={LIBRARY}");
    for dir in &toolkit.library_dirs {
        println!("cargo:rustc-link-search=native={}", dir.display());
    }
    if has("preload") {
        // The loader finds a preloaded library's own libraries before the program's: an older libstdc++ would take the place of the program's.
        println!("cargo:rustc-link-lib=static=cudart_static");
        println!("cargo:rustc-link-search=native={}", toolkit.cpp_library_dir().display());
        println!("cargo:rustc-link-lib=static=stdc++");
    } else {
        println!("cargo:rustc-link-lib=dylib=cudart");
        println!("cargo:rustc-link-lib=dylib=stdc++");
    }
}
