//! What is chosen for products that no suite has: few outputs with a long K, odd extents, every dtype and layout.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Candidate, Dispatcher, Policy};
use candle_tilegemm::kernel::{KernelDesc, Role};
use candle_tilegemm::{F32Mode, Format, Layout, Problem};
use proptest::prelude::*;

const DTYPES: [Format; 4] = [Format::F16, Format::BF16, Format::F32, Format::F64];
const LAYOUTS: [Layout; 4] = [Layout::NN, Layout::NT, Layout::TN, Layout::TT];
/// Few rows or columns, even and odd.
const FEW: [usize; 10] = [1, 2, 3, 4, 7, 8, 16, 17, 33, 64];
const DEPTHS: [usize; 13] = [1, 2, 15, 64, 257, 1000, 1001, 4096, 10_001, 65_536, 100_003, 1_000_000, 1_000_001];

fn dispatcher() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100())
}

/// Every small output of the grid with every K.
fn few_outputs() -> impl Iterator<Item = Problem> {
    let sizes = FEW.into_iter().flat_map(|m| FEW.map(|n| (m, n)));
    let deep = sizes.flat_map(|(m, n)| DEPTHS.map(|k| (m, n, k)));
    let layouts = deep.flat_map(|size| LAYOUTS.map(|layout| (size, layout)));
    layouts.flat_map(|((m, n, k), layout)| DTYPES.map(|dtype| Problem::dense(m, n, k, 1, layout, dtype)))
}

/// A bound that no estimate goes into, for an H100, in microseconds: 2.5 TB/s of memory, and half of the fused multiply-adds that its
/// multiprocessors do (52 TFLOP/s, 34 in f64) on rows and columns in steps of 16, as tiles have them.
fn bound_us(problem: &Problem) -> f64 {
    let [m, n] = [problem.m, problem.n].map(|x| if x > 4 { x.next_multiple_of(16) } else { x } as f64);
    let rate = if problem.a.format == Format::F64 { 17e6 } else { 26e6 };
    (problem.bytes() / 2.5e6).max(2.0 * m * n * problem.k as f64 / rate)
}

fn chosen(dispatcher: &Dispatcher, problem: &Problem, policy: Policy) -> (&'static KernelDesc, f64) {
    let plan = dispatcher.plan(problem, policy).unwrap();
    (plan.kernel, plan.estimate_us)
}

#[test]
fn few_outputs_take_no_more_than_three_times_the_bound_and_10_us() {
    let dispatcher = dispatcher();
    let mut slow = Vec::new();
    for problem in few_outputs() {
        for policy in [Policy::default(), Policy::own()] {
            let (kernel, us) = chosen(&dispatcher, &problem, policy);
            if us > 3.0 * bound_us(&problem) + 10.0 {
                slow.push(format!("{problem}: {kernel}, {us:.1} us, bound {:.1} us", bound_us(&problem)));
            }
        }
    }
    assert!(
        slow.is_empty(),
        "{} products are too slow, such as\n{}",
        slow.len(),
        slow[..slow.len().min(90)].join("\n")
    );
}

#[test]
fn the_reference_kernel_is_the_last_resort() {
    let dispatcher = dispatcher();
    let batched = |m, n, k, batch, layout, dtype| Problem::dense(m, n, k, batch, layout, dtype);
    let odd = LAYOUTS.into_iter().flat_map(|layout| {
        let sizes = [(500, 4095, 4097), (129, 1001, 777), (16, 4097, 513), (2048, 2047, 2049)];
        sizes.into_iter().flat_map(move |(m, n, k)| DTYPES.map(|dtype| batched(m, n, k, 1, layout, dtype)))
    });
    let scores = DTYPES.into_iter().flat_map(|dtype| {
        [(209, 209, 80, 24), (249, 249, 80, 128), (61, 61, 64, 12)]
            .map(|(m, n, k, b)| batched(m, n, k, b, Layout::NT, dtype))
    });
    for problem in few_outputs().chain(odd).chain(scores) {
        for policy in [Policy::default(), Policy::own(), Policy::own().with_workspace(0)] {
            let (kernel, _) = chosen(&dispatcher, &problem, policy);
            assert_ne!(kernel.role, Role::LastResort, "{problem} with {policy:?}");
        }
    }
}

/// Estimates of products with rows at odd addresses are less exact: there an own kernel needs a lead of a tenth.
#[test]
fn without_a_record_an_own_kernel_is_taken_only_with_a_larger_lead() {
    let dispatcher = dispatcher();
    let mut compared = 0;
    for (m, n, k) in [(500, 4095, 4097), (64, 4097, 4096), (2048, 1001, 1001), (700, 300, 513), (300, 4100, 4096)] {
        for (layout, dtype) in LAYOUTS.into_iter().flat_map(|layout| DTYPES.map(|dtype| (layout, dtype))) {
            let problem = Problem::dense(m, n, k, 1, layout, dtype);
            let aligned = problem.alignments().iter().all(|(_, align)| *align >= 16);
            let explanation = dispatcher.explain(&problem, Policy::default());
            let of = |c: &&Candidate| c.kernel.role == Role::Vendor && c.verdict.is_ok();
            let vendor = explanation.candidates.iter().find(of).unwrap().verdict.clone().unwrap();
            let plan = dispatcher.plan(&problem, Policy::default()).unwrap();
            if !aligned && plan.kernel.role != Role::Vendor {
                assert!(plan.estimate_us < 0.9 * vendor, "{problem}: {}", plan.kernel);
            }
            compared += usize::from(!aligned);
        }
    }
    assert!(compared > 40, "only {compared} products were compared");
}

/// The card is filled: fewer parts of K than multiprocessors would leave some of them idle.
#[test]
fn long_sums_of_few_outputs_are_split_over_the_card() {
    let dispatcher = dispatcher();
    for (m, n, k, dtype) in
        [(1, 1, 1_000_001, Format::BF16), (2, 3, 1_000_000, Format::F32), (1, 1, 1_000_000, Format::F64)]
    {
        let problem = Problem::dense(m, n, k, 1, Layout::NN, dtype);
        let plan = dispatcher.plan(&problem, Policy::own()).unwrap();
        assert_eq!(plan.kernel.family, "split_k", "{problem}");
        assert!(plan.config.split >= 66, "{problem}: K in {} parts", plan.config.split);
        let without = plan.without_workspace().expect("a plan with a workspace has another without");
        assert_eq!(without.workspace.least, 0);
    }
}

/// Attention scores of a sequence that is no multiple of 8, which our kernels store number by number. Up to 64 tokens are faster all the same:
/// 64 x (38 x 38 x 128) in f16 take 2.3 us, cuBLAS 3.9 (random-1-0116 of benches/record/h100).
#[test]
fn odd_attention_scores_stay_with_the_faster_kernel() {
    let dispatcher = dispatcher();
    let many: &[_] = &["cublas", "split_k"];
    let cases = [
        (24, 209, 80, Format::BF16, many),
        (128, 249, 80, Format::F32, many),
        (16, 333, 64, Format::F16, many),
        (32, 61, 128, Format::BF16, &["sm90_few_rows", "sm90_wave"]),
    ];
    for (heads, tokens, size, dtype, families) in cases {
        let scores = Problem::dense(tokens, tokens, size, heads, Layout::NT, dtype);
        let (kernel, _) = chosen(&dispatcher, &scores, Policy::default());
        assert!(families.contains(&kernel.family), "{scores}: {kernel}");
    }
}

/// Estimates of few outputs are 20 % off: an own kernel needs a lead of a tenth.
#[test]
fn of_few_outputs_an_own_kernel_is_taken_only_with_a_lead() {
    let dispatcher = dispatcher();
    let mut led = 0;
    for problem in few_outputs() {
        let explanation = dispatcher.explain(&problem, Policy::default());
        let kernel = explanation.chosen.unwrap();
        let vendor = explanation.candidates.iter().filter(|c| c.kernel.role == Role::Vendor);
        let vendor = vendor.filter_map(|c| c.verdict.as_ref().ok()).copied().fold(f64::INFINITY, f64::min);
        if kernel.role != Role::Vendor && problem.k > 32 && vendor.is_finite() {
            let own = dispatcher.plan(&problem, Policy::default()).unwrap().estimate_us;
            assert!(own < 0.9 * vendor, "{problem}: {kernel}");
            led += 1;
        }
    }
    assert!(led > 1000, "only {led} products were given to a kernel of ours");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    /// A plan settles only the estimates that can win; an explanation has the estimates of all kernels. Both name the same kernel,
    /// configuration and reason.
    #[test]
    fn a_plan_is_the_choice_that_explain_shows(
        m in prop_oneof![1usize..=80, 1usize..=4096],
        n in prop_oneof![1usize..=512, (1usize..=64).prop_map(|n| 256 * n), 1usize..=9000],
        k in prop_oneof![1usize..=512, (1usize..=64).prop_map(|k| 128 * k), 1usize..=9000],
        batch in prop_oneof![Just(1usize), Just(1), 1usize..=40],
        layout in prop::sample::select(LAYOUTS.to_vec()),
        format in prop::sample::select(DTYPES.to_vec()),
        mode in prop::sample::select(F32Mode::ALL.to_vec()),
        (own, card) in (any::<bool>(), 0usize..3),
    ) {
        static CARDS: std::sync::LazyLock<[Dispatcher; 3]> = std::sync::LazyLock::new(|| {
            [DeviceInfo::h100(), DeviceInfo::h200(), DeviceInfo::a100()].map(|card| Dispatcher::hypothetical(card).without_tuning())
        });
        let problem = Problem::dense(m, n, k, batch, layout, format).with(|problem| problem.f32_mode = mode);
        let policy = if own { Policy::own() } else { Policy::default() };
        let plan = CARDS[card].plan(&problem, policy).unwrap();
        let shown = CARDS[card].explain(&problem, policy);
        prop_assert_eq!(Some(plan.kernel.name), shown.chosen.map(|kernel| kernel.name), "{}", problem);
        prop_assert_eq!((plan.config, Some(plan.reason)), (shown.config, shown.reason), "{}", problem);
    }
}

/// The product of `batch` matrices in two dimensions, of which one B (A) serves the whole outer dimension, and the same product folded by hand.
fn with_one(
    of_b: bool,
    [outer, inner]: [usize; 2],
    [m, n, k]: [usize; 3],
    layout: Layout,
    dtype: Format,
) -> [Problem; 2] {
    let asked = Problem::dense(m, n, k, 2, layout, dtype).with(|p| {
        p.batch = [outer, inner];
        for (operand, is_one) in [(&mut p.a, !of_b), (&mut p.b, of_b), (&mut p.d, false)] {
            let matrix = operand.batch_stride[1];
            operand.batch_stride[0] = if is_one { 0 } else { matrix * inner as i64 };
        }
    });
    let by_hand = match of_b {
        true => Problem::dense(outer * m, n, k, inner, layout, dtype),
        // The columns lie in D as rows: the product is transposed, and A, which is B then, has its K contiguous in nn and nt.
        false if matches!(layout, Layout::NN | Layout::NT) => Problem::dense(outer * n, m, k, inner, Layout::NT, dtype),
        false => Problem::dense(outer * n, m, k, inner, Layout::NN, dtype),
    };
    [asked, by_hand]
}

/// Whoever knows that a batch dimension of single rows (columns) is the rows (columns) of one product gains nothing by saying so.
#[test]
fn a_batch_over_one_operand_takes_no_longer_than_the_product_that_it_is() {
    let dispatcher = dispatcher();
    for (of_b, batch, sizes) in [
        (true, [512, 256], [1, 100, 100]),
        (true, [8192, 32], [1, 128, 1024]),
        (true, [64, 32], [1, 128, 4096]),
        (true, [6, 40], [1, 512, 512]),
        (false, [512, 256], [100, 1, 100]),
        (false, [2048, 32], [128, 1, 1024]),
        (false, [64, 32], [4096, 1, 128]),
    ] {
        for (layout, dtype) in LAYOUTS.into_iter().flat_map(|layout| DTYPES.map(|dtype| (layout, dtype))) {
            let [asked, by_hand] = with_one(of_b, batch, sizes, layout, dtype);
            for policy in [Policy::default(), Policy::own()] {
                let [(kernel, us), (_, best)] = [&asked, &by_hand].map(|problem| chosen(&dispatcher, problem, policy));
                assert!(us <= 1.2 * best, "{asked}: {us:.1} us by {kernel}, folded by hand {best:.1}");
            }
        }
    }
}

/// One and two rows times blocks: by digits (tiles of as many rows and 16 columns), by units of 16 rows, or without tensor cores (8 columns).
#[test]
fn few_rows_of_blocks_go_the_fastest_way() {
    use Format::{BF16, F16, F32, Q4K, Q4_0, Q6K, Q8_0};
    let cases = [
        (F32, Q4K, [1, 14336, 4096], [1, 16]),
        (BF16, Q4K, [2, 4096, 14336], [2, 16]),
        (BF16, Q4K, [3, 4096, 14336], [16, 16]),
        (F16, Q4K, [1, 14336, 4096], [16, 16]),
        (F32, Q6K, [1, 14336, 4096], [16, 16]),
        (F32, Q4K, [1, 1024, 4096], [16, 16]),
        (F32, Q4_0, [2, 2048, 2048], [2, 16]),
        (F32, Q4_0, [2, 2048, 8192], [16, 16]),
        (F32, Q4_0, [2, 5120, 5120], [2, 16]),
        (F32, Q8_0, [1, 512, 3584], [1, 16]),
        (F32, Q8_0, [1, 2048, 8192], [1, 8]),
    ];
    for device in [DeviceInfo::h100(), DeviceInfo::h200()] {
        let dispatcher = Dispatcher::hypothetical(device.clone());
        for (a, b, [m, n, k], tile) in cases {
            let problem = Problem::dense(m, n, k, 1, Layout::NT, a).with(|problem| problem.b.format = b);
            let plan = dispatcher.plan(&problem, Policy::own()).unwrap();
            assert_eq!((plan.kernel.family, plan.config.tile), ("gguf_gemv", tile), "{problem} on {}", device.name);
        }
    }
    // No kernel by digits on other archs.
    let problem = Problem::dense(1, 14336, 4096, 1, Layout::NT, F32).with(|problem| problem.b.format = Q4K);
    let plan = Dispatcher::hypothetical(DeviceInfo::a100()).plan(&problem, Policy::own()).unwrap();
    assert_eq!((plan.kernel.family, plan.config.tile), ("gguf_gemv", [16, 16]));
}
