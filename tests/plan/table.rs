//! What is chosen for a GPU that need not be here: over the real table, as if all of it were built.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Candidate, Dispatcher, Planned, Policy, Reason};
use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm::internal::cost;
use candle_tilegemm::kernel::{Fusion, KernelDesc, Rejection, Role};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Operand, Types};
use candle_tilegemm::{Activation, Error, F32Mode, Format, Layout, Problem};
use std::error::Error as _;
use std::sync::Arc;

fn h100() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning()
}

fn linear(m: usize, n: usize, k: usize, dtype: Format) -> Problem {
    Problem::dense(m, n, k, 1, Layout::NT, dtype)
}

fn bf16(m: usize, n: usize, k: usize) -> Problem {
    linear(m, n, k, Format::BF16)
}

fn strict(m: usize, n: usize, k: usize) -> Problem {
    linear(m, n, k, Format::F32).with(|p| p.f32_mode = F32Mode::Strict)
}

fn plan(problem: &Problem, policy: Policy) -> Arc<Planned> {
    h100().plan(problem, policy).unwrap_or_else(|error| panic!("{problem}: {error}"))
}

/// Estimates that differ by less are a tie: the mean error of estimates is 2 to 5 %.
const TIE: f64 = 1.06;

/// Asserts that the kernel of this name is chosen, or ties with the kernel that is.
fn assert_chosen(problem: &Problem, policy: Policy, name: &str) {
    let chosen = plan(problem, policy);
    let us = plan(problem, Policy::force(name).unwrap()).estimate_us;
    assert!(
        us <= TIE * chosen.estimate_us,
        "{problem}: {name} {us:.1} us, {} {:.1}",
        chosen.name(),
        chosen.estimate_us
    );
}

/// What the kernel of this name says to a problem.
fn verdict(problem: &Problem, name: &str) -> Result<f64, Rejection> {
    let candidates = h100().explain(problem, Policy::default()).candidates;
    candidates.into_iter().find(|candidate| candidate.kernel.name == name).expect(name).verdict
}

/// Sizes, dtypes and layouts across decode, prefill, attention and what is awkward.
fn sweep() -> impl Iterator<Item = Problem> {
    const SHAPES: [(usize, usize, usize, usize); 9] = [
        (1, 4096, 4096, 1),
        (16, 28672, 4096, 1),
        (128, 2560, 2048, 1),
        (4096, 4096, 14336, 1),
        (1000, 1000, 1000, 1),
        (127, 129, 131, 1),
        (3, 5, 1, 7),
        (512, 512, 64, 96),
        (1, 1, 1, 1),
    ];
    let layouts = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
    let dtypes = [Format::F16, Format::BF16, Format::F32, Format::F64];
    SHAPES.into_iter().flat_map(move |(m, n, k, batch)| {
        layouts.into_iter().flat_map(move |layout| dtypes.map(|dtype| Problem::dense(m, n, k, batch, layout, dtype)))
    })
}

fn able(candidates: &[Candidate]) -> impl Iterator<Item = (&'static KernelDesc, f64)> + '_ {
    candidates.iter().filter_map(|candidate| Some((candidate.kernel, *candidate.verdict.as_ref().ok()?)))
}

#[test]
fn shapes_get_the_kernels_made_for_them() {
    for (m, n, k) in [(1, 4096, 4096), (64, 4096, 4096), (512, 28672, 4096), (4096, 4096, 4096)] {
        for dtype in [Format::F16, Format::BF16] {
            let kernel = plan(&linear(m, n, k, dtype), Policy::own()).kernel;
            assert_eq!(kernel.role, Role::Kernel, "{m}x{n}x{k} {dtype} runs on {kernel}");
        }
    }
    let cases = [
        ("f32", linear(1024, 1024, 1024, Format::F32), Policy::default(), vec!["sm90_bf16x6"]),
        ("some f32", linear(512, 768, 768, Format::F32), Policy::default(), vec!["sm90_bf16x6_direct"]),
        ("strict f32", strict(512, 1024, 1024), Policy::own(), vec!["sm90_sgemm"]),
        ("strict f32", strict(512, 1024, 1024), Policy::default(), vec!["sm90_sgemm", "cublas"]),
        ("odd f32", linear(333, 777, 555, Format::F32), Policy::own(), vec!["sm90_bf16x6_direct", "split_k"]),
        ("f64", linear(512, 1024, 1024, Format::F64), Policy::default(), vec!["cublas", "sm90_dgemm"]),
        ("f64", linear(512, 1024, 1024, Format::F64), Policy::own(), vec!["sm90_dgemm"]),
        ("odd f64", linear(512, 1024, 1023, Format::F64), Policy::own(), vec!["split_k"]),
        ("odd N and K", bf16(512, 1023, 1021), Policy::default(), vec!["cublas"]),
        ("odd N and K", bf16(512, 1023, 1021), Policy::own(), vec!["sm90_wave"]),
        ("a long K of few outputs", bf16(1, 8, 16_384), Policy::own(), vec!["gemv"]),
        ("K = 0", bf16(512, 1024, 0), Policy::default(), vec!["reference"]),
    ];
    for (what, problem, policy, families) in cases {
        let kernel = plan(&problem, policy).kernel;
        assert!(families.contains(&kernel.family), "{what}: {problem} runs on {kernel}");
    }
}

#[test]
fn what_runs_is_the_fastest_of_those_that_can() {
    let dispatcher = h100();
    for problem in sweep() {
        let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
        let explanation = dispatcher.explain(&problem, Policy::default());
        assert_eq!(Some(plan.kernel), explanation.chosen, "{problem}");
        assert_eq!(plan.reason, Reason::Estimate);
        let least = able(&explanation.candidates).map(|(_, us)| us).fold(f64::INFINITY, f64::min);
        if plan.packing.is_some() {
            assert!(plan.estimate_us < least, "{problem}: {} is slower than a kernel without copies", plan.name());
            continue;
        }
        // Where records are few a kernel of ours needs a lead (tests/plan/choices.rs).
        assert!((0.8 * plan.estimate_us..=plan.estimate_us).contains(&least), "{problem}");
        assert_eq!(plan.kernel.supports(&plan.canonical.problem, dispatcher.device()), Ok(()));
    }
}

#[test]
fn no_plan_of_our_own_policy_is_for_the_vendor_library() {
    let dispatcher = h100();
    for problem in sweep() {
        assert_ne!(dispatcher.plan(&problem, Policy::own()).unwrap().kernel.role, Role::Vendor, "{problem}");
        for Candidate { kernel, verdict, .. } in dispatcher.explain(&problem, Policy::own()).candidates {
            assert!(kernel.role != Role::Vendor || verdict.is_err(), "{problem}: {kernel}");
        }
    }
}

#[test]
fn other_gpus_get_kernels_that_run_there() {
    let a100 = Dispatcher::hypothetical(DeviceInfo::a100()).without_tuning();
    let plan = a100.plan(&bf16(512, 4096, 4096), Policy::own()).unwrap();
    assert_eq!(plan.kernel.arch.capability, 80, "{}", plan.kernel);
    let verdict = |name| family::by_name(name).unwrap().supports(&bf16(512, 4096, 4096), a100.device());
    let rejection = verdict("sm90_gemm_bf16_nt_128x256x64_2x1_cooperative").unwrap_err();
    assert_eq!(rejection.to_string(), "built for sm90a, the device has compute capability 8.0");
}

#[test]
fn operands_that_tma_cannot_read_are_refused_with_the_numbers() {
    const NAME: &str = "tile_gemm_sm90_bf16_nt_256x256x64_2x1_w8";
    let dense = bf16(512, 1024, 1024);
    let padded = dense.a.with(|o| o.row_stride = 1025);
    let shifted = dense.b.with(|o| o.pointer_align = 2);
    let repeated = dense.a.with(|o| o.row_stride = 0);
    let every_other = dense.d.with(|o| {
        o.row_stride = 2048;
        o.col_stride = 2;
    });
    let mut column_major_c = Epilogue::new(1.0, 1.0);
    column_major_c.c = Some(Operand::col_major(Format::BF16, 512, [0, 0]));
    let cases = [
        ("an odd K", bf16(512, 1024, 1023), "A is aligned to 2 bytes, 16 needed"),
        ("a K of 4 more", bf16(512, 1024, 1020), "A is aligned to 8 bytes, 16 needed"),
        ("an odd N", bf16(512, 1023, 1024), "D is aligned to 2 bytes, 16 needed"),
        ("odd rows of A", dense.with(|p| p.a = padded), "A is aligned to 2 bytes, 16 needed"),
        ("a shifted B", dense.with(|p| p.b = shifted), "B is aligned to 2 bytes, 16 needed"),
        ("a short K in long rows", dense.with(|p| p.k = 1020), "K is 1020, a multiple of 8 needed"),
        ("a short N in long rows", dense.with(|p| p.n = 1020), "N is 1020, a multiple of 8 needed"),
        ("a repeated row", dense.with(|p| p.a = repeated), "rows of A overlap (a stride is smaller than the row)"),
        ("D in every other column", dense.with(|p| p.d = every_other), "D is not row-major"),
        ("a transposed C", dense.with(|p| p.epilogue = column_major_c), "C is not row-major"),
        (
            "another layout",
            dense.with(|p| p.b = Operand::row_major(Format::BF16, 1024, [0, 0])),
            "reads nt, the operands are nn",
        ),
        ("another type", linear(512, 1024, 1024, Format::F16), "computes in bf16, the problem is in f16"),
        ("no K", bf16(512, 1024, 0), "K is 0"),
    ];
    assert!(verdict(&dense, NAME).is_ok());
    for (what, problem, text) in cases {
        assert_eq!(verdict(&problem, NAME).unwrap_err().to_string(), text, "{what}");
    }
}

#[test]
fn kernels_for_few_rows_say_how_many_and_what_else_they_need() {
    const GEMV: &str = "gemv_sm90_bf16_nt_8x2x512_1x1";
    const FEW_ROWS: &str = "sm90_few_rows_bf16_nt_128x64x128_1x1_s8";
    let own = |problem: &Problem| plan(problem, Policy::own()).kernel.name;
    assert_eq!((own(&bf16(1, 4096, 4096)), own(&bf16(4, 4096, 4096))), (GEMV, GEMV));
    assert_eq!((own(&bf16(9, 4096, 4096)), own(&bf16(16, 3072, 2048))), (FEW_ROWS, FEW_ROWS));
    // N may be anything, and rows of D need no alignment.
    assert_eq!((own(&bf16(3, 4095, 4096)), own(&bf16(9, 4095, 4096))), (GEMV, FEW_ROWS));
    // Five to eight rows, each where it was faster on an H100.
    for m in 5..=8 {
        for (n, k) in
            [(4096, 4096), (4095, 4096), (6144, 4096), (28_672, 4096), (4096, 14_336), (2048, 8192), (24_576, 1536)]
        {
            assert_chosen(&bf16(m, n, k), Policy::own(), GEMV);
        }
        for (n, k) in [(6144, 1024), (256, 7168)] {
            assert_chosen(&bf16(m, n, k), Policy::own(), FEW_ROWS);
        }
    }
    let many = Problem::dense(1, 64, 128, 70_000, Layout::NT, Format::BF16);
    let short = bf16(2, 4096, 4096).with(|p| p.k = 4090);
    let cases = [
        (GEMV, bf16(9, 4096, 4096), "takes at most 8 rows, the problem has 9"),
        (GEMV, many, "takes at most 65535 matrices, the problem has 70000"),
        (GEMV, short, "K is 4090, a multiple of 8 needed"),
        (GEMV, bf16(1, 4096, 4095), "A is aligned to 2 bytes, 16 needed"),
        (FEW_ROWS, bf16(129, 4096, 4096), "takes at most 128 rows, the problem has 129"),
        (FEW_ROWS, bf16(64, 4096, 4095), "A is aligned to 2 bytes, 16 needed"),
    ];
    for (name, problem, text) in cases {
        assert_eq!(verdict(&problem, name).unwrap_err().to_string(), text, "{problem}");
    }
}

#[test]
fn f32_decoding_attention_and_outer_products_have_kernels_of_their_own() {
    const F32: &str = "gemv_sm90_f32_nt_16x2x256_1x1";
    const GEVM: &str = "gevm_sm90_bf16_nn_4x64x32_1x1";
    const OUTER: &str = "outer_sm90_f32_any_16x128x1_1x1";
    let cases = [
        (linear(1, 4096, 4096, Format::F32), F32),
        (linear(8, 4096, 4096, Format::F32), F32),
        (linear(7, 999, 768, Format::F32), F32),
        (Problem::dense(4, 4096, 128, 8, Layout::NT, Format::BF16), "gemv_sm90_bf16_nt_8x2x512_1x1"),
        (Problem::dense(2, 128, 1000, 32, Layout::NN, Format::BF16), GEVM),
        (Problem::dense(1, 128, 1001, 32, Layout::NN, Format::F16), "gevm_sm90_f16_nn_4x64x32_1x1"),
        (Problem::dense(1, 4096, 4096, 1, Layout::NN, Format::F32), "gevm_sm90_f32_nn_4x32x32_1x1"),
        (Problem::dense(4096, 64, 1, 1, Layout::NN, Format::F32), OUTER),
        (Problem::dense(4096, 33, 1, 3, Layout::TT, Format::F32), OUTER),
    ];
    for (problem, name) in cases {
        for policy in [Policy::default(), Policy::own()] {
            assert_chosen(&problem, policy, name);
        }
    }
    let narrow = Problem::dense(4, 128, 4096, 8, Layout::NN, Format::BF16);
    let cases = [
        (F32, linear(17, 4096, 4096, Format::F32), "takes at most 16 rows, the problem has 17"),
        (F32, linear(2, 4096, 4095, Format::F32), "A is aligned to 4 bytes, 16 needed"),
        (GEVM, narrow.with(|p| p.m = 5), "takes at most 4 rows, the problem has 5"),
        (GEVM, Problem::dense(4, 100, 4096, 8, Layout::NN, Format::BF16), "B is aligned to 8 bytes, 16 needed"),
        (GEVM, narrow.with(|p| p.n = 100), "N is 100, a multiple of 8 needed"),
        (OUTER, linear(4096, 64, 2, Format::F32), "takes a K of 1, the problem has 2"),
    ];
    for (name, problem, text) in cases {
        assert_eq!(verdict(&problem, name).unwrap_err().to_string(), text, "{problem}");
    }
    // Rows of A may start anywhere, and batches may have two dimensions.
    let a = narrow.a.with(|o| {
        o.row_stride = 4097;
        o.batch_stride = [100_000, 20_000];
        o.pointer_align = 2;
    });
    assert!(verdict(
        &narrow.with(|p| {
            p.a = a;
            p.batch = [2, 4];
        }),
        GEVM
    )
    .is_ok());
}

#[test]
fn estimates_of_the_kernels_for_few_rows_are_near_what_was_measured() {
    use {Format::*, Layout::*};
    // Microseconds on an H100 80GB HBM3 (docs/log/2026-11-few-rows.md): ours where it is built as measured, and cuBLAS.
    let cases = [
        (1, 4096, 4096, 1, NT, F32, 21.8, 27.9),
        (4, 4096, 4096, 1, NT, F32, 22.9, 32.8),
        (8, 4096, 4096, 1, NT, F32, 24.0, 46.7),
        (8, 14336, 4096, 1, NT, F32, 79.4, 136.0),
        (4, 4096, 14336, 1, NT, F32, 80.9, 105.9),
        (4, 768, 3072, 1, NT, F32, 4.5, 14.8),
        (1, 6144, 1024, 1, NT, BF16, 4.9, 6.7),
        (5, 4096, 4096, 1, NT, BF16, 12.3, 15.6),
        (8, 6144, 4096, 1, NT, BF16, 17.5, 20.5),
        (8, 28_672, 4096, 1, NT, BF16, 76.9, 82.6),
        (5, 24_576, 1536, 1, NT, BF16, 25.3, 28.9),
        (4, 4096, 128, 8, NT, BF16, 4.1, 5.1),
        (1, 2048, 128, 32, NT, BF16, 6.3, 8.2),
        (4, 4096, 256, 8, NT, BF16, 7.0, 7.9),
        (4, 128, 4096, 8, NN, BF16, 6.4, 7.9),
        (1, 128, 2048, 32, NN, BF16, 6.4, 8.4),
        (4, 128, 8192, 8, NN, BF16, 9.9, 13.3),
        (1, 4096, 4096, 1, NN, F32, 22.4, 24.4),
        (1, 128, 144, 512, NN, F32, 13.6, 17.4),
        (1, 128, 512, 512, NN, F32, 44.0, 47.8),
        (1, 128, 512, 256, NN, BF16, 11.5, 13.5),
        (131_072, 64, 1, 1, NN, F32, 11.5, 15.1),
        (131_072, 16, 1, 1, NN, F32, 3.3, 7.1),
        (4096, 4096, 1, 1, NN, F32, 22.1, 27.7),
    ];
    for (m, n, k, batch, layout, dtype, ours, vendor) in cases {
        let problem = Problem::dense(m, n, k, batch, layout, dtype);
        let estimate = |policy| plan(&problem, policy).estimate_us;
        let vendor_name = format!("cublas_{dtype}_{}", problem.canonical().problem.layout());
        let forced = Policy::force(&vendor_name).unwrap();
        for (us, measured, most) in [(estimate(Policy::own()), ours, 0.16), (estimate(forced), vendor, 0.28)] {
            assert!((us / measured - 1.0f64).abs() < most, "{problem}: {us:.1} us, measured {measured} us");
        }
    }
}

#[test]
fn a_few_hundred_rows_get_the_wave_made_for_them() {
    const FLAT: &str = "sm90_wave_bf16_nt_64x128x128_2x1";
    const NARROW: &str = "sm90_wave_bf16_nt_128x96x128_2x1";
    const WIDE: &str = "sm90_wave_bf16_nt_128x224x64_2x1_s2";
    const HALVES: &str = "sm90_wave_bf16_nt_192x64x128_1x1_s2";
    const QUARTERS: &str = "sm90_wave_bf16_nt_200x128x64_2x1_s2";
    const TALL: &str = "sm90_wave_bf16_nt_200x192x64_2x1";
    const WAVES: [(usize, usize, usize, &str); 12] = [
        (48, 6144, 4096, FLAT),
        (128, 6144, 4096, NARROW),
        (256, 6144, 4096, NARROW),
        (96, 4096, 14_336, HALVES),
        (129, 4096, 4096, HALVES),
        (257, 4096, 4096, QUARTERS),
        (512, 4096, 14_336, QUARTERS),
        (385, 6144, 4096, TALL),
        (777, 6144, 4096, TALL),
        (256, 4096, 14_336, WIDE),
        (128, 28_672, 4096, WIDE),
        (512, 28_672, 4096, WIDE),
    ];
    for (m, n, k, name) in WAVES {
        assert_chosen(&bf16(m, n, k), Policy::own(), name);
    }
    // Where cuBLAS was 7 to 28 % slower.
    for (m, n, k) in [(129, 4096, 4096), (257, 4096, 4096), (192, 4096, 14_336), (256, 28_672, 4096)] {
        assert_eq!(plan(&bf16(m, n, k), Policy::default()).kernel.family, "sm90_wave", "{m}x{n}x{k}");
    }
    let name = WIDE;
    // N may be anything, rows of D need no alignment, and C is fused.
    let mut problem = bf16(300, 4095, 4096);
    problem.epilogue = Epilogue::new(1.0, 1.0);
    problem.epilogue.c = Some(problem.d);
    assert!(verdict(&problem, name).is_ok());
    let many = Problem::dense(65, 64, 128, 70_000, Layout::NT, Format::BF16);
    assert_eq!(verdict(&many, name).unwrap_err().to_string(), "takes at most 65535 matrices, the problem has 70000");
    let short = verdict(&bf16(300, 4096, 4095), name).unwrap_err();
    assert_eq!(short.to_string(), "A is aligned to 2 bytes, 16 needed");
}

/// wgmma multiplies 8 rows more at a time, which costs up to 4 %; widths that are not compiled may double that.
#[test]
fn one_row_more_costs_a_wave_no_more_than_its_widths_force() {
    const LAYERS: [(usize, usize, usize); 2] = [(4096, 4096, 800), (6144, 4096, 256)];
    let waves = KERNELS.iter().filter(|kernel| kernel.family == "sm90_wave" && kernel.types.a == Format::BF16);
    let swapped = waves.filter(|kernel| kernel.widths.last() == Some(&kernel.tile[0]));
    let device = DeviceInfo::h100();
    for (n, k, most) in LAYERS {
        let best = |m| {
            let estimates = swapped.clone().map(|kernel| cost::estimate_us(kernel, &bf16(m, n, k), &device));
            estimates.fold(f64::INFINITY, f64::min)
        };
        for m in 5..most {
            let step = best(m + 1) / best(m);
            assert!(step < 1.095, "{m} and {} rows of {n}x{k}: {step}", m + 1);
        }
    }
}

#[test]
fn a_column_major_result_swaps_the_operands() {
    let mut problem = bf16(512, 1024, 2048);
    problem.d = Operand::col_major(problem.d.format, 512, [0, 0]);
    problem.epilogue.bias = Some(BiasAxis::N);
    let plan = plan(&problem, Policy::own());
    let canonical = plan.canonical.problem;
    assert!(plan.canonical.swapped);
    assert_eq!((canonical.m, canonical.n, canonical.k), (1024, 512, 2048));
    assert_eq!((canonical.d.row_stride, canonical.d.col_stride), (512, 1));
    assert_eq!((canonical.layout(), canonical.epilogue.bias), (Layout::NT, Some(BiasAxis::M)));
}

#[test]
fn one_weight_for_a_batch_is_a_single_product() {
    let mut problem = Problem::dense(128, 4096, 1024, 16, Layout::NT, Format::BF16);
    problem.b.batch_stride = [0, 0];
    let folded = plan(&problem, Policy::default());
    let single = plan(&bf16(16 * 128, 4096, 1024), Policy::default());
    assert_eq!(folded.canonical, single.canonical);
    assert_eq!(folded.kernel, single.kernel);
}

#[test]
fn batch_dimensions_that_do_not_merge_are_for_kernels_with_two() {
    let mut problem = Problem::dense(128, 128, 64, 6, Layout::NT, Format::BF16);
    problem.batch = [2, 3];
    for operand in [&mut problem.a, &mut problem.b, &mut problem.d] {
        let matrix = operand.batch_stride[1];
        operand.batch_stride = [matrix, 2 * matrix]; // outer and inner exchanged
    }
    assert_eq!(problem.canonical().problem.batch, [2, 3]);
    assert_eq!(verdict(&problem, "cublas_bf16_nt"), Err(Rejection::Batch));
    assert!(verdict(&problem, "tile_gemm_sm90_bf16_nt_256x256x64_2x1_w8").is_ok());
    plan(&problem, Policy::default());
}

#[test]
fn nothing_to_compute_is_a_plan_that_takes_no_time() {
    for problem in [bf16(0, 1024, 1024), bf16(512, 0, 1024), Problem::dense(8, 8, 8, 0, Layout::NN, Format::F32)] {
        assert_eq!(plan(&problem, Policy::default()).estimate_us, 0.0);
        let text = h100().explain(&problem, Policy::default()).to_string();
        assert!(text.contains("nothing to compute"), "{text}");
    }
}

#[test]
fn a_forced_kernel_is_taken_or_an_error() {
    let problem = bf16(1, 4096, 4096);
    for kernel in able(&h100().explain(&problem, Policy::default()).candidates).map(|(kernel, _)| kernel) {
        let plan = plan(&problem, Policy::force(kernel.name).unwrap());
        assert_eq!((plan.kernel, plan.reason), (kernel, Reason::Forced));
    }
    let unknown = Policy::force("sm90_gemm").unwrap_err();
    assert!(matches!(&unknown, Error::UnknownKernel(name) if name == "sm90_gemm"), "{unknown:?}");
    let name = "simt_gemm_sm90_f32_nt_128x128x8_1x1";
    let error = h100().plan(&problem, Policy::force(name).unwrap()).unwrap_err();
    let [have, need] = [Format::F32, Format::BF16].map(|format| Types::of(format).into());
    let expected = Rejection::Types { have, need };
    assert!(matches!(&error, Error::Forced { kernel, .. } if kernel == name), "{error:?}");
    assert_eq!(error.source().and_then(|cause| cause.downcast_ref()), Some(&expected));
    let text = error.to_string();
    assert!(text.contains(name) && text.contains("1x4096x4096 nt bf16") && text.contains("TILEGEMM_FORCE"), "{text}");
}

#[test]
fn the_same_question_gets_the_same_plan_on_every_thread() {
    let dispatcher = h100();
    let choose = || sweep().map(|problem| dispatcher.plan(&problem, Policy::default()).unwrap()).collect::<Vec<_>>();
    let all = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(choose)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    let first = choose();
    for plans in all.iter().chain([&choose()]) {
        assert!(first.iter().zip(plans).all(|(x, y)| Arc::ptr_eq(x, y)), "a second call plans anew");
    }
    let elsewhere = h100();
    for plan in &first {
        let again = elsewhere.plan(&plan.asked, Policy::default()).unwrap();
        assert_eq!((again.kernel, again.canonical, again.estimate_us), (plan.kernel, plan.canonical, plan.estimate_us));
        assert!(!Arc::ptr_eq(plan, &again), "dispatchers share no plans");
    }
}

#[test]
fn an_epilogue_is_split_where_that_is_fastest() {
    let dispatcher = h100();
    assert_eq!(dispatcher.fuse(&bf16(512, 1024, 1024), Policy::default()).unwrap(), Fusion::Full);
    for mut problem in sweep() {
        problem.epilogue = Epilogue::new(1.0, 1.0);
        problem.epilogue.bias = Some(BiasAxis::N);
        problem.epilogue.activation = Activation::Silu;
        problem.epilogue.c = Some(problem.d);
        let cost = |fusion| {
            let (epilogue, passes) = problem.epilogue.keep(fusion);
            let plan = dispatcher.plan(&problem.with(|p| p.epilogue = epilogue), Policy::default());
            plan.map_or(f64::INFINITY, |plan| {
                plan.estimate_us + cost::elementwise_us(&problem, passes, dispatcher.device())
            })
        };
        let chosen = dispatcher.fuse(&problem, Policy::default()).unwrap();
        if problem.d.format.bytes(1) == 2 {
            // D would be rounded in between: the plan does the whole epilogue.
            assert_eq!(chosen, Fusion::Full, "{problem}");
            continue;
        }
        let least = [Fusion::None, Fusion::BiasAct, Fusion::Full].map(cost).into_iter().fold(f64::INFINITY, f64::min);
        assert_eq!(cost(chosen), least, "{problem}: {chosen:?}");
    }
}

#[test]
fn estimates_respect_the_roofline_and_grow_with_m() {
    let device = DeviceInfo::h100();
    for problem in sweep().map(|problem| problem.canonical().problem) {
        let roofline = cost::roofline_us(&problem, &device);
        for kernel in KERNELS.iter().filter(|kernel| kernel.supports(&problem, &device).is_ok()) {
            let us = cost::estimate_us(kernel, &problem, &device);
            assert!(us.is_finite() && us >= roofline, "{problem}: {kernel} {us} us, roofline {roofline} us");
        }
    }
    for kernel in KERNELS.iter().filter(|kernel| kernel.arch.capability == 90 && kernel.layout == Layout::NT) {
        let estimate = |m| cost::estimate_us(kernel, &linear(m, 4096, 4096, kernel.types.a), &device);
        // The learned errors differ from shape to shape, and so an estimate may fall a little.
        let grows = (1..2000).step_by(37).all(|m| 0.85 * estimate(m) <= estimate(m + 37));
        assert!(grows, "{kernel} gets faster with more rows");
    }
}
