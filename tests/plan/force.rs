//! A kernel asked for by name, with and without a configuration.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy, Reason};
use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm::internal::cost;
use candle_tilegemm::internal::tuning::{Among, Key, Origin, Point, Tuning};
use candle_tilegemm::problem::BiasAxis;
use candle_tilegemm::{F32Mode, Format, Layout, Problem};

const WAVE: &str = "sm90_wave_bf16_nt_200x128x64_2x1_s2";

fn h100() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning()
}

fn linear(m: usize, n: usize, k: usize, dtype: Format) -> Problem {
    Problem::dense(m, n, k, 1, Layout::NT, dtype)
}

/// The text of the error for this setting and problem.
fn error(setting: &str, problem: &Problem) -> String {
    match Policy::force(setting).and_then(|policy| h100().plan(problem, policy)) {
        Ok(plan) => panic!("{setting}: {}@{}", plan.kernel, plan.config),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_kernel_runs_in_the_configuration_that_is_asked_for() {
    let problem = linear(512, 4096, 8192, Format::BF16);
    let plan = |setting: &str| h100().plan(&problem, Policy::force(setting).unwrap()).unwrap();
    let chosen = plan(WAVE);
    let named = plan(&format!("{WAVE}@{}", chosen.config));
    assert_eq!((named.kernel.name, named.config, named.estimate_us), (WAVE, chosen.config, chosen.estimate_us));
    let other = plan(&format!("{WAVE}@128x128_c1x1_k1_s7_swap"));
    assert_eq!(other.config, "128x128_c1x1_k1_s7_swap".parse().unwrap());
    assert_ne!(other.config, chosen.config);
    assert!(other.estimate_us >= chosen.estimate_us, "{} us, {} us", other.estimate_us, chosen.estimate_us);
}

/// With a bias, which cuBLAS does not fuse, its product goes to a copy of D in f32: D is rounded once, after the bias.
#[test]
fn a_kernel_that_does_not_fuse_an_epilogue_in_16_bits_runs_on_a_copy_of_d_in_f32() {
    for (m, n, k, format) in [(512, 4096, 1024, Format::BF16), (65_536, 32_769, 32, Format::F16)] {
        let biased = linear(m, n, k, format).with(|p| p.epilogue.bias = Some(BiasAxis::N));
        let policy = Policy::force(&format!("cublas_{format}_nt")).unwrap();
        let plan = h100().plan(&biased, policy).unwrap();
        assert_eq!(plan.name(), format!("cublas_{format}_f32_nt+copies_D"), "{biased}");
        assert_eq!((plan.reason, plan.kernel.types.d), (Reason::Forced, Format::F32));
        // The workspace holds the copy, or pieces of it; the estimate counts 4 bytes read and 2 written for each element.
        let elements = (m * n.next_multiple_of(64)) as u64;
        assert_eq!(plan.workspace.best, 4 * elements);
        let wide = linear(m, n, k, format).with(|p| p.d.format = Format::F32);
        let wide = h100().plan(&wide, Policy::force(&format!("cublas_{format}_f32_nt")).unwrap()).unwrap();
        let passed_us = 6.0 * (m * n) as f64 / 3.35e6;
        assert!(
            plan.estimate_us > 0.8 * wide.estimate_us + passed_us,
            "{} us, {} us",
            plan.estimate_us,
            wide.estimate_us
        );
        let text = h100().explain(&biased, policy).to_string();
        assert!(text.contains(&format!("-> cublas_{format}_f32_nt on copies of D")), "{text}");
        assert!(text.contains("the copy of D is in f32"), "{text}");
        let without = h100().plan(&biased, policy.with_workspace(0)).unwrap_err().to_string();
        assert!(without.contains("a bias"), "{without}");
        // The bare product is the kernel that was asked for.
        let bare = h100().plan(&linear(m, n.next_multiple_of(8), k, format), policy).unwrap();
        assert_eq!((bare.kernel.types.d, bare.packing), (format, None));
    }
}

#[test]
fn a_configuration_that_the_kernel_has_not_is_refused_with_those_that_it_has() {
    let problem = linear(512, 4096, 8192, Format::BF16);
    let text = error(&format!("{WAVE}@129x128_c1x1_k1_s7_swap"), &problem);
    assert!(text.contains("cannot run it as 129x128_c1x1_k1_s7_swap; it can as "), "{text}");
    assert!(text.contains("128x128_c1x1_k1_s7_swap"), "{text}");
    let text = error("sm90_gemm_bf16_nt_128x256x64_2x1_cooperative@128x128", &problem);
    assert!(text.contains("cannot run it as 128x128; it can as it is, without a configuration"), "{text}");
    let text = error(&format!("{WAVE}@wide"), &problem);
    assert!(text.contains("expected a kernel, or a kernel and a configuration"), "{text}");
    assert!(error("sm90_wav@128x128", &problem).contains("sm90_wav"));
}

/// Of the f32 kernels for Hopper: clusters, with halves of K where it is long and tiles are few; tiles and parts of K, for operands as
/// they are and swapped.
#[test]
fn the_configurations_are_those_that_the_launch_accepts() {
    use Layout::{NN, NT, TT};
    let f32 = |m, n, k, layout| Problem::dense(m, n, k, 1, layout, Format::F32).with(|p| p.f32_mode = F32Mode::Tf32);
    let cases = [
        ("sm90_tf32_f32_nt_128x64x32_2x1", f32(512, 512, 1024, NT), "c2x1_k1, c1x2_k1, c2x2_k1, c1x1_k2, c1x2_k2"),
        ("sm90_tf32_f32_nt_128x64x32_2x1", f32(512, 512, 480, NT), "c2x1_k1, c1x2_k1, c2x2_k1"),
        ("sm90_tf32_f32_nn_64x128x32_1x2", f32(4096, 4096, 4096, NN), "c1x2_k1, c2x1_k1, c2x2_k1"),
        ("sm90_tf32_f32_nt_128x256x32_2x1", f32(512, 512, 1024, NT), "c2x1_k1"),
        ("sm90_tf32_f32_tt_128x256x32_2x1", f32(512, 512, 1024, TT), "c2x1_k1, c1x1_k1"),
        ("sm90_sgemm_f32_nt_128x256x16_1x1", f32(512, 512, 1024, NT), "128x256_k1"),
        ("sm90_sgemm_f32_nt_256x128x16_1x1", f32(512, 512, 1024, NT), "128x256_k1, 256x128_k1, 128x192_k1, 256x64_k1"),
        (
            "sm90_sgemm_f32_tt_256x128x16_1x1",
            f32(512, 512, 64, TT),
            "256x128_k1_swap, 128x256_k1_swap, 192x128_k1_swap, 64x256_k1_swap",
        ),
        (
            "sm90_sgemm_f32_nt_128x128x32_1x1",
            f32(64, 512, 128, NT),
            "128x128_k1_swap, 128x128_k2_swap, 96x128_k1_swap, 96x128_k2_swap",
        ),
        ("sm90_bf16x6_direct_f32_nt_64x64x32_1x1", f32(64, 512, 252, NT), "128x64_k1"),
        (
            "sm90_bf16x6_direct_f32_nt_64x64x32_1x1",
            f32(64, 512, 256, NT),
            "128x64_k1, 16x64_k1_s6_swap, 16x64_k2_s6_swap, 16x64_k4_s6_swap, 32x64_k1_s6_swap, 32x64_k2_s6_swap, \
             32x64_k4_s6_swap, 64x64_k1_s6_swap, 64x64_k2_s6_swap, 64x64_k4_s6_swap, 64x16_k1_s6, 64x16_k2_s6, \
             64x16_k4_s6, 64x32_k1_s6, 64x32_k2_s6, 64x32_k4_s6, 64x64_k1_s6, 64x64_k2_s6, 64x64_k4_s6",
        ),
    ];
    for (kernel, problem, list) in cases {
        let text = error(&format!("{kernel}@1x1"), &problem);
        let listed = text.split("it can as ").nth(1).and_then(|rest| rest.split(';').next());
        assert_eq!(listed, Some(list), "{kernel}: {text}");
    }
}

/// Of every kernel and a grid of problems: the chosen configuration is one in which the kernel can run the problem.
#[test]
fn what_is_chosen_is_legal() {
    let (device, dispatcher) = (DeviceInfo::h100(), h100());
    let mut seen = 0;
    for kernel in KERNELS {
        for (m, n, k) in [1, 4, 7, 13, 33, 100, 200, 500, 1000].into_iter().flat_map(|m| {
            [8, 64, 576, 4096, 28_672].into_iter().flat_map(move |n| [1, 64, 576, 8192, 65_536].map(|k| (m, n, k)))
        }) {
            let problem = Problem::dense(m, n, k, 1, kernel.layout, kernel.types.a).canonical().problem;
            let problem = problem.with(|p| p.f32_mode = F32Mode::Tf32).canonical().problem;
            let Ok(plan) = dispatcher.plan(&problem, Policy::force(kernel.name).unwrap()) else { continue };
            assert!(
                kernel.configurations(&problem, &device).contains(&plan.config),
                "{kernel}@{}: {problem}",
                plan.config
            );
            let setting = format!("{}@{}", kernel.name, plan.config);
            let named = dispatcher.plan(&problem, Policy::force(&setting).unwrap());
            assert_eq!(named.expect(&setting).config, plan.config, "{problem}");
            assert_eq!(cost::estimate_us(kernel, &problem, &device), plan.estimate_us, "{problem}");
            seen += 1;
        }
    }
    assert!(seen > 1000, "{seen} plans");
}

/// A table that has one entry: this configuration of [`WAVE`] for 512 rows.
fn tuned(config: &str) -> Dispatcher {
    let device = DeviceInfo::h100();
    let problem = linear(512, 4096, 8192, Format::BF16);
    let kernel = family::by_name(WAVE).unwrap();
    let key = Key::of(&problem.canonical().problem, Among::All).unwrap();
    let mut table = Tuning::new("mine.json", Origin::of_this_build(&device));
    table.replace(key, &[Point::new(512, kernel, Some(config.parse().unwrap()), &[1.2, 1.3])]);
    let read = Tuning::parse("mine.json", &table.to_text()).unwrap();
    assert_eq!(read.entries(), table.entries());
    Dispatcher::hypothetical(device).without_tuning().with_tuning(read).unwrap()
}

#[test]
fn a_measured_table_names_a_configuration() {
    let problem = linear(512, 4096, 8192, Format::BF16);
    let config = "128x128_c1x1_k1_s7_swap";
    let dispatcher = tuned(config);
    let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
    assert_eq!((plan.kernel.name, plan.config.to_string(), plan.reason), (WAVE, config.into(), Reason::Tuned));
    let explanation = dispatcher.explain(&problem, Policy::default());
    assert_eq!(explanation.config, plan.config);
    assert!(explanation.to_string().contains(&format!("measured: {WAVE}@{config} is 1.2 times")), "{explanation}");
}

#[test]
fn an_entry_whose_configuration_the_kernel_has_not_is_passed_over() {
    let problem = linear(512, 4096, 8192, Format::BF16);
    let dispatcher = tuned("136x128_c1x1_k1_s1_swap");
    assert_eq!(dispatcher.plan(&problem, Policy::default()).unwrap().reason, Reason::Estimate);
    let text = dispatcher.explain(&problem, Policy::default()).to_string();
    assert!(text.contains("which is passed over: cannot run it as 136x128_c1x1_k1_s1_swap"), "{text}");
}

/// What a kernel lists it takes by name, and lists once.
#[test]
fn a_kernel_takes_what_it_lists() {
    let (device, dispatcher) = (DeviceInfo::h100(), h100());
    let mut seen = 0;
    for kernel in KERNELS {
        for (m, n, k) in [(1, 64, 128), (3, 4096, 4096), (8, 576, 8192), (64, 1024, 264), (512, 4096, 8192)] {
            let problem = Problem::dense(m, n, k, 1, kernel.layout, kernel.types.a);
            let problem = problem.with(|p| p.f32_mode = F32Mode::Tf32).canonical().problem;
            let configurations = kernel.configurations(&problem, &device);
            assert_eq!(configurations.is_empty(), kernel.supports(&problem, &device).is_err(), "{kernel}: {problem}");
            for (i, config) in configurations.iter().enumerate() {
                assert!(!configurations[..i].contains(config), "{kernel} lists {config} twice for {problem}");
                let setting = format!("{}@{config}", kernel.name);
                let plan = dispatcher.plan(&problem, Policy::force(&setting).unwrap()).expect(&setting);
                assert!(plan.config == *config && plan.estimate_us.is_finite(), "{setting}: {problem}");
                seen += 1;
            }
        }
    }
    assert!(seen > 1000, "{seen} configurations");
}
