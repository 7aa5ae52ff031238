//! The compute capabilities that kernels are built for. Used by build.rs, and by a test.

/// The compute capabilities that have a Cargo feature and kernels.
pub const KNOWN: [u16; 5] = [80, 89, 90, 100, 120];

/// The newest of [`KNOWN`] whose machine code runs on a device of compute capability `device`: of the same major version, and no newer
/// (`Arch::runs_on` in src/arch.rs).
fn for_device(device: u16) -> Option<u16> {
    KNOWN.into_iter().rev().find(|known| known / 10 == device / 10 && *known <= device)
}

/// The compute capabilities for a list such as `80,90`, `8.6`, `sm_90a` or `103`, each once.
pub fn of_list(asked: &str) -> Result<Vec<u16>, String> {
    let mut archs = Vec::new();
    for part in asked.split([',', ';', ' ']).filter(|part| !part.is_empty()) {
        let digits =
            part.trim_start_matches("sm_").trim_start_matches("sm").trim_end_matches(['a', 'f']).replace('.', "");
        let arch = digits.parse().ok().and_then(for_device).ok_or_else(|| {
            format!(
                "CUDA_COMPUTE_CAP={asked}: no kernels for '{part}'; set it to some of 80, 86, 89, 90, 100, 103, 120, 121, or choose \
                 the features sm80, sm86, sm89, sm90, sm100, sm120, all-archs"
            )
        })?;
        if !archs.contains(&arch) {
            archs.push(arch);
        }
    }
    Ok(archs)
}
