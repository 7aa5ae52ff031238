//! Plans of products with groups of rows.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{Rejection, Role};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Groups, Scale};
use candle_tilegemm::{Format, Layout, Problem};

fn experts(tokens: usize, [n, k]: [usize; 2], [count, top_k]: [usize; 2], format: Format) -> Problem {
    Problem::grouped([tokens * top_k, n, k], Groups::routed(count, tokens, top_k), format)
}

#[test]
fn experts_of_models_have_fast_kernels_on_every_card() {
    DeviceInfo::names().for_each(experts_of_models_have_fast_kernels);
}

fn experts_of_models_have_fast_kernels(card: &str) {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::by_name(card).unwrap());
    let models = [([1536, 2048], [128, 8]), ([28672, 4096], [8, 2]), ([4096, 7168], [256, 8]), ([5760, 2880], [32, 4])];
    for (sizes, experts_of) in models {
        for format in [Format::BF16, Format::F16] {
            for tokens in [1, 3, 8, 64, 512, 2048, 8192] {
                let problem = experts(tokens, sizes, experts_of, format);
                let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
                assert_eq!(plan.kernel.role, Role::Kernel, "{card}, {problem}: {}", plan.kernel);
                let rows = problem.groups.unwrap().expected_rows(problem.m);
                assert!(f64::from(plan.kernel.tile[0]) >= rows.min(32.0), "{card}, {problem}: {}", plan.kernel);
                assert!(plan.without_workspace().is_none(), "no kernel for groups needs a workspace");
                let invariant = dispatcher.plan(&problem, Policy::default().with_batch_invariance(true)).unwrap();
                assert_eq!(
                    invariant.kernel.role,
                    Role::Kernel,
                    "{card}, {problem}, batch-invariant: {}",
                    invariant.kernel
                );
            }
        }
    }
}

/// cuBLAS has no such product, and the oracle takes what the fast kernels do not.
#[test]
fn every_device_and_every_type_has_a_kernel_for_groups() {
    for device in ["a100", "rtx4090", "h100", "b200", "rtx5090"] {
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::by_name(device).unwrap());
        for format in [Format::BF16, Format::F16, Format::F32, Format::F64] {
            for sizes in [[1536, 2048], [1535, 2047], [1, 1]] {
                let problem = experts(5, sizes, [16, 3], format);
                let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
                assert!(plan.kernel.takes_groups(), "{device}: {}", plan.kernel);
            }
        }
    }
}

#[test]
fn kernels_say_whether_they_take_groups() {
    let device = DeviceInfo::h100();
    let dense = Problem::dense(64, 1536, 2048, 1, Layout::NT, Format::BF16);
    let grouped = experts(64, [1536, 2048], [128, 1], Format::BF16);
    let biased = grouped.with(|problem| problem.epilogue.bias = Some(BiasAxis::N));
    let added = grouped.with(|problem| {
        problem.epilogue = Epilogue::new(1.0, 1.0);
        problem.epilogue.c = Some(problem.d);
    });
    let [mut needing, mut refusing] = [0, 0];
    for kernel in KERNELS.iter().filter(|kernel| kernel.types == dense.types() && kernel.arch.runs_on(90)) {
        let supports = |problem: &Problem| kernel.supports(&problem.canonical().problem, &device);
        match kernel.takes_groups() {
            false => assert_eq!(supports(&grouped), Err(Rejection::Groups), "{kernel}"),
            true => assert_eq!(supports(&grouped), Ok(()), "{kernel}"),
        }
        if kernel.needs_groups() {
            assert_eq!(supports(&dense), Err(Rejection::NoGroups), "{kernel}");
            assert_eq!(supports(&biased), Err(Rejection::Epilogue { what: "a bias" }), "{kernel}");
            needing += 1;
        }
        assert!(supports(&added).is_err(), "{kernel} adds to groups of rows");
        refusing += usize::from(!kernel.takes_groups());
    }
    assert!(needing >= 5 && refusing > 10, "{needing} kernels need groups, {refusing} refuse them");
}

/// The formats of candle's `moe_gemm_gguf`, and those that candle does not have, with activations in f32, f16 and bf16 and a result in f32.
#[test]
fn experts_with_the_weights_of_a_gguf_file_have_fast_kernels_on_every_card() {
    let candles = [Format::Q8_0, Format::Q4K, Format::Q2K, Format::Q3K, Format::Q5K, Format::Q6K];
    let blocks = [&candles[..], &[Format::MXFP4, Format::IQ4_NL, Format::IQ4_XS]].concat();
    for card in DeviceInfo::names() {
        let device = DeviceInfo::by_name(card).unwrap();
        let is_hopper = device.capability == 90;
        let dispatcher = Dispatcher::hypothetical(device);
        for (b, a) in blocks.iter().flat_map(|b| [Format::F32, Format::F16, Format::BF16].map(|a| (*b, a))) {
            for tokens in [1, 8, 64, 2048] {
                let problem = experts(tokens, [768, 2048], [128, 8], a);
                let problem = problem.with(|p| (p.b.format, p.d.format) = (b, Format::F32));
                let family = |policy: Policy| dispatcher.plan(&problem, policy).unwrap().kernel.family;
                let many = if is_hopper { "sm90_gguf_grouped_gemm" } else { "gguf_grouped_gemv" };
                let expected = if tokens <= 64 { "gguf_grouped_gemv" } else { many };
                assert_eq!(family(Policy::default()), expected, "{card}, {problem}");
                assert_eq!(family(Policy::default().with_workspace(0)), "gguf_grouped_gemv", "{card}, {problem}");
            }
        }
    }
}

/// Experts of checkpoints in fp8, 4 bits and MXFP4, with activations in f32, f16 and bf16 and a result in f32.
#[test]
fn experts_with_narrow_weights_have_fast_kernels() {
    use Format::{BF16, F16, F32, F4E2M1, F8E4M3, F8E8M0, I8, U4, U8};
    let narrow = |tokens, [n, k]: [usize; 2], a: Format, b: Format, scale: Scale| {
        let problem = experts(tokens, [n, k], [128, 8], a).with_weights(b, Some(scale));
        problem.with(|p| p.d.format = F32)
    };
    for card in ["l40s", "h100", "h200", "b200"] {
        let dispatcher = Dispatcher::hypothetical(DeviceInfo::by_name(card).unwrap());
        for (sizes, a) in [[1536, 2048], [2048, 768], [5760, 2880]].into_iter().zip([BF16, F32, F16]) {
            for (b, scale) in [
                (F8E4M3, Scale::of_blocks(F32, [128, 128], sizes[1])),
                (F8E4M3, Scale::of_rows(BF16)),
                (U4, Scale::of_groups(F16, 128, sizes[0]).with_zeros()),
                (U4, Scale::of_groups(BF16, 32, sizes[0])),
                (F4E2M1, Scale::of_groups(F8E8M0, 32, sizes[0])),
                (U8, Scale::of_groups(F16, 128, sizes[0]).with_zeros()),
                (I8, Scale::of_rows(F32)),
            ] {
                for (tokens, rows) in [(1, 8), (8, 8), (2048, 32)] {
                    let problem = narrow(tokens, sizes, a, b, scale);
                    let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
                    let kernel = plan.kernel;
                    let is_fast = |family: &str| {
                        family == "narrow_grouped_gemm"
                            || (card.starts_with('h') && family == "sm90_narrow_grouped_gemm")
                    };
                    assert!(is_fast(kernel.family), "{card}, {problem}: {kernel}");
                    if kernel.family == "narrow_grouped_gemm" {
                        // Shared memory of Ada has no room for eight rows of every K.
                        assert!(kernel.tile[0] == rows || card == "l40s", "{card}, {problem}: {kernel}");
                        assert!(plan.without_workspace().is_none(), "{card}, {problem} needs a workspace");
                    }
                    let invariant = dispatcher.plan(&problem, Policy::default().with_batch_invariance(true)).unwrap();
                    assert!(is_fast(invariant.kernel.family), "{card}, {problem}, batch-invariant");
                }
            }
        }
    }
    // The kernel of last resort takes NVFP4, and the reason is told.
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    let problem = narrow(8, [1536, 2048], BF16, F4E2M1, Scale::of_groups(F8E4M3, 16, 1536));
    assert_eq!(dispatcher.plan(&problem, Policy::default()).unwrap().kernel.role, Role::LastResort);
    let nvfp4 = problem.canonical().problem;
    let of_family = KERNELS.iter().filter(|kernel| kernel.family == "narrow_grouped_gemm");
    let refusals: Vec<_> = of_family
        .filter(|kernel| kernel.types == nvfp4.types() && kernel.arch.capability == 90)
        .map(|kernel| kernel.supports(&nvfp4, dispatcher.device()))
        .collect();
    let refused = Err(Rejection::Factors { operand: "B", what: "are of parts of K that are no multiples of 32" });
    assert_eq!(refusals, [refused.clone(), refused]);
}

/// Matrices of groups are whole blocks, and so is K.
#[test]
fn groups_of_cut_blocks_are_refused() {
    let whole = experts(8, [768, 2048], [16, 2], Format::F32).with(|p| p.b.format = Format::Q4K);
    let cut = [
        whole.with(|p| (p.k, p.a.row_stride) = (2000, 2000)),
        whole.with(|p| p.b.col_stride = 2048 + 32),
        whole.with(|p| p.b.batch_stride[1] += 32),
    ];
    let kernels = KERNELS.iter().filter(|kernel| kernel.takes_groups() && kernel.types == whole.types());
    for kernel in kernels.filter(|kernel| kernel.arch.runs_on(90)) {
        let supports = |problem: &Problem| kernel.supports(&problem.canonical().problem, &DeviceInfo::h100());
        assert_eq!(supports(&whole), Ok(()), "{kernel}");
        for problem in &cut {
            assert!(matches!(supports(problem), Err(Rejection::Blocks { block: 256, .. })), "{kernel} takes {problem}");
        }
    }
}

/// `sm90_gguf_grouped_gemm` multiplies a row of D by the bytes of a row in 32 bits. `gguf_grouped_gemv` takes such products.
#[test]
fn rows_of_d_beyond_32_bits_are_refused_by_one_family() {
    let blocks = experts(8, [768, 2048], [16, 2], Format::F32).with(|p| p.b.format = Format::Q4K);
    let supports = |family: &str, stride: usize| {
        let problem = blocks.with(|p| p.d.row_stride = stride as i64).canonical().problem;
        let of_family = KERNELS.iter().filter(|kernel| kernel.family == family && kernel.types == problem.types());
        let verdicts: Vec<_> = of_family.map(|kernel| kernel.supports(&problem, &DeviceInfo::h100())).collect();
        assert!(!verdicts.is_empty(), "{family}");
        verdicts
    };
    let (most, what) = ((1 << 30) - 1, "elements from row to row of D");
    for verdict in supports("sm90_gguf_grouped_gemm", most) {
        assert_eq!(verdict, Ok(()));
    }
    for verdict in supports("sm90_gguf_grouped_gemm", most + 1) {
        assert_eq!(verdict, Err(Rejection::TooMany { what, have: most + 1, most }));
    }
    assert!(supports("gguf_grouped_gemv", most + 1).contains(&Ok(())));
}

/// A list of 1100 groups has no room in shared memory beside two stages.
#[test]
fn groups_are_limited_by_shared_memory() {
    let problem = experts(4096, [1536, 2048], [10_000, 8], Format::BF16);
    let mut refused = 0;
    for kernel in KERNELS.iter().filter(|kernel| kernel.needs_groups() && kernel.types == problem.types()) {
        if let Err(Rejection::TooMany { what, most, .. }) =
            kernel.supports(&problem.canonical().problem, &DeviceInfo::h100())
        {
            assert_eq!(what, "groups with rows");
            assert!(most >= 1024, "{kernel} takes {most} groups, and 1024 are promised");
            refused += 1;
        }
    }
    assert!(refused > 0);
}
