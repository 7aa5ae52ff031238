//! What a build without the kernels for quantised weights or groups of rows says of such products.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::Role;
use candle_tilegemm::problem::{Groups, Scale};
use candle_tilegemm::{Error, Format, Layout, Problem};

/// A build without the kernels for quantised weights or for groups of rows names the features, and does not fall to the last resort.
#[test]
fn a_dense_build_names_the_features_of_experts_and_quantised_weights() {
    let groups = Groups::routed(8, 64, 2);
    let quantised = Problem::dense(16, 4096, 4096, 1, Layout::NT, Format::BF16).with(|p| p.b.format = Format::Q4K);
    let grouped = Problem::grouped([128, 512, 256], groups, Format::BF16);
    let both = Problem::grouped([128, 512, 256], groups, Format::F32).with(|p| p.b.format = Format::Q4K);
    let narrow = Problem::narrow([16, 4096, 4096], Format::BF16, Format::U4, None);
    let of_bytes = |format: Format, scale: Option<Scale>| {
        Problem::narrow([16, 4096, 4096], format, format, scale).with(|p| p.d.format = Format::BF16)
    };
    let (whole, scaled) = (of_bytes(Format::I8, None), of_bytes(Format::F8E4M3, Some(Scale::of_tensor(Format::F32))));
    let dispatcher = Dispatcher::new(DeviceInfo::h100());
    for (problem, features) in [
        (quantised, "feature gguf"),
        (narrow, "feature narrow"),
        (whole, "feature narrow"),
        (scaled, "feature narrow"),
        (grouped, "feature experts"),
        (both, "features gguf and experts"),
    ] {
        let error = dispatcher.plan(&problem, Policy::default()).unwrap_err();
        assert!(matches!(error, Error::NotBuilt { .. }), "{error}");
        assert!(error.to_string().ends_with(&format!("are not in this build; build with the {features}")), "{error}");
        let reference = KERNELS.iter().find(|kernel| {
            let runs = kernel.supports(&problem.canonical().problem, dispatcher.device()).is_ok();
            kernel.role == Role::LastResort && kernel.arch.capability == 90 && runs
        });
        let forced = Policy::force(reference.unwrap().name).unwrap();
        let error = dispatcher.plan(&problem, forced).unwrap_err().to_string();
        assert!(
            error.contains("build with the feature") && error.contains(features.rsplit(' ').next().unwrap()),
            "{error}"
        );
        let explanation = dispatcher.explain(&problem, Policy::default());
        assert_eq!(explanation.chosen, None);
        assert!(explanation.to_string().contains("build with the features "), "{explanation}");
    }
}
