//! The compute capabilities of a build.

#[path = "../build/archs.rs"]
mod archs;

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::family::KERNELS;

#[test]
fn a_list_names_devices_and_gives_the_machine_code_that_runs_there() {
    for (asked, expected) in [
        ("90", &[90][..]),
        ("80,90", &[80, 90]),
        ("8.6;8.9 sm_90a", &[80, 89, 90]),
        ("86,80,87", &[80]),
        ("100f", &[100]),
        ("103", &[100]),
        ("121 120", &[120]),
        ("sm90", &[90]),
    ] {
        assert_eq!(archs::of_list(asked).as_deref(), Ok(expected), "{asked}");
    }
    for bad in ["75", "110", "70,90", "hopper", "9"] {
        let error = archs::of_list(bad).unwrap_err();
        assert!(error.starts_with(&format!("CUDA_COMPUTE_CAP={bad}: no kernels for")), "{error}");
        assert!(error.contains("all-archs"), "{error}");
    }
}

/// The rule of the build and the rule of the dispatcher agree for every card.
#[test]
fn every_card_runs_the_kernels_of_its_list() {
    for name in DeviceInfo::names() {
        let capability = DeviceInfo::by_name(name).unwrap().capability;
        let archs = archs::of_list(&capability.to_string()).unwrap();
        let runs = |arch: u16| KERNELS.iter().any(|k| k.arch.capability == arch && k.arch.runs_on(capability));
        assert!(archs.len() == 1 && runs(archs[0]), "{name} is an sm{capability}, built for {archs:?}");
    }
}
