//! Compiles the rungs of `tilegemm bench --ladder`, benches/ladder, into a library of their own: they are measured, never
//! dispatched to.

use crate::toolkit::Toolkit;
use crate::units::{self, Unit};
use std::path::Path;

const LIBRARY: &str = "tilegemm_ladder";

/// Compiles what this build can have of the ladder and has cargo link it.
pub fn build(sources: &Path, archs: &[u16], cutile: bool, toolkit: &Toolkit, out: &Path) -> Result<(), String> {
    let out = out.join("ladder");
    let objects = units::compile(&ladder_units(sources, archs, cutile, toolkit), toolkit, &out)?;
    units::archive(&objects, &out.join(format!("lib{LIBRARY}.a")))?;
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static={LIBRARY}");
    Ok(())
}

fn ladder_units(sources: &Path, archs: &[u16], cutile: bool, toolkit: &Toolkit) -> Vec<Unit> {
    let unit = |file: &str, flags: Vec<String>| {
        let mut all = units::common_flags(sources);
        all.extend(flags);
        let title = format!("the ladder's {file}");
        Unit { title, source: sources.join(file), include: sources.into(), rows: String::new(), flags: all }
    };
    let strings = |flags: &[&str]| flags.iter().map(|flag| flag.to_string()).collect::<Vec<_>>();
    let mut units = Vec::new();
    let mut has = vec!["-std=c++17".to_string()]; // what rungs.cpp is told there is
    if archs.contains(&90) {
        let cutlass = toolkit.cutlass_include.display().to_string();
        let flags = ["-std=c++17", "--expt-relaxed-constexpr", "-gencode=arch=compute_90a,code=sm_90a", "-I", &cutlass];
        units.extend(["cutlass_sm90.cu", "cute_multistage.cu"].map(|file| unit(file, strings(&flags))));
        has.push("-DTG_LADDER_SM90".into());
        if cutile {
            units.push(unit("tile.cu", strings(&["-std=c++20", "--enable-tile", "-arch=sm_90"])));
            has.push("-DTG_LADDER_TILE".into());
        }
    }
    let every_arch = archs.iter().map(|arch| format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
    let portable: Vec<String> = strings(&["-std=c++17"]).into_iter().chain(every_arch).collect();
    units.extend(["simt.cu", "wmma.cu", "stream.cu"].map(|file| unit(file, portable.clone())));
    units.push(unit("rungs.cpp", has));
    units
}
