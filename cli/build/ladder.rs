//! Compiles cli/ladder, the rungs of `tilegemm bench --ladder`, into a library of their own. The rungs are measured; the dispatcher
//! does not know them.

use candle_tilegemm_build::toolkit::Toolkit;
use candle_tilegemm_build::units::{self, Unit};
use std::path::Path;

const LIBRARY: &str = "tilegemm_ladder";

/// Compiles the rungs that this build supports, and makes cargo link them.
pub fn build(sources: &Path, archs: &[u16], cutile: bool, toolkit: &Toolkit, out: &Path) -> Result<(), String> {
    let out = out.join("ladder");
    let objects = units::compile(&ladder_units(sources, archs, cutile, toolkit), toolkit, &out)?;
    units::archive(&objects, LIBRARY, &out)?;
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static={LIBRARY}");
    Ok(())
}

fn ladder_units(sources: &Path, archs: &[u16], cutile: bool, toolkit: &Toolkit) -> Vec<Unit> {
    let unit = |file: &str, compiler: cc::Build| {
        let title = format!("the ladder's {file}");
        Unit { title, source: sources.join(file), include: sources.into(), rows: String::new(), compiler }
    };
    let mut units = Vec::new();
    let mut rungs = toolkit.host(sources); // gets a definition for each compiled rung
    if archs.contains(&90) {
        let mut cutlass = toolkit.cuda(sources);
        cutlass.include(&toolkit.cutlass_include);
        cutlass.flag("-std=c++17").flag("--expt-relaxed-constexpr").flag(units::machine_code("90a"));
        units.extend(["cutlass_sm90.cu", "cute_multistage.cu"].map(|file| unit(file, cutlass.clone())));
        rungs.define("TG_LADDER_SM90", None);
        if cutile {
            let mut tile = toolkit.cuda(sources);
            tile.flag("-std=c++20").flag("--enable-tile").flag("-arch=sm_90");
            units.push(unit("tile.cu", tile));
            rungs.define("TG_LADDER_TILE", None);
        }
    }
    let mut portable = toolkit.cuda(sources);
    portable.flag("-std=c++17").flags(archs.iter().map(|&arch| units::machine_code(arch)));
    units.extend(["simt.cu", "wmma.cu", "stream.cu"].map(|file| unit(file, portable.clone())));
    units.push(unit("rungs.cpp", rungs));
    units
}
