//! The layouts that `tilegemm layout` shows. A family with a `layout.cu` has a program that prints the layouts of its kernels. This file compiles
//! the programs and that of the examples, runs them on this machine and embeds their pages.

use candle_tilegemm_build::table::Kernel;
use candle_tilegemm_build::toolkit::Toolkit;
use candle_tilegemm_build::units::{self, Unit};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The constants that `cli/src/layout/page.rs` includes.
pub fn rust(pages: &[PathBuf], kernels: &[Kernel], csrc: &Path) -> String {
    let pages: String =
        pages.iter().map(|page| format!("    include_str!({:?}),\n", page.display().to_string())).collect();
    let mut same = String::new();
    for group in described(kernels, csrc) {
        same.extend(group[1..].iter().map(|other| format!("    ({:?}, {:?}),\n", other.name, group[0].name)));
    }
    format!(
        "/// What the layout programs printed.\n#[rustfmt::skip]\nstatic PAGES: &[&str] = &[\n{pages}];\n\n\
         /// Kernels, and the kernels on the pages that have the same layouts.\n#[rustfmt::skip]\n\
         static SAME: &[(&str, &str)] = &[\n{same}];\n"
    )
}

/// The kernels of families with layouts, in groups of the same layouts: kernels of one row that differ in arch, or in types of one size.
fn described<'a>(kernels: &'a [Kernel], csrc: &Path) -> Vec<Vec<&'a Kernel>> {
    let key = |kernel: &'a Kernel| (&kernel.family, kernel.line, &kernel.layout, kernel.dtype_bytes());
    let mut groups: Vec<Vec<&Kernel>> = Vec::new();
    for kernel in kernels.iter().filter(|kernel| csrc.join(&kernel.family).join("layout.cu").exists()) {
        match groups.iter_mut().find(|group| key(group[0]) == key(kernel)) {
            Some(group) => group.push(kernel),
            None => groups.push(vec![kernel]),
        }
    }
    groups
}

/// Compiles and runs the programs; the files of their pages.
pub fn pages(kernels: &[Kernel], csrc: &Path, toolkit: &Toolkit, out: &Path) -> Result<Vec<PathBuf>, String> {
    let units = programs(kernels, csrc, toolkit);
    let objects = units::compile(&units, toolkit, &out.join("layouts"))?;
    units.iter().zip(&objects).map(|(unit, object)| page(unit, object, csrc, toolkit)).collect()
}

/// A program for each family and flags, and one for the examples.
fn programs(kernels: &[Kernel], csrc: &Path, toolkit: &Toolkit) -> Vec<Unit> {
    let mut rows: BTreeMap<(&str, &str, &[String]), String> = BTreeMap::new();
    for kernel in described(kernels, csrc).iter().map(|same| same[0]) {
        *rows.entry((&kernel.family, &kernel.arch, &kernel.flags)).or_default() += &kernel.cpp();
    }
    let families = rows.into_iter().map(|((family, arch, flags), rows)| Unit {
        title: format!("the layouts of {family}"),
        source: csrc.join(family).join("layout.cu"),
        include: csrc.into(),
        rows,
        compiler: compiler(csrc, toolkit, arch, flags),
    });
    let examples = Unit {
        title: "the examples of layouts".into(),
        source: csrc.join("common/layout/examples.cu"),
        include: csrc.into(),
        rows: String::new(),
        compiler: compiler(csrc, toolkit, "sm90a", &[]),
    };
    families.chain([examples]).collect()
}

/// nvcc as for kernels, without optimisation: a program takes longer to compile than to run.
fn compiler(csrc: &Path, toolkit: &Toolkit, arch: &str, flags: &[String]) -> cc::Build {
    let mut compiler = toolkit.program(csrc);
    compiler.include(&toolkit.cutlass_include).flag("-std=c++17").flag("--expt-relaxed-constexpr");
    compiler.flag(units::machine_code(arch.trim_start_matches("sm"))).flags(flags);
    compiler
}

/// The page of a program, which runs once: its file has the name of the object, a hash of all inputs.
fn page(unit: &Unit, object: &Path, csrc: &Path, toolkit: &Toolkit) -> Result<PathBuf, String> {
    let (program, page) = (object.with_extension("exe"), object.with_extension("json"));
    if page.exists() {
        return Ok(page);
    }
    let linker = toolkit.host(csrc).try_get_compiler().map_err(|e| format!("no linker for {}: {e}", unit.title))?;
    let mut link = Command::new(linker.path());
    link.arg(object).arg("-o").arg(&program).arg("-lcudart");
    for dir in &toolkit.library_dirs {
        link.arg("-L").arg(dir).arg(format!("-Wl,-rpath,{}", dir.display()));
    }
    run(&mut link, unit)?;
    units::write(&page, &run(&mut Command::new(&program), unit)?)?;
    Ok(page)
}

fn run(command: &mut Command, unit: &Unit) -> Result<String, String> {
    let output = command.output().map_err(|e| format!("cannot run {command:?} for {}: {e}", unit.title))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{} failed\n{}\n{command:?}", unit.title, String::from_utf8_lossy(&output.stderr))),
    }
}
