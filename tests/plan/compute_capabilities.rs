//! The compute capabilities of a build.

use candle_tilegemm_build::archs;

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::family::KERNELS;
use std::collections::{BTreeMap, BTreeSet};

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

/// The manifest of a package of this repository.
fn manifest(package: &str) -> toml::Table {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(package).join("Cargo.toml");
    std::fs::read_to_string(path).unwrap().parse().unwrap()
}

/// The features of a package, with the features that each turns on.
fn features(package: &str) -> BTreeMap<String, Vec<String>> {
    manifest(package).get("features").map_or_else(BTreeMap::new, |features| features.clone().try_into().unwrap())
}

/// The other packages of this repository.
fn members() -> Vec<String> {
    manifest("")["workspace"]["members"].clone().try_into().unwrap()
}

/// A feature and all features that it turns on.
fn turned_on(features: &BTreeMap<String, Vec<String>>, feature: &str) -> BTreeSet<String> {
    let others = features.get(feature).into_iter().flatten();
    let others = others.flat_map(|other| turned_on(features, other));
    others.chain([feature.to_string()]).collect()
}

/// An arch without `cuda` would build no kernel, without a word.
#[test]
fn features_of_archs_turn_on_cuda_and_those_of_the_cpu_do_not() {
    let all = features("");
    let is_arch = |name: &&String| {
        name.strip_prefix("sm").is_some_and(|arch| arch.parse::<u16>().is_ok())
            || ["all-archs", "cutile", "experts", "full", "gguf", "narrow"].contains(&name.as_str())
    };
    let archs: Vec<&String> = all.keys().filter(is_arch).collect();
    assert_eq!(
        archs.len(),
        archs::KNOWN.len() + 7,
        "sm86, all-archs, cutile, experts, gguf, narrow and full beside the archs of kernels: {archs:?}"
    );
    for name in KERNELS.iter().flat_map(|kernel| kernel.features) {
        assert!(turned_on(&all, "full").contains(*name), "full lacks {name}");
    }
    for arch in archs::KNOWN {
        assert!(turned_on(&all, "all-archs").contains(&format!("sm{arch}")), "all-archs lacks sm{arch}");
    }
    for name in ["interpose", "interpose-kernels", "interpose-mistralrs", "preload"]
        .into_iter()
        .chain(archs.iter().map(|name| name.as_str()))
    {
        assert!(turned_on(&all, name).contains("cuda"), "{name} does not turn on cuda");
    }
    for name in ["default", "candle", "bindgen"] {
        let on = turned_on(&all, name);
        assert!(!on.contains("cuda") && all.contains_key(name), "{name} turns on {on:?}");
    }
    let all = features("cli");
    for name in ["interpose", "interpose-kernels", "bench"] {
        assert!(turned_on(&all, name).contains("cuda"), "cli: {name} does not turn on cuda");
    }
    for name in ["default", "candle", "layout"] {
        let on = turned_on(&all, name);
        assert!(!on.contains("cuda") && all.contains_key(name), "cli: {name} turns on {on:?}");
    }
    // A package with code for CUDA has a feature `cuda` of its own.
    let mut packages = 0;
    for package in members() {
        let features = features(&package);
        for name in features.keys().filter(is_arch) {
            let on = turned_on(&features, name);
            assert!(on.contains(&format!("candle-tilegemm/{name}")), "{package}: {name} turns on {on:?}");
            assert!(!features.contains_key("cuda") || on.contains("cuda"), "{package}: {name} does not turn on cuda");
        }
        packages += usize::from(features.keys().any(|name| is_arch(&name)));
    }
    assert!(packages >= 3, "cli, examples and preload have features of archs, of {packages}");
}
