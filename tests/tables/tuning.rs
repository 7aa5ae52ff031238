//! Measured tables: what they answer, and what the dispatcher makes of it.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Candidate, Dispatcher, Policy, Reason};
use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm::internal::cost;
use candle_tilegemm::internal::tuning::{shipped, Among, Entry, Key, Origin, Point, Tuning, LEAST_GAIN, MOST_STEP};
use candle_tilegemm::kernel::{Fusion, KernelDesc, Rejection, Role};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Groups, Rows};
use candle_tilegemm::{F32Mode, Format, Layout, Problem};
use proptest::prelude::*;

fn model() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning()
}

fn bf16(m: usize) -> Problem {
    Problem::dense(m, 4096, 4096, 1, Layout::NT, Format::BF16)
}

fn key(problem: &Problem, among: Among) -> Key {
    Key::of(&problem.canonical().problem, among).expect("a table can express it")
}

fn empty(name: &str) -> Tuning {
    Tuning::new(name, Origin::of_this_build(&DeviceInfo::h100()))
}

fn won(m: usize, kernel: &'static KernelDesc) -> Point {
    Point::new(m, kernel, None, &[1.2, 1.25])
}

/// A table with one kernel for these rows of `bf16`, all measured.
fn table(name: &str, among: Among, rows: &[usize], kernel: &'static KernelDesc) -> Tuning {
    let mut table = empty(name);
    table.replace(key(&bf16(1), among), &rows.iter().map(|&m| won(m, kernel)).collect::<Vec<_>>());
    table
}

/// Kernels of ours that run `problem` and that the model does not choose, whatever the policy.
fn others(problem: &Problem) -> Vec<&'static KernelDesc> {
    let chosen = [Policy::default(), Policy::own()].map(|policy| model().plan(problem, policy).unwrap().kernel);
    let candidates = model().explain(problem, Policy::default()).candidates;
    let able = candidates.iter().filter(|candidate| candidate.verdict.is_ok()).map(|candidate| candidate.kernel);
    able.filter(|k| !chosen.contains(k) && k.role == Role::Kernel).collect()
}

fn kernel(dispatcher: &Dispatcher, problem: &Problem, policy: Policy) -> (&'static KernelDesc, Reason) {
    let plan = dispatcher.plan(problem, policy).unwrap_or_else(|error| panic!("{problem}: {error}"));
    let explanation = dispatcher.explain(problem, policy);
    assert_eq!((explanation.chosen, explanation.reason), (Some(plan.kernel), Some(plan.reason)), "explain and plan");
    (plan.kernel, plan.reason)
}

#[test]
fn a_range_answers_from_its_first_to_its_last_measured_row() {
    let other = others(&bf16(17))[0];
    let tuned = model().with_tuning(table("t", Among::All, &[17, 32, 64], other)).unwrap();
    for (m, expected) in [(16, false), (17, true), (18, true), (32, true), (33, true), (64, true), (65, false)] {
        let (kernel, reason) = kernel(&tuned, &bf16(m), Policy::default());
        assert_eq!(reason == Reason::Tuned, expected, "M {m}");
        assert!(!expected || kernel == other, "M {m}: {kernel}");
    }
}

#[test]
fn ranges_join_neighbours_with_the_same_winner_and_nothing_else() {
    let able = others(&bf16(64));
    let (x, y) = (able[0], able[1]);
    type Measured<'a> = &'a [(usize, Option<&'static KernelDesc>)];
    let cases: [(Measured, &[[usize; 2]]); 7] = [
        (&[(4, Some(x))], &[[4, 4]]),
        (&[(4, Some(x)), (8, Some(x)), (16, Some(x))], &[[4, 16]]),
        (&[(4, Some(x)), (MOST_STEP * 4 + 1, Some(x))], &[[4, 4], [9, 9]]),
        (&[(4, Some(x)), (8, Some(y)), (16, Some(y))], &[[4, 4], [8, 16]]),
        (&[(4, Some(x)), (6, None), (8, Some(x))], &[[4, 4], [8, 8]]),
        (&[(16, Some(x)), (4, Some(x)), (8, Some(x))], &[[4, 16]]), // measured in any order
        (&[(4, None)], &[]),
    ];
    for (points, expected) in cases {
        let mut table = empty("t");
        let point =
            |&(m, winner): &(usize, Option<_>)| winner.map_or(Point::without_winner(m), |kernel| won(m, kernel));
        table.replace(key(&bf16(1), Among::All), &points.iter().map(point).collect::<Vec<_>>());
        let ranges: Vec<[usize; 2]> = table.entries().iter().map(|entry| entry.m).collect();
        assert_eq!(ranges, expected, "{points:?}");
    }
}

#[test]
fn a_kernel_wins_by_more_than_3_percent_twice_or_not_at_all() {
    let kernel = others(&bf16(64))[0];
    let gain = |gains: &[f64]| Point::new(64, kernel, None, gains).won().map(|(_, _, gain)| gain);
    assert_eq!(gain(&[1.0567, 1.0899]), Some(1.056), "the smaller one, and no better than it was");
    assert_eq!(gain(&[1.2, LEAST_GAIN]), None);
    assert_eq!(gain(&[1.2, 0.9]), None);
    assert_eq!(gain(&[1.2]), None, "once is not repeatable");
    assert_eq!(gain(&[1.2, f64::NAN]), None);

    let mut table = empty("t");
    let points = [Point::new(4, kernel, None, &[1.3, 1.4]), Point::new(8, kernel, None, &[1.0301, 1.2])];
    table.replace(key(&bf16(1), Among::All), &points);
    assert_eq!(table.entries()[0].gain, 1.03, "the least of the range");
    assert_eq!(Tuning::parse("t", &table.to_text()).unwrap(), table, "the least gain that is entered can be read");
}

#[test]
fn replacing_a_key_leaves_the_others() {
    let able = others(&bf16(64));
    let mut table = table("t", Among::All, &[4, 8], able[0]);
    let own = key(&bf16(1), Among::Own);
    table.replace(own, &[won(64, able[0])]);
    table.replace(key(&bf16(1), Among::All), &[won(16, able[1])]);
    let entries: Vec<_> = table.entries().iter().map(|entry| (entry.key.among, entry.m, entry.kernel)).collect();
    assert_eq!(entries, [(Among::All, [16, 16], able[1]), (Among::Own, [64, 64], able[0])]);
    table.replace(own, &[Point::without_winner(64)]);
    assert_eq!(table.entries().len(), 1);
}

#[test]
fn each_policy_has_entries_of_its_own() {
    let problem = bf16(64);
    let able = others(&problem);
    let vendor = family::by_name("cublas_bf16_nt").unwrap();
    let mut table = table("t", Among::All, &[64], vendor);
    let default = Policy::default();
    let only_all = model().with_tuning(table.clone()).unwrap();
    assert_eq!(kernel(&only_all, &problem, default), (vendor, Reason::Tuned));
    assert_eq!(kernel(&only_all, &problem, Policy::own()), kernel(&model(), &problem, Policy::own()));

    table.replace(key(&problem, Among::Own), &[won(64, able[0])]);
    let both = model().with_tuning(table).unwrap();
    assert_eq!(kernel(&both, &problem, default), (vendor, Reason::Tuned));
    assert_eq!(kernel(&both, &problem, Policy::own()), (able[0], Reason::Tuned));
    let forced = Policy::force(able[1].name).unwrap();
    assert_eq!(kernel(&both, &problem, forced), (able[1], Reason::Forced), "a name beats every table");
}

#[test]
fn an_entry_answers_nothing_but_its_key() {
    let problem = bf16(64);
    let other = others(&problem)[0];
    let tuned = model().with_tuning(table("t", Among::All, &[64], other)).unwrap();
    let change = |change: &dyn Fn(&mut Problem)| {
        let mut problem = problem;
        change(&mut problem);
        problem
    };
    let unlike = [
        Problem::dense(64, 4096, 2048, 1, Layout::NT, Format::BF16),
        Problem::dense(64, 2048, 4096, 1, Layout::NT, Format::BF16),
        Problem::dense(64, 4096, 4096, 2, Layout::NT, Format::BF16),
        Problem::dense(64, 4096, 4096, 1, Layout::NN, Format::BF16),
        Problem::dense(64, 4096, 4096, 1, Layout::NT, Format::F16),
        change(&|p| p.a.pointer_align = 8),
        change(&|p| p.epilogue.bias = Some(BiasAxis::N)),
        change(&|p| (p.epilogue, p.epilogue.c) = (Epilogue::new(1.0, 1.0), Some(p.d))),
    ];
    for problem in unlike {
        // Without a workspace there is no aligned copy of the operand, for which the entry would count.
        let is_aligned = problem.alignments().iter().all(|(_, align)| *align >= 16);
        let policy = if is_aligned { Policy::default() } else { Policy::default().with_workspace(0) };
        assert_eq!(kernel(&tuned, &problem, policy).1, Reason::Estimate, "{problem}");
    }
    let scaled = change(&|p| p.epilogue = Epilogue::new(0.125, 0.0));
    assert_eq!(kernel(&tuned, &scaled, Policy::default()).1, Reason::Tuned, "a scale costs nothing");
    let strict = change(&|p| p.f32_mode = F32Mode::Strict);
    assert_eq!(kernel(&tuned, &strict, Policy::default()).1, Reason::Tuned, "bf16 has no f32 mode");
    // A batch of rows against one weight is the product that it is run as.
    let mut rows = Problem::dense(1, 4096, 4096, 64, Layout::NT, Format::BF16);
    rows.b.batch_stride = [0, 0];
    assert_eq!(kernel(&tuned, &rows, Policy::default()).1, Reason::Tuned);
}

#[test]
fn each_f32_mode_has_entries_of_its_own() {
    let f32 = |f32_mode| Problem::dense(64, 4096, 4096, 1, Layout::NT, Format::F32).with(|p| p.f32_mode = f32_mode);
    let strict = f32(F32Mode::Strict);
    let simt = family::by_name("simt_gemm_sm90_f32_nt_128x128x8_1x1").unwrap();
    let mut table = empty("t");
    table.replace(key(&strict, Among::All), &[won(64, simt)]);
    let text = table.to_text();
    assert!(text.contains(r#""dtype":"f32","f32":"strict","layout":"nt""#), "{text}");
    assert_eq!(table.entries()[0].key.to_string(), "Mx4096x4096 nt f32 strict");
    let tuned = model().with_tuning(Tuning::parse("t", &text).unwrap()).unwrap();
    assert_eq!(kernel(&tuned, &strict, Policy::default()), (simt, Reason::Tuned));
    for mode in [F32Mode::Accurate, F32Mode::Tf32] {
        assert_eq!(kernel(&tuned, &f32(mode), Policy::default()).1, Reason::Estimate, "{mode}");
    }
}

#[test]
fn what_no_table_speaks_of_has_no_key() {
    let of = |problem: &Problem| Key::of(&problem.canonical().problem, Among::All);
    assert_eq!(
        of(&bf16(64)).map(|key| (key.n, key.batch, key.aligned, key.epilogue)),
        Some((4096, 1, true, Fusion::None))
    );
    assert_eq!(of(&Problem::dense(64, 4095, 4096, 1, Layout::NT, Format::BF16)).map(|key| key.aligned), Some(false));
    let batch = |count| Problem::dense(64, 4096, 4096, count, Layout::NT, Format::BF16);
    let mut shared = batch(8);
    shared.a.batch_stride = [0, 0];
    let mut strided = bf16(64);
    (strided.a.row_stride, strided.a.col_stride) = (8192, 2);
    for nothing in [bf16(0), Problem::dense(64, 4096, 0, 1, Layout::NT, Format::BF16), batch(0), shared, strided] {
        assert_eq!(of(&nothing), None, "{nothing}");
    }
}

/// Qwen3-30B-A3B's first product.
fn experts(tokens: usize) -> Problem {
    Problem::grouped([tokens * 8, 1536, 2048], Groups::routed(128, tokens, 8), Format::BF16)
}

#[test]
fn an_entry_of_groups_answers_for_as_many_groups_with_rows() {
    let problem = experts(512);
    let other = others(&problem)[0];
    let mut entries = empty("experts");
    let of = key(&problem, Among::All);
    let groups = of.groups.expect("the product has groups");
    assert_eq!((groups.count, groups.filled, groups.pairs_per_row, groups.scaled), (128, 128, Some(8), false));
    entries.replace(of, &[won(4096, other), won(8192, other)]);
    let entries = Tuning::parse("experts", &entries.to_text()).unwrap();
    let tuned = model().with_tuning(entries).unwrap();
    for tokens in [512, 600, 1024] {
        assert_eq!(kernel(&tuned, &experts(tokens), Policy::default()), (other, Reason::Tuned), "{tokens} tokens");
    }
    let dense = Problem::dense(4096, 1536, 2048, 1, Layout::NT, Format::BF16);
    let scaled = problem.with(|p| p.groups = p.groups.map(|g| g.with(|g| g.scaled = true)));
    let in_order = problem.with(|p| p.groups = p.groups.map(|g| g.with(|g| g.rows = Rows::InOrder)));
    let fewer = problem.with(|p| p.groups = p.groups.map(|g| g.with(|g| g.filled = 100)));
    for problem in [experts(8), experts(4096), dense, scaled, in_order, fewer] {
        assert_ne!(kernel(&tuned, &problem, Policy::default()).1, Reason::Tuned, "{problem}");
    }
}

#[test]
fn an_entry_whose_kernel_cannot_run_is_passed_over() {
    // Nobody measured such a kernel; a table that was edited by hand may still name it.
    let problem = bf16(64);
    let f32_kernel = KERNELS.iter().find(|k| k.family == "simt_gemm").unwrap();
    let other = others(&problem)[0];
    let wrong = table("wrong.json", Among::All, &[64], f32_kernel);
    let alone = model().with_tuning(wrong.clone()).unwrap();
    assert_eq!(kernel(&alone, &problem, Policy::default()), kernel(&model(), &problem, Policy::default()));
    let tuned = alone.explain(&problem, Policy::default()).tuned;
    assert!(matches!(tuned[0].rejection, Some(Rejection::Arch { .. } | Rejection::Types { .. })), "{tuned:?}");
    let text = alone.explain(&problem, Policy::default()).to_string();
    assert!(text.contains("the entry for M 64 to 64 of wrong.json") && text.contains("passed over"), "{text}");

    let behind = model().with_tuning(table("good.json", Among::All, &[64], other)).unwrap().with_tuning(wrong).unwrap();
    assert_eq!(kernel(&behind, &problem, Policy::default()), (other, Reason::Tuned), "the next table is asked");
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_kernel_that_is_not_built_is_not_taken() {
    let problem = bf16(64);
    let table = table("t", Among::All, &[64], others(&problem)[0]);
    let dispatcher = Dispatcher::new(DeviceInfo::h100()).with_tuning(table).unwrap();
    let error = dispatcher.plan(&problem, Policy::default()).unwrap_err();
    assert!(matches!(error, candle_tilegemm::Error::Unsupported { .. }), "{error}");
}

#[test]
fn the_table_that_was_added_last_is_asked_first() {
    let able = others(&bf16(64));
    let first = table("first", Among::All, &[32, 64], able[0]);
    let last = table("last", Among::All, &[64], able[1]);
    let dispatcher = model().with_tuning(first).unwrap().with_tuning(last).unwrap();
    let names: Vec<&str> = dispatcher.tables().used().map(Tuning::name).collect();
    assert_eq!(names, ["last", "first"]);
    assert_eq!(kernel(&dispatcher, &bf16(64), Policy::default()).0, able[1]);
    assert_eq!(kernel(&dispatcher, &bf16(48), Policy::default()).0, able[0]);
    assert_eq!(dispatcher.without_tuning().tables().used().count(), 0);
}

#[test]
fn a_plan_made_before_a_table_came_is_made_anew() {
    let dispatcher = model();
    let problem = bf16(64);
    let before = dispatcher.plan(&problem, Policy::default()).unwrap().kernel;
    let other = others(&problem)[0];
    let tuned = dispatcher.with_tuning(table("t", Among::All, &[64], other)).unwrap();
    assert_eq!(kernel(&tuned, &problem, Policy::default()).0, other);
    assert_eq!(kernel(&tuned.without_tuning(), &problem, Policy::default()).0, before);
}

#[test]
fn an_explanation_says_which_entry_of_which_table_counts() {
    let problem = bf16(48);
    let other = others(&problem)[0];
    let dispatcher = model().with_tuning(table("tuning/h100/table.json", Among::All, &[33, 64], other)).unwrap();
    let text = dispatcher.explain(&problem, Policy::default()).to_string();
    for words in [
        format!("measured: {other} is 1.2 times as fast as the choice without"),
        "the entry for M 33 to 64 of tuning/h100/table.json".into(),
        format!("-> {other} "),
    ] {
        assert!(text.contains(&words), "no '{words}' in\n{text}");
    }
    assert_eq!(text.lines().filter(|line| line.starts_with("-> ")).count(), 1, "{text}");
    assert!(!model().explain(&problem, Policy::default()).to_string().contains("measured"));
}

#[test]
fn a_tuned_plan_takes_as_much_less_as_was_measured() {
    let problem = bf16(64);
    let estimate = model().plan(&problem, Policy::default()).unwrap().estimate_us;
    let tuned = model().with_tuning(table("t", Among::All, &[64], others(&problem)[0])).unwrap();
    let plan = tuned.plan(&problem, Policy::default()).unwrap();
    let roofline = cost::roofline_us(&problem, tuned.device());
    assert_eq!(plan.estimate_us, (estimate / 1.2).max(roofline));
    assert!(plan.estimate_us < estimate, "so that fusing is weighed against what was measured");
}

#[test]
fn the_tables_that_ship_are_of_this_build() {
    let mut gpus = Vec::new();
    for table in shipped() {
        let table = table.unwrap_or_else(|(name, refusal)| panic!("{name} {refusal}: see tuning/README.md"));
        assert!(!gpus.contains(&table.origin().gpu), "two tables for {}", table.origin().gpu);
        gpus.push(table.origin().gpu.clone());
        if let [first, ..] = table.refused() {
            panic!("{}: {}, such as {first}: see tuning/README.md", table.name(), table.refused_counts());
        }
        assert!(!table.entries().is_empty(), "{} is empty; remove it", table.name());
        for Entry { key, kernel, .. } in table.entries() {
            assert!(kernel.types.a == key.dtype, "{}: {kernel} for {key}", table.name());
        }
        for device in [DeviceInfo::h100(), DeviceInfo::h200()].into_iter().filter(|d| d.name == table.origin().gpu) {
            let dispatcher = Dispatcher::hypothetical(device);
            assert!(dispatcher.tables().used().any(|used| used.name() == table.name()));
            // Under another name the table is a user's, whose entries are judged by products that they may be of.
            let users = Tuning::parse("mine.json", &table.to_text()).unwrap();
            let skipped: Vec<String> = dispatcher.skipped(&users).iter().map(ToString::to_string).collect();
            assert!(skipped.is_empty(), "{}: {skipped:#?}", table.name());
        }
    }
}

prop_compose! {
    fn any_key()(
        dtype in prop::sample::select(vec![Format::F16, Format::BF16, Format::F32, Format::F64]),
        layout in prop::sample::select(vec![Layout::NN, Layout::NT, Layout::TN, Layout::TT]),
        epilogue in prop::sample::select(vec![Fusion::None, Fusion::BiasAct, Fusion::Full]),
        among in prop::sample::select(vec![Among::All, Among::Own]),
        (n, k, batch) in (1usize..100_000, 1usize..100_000, 1usize..2000),
        aligned in any::<bool>(),
        (f32, wide) in (prop::sample::select(F32Mode::ALL.to_vec()), any::<bool>()),
        (tokens, scaled) in (prop::option::of(1usize..1000), any::<bool>()),
    ) -> Key {
        let f32 = if dtype == Format::F32 { f32 } else { F32Mode::default() };
        let mut problem = Problem::dense(1, n, k, batch, layout, dtype);
        problem.d.format = if wide && dtype.bytes(1) == 2 { Format::F32 } else { dtype };
        problem.f32_mode = f32;
        problem.groups = tokens.map(|tokens| Groups::routed(64, tokens, 4).with(|groups| groups.scaled = scaled));
        let mut key = Key::of(&problem, among).unwrap();
        (key.aligned, key.epilogue, key.layout, key.f32) = (aligned, epilogue, layout, f32);
        key
    }
}

prop_compose! {
    fn any_point()(m in 1usize..20_000, kernel in 0..KERNELS.len(), gains in [0.9f64..3.0, 0.9f64..3.0]) -> Point {
        Point::new(m, &KERNELS[kernel], None, &gains)
    }
}

proptest! {
    #[test]
    fn a_table_that_is_written_and_read_is_the_same(
        keys in prop::collection::vec((any_key(), prop::collection::vec(any_point(), 0..8)), 0..6)
    ) {
        let mut table = empty("t");
        for (key, mut points) in keys {
            points.retain(|p| key.among == Among::All || p.won().is_none_or(|(k, ..)| k.role != Role::Vendor));
            table.replace(key, &points);
        }
        let text = table.to_text();
        let read = Tuning::parse("t", &text).unwrap();
        prop_assert_eq!(&read, &table);
        prop_assert_eq!(read.to_text(), text);
    }

    #[test]
    fn a_measured_point_with_a_winner_is_found_again(points in prop::collection::vec(any_point(), 1..12)) {
        let key = key(&bf16(1), Among::All);
        let mut table = empty("t");
        table.replace(key, &points);
        for m in 1..200 {
            let Some(entry) = table.lookup(&bf16(m), Among::All) else { continue };
            let ends = entry.m.map(|end| points.iter().find(|p| p.m() == end && p.won().is_some()));
            prop_assert!(ends.iter().all(Option::is_some), "an end of {:?} was not measured", entry.m);
        }
        let mut seen = Vec::new();
        for point in &points {
            if !seen.contains(&point.m()) {
                seen.push(point.m());
                let found = table.lookup(&bf16(point.m()), Among::All).map(|entry| entry.kernel);
                prop_assert_eq!(found, point.won().map(|(kernel, ..)| kernel));
            }
        }
    }
}

/// Candidates stand in the order of the table: the dispatcher finds an entry's kernel by its place.
#[test]
fn candidates_are_in_the_order_of_the_kernels() {
    let candidates = model().explain(&bf16(64), Policy::default()).candidates;
    assert!(candidates.iter().map(|Candidate { kernel, .. }| kernel.index).eq(0..KERNELS.len()));
}
