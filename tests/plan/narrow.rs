//! Products with narrow weights: how they read, their canonical form, their bytes, and the plans that they get.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::internal::cost;
use candle_tilegemm::kernel::{KernelDesc, Rejection, Role};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Groups, Operand, Scale};
use candle_tilegemm::{Error, Format, Layout, Problem};
use Format::{BF16, F16, F32, F4E2M1, F8E4M3, F8E8M0, I8, U4, U8};

const SIZES: [usize; 3] = [16, 14336, 4096];
const ALL: u32 = u32::MAX;

fn narrow(b: Format, scale: Scale) -> Problem {
    Problem::narrow(SIZES, BF16, b, Some(scale))
}

fn h100() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning()
}

/// The kernel of last resort for these formats of A and B.
fn reference(a: Format, b: Format) -> &'static KernelDesc {
    let is_it = |kernel: &&KernelDesc| kernel.role == Role::LastResort && kernel.arch.capability == 90;
    let of_types = |kernel: &&KernelDesc| (kernel.types.a, kernel.types.b, kernel.types.d) == (a, b, a);
    KERNELS.iter().filter(is_it).find(of_types).unwrap_or_else(|| panic!("none of {a} by {b}"))
}

#[test]
fn formats_are_of_dense_numbers_of_blocks_or_of_narrow_weights() {
    let narrow: Vec<Format> = Format::ALL.into_iter().filter(|format| format.is_narrow()).collect();
    assert_eq!(narrow, [F8E4M3, U4, F4E2M1, I8, U8]);
    assert!(narrow.iter().all(|format| !format.is_gguf_block()));
    assert_eq!(narrow.iter().filter(|format| format.has_zero()).collect::<Vec<_>>(), [&U4, &U8]);
    assert_eq!([U4, F4E2M1, U8, F8E8M0].map(|format| format.bits()), [4.0, 4.0, 8.0, 8.0]);
    assert_eq!([F32, F16, BF16].map(|a| a.in_products_with(U4)), [BF16, F16, BF16]);
}

#[test]
fn factors_are_named_by_what_shares_one() {
    let (n, k) = (SIZES[1], SIZES[2]);
    for (problem, expected) in [
        (narrow(U4, Scale::of_groups(BF16, 128, n)), "bf16 x u4 g128 -> bf16"),
        (narrow(U4, Scale::of_groups(F16, 64, n).with_zeros()), "bf16 x u4 g64 f16 with zeros -> bf16"),
        (narrow(F4E2M1, Scale::of_groups(F8E8M0, 32, n)), "bf16 x f4e2m1 g32 f8e8m0 -> bf16"),
        (narrow(F8E4M3, Scale::of_blocks(F32, [128, 128], k)), "bf16 x f8e4m3 128x128 -> bf16"),
        (narrow(F8E4M3, Scale::of_blocks(F32, [64, 256], k)), "bf16 x f8e4m3 64x256 -> bf16"),
        (narrow(F8E4M3, Scale::of_rows(F32)), "bf16 x f8e4m3 row -> bf16"),
        (narrow(I8, Scale::of_tensor(BF16)), "bf16 x i8 tensor -> bf16"),
        (Problem::narrow(SIZES, F32, U8, None), "f32 x u8 -> f32"),
    ] {
        assert_eq!(problem.to_string(), format!("16x14336x4096 nt {expected}"));
    }
    let both = Problem::narrow(SIZES, F8E4M3, F8E4M3, Some(Scale::of_blocks(F32, [128, 128], k))).with(|p| {
        p.a.scale = Some(Scale::new(F32, [1, 128], [32, 1]));
        p.d.format = BF16;
    });
    assert_eq!(both.to_string(), "16x14336x4096 nt f8e4m3 g128 x f8e4m3 128x128 -> bf16");
}

#[test]
fn rows_of_weights_start_at_multiples_of_16_bytes() {
    for (format, k, stride) in [(U4, 100, 128), (F4E2M1, 2880, 2880), (F8E4M3, 100, 112), (U8, 16, 16), (I8, 1, 16)] {
        let problem = Problem::narrow([3, 5, k], BF16, format, None);
        assert_eq!((problem.b.row_stride, problem.b.col_stride, problem.b.align()), (1, stride, 16), "{problem}");
    }
    let experts = Problem::grouped([64, 6, 96], Groups::new(8), BF16);
    let experts = experts.with_weights(U4, Some(Scale::of_groups(F16, 32, 6)));
    let scale = experts.b.scale.unwrap();
    assert_eq!((experts.b.batch_stride, scale.batch_stride), ([0, 6 * 96], [0, 6 * 3]));
    assert_eq!(scale.index([0, 7], [95, 5]), 7 * 18 + 2 * 6 + 5);
}

/// Bytes of codes, factors and zeros, once.
#[test]
fn bytes_and_time_of_codes_and_factors_count() {
    let [m, n, k] = SIZES.map(|size| size as f64);
    let dense = 2.0 * (m * k + m * n);
    let groups = Scale::of_groups(F16, 128, SIZES[1]);
    for (problem, of_b) in [
        (narrow(U4, groups), n * k / 2.0 + n * k / 128.0 * 2.0),
        (narrow(U4, groups.with_zeros()), n * k / 2.0 + n * k / 128.0 * 3.0),
        (narrow(F4E2M1, Scale::of_groups(F8E8M0, 32, SIZES[1])), n * k / 2.0 + n * k / 32.0),
        (narrow(F8E4M3, Scale::of_blocks(F32, [128, 128], SIZES[2])), n * k + 112.0 * 32.0 * 4.0),
        (narrow(F8E4M3, Scale::of_tensor(F32)), n * k + 4.0),
        (narrow(U8, Scale::of_rows(F32)), n * k + n * 4.0),
    ] {
        assert_eq!(problem.bytes(), dense + of_b, "{problem}");
        assert_eq!(problem.canonical().problem.bytes(), dense + of_b, "{problem}");
        let device = DeviceInfo::h100();
        let us = problem.bytes() / (device.model.memory_gbps * 1e3);
        assert!((cost::roofline_us(&problem, &device) - us).abs() < 1e-9, "{problem}");
    }
    // Factors of experts that have rows count, as their matrices do.
    let experts = Problem::grouped([64, 6, 96], Groups::new(8), BF16);
    let with = experts.with_weights(U4, Some(Scale::of_groups(F16, 32, 6)));
    let without = experts.with_weights(U4, None);
    assert_eq!(with.bytes() - without.bytes(), 8.0 * 18.0 * 2.0);
}

#[test]
fn the_canonical_form_has_no_granularity_beyond_the_extent_and_no_stride_without_a_meaning() {
    let of = |[m, n, k]: [usize; 3], scale: Scale| {
        Problem::narrow([m, n, k], BF16, U4, Some(scale)).canonical().problem.b.scale.unwrap()
    };
    let groups = Scale::of_groups(F16, 128, 64);
    assert_eq!(of([3, 64, 256], groups), groups);
    assert_eq!(of([3, 64, 128], groups), Scale::of_rows(F16));
    assert_eq!(of([3, 64, 100], Scale::of_groups(F16, ALL, 64)), Scale::of_rows(F16));
    assert_eq!(of([3, 100, 120], Scale::of_blocks(F32, [128, 128], 120)), Scale::of_tensor(F32));
    assert_eq!(of([3, 129, 120], Scale::of_blocks(F32, [128, 128], 120)), Scale::new(F32, [ALL, 128], [0, 1]));
    assert_eq!(of([3, 1, 256], groups), Scale::new(F16, [128, ALL], [64, 0]));
    // A stride between matrices, where there is one.
    let apart = groups.with(|scale| scale.batch_stride = [5, 6]);
    assert_eq!(of([3, 64, 256], apart), groups);
    // One column has whole blocks, and where nothing of A and B is read, there are no factors.
    let column = Problem::narrow([3, 1, 100], BF16, U4, Some(groups)).canonical().problem;
    assert_eq!((column.b.row_stride, column.b.col_stride), (1, 128));
    let one = Problem::narrow([3, 1, 1], BF16, U4, None).canonical().problem;
    assert_eq!((one.b.row_stride, one.b.col_stride), (1, 32));
    let nothing = narrow(U4, groups).with(|p| p.epilogue = Epilogue::new(0.0, 0.0)).canonical().problem;
    assert_eq!((nothing.k, nothing.b.scale, nothing.layout()), (0, None, Layout::NT));
    assert_eq!(reference(BF16, U4).supports(&nothing, &DeviceInfo::h100()), Ok(()));
}

/// A product of weights in both operands is transposed whole, with the factors of both; kernels have narrow weights in B alone.
#[test]
fn transposition_exchanges_factors() {
    let scale = Scale::of_blocks(F32, [64, 128], 4096);
    let product = Problem::narrow([16, 32, 4096], F8E4M3, F8E4M3, Some(scale))
        .with(|p| p.d = Operand::col_major(BF16, 16, [0, 0]));
    let canonical = product.canonical();
    assert!(canonical.swapped);
    let [a, b] = [canonical.problem.a, canonical.problem.b];
    assert_eq!((a.scale, b.scale), (Some(Scale::new(F32, [ALL, 128], [0, 1])), None));
    let mixed = Problem::narrow([16, 32, 4096], BF16, F8E4M3, Some(scale));
    let in_columns = mixed.with(|p| p.d = Operand::col_major(BF16, 16, [0, 0]));
    assert!(!in_columns.canonical().swapped);
    assert_eq!(reference(BF16, F8E4M3).supports(&in_columns.canonical().problem, &DeviceInfo::h100()), Ok(()));
    let column = Problem::narrow([16, 1, 4096], BF16, F8E4M3, Some(scale));
    assert!(!column.canonical().swapped);
}

#[test]
fn a_batch_over_one_b_with_its_factors_is_rows() {
    let scale = Scale::of_groups(F16, 128, 64);
    let batch = Problem::dense(16, 64, 256, 5, Layout::NT, BF16).with(|p| {
        p.b = Operand::weights(U4, 256, [0, 0]);
        p.b.scale = Some(scale);
    });
    let canonical = batch.canonical().problem;
    assert_eq!((canonical.m, canonical.batch, canonical.b.scale), (80, [1, 1], Some(scale)));
    // Matrices with factors of their own stay apart, and so do rows of a scaled A.
    let apart = batch.with(|p| p.b.scale = Some(scale.with(|scale| scale.batch_stride = [0, 128])));
    assert_eq!(apart.canonical().problem.batch, [1, 5]);
    let of_a = batch.with(|p| p.a.scale = Some(Scale::of_tensor(F32)));
    assert_eq!(of_a.canonical().problem.batch, [1, 5]);
    // Two batch dimensions are one where one stride leads through the factors, too.
    let two = |between: i64| {
        let [a, b, d] = [16 * 256, 64 * 256, 16 * 64].map(|matrix: i64| [3 * matrix, matrix]);
        batch.with(|p| {
            p.batch = [2, 3];
            (p.a.batch_stride, p.b.batch_stride, p.d.batch_stride) = (a, b, d);
            p.b.scale = Some(scale.with(|scale| scale.batch_stride = [between, 128]));
        })
    };
    assert_eq!(two(3 * 128).canonical().problem.batch, [1, 6]);
    assert_eq!(two(3 * 128 + 1).canonical().problem.batch, [2, 3]);
}

#[test]
fn every_format_beside_every_activation_has_a_kernel() {
    let scale = Scale::of_groups(F16, 64, 4096);
    for b in [F8E4M3, U4, F4E2M1, I8, U8] {
        for a in [F32, F16, BF16] {
            for (d, m) in [(a, 1), (a, 300), (F32, 16)] {
                for scale in [None, Some(scale)] {
                    let problem = Problem::narrow([m, 4096, 4096], a, b, scale).with(|p| p.d.format = d);
                    for policy in [Policy::default(), Policy::own(), Policy::own().with_workspace(0)] {
                        let plan = h100().plan(&problem, policy).unwrap();
                        let copied = plan.packing.is_some_and(|packing| packing.b);
                        assert!(
                            copied || (plan.kernel.types.a, plan.kernel.types.b) == (a, b),
                            "{problem}: {}",
                            plan.name()
                        );
                    }
                    // A copy in A's 16 bits runs on any card, and a long prefill on cuBLAS.
                    let copies = h100().plan(&problem, Policy::own().with_copies()).unwrap();
                    let packing = copies.packing.unwrap_or_else(|| panic!("{problem}: {}", copies.name()));
                    let types = copies.kernel.types;
                    let of_a = if a == F32 { BF16 } else { a };
                    assert_eq!(
                        (packing.a, packing.b, types.a, types.b, types.d),
                        (a == F32, true, of_a, of_a, d),
                        "{problem}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_has_no_kernel_is_refused_with_what_is_expected() {
    let (n, k) = (64, 256);
    let scale = Scale::of_groups(F16, 128, n);
    let of = |b: Format, scale: Scale| Problem::narrow([3, n, k], BF16, b, Some(scale));
    for (problem, words) in [
        (of(U4, scale).with(|p| p.b.col_stride = 272), "B has blocks of 32 numbers along K, a stride of B is 272"),
        (of(F4E2M1, scale).with(|p| p.b.row_stride = 2), "B has blocks of 32 numbers along K, the stride along K is 2"),
        (
            of(U4, Scale::of_groups(Format::F64, 128, n)),
            "the scales of B are in a format of no factors; expected f32, f16,",
        ),
        (
            of(U4, Scale::of_groups(Format::U8, 128, n)),
            "the scales of B are in a format of no factors; expected f32, f16,",
        ),
        (of(I8, Scale::of_groups(F16, 0, n)), "the scales of B are for no rows or no columns; expected 1 or more"),
        (of(F8E4M3, scale.with_zeros()), "the scales of B have zeros; expected none, but of u4 and u8"),
    ] {
        let error = h100().plan(&problem, Policy::default()).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains(words), "no '{words}' in: {error}");
    }
    // A K that is no whole blocks or groups is none of these.
    let ragged = Problem::narrow([3, n, 100], BF16, U4, Some(Scale::of_groups(F16, 48, n)));
    assert!(h100().plan(&ragged, Policy::default()).is_ok());
    let refused = KERNELS.iter().find(|kernel| kernel.name == "cublas_bf16_nt").unwrap();
    let dense = Problem::dense(3, n, k, 1, Layout::NT, BF16).with(|p| p.b.scale = Some(scale));
    let refusal = refused.supports(&dense.canonical().problem, &DeviceInfo::h100());
    assert_eq!(refusal, Err(Rejection::Scales { operand: "B" }));
}

#[test]
fn other_results_and_an_epilogue_are_taken_as_for_dense_weights() {
    let problem = narrow(U4, Scale::of_groups(F16, 128, SIZES[1])).with(|p| {
        p.epilogue = Epilogue::new(0.5, 1.0);
        (p.epilogue.bias, p.epilogue.c) = (Some(BiasAxis::N), Some(p.d));
    });
    assert!(h100().plan(&problem, Policy::default()).is_ok());
    let error = h100().plan(&problem.with(|p| p.d.format = F16), Policy::default()).unwrap_err().to_string();
    assert!(error.contains("kernels for such operands write bf16 or f32, not f16"), "{error}");
}

/// Up to 8 rows run on their codes, whatever the format and the factors that the kernels for few rows take.
#[test]
fn few_rows_run_on_their_codes() {
    let (n, k) = (SIZES[1], SIZES[2]);
    let scales = [
        None,
        Some(Scale::of_tensor(F32)),
        Some(Scale::of_rows(BF16)),
        Some(Scale::of_groups(F16, 128, n)),
        Some(Scale::of_groups(BF16, 64, n)),
        Some(Scale::of_groups(F8E8M0, 32, n)),
        Some(Scale::of_blocks(F32, [128, 128], k)),
        Some(Scale::of_blocks(BF16, [64, 96], k)),
    ];
    for device in [DeviceInfo::h100(), DeviceInfo::h200()] {
        let dispatcher = Dispatcher::hypothetical(device).without_tuning();
        for (b, scale) in [F8E4M3, U4, F4E2M1, I8, U8].into_iter().flat_map(|b| scales.map(|scale| (b, scale))) {
            for m in [1, 3, 8] {
                let problem = Problem::narrow([m, n, k], BF16, b, scale);
                let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
                let is_own = match m {
                    1 => plan.kernel.family == "narrow_gemv",
                    _ => ["narrow_gemv", "sm90_narrow_gemm"].contains(&plan.kernel.family),
                };
                assert!(is_own && plan.packing.is_none(), "{problem}: {}", plan.name());
                assert!(plan.estimate_us < 40.0, "{problem}: {} us", plan.estimate_us);
            }
        }
    }
    let of_16 = Scale::of_groups(F8E4M3, 16, n);
    let of = |b: Format| h100().plan(&Problem::narrow([1, n, k], BF16, b, Some(of_16)), Policy::own()).unwrap();
    assert_eq!(of(F4E2M1).kernel.family, "narrow_gemv");
    assert_ne!(of(U4).kernel.family, "narrow_gemv");
}

/// What the kernels for few rows say that they take, they have a configuration for, however many rows W has: from 16 multiprocessors on, the smallest slice of a card.
#[test]
fn few_rows_have_a_configuration_wherever_they_are_taken() {
    let kernels = || KERNELS.iter().filter(|kernel| kernel.family == "narrow_gemv");
    assert!(kernels().count() >= 15);
    let (mut taken, mut refused) = (0, 0);
    for (kernel, sms) in kernels().flat_map(|kernel| [16, 78, 132, 148].map(|sms| (kernel, sms))) {
        let mut device = DeviceInfo::h100();
        (device.sm_count, device.capability) = (sms, kernel.arch.capability);
        for (m, k) in [(1, 1), (16, 64), (8, 4096), (16, 8192), (1, 131_072), (8, 20_480), (16, 10_240), (5, 1_000_000)]
        {
            for (n, group) in [(1, 128), (33, 32), (5000, 64), (1 << 20, 128)] {
                let types = kernel.types;
                let scale = Scale::of_groups(F16, group, n);
                let problem = Problem::narrow([m, n, k], types.a, types.b, Some(scale)).canonical().problem;
                if kernel.supports(&problem, &device).is_err() {
                    refused += 1;
                    continue;
                }
                let configs = kernel.configurations(&problem, &device);
                assert!(!configs.is_empty(), "{kernel} has none for {problem} on {sms} multiprocessors");
                taken += 1;
            }
        }
    }
    assert!(taken > 800 && refused > 100, "{taken} taken, {refused} refused");
}
