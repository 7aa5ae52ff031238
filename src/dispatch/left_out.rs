//! The kernels that this build leaves out: a Cargo feature is off, or the build profile has no such row.

use crate::family::{BUILT_ARCHS, FEATURES};
use crate::kernel::{KernelDesc, Rejection, Role};
use crate::problem::{Format, Problem};

/// The Cargo features, all off, without which a build has no kernels for such a problem.
pub(super) fn lacking(problem: &Problem) -> Vec<String> {
    let needs = [
        ("gguf", problem.b.format.is_gguf_block()),
        ("narrow", problem.types().has_narrow_b() || is_of_bytes(problem)),
        ("experts", problem.groups.is_some()),
    ];
    needs
        .into_iter()
        .filter(|(feature, is_needed)| *is_needed && is_off(feature))
        .map(|(name, _)| name.into())
        .collect()
}

/// Why the kernel is not in this build, or not for such a problem. `reference` runs dense products and groups of rows by one kernel, and would take a hundred times
/// as long as the kernels that a build without `experts` leaves out.
pub(super) fn check(kernel: &KernelDesc, problem: &Problem) -> Result<(), Rejection> {
    let mut features = lacking(problem);
    if kernel.is_built() && features.is_empty() {
        return Ok(());
    }
    for &feature in kernel.features.iter().filter(|feature| is_off(feature)) {
        if !features.iter().any(|known| known == feature) {
            features.push(feature.into());
        }
    }
    let has_arch = matches!(kernel.role, Role::Vendor | Role::ByName) || BUILT_ARCHS.contains(&kernel.arch.capability);
    if !has_arch {
        features.insert(0, format!("sm{}", kernel.arch.capability));
    }
    Err(match (features.is_empty(), kernel.role) {
        (false, _) => Rejection::NotBuilt { features },
        (true, Role::ByName) => Rejection::ByName,
        (true, _) => Rejection::NotInProfile,
    })
}

/// Whether A, too, has 8 bits, with factors or as whole numbers. fp8 without factors has kernels beside those of the feature.
fn is_of_bytes(problem: &Problem) -> bool {
    let has_factors = problem.a.scale.or(problem.b.scale).is_some();
    problem.a.format == Format::I8 || (problem.a.format == Format::F8E4M3 && has_factors)
}

fn is_off(feature: &str) -> bool {
    FEATURES.iter().any(|(name, is_on)| *name == feature && !is_on)
}
