//! Cards that nobody here has: what is planned for them, and from which numbers.

use candle_tilegemm::arch::{DeviceInfo, Source};
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::internal::cost::estimate_us;
use candle_tilegemm::kernel::{KernelDesc, Math, Role};
use candle_tilegemm::{Activation, F32Mode, Format, Layout, Problem};
use expect_test::expect_file;
use std::fmt::Write;

/// Twelve products: decode, few rows, prefill; every dtype; attention, an f32 result, an epilogue, odd extents.
fn products() -> [(&'static str, Problem); 12] {
    let bf16 = |m, n, k| Problem::dense(m, n, k, 1, Layout::NT, Format::BF16);
    [
        ("decode", bf16(1, 4096, 4096)),
        ("few rows", bf16(16, 14336, 4096)),
        ("128 rows", bf16(128, 4096, 4096)),
        ("prefill", bf16(2048, 14336, 4096)),
        ("square", Problem::dense(4096, 4096, 4096, 1, Layout::NN, Format::F16)),
        ("gelu", bf16(512, 3072, 768).with(|p| p.epilogue.activation = Activation::GeluTanh)),
        ("logits", bf16(1, 128_256, 4096).with(|p| p.d.format = Format::F32)),
        ("scores", Problem::dense(128, 128, 64, 32, Layout::NT, Format::BF16)),
        ("odd", bf16(500, 4095, 4097)),
        ("f32", Problem::dense(512, 1024, 4096, 1, Layout::NT, Format::F32)),
        ("tf32", Problem::dense(2048, 2048, 2048, 1, Layout::NT, Format::F32).with(|p| p.f32_mode = F32Mode::Tf32)),
        ("f64", Problem::dense(1024, 1024, 1024, 1, Layout::NN, Format::F64)),
    ]
}

/// The plans of the estimates alone, with and without the vendor library. `UPDATE_EXPECT=1 cargo test --test plan cards` writes the file.
#[test]
fn plans_are_those_of_the_golden_file() {
    let mut text = String::new();
    for name in DeviceInfo::names() {
        let device = DeviceInfo::by_name(name).unwrap();
        let dispatcher = Dispatcher::hypothetical(device.clone()).without_tuning();
        writeln!(text, "{name}: {}, sm{}", device.name, device.capability).unwrap();
        for (product, problem) in products() {
            let plan = |policy| {
                let plan = dispatcher.plan(&problem, policy).unwrap();
                let config = plan.config.to_string();
                format!("{}{}{config}", plan.kernel, if config.is_empty() { "" } else { "@" })
            };
            let (plan, own) = (plan(Policy::default()), plan(Policy::own()));
            let own = if own == plan { String::new() } else { format!("  own: {own}") };
            writeln!(text, "  {product:<9} {plan}{own}").unwrap();
        }
    }
    expect_file!["golden/plans.txt"].assert_eq(&text);
}

#[test]
fn only_measured_cards_say_so() {
    let measured: Vec<&str> = DeviceInfo::names()
        .filter(|name| DeviceInfo::by_name(name).unwrap().model.source == Source::Measured)
        .collect();
    assert_eq!(measured, ["h100", "h200"]);
    let unknown =
        DeviceInfo::names().find(|name| DeviceInfo::by_name(name).unwrap().model.source == Source::Architecture);
    assert_eq!(unknown, None, "every card has a data sheet");
}

/// An estimate that was fitted on one card is not below what the arithmetic of another card allows. Rates are sustained: short products run at
/// a higher clock.
#[test]
fn no_kernel_is_estimated_faster_than_the_card() {
    let mut too_fast = Vec::new();
    for name in DeviceInfo::names() {
        let device = DeviceInfo::by_name(name).unwrap();
        let model = device.model;
        for (product, problem) in products() {
            let canonical = problem.canonical().problem;
            let is_able =
                |kernel: &&KernelDesc| kernel.role == Role::Kernel && kernel.supports(&canonical, &device).is_ok();
            for kernel in KERNELS.iter().filter(is_able) {
                let tflops = match (kernel.types.a, kernel.math) {
                    (Format::F64, _) => model.f64_tflops,
                    (Format::F32, Math::Native) => model.f32_tflops,
                    (Format::F32, Math::Tf32) => model.tf32_tflops,
                    (Format::F32, Math::Bf16x6) => model.half_tflops / 6.0,
                    _ => model.half_tflops,
                };
                let (us, least) = (estimate_us(kernel, &canonical, &device), problem.flops() / (tflops * 1e6));
                if us < 0.95 * least {
                    too_fast.push(format!("{name}, {product}: {kernel} in {us:.1} us, at least {least:.1}"));
                }
            }
        }
    }
    assert!(too_fast.is_empty(), "{}", too_fast.join("\n"));
}

/// Every card has kernels, and nothing that a vendor library or another kernel can do goes to the reference.
#[test]
fn every_card_has_kernels_and_none_plans_the_reference() {
    for name in DeviceInfo::names() {
        let device = DeviceInfo::by_name(name).unwrap();
        let kernels = KERNELS
            .iter()
            .filter(|kernel| kernel.role == Role::Kernel && kernel.arch.runs_on(device.capability))
            .count();
        assert!(kernels > 0, "{name} has no kernels");
        let dispatcher = Dispatcher::hypothetical(device).without_tuning();
        for (product, problem) in products() {
            let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
            assert_ne!(plan.kernel.role, Role::LastResort, "{name}: {product}");
        }
    }
}
