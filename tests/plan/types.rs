//! The formats of a product choose the kernels that can run the product.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Planned, Policy};
use candle_tilegemm::family::{by_name, KERNELS};
use candle_tilegemm::kernel::Rejection;
use candle_tilegemm::problem::Scale;
use candle_tilegemm::{Error, Format, Layout, Problem};
use std::sync::Arc;

/// A product of bf16 with a result in f32.
fn wide(m: usize, n: usize, k: usize, layout: Layout) -> Problem {
    Problem::dense(m, n, k, 1, layout, Format::BF16).with(|problem| problem.d.format = Format::F32)
}

fn plan(problem: &Problem, policy: Policy) -> Arc<Planned> {
    Dispatcher::hypothetical(DeviceInfo::h100()).plan(problem, policy).unwrap()
}

/// A result in f32 of 16-bit operands is another problem: it has kernels of its own, and no other takes it.
#[test]
fn a_result_in_f32_gets_a_kernel_that_stores_f32() {
    // The family of the plan, and of the plan without the vendor library.
    for (m, n, k, layout, family, own) in [
        (1, 128_256, 4096, Layout::NT, "gemv", "gemv"),
        (8, 128_256, 4096, Layout::NT, "gemv", "gemv"),
        (16, 128_256, 4096, Layout::NT, "sm90_few_rows", "sm90_few_rows"),
        (64, 4096, 4096, Layout::NT, "sm90_few_rows", "sm90_few_rows"),
        (160, 1024, 4096, Layout::NT, "sm90_wave", "sm90_wave"),
        (512, 4096, 14_336, Layout::NT, "cublas", "sm90_wave"),
        (4096, 4096, 4096, Layout::NT, "cublas", "sm90_gemm"),
        (4096, 4096, 4096, Layout::NN, "cublas", "sm90_gemm"),
        (16, 16, 10_001, Layout::NN, "split_k", "split_k"),
        (500, 4096, 4096, Layout::TN, "cublas", "split_k"),
    ] {
        for (policy, family) in [(Policy::default(), family), (Policy::own(), own)] {
            let problem = wide(m, n, k, layout);
            let plan = plan(&problem, policy);
            assert_eq!(plan.kernel.family, family, "{problem}");
            assert_eq!((plan.kernel.types.a, plan.kernel.types.d), (Format::BF16, Format::F32), "{problem}");
        }
    }
    let refused = by_name("gemv_sm90_bf16_nt_8x2x512_1x1")
        .unwrap()
        .supports(&wide(1, 4096, 4096, Layout::NT).canonical().problem, &DeviceInfo::h100());
    assert_eq!(refused.unwrap_err().to_string(), "computes in bf16, the problem is in bf16 -> f32");
}

/// 16 bytes are four elements of D and eight of A and B.
#[test]
fn limits_count_the_bytes_of_each_operand() {
    const TILES: &str = "sm90_gemm_bf16_f32_nt_128x256x64_2x1_cooperative";
    const WAVES: &str = "sm90_wave_bf16_f32_nt_200x128x64_2x1_s2";
    let verdict = |name, problem: &Problem| {
        by_name(name).unwrap().supports(&problem.canonical().problem, &DeviceInfo::h100()).map_err(|e| e.to_string())
    };
    let in_columns = |n| wide(300, n, 4096, Layout::NT);
    assert_eq!(verdict(TILES, &in_columns(4100)), Ok(()));
    let refused = verdict(TILES, &in_columns(4102));
    assert_eq!(refused.unwrap_err(), "D is aligned to 8 bytes, 16 needed");
    let rows_apart = in_columns(4102).with(|problem| problem.d.row_stride = 4104);
    assert_eq!(verdict(TILES, &rows_apart).unwrap_err(), "N is 4102, a multiple of 4 needed");
    assert_eq!(verdict(WAVES, &in_columns(4101)), Ok(()), "rows of D need no alignment");
    let short = wide(300, 4096, 4092, Layout::NT);
    for name in [TILES, WAVES] {
        assert_eq!(verdict(name, &short).unwrap_err(), "A is aligned to 8 bytes, 16 needed", "{name}");
    }
    let narrow = Problem::dense(300, 4096, 4096, 1, Layout::NT, Format::BF16);
    assert_eq!(verdict(WAVES, &narrow).unwrap_err(), "computes in bf16 -> f32, the problem is in bf16");
    let layout = wide(300, 4096, 4096, Layout::TN);
    assert_eq!(verdict(TILES, &layout).unwrap_err(), "reads nt, the operands are tn");
}

/// A product with the weights of a GGUF file.
fn gguf(b: Format, [m, n, k]: [usize; 3]) -> Problem {
    Problem::dense(m, n, k, 1, Layout::NT, Format::F32).with(|problem| problem.b.format = b)
}

#[test]
fn blocks_of_gguf_are_a_format_of_b() {
    let blocks: Vec<Format> = Format::ALL.into_iter().filter(|format| format.is_gguf_block()).collect();
    assert_eq!(blocks.len(), 13);
    for b in blocks {
        for a in [Format::F32, Format::F16, Format::BF16] {
            let problem = gguf(b, [3, 4096, 4096]).with(|p| (p.a.format, p.d.format) = (a, a));
            let plan = plan(&problem, Policy::default());
            assert_eq!((plan.kernel.types.a, plan.kernel.types.b, plan.kernel.types.d), (a, b, a), "{problem}");
        }
        let scale = b.block().elements;
        let cut = gguf(b, [3, 40, 512 + 16]);
        let stepped = gguf(b, [3, 40, 512]).with(|p| p.b.row_stride = 2);
        let apart = gguf(b, [3, 40, 512]).with(|p| p.b.col_stride = 512 + 16);
        for (problem, words) in [
            (cut, format!("B has blocks of {scale} numbers along K, K is 528")),
            (stepped, format!("B has blocks of {scale} numbers along K, the stride along K is 2")),
            (apart, format!("B has blocks of {scale} numbers along K, a stride of B is 528")),
        ] {
            let error = Dispatcher::hypothetical(DeviceInfo::h100()).plan(&problem, Policy::default()).unwrap_err();
            assert!(error.to_string().contains(&words), "{error}");
        }
    }
    let swapped = gguf(Format::Q8_0, [3, 40, 512]).with(|p| std::mem::swap(&mut p.a.format, &mut p.b.format));
    let error = Dispatcher::hypothetical(DeviceInfo::h100()).plan(&swapped, Policy::default()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

/// Scales of dense weights can be asked for; every kernel refuses them with what it has.
#[test]
fn what_no_kernel_takes_yet_is_refused_by_all() {
    let dense = Problem::dense(64, 4096, 4096, 1, Layout::NT, Format::BF16);
    let scale = Scale::of_groups(Format::F32, 128, 4096);
    let narrow = Problem::narrow([64, 4096, 4096], Format::BF16, Format::U4, Some(scale));
    for problem in [
        dense.with(|problem| problem.b.scale = Some(scale)),
        narrow.with(|problem| problem.a.scale = Some(scale)),
        narrow.with(|problem| problem.d.scale = Some(scale)),
        narrow.with(|problem| problem.b.format = Format::F8E8M0),
        Problem::dense(64, 4096, 4096, 1, Layout::NT, Format::F8E4M3),
        Problem::narrow([64, 4096, 4096], Format::F8E4M3, Format::F8E4M3, Some(scale)).with(|p| {
            p.d.format = Format::BF16;
            p.d.scale = Some(Scale::of_tensor(Format::F32));
        }),
    ] {
        let canonical = problem.canonical().problem;
        for kernel in KERNELS.iter() {
            let refused = kernel.supports(&canonical, &DeviceInfo::h100()).unwrap_err();
            assert!(
                matches!(
                    refused,
                    Rejection::Types { .. }
                        | Rejection::Scales { .. }
                        | Rejection::NoGroups
                        | Rejection::NoGate
                        | Rejection::Arch { .. }
                ),
                "{kernel}: {refused}"
            );
        }
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
        assert!(matches!(dispatcher.plan(&problem, Policy::default()), Err(Error::Unsupported { .. })), "{problem}");
    }
}
