//! The formats of a product choose the kernels that can run the product.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Plan, Policy};
use candle_tilegemm::family::{by_name, KERNELS};
use candle_tilegemm::kernel::Rejection;
use candle_tilegemm::problem::{Groups, Scale};
use candle_tilegemm::{Error, Format, Layout, Problem};
use std::sync::Arc;

fn plan(problem: &Problem, policy: Policy) -> Arc<Plan> {
    Dispatcher::hypothetical(DeviceInfo::h100()).plan(problem, policy).unwrap()
}

/// A result in f32 of 16-bit operands is another problem: it has kernels of its own, and no other takes it.
#[test]
fn a_result_in_f32_gets_a_kernel_that_stores_f32() {
    let wide = |m, n, k, layout| {
        Problem::dense(m, n, k, 1, layout, Format::BF16).with(|problem| problem.d.format = Format::F32)
    };
    for (m, n, k, layout, family) in [
        (1, 128_256, 4096, Layout::NT, "gemv"),
        (8, 128_256, 4096, Layout::NT, "gemv"),
        (16, 16, 10_001, Layout::NN, "split_k"),
        (4096, 4096, 4096, Layout::NT, "cublas"),
        (500, 4096, 4096, Layout::TN, "cublas"),
    ] {
        let problem = wide(m, n, k, layout);
        let plan = plan(&problem, Policy::default());
        assert_eq!(plan.kernel.family, family, "{problem}");
        assert_eq!((plan.kernel.types.a, plan.kernel.types.d), (Format::BF16, Format::F32), "{problem}");
    }
    let refused = by_name("gemv_sm90_bf16_nt_8x2x512_1x1")
        .unwrap()
        .supports(&wide(1, 4096, 4096, Layout::NT).canonical().problem, &DeviceInfo::h100());
    assert_eq!(refused.unwrap_err().to_string(), "computes in bf16, the problem is in bf16 -> f32");
}

/// Blocks, scales and groups can be asked for; every kernel refuses them with what it has.
#[test]
fn what_no_kernel_takes_yet_is_refused_by_all() {
    let dense = Problem::dense(64, 4096, 4096, 1, Layout::NT, Format::BF16);
    let scale = Scale::new(Format::F32, [1, 128]);
    for problem in [
        dense.with(|problem| problem.b.format = Format::Q4K),
        dense.with(|problem| problem.b.scale = Some(scale)),
        dense.with(|problem| problem.groups = Some(Groups::new(8, 8))),
        Problem::dense(64, 4096, 4096, 1, Layout::NT, Format::F8E4M3),
    ] {
        let canonical = problem.canonical().problem;
        for kernel in KERNELS.iter() {
            let refused = kernel.supports(&canonical, &DeviceInfo::h100()).unwrap_err();
            assert!(
                matches!(refused, Rejection::Types { .. } | Rejection::Groups | Rejection::Arch { .. }),
                "{kernel}: {refused}"
            );
        }
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
        assert!(matches!(dispatcher.plan(&problem, Policy::default()), Err(Error::Unsupported { .. })), "{problem}");
    }
}
