//! Measured tables: which are refused and with which words, what they answer, and what the dispatcher makes of it.

#[path = "../build/tuning.rs"]
#[allow(dead_code)] // build.rs uses the rest
mod build;

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Candidate, Dispatcher, Policy, Reason};
use candle_tilegemm::kernel::{Family, Fusion, KernelDesc, Rejection, KERNELS};
use candle_tilegemm::problem::{BiasAxis, Epilogue};
use candle_tilegemm::tuning::{
    shipped, Among, Entry, Host, Key, Origin, Point, Refusal, Tuning, LEAST_GAIN, MOST_STEP,
};
use candle_tilegemm::{cost, DType, Error, F32Mode, Layout, Problem};
use proptest::prelude::*;

fn model() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning()
}

fn bf16(m: usize) -> Problem {
    Problem::dense(m, 4096, 4096, 1, Layout::NT, DType::BF16)
}

fn key(problem: &Problem, among: Among) -> Key {
    Key::of(&problem.canonical().problem, among).expect("a table can express it")
}

fn empty(name: &str) -> Tuning {
    Tuning::new(name, Origin::of_this_build(&DeviceInfo::h100()))
}

fn won(m: usize, kernel: &'static KernelDesc) -> Point {
    Point::new(m, kernel, &[1.2, 1.25])
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
    able.filter(|k| !chosen.contains(k) && !matches!(k.family, Family::Cublas | Family::Reference)).collect()
}

fn kernel(dispatcher: &Dispatcher, problem: &Problem, policy: Policy) -> (&'static KernelDesc, Reason) {
    let plan = dispatcher.plan(problem, policy).unwrap_or_else(|error| panic!("{problem}: {error}"));
    let explanation = dispatcher.explain(problem, policy);
    assert_eq!((explanation.chosen, explanation.reason), (Some(plan.kernel), Some(plan.reason)), "explain and plan");
    (plan.kernel, plan.reason)
}

fn refusal(result: Result<Tuning, Error>) -> (Refusal, String) {
    let error = result.expect_err("the table is good");
    match cause(&error) {
        Some(refusal) => (refusal.clone(), error.to_string()),
        None => panic!("{error:?}"),
    }
}

/// Why a measured table is not used.
fn cause(error: &Error) -> Option<&Refusal> {
    match error {
        Error::Tuning { refusal, .. } => refusal.downcast_ref(),
        _ => None,
    }
}

#[test]
fn every_kind_of_bad_table_is_refused_with_what_to_do_next() {
    let entry = r#"{"dtype":"bf16","layout":"nt","n":64,"k":64,"batch":1,"aligned":true,"epilogue":"none","among":"own","m":[1,4],"kernel":"KERNEL","gain":1.1}"#;
    let good_kernel = KERNELS.iter().find(|k| k.family != Family::Cublas && k.dtype == DType::BF16).unwrap().name;
    let entry = entry.replace("KERNEL", good_kernel);
    let good = empty("t").to_text().replace("\"entries\": []", &format!("\"entries\": [{entry}]"));
    assert_eq!(Tuning::parse("mine.json", &good).unwrap().entries().len(), 1);

    let second = format!("[{}, {}]", entry, entry.replace("[1,4]", "[4,8]"));
    let version = format!("\"crate_version\": \"{}\"", env!("CARGO_PKG_VERSION"));
    let cases = [
        ("", "", "is no measured table", ""),
        ("{", "[", "is no measured table", "`tilegemm tune` writes one"),
        ("\"schema\": 1,", "", "missing field `schema`", "`tilegemm tune`"),
        ("\"schema\": 1,", "\"schema\": 2,", "has schema 2, and this version reads 1", "measure it again"),
        (&version, "\"crate_version\": \"0.0.9\"", "was measured with candle-tilegemm 0.0.9", "measure it again"),
        ("\"kernels\": \"", "\"kernels\": \"x", "was measured with other kernels (hash x", "measure it again"),
        ("\"gpu\"", "\"gpus\"", "missing field `gpu`", "`tilegemm tune`"),
        (good_kernel, "sm90_gemm", "names the kernel 'sm90_gemm'", "`tilegemm kernels`"),
        (good_kernel, "cublas_bf16_nt", "is none of our own kernels", "correct it"),
        (
            "\"gain\":1.1",
            "\"gain\":1.01",
            "M 1 to 4 of Mx64x64 nt bf16, own kernels: its gain is 1.01",
            "measure it again",
        ),
        ("[1,4]", "[0,4]", "expected 1 or more as its first M", "correct it"),
        ("[1,4]", "[5,4]", "no less as its last", "correct it"),
        ("[1,4]", "[1]", "is no measured table", "line"),
        ("\"bf16\"", "\"int8\"", "unknown variant `int8`", "`tilegemm tune`"),
        (&format!("[{entry}]"), &second, "M 4 to 8 of Mx64x64 nt bf16, own kernels: its rows overlap", "M 1 to 4"),
    ];
    for (from, to, what, remedy) in cases {
        let text = if from.is_empty() { String::new() } else { good.replacen(from, to, 1) };
        assert_ne!(text, good, "nothing to replace: {from}");
        let (_, message) = refusal(Tuning::parse("mine.json", &text));
        assert!(message.starts_with("mine.json ") && message.contains(what), "no '{what}' in: {message}");
        assert!(message.contains(remedy), "no '{remedy}' in: {message}");
    }

    let (reason, message) = refusal(Tuning::load("no/such/table.json".as_ref()));
    assert!(matches!(reason, Refusal::Unreadable(_)) && message.contains("TILEGEMM_TUNING"), "{message}");
}

#[test]
fn a_table_of_another_machine_is_refused() {
    let device = DeviceInfo::h100();
    let origin = Origin { driver: "580.159.04".into(), cuda: "13.5".into(), ..Origin::of_this_build(&device) };
    let table = Tuning::new("t", origin);
    let host = |driver: Option<&str>, cuda: Option<&str>| Host {
        driver: driver.map(String::from),
        cuda: cuda.map(String::from),
        ..Host::hypothetical(&device)
    };
    for (driver, cuda) in [(None, None), (Some("580.65.06"), Some("13.5")), (Some("580.159.04"), None)] {
        table.verify(&host(driver, cuda)).unwrap_or_else(|error| panic!("{driver:?} {cuda:?}: {error}"));
    }
    let verify = |host| refusal(table.verify(&host).map(|()| table.clone()));
    let cases = [
        (verify(host(Some("590.1"), None)), "was measured with a driver 580, and this is 590"),
        (verify(host(None, Some("13.4"))), "kernels that CUDA 13.5 compiled, here it was 13.4"),
        (
            verify(Host::hypothetical(&DeviceInfo::h200())),
            "was measured on an NVIDIA H100 80GB HBM3, and this is an NVIDIA H200",
        ),
    ];
    for ((_, message), expected) in cases {
        assert!(message.contains(expected) && message.contains("tilegemm tune"), "no '{expected}' in: {message}");
    }
    let error = Dispatcher::hypothetical(DeviceInfo::a100()).with_tuning(table).unwrap_err();
    assert!(matches!(cause(&error), Some(Refusal::Gpu { .. })), "{error}");
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
    let gain = |gains: &[f64]| Point::new(64, kernel, gains).won().map(|(_, gain)| gain);
    assert_eq!(gain(&[1.0567, 1.0899]), Some(1.056), "the smaller one, and no better than it was");
    assert_eq!(gain(&[1.2, LEAST_GAIN]), None);
    assert_eq!(gain(&[1.2, 0.9]), None);
    assert_eq!(gain(&[1.2]), None, "once is not repeatable");
    assert_eq!(gain(&[1.2, f64::NAN]), None);

    let mut table = empty("t");
    let points = [Point::new(4, kernel, &[1.3, 1.4]), Point::new(8, kernel, &[1.0301, 1.2])];
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
    let vendor = KernelDesc::by_name("cublas_bf16_nt").unwrap();
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
        Problem::dense(64, 4096, 2048, 1, Layout::NT, DType::BF16),
        Problem::dense(64, 2048, 4096, 1, Layout::NT, DType::BF16),
        Problem::dense(64, 4096, 4096, 2, Layout::NT, DType::BF16),
        Problem::dense(64, 4096, 4096, 1, Layout::NN, DType::BF16),
        Problem::dense(64, 4096, 4096, 1, Layout::NT, DType::F16),
        change(&|p| p.a.pointer_align = 8),
        change(&|p| p.epilogue.bias = Some(BiasAxis::N)),
        change(&|p| (p.epilogue, p.epilogue.c) = (Epilogue::new(1.0, 1.0), Some(p.d))),
    ];
    for problem in unlike {
        assert_eq!(kernel(&tuned, &problem, Policy::default()).1, Reason::Estimate, "{problem}");
    }
    let scaled = change(&|p| p.epilogue = Epilogue::new(0.125, 0.0));
    assert_eq!(kernel(&tuned, &scaled, Policy::default()).1, Reason::Tuned, "a scale costs nothing");
    let strict = change(&|p| p.f32_mode = F32Mode::Strict);
    assert_eq!(kernel(&tuned, &strict, Policy::default()).1, Reason::Tuned, "bf16 has no f32 mode");
    // A batch of rows against one weight is the product that it is run as.
    let mut rows = Problem::dense(1, 4096, 4096, 64, Layout::NT, DType::BF16);
    rows.b.batch_stride = [0, 0];
    assert_eq!(kernel(&tuned, &rows, Policy::default()).1, Reason::Tuned);
}

#[test]
fn each_f32_mode_has_entries_of_its_own() {
    let f32 = |f32_mode| Problem { f32_mode, ..Problem::dense(64, 4096, 4096, 1, Layout::NT, DType::F32) };
    let strict = f32(F32Mode::Strict);
    let simt = KernelDesc::by_name("simt_gemm_sm90_f32_nt_128x128x8_1x1").unwrap();
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
    assert_eq!(of(&Problem::dense(64, 4095, 4096, 1, Layout::NT, DType::BF16)).map(|key| key.aligned), Some(false));
    let batch = |count| Problem::dense(64, 4096, 4096, count, Layout::NT, DType::BF16);
    let mut shared = batch(8);
    shared.a.batch_stride = [0, 0];
    let mut strided = bf16(64);
    (strided.a.row_stride, strided.a.col_stride) = (8192, 2);
    for nothing in [bf16(0), Problem::dense(64, 4096, 0, 1, Layout::NT, DType::BF16), batch(0), shared, strided] {
        assert_eq!(of(&nothing), None, "{nothing}");
    }
}

#[test]
fn an_entry_whose_kernel_cannot_run_is_passed_over() {
    // Nobody measured such a kernel; a table that was edited by hand may still name it.
    let problem = bf16(64);
    let f32_kernel = KERNELS.iter().find(|k| k.family == Family::SimtGemm).unwrap();
    let other = others(&problem)[0];
    let wrong = table("wrong.json", Among::All, &[64], f32_kernel);
    let alone = model().with_tuning(wrong.clone()).unwrap();
    assert_eq!(kernel(&alone, &problem, Policy::default()), kernel(&model(), &problem, Policy::default()));
    let tuned = alone.explain(&problem, Policy::default()).tuned;
    assert!(matches!(tuned[0].rejection, Some(Rejection::Arch { .. } | Rejection::DType { .. })), "{tuned:?}");
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
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
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
    let dispatcher = model().with_tuning(table("tuning/h100.json", Among::All, &[33, 64], other)).unwrap();
    let text = dispatcher.explain(&problem, Policy::default()).to_string();
    for words in [
        format!("measured: {other} is 1.2 times as fast as the choice without"),
        "the entry for M 33 to 64 of tuning/h100.json".into(),
        format!("-> {other} "),
    ] {
        assert!(text.contains(&words), "no '{words}' in\n{text}");
    }
    assert_eq!(text.matches("->").count(), 1, "{text}");
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
        assert!(!table.entries().is_empty(), "{} is empty; remove it", table.name());
        for Entry { key, kernel, .. } in table.entries() {
            assert!(kernel.dtype == key.dtype, "{}: {kernel} for {key}", table.name());
        }
        for device in [DeviceInfo::h100(), DeviceInfo::h200()].into_iter().filter(|d| d.name == table.origin().gpu) {
            assert!(Dispatcher::hypothetical(device).tables().used().any(|used| used.name() == table.name()));
        }
    }
}

#[test]
fn the_hash_of_the_kernels_is_of_their_code() {
    let same = [
        "int x = 1; // one\nint y;",
        "int x = 1;\n\n   int y; ",
        "/* a kernel\n   of ours */ int x = 1;\tint y;",
        "int x = 1; /**/ int y; // trailing",
    ];
    assert!(same.iter().all(|text| build::code(text) == "int x = 1; int y;"), "{:?}", same.map(build::code));
    assert_eq!(build::code(r#"f("// no /* comment \" */", '"'); // c"#), r#"f("// no /* comment \" */", '"');"#);
    assert_eq!(build::code("1'000; // it's\nx"), "1'000; // it's x", "an odd apostrophe ends with its line");
    assert_eq!(build::code("a // no end"), "a");
    assert_eq!(build::code("a /* no end"), "a");

    let folder = std::env::temp_dir().join(format!("tilegemm-hash-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let hash = |rows: &str, source: &str| {
        std::fs::write(folder.join("gemm.cu"), source).unwrap();
        build::kernels_hash(rows, &folder).unwrap()
    };
    let first = hash("row", "int x = 1;");
    assert_eq!(first, hash("row", "int  x = 1; // why"));
    assert_ne!(first, hash("row", "int x = 2;"));
    assert_ne!(first, hash("another row", "int x = 1;"));
    std::fs::remove_dir_all(&folder).unwrap();
}

prop_compose! {
    fn any_key()(
        dtype in prop::sample::select(vec![DType::F16, DType::BF16, DType::F32, DType::F64]),
        layout in prop::sample::select(vec![Layout::NN, Layout::NT, Layout::TN, Layout::TT]),
        epilogue in prop::sample::select(vec![Fusion::None, Fusion::BiasAct, Fusion::Full]),
        among in prop::sample::select(vec![Among::All, Among::Own]),
        (n, k, batch) in (1usize..100_000, 1usize..100_000, 1usize..2000),
        aligned in any::<bool>(),
        f32 in prop::sample::select(F32Mode::ALL.to_vec()),
    ) -> Key {
        let f32 = if dtype == DType::F32 { f32 } else { F32Mode::default() };
        Key { dtype, f32, layout, n, k, batch, aligned, epilogue, among }
    }
}

prop_compose! {
    fn any_point()(m in 1usize..20_000, kernel in 0..KERNELS.len(), gains in [0.9f64..3.0, 0.9f64..3.0]) -> Point {
        Point::new(m, &KERNELS[kernel], &gains)
    }
}

proptest! {
    #[test]
    fn a_table_that_is_written_and_read_is_the_same(
        keys in prop::collection::vec((any_key(), prop::collection::vec(any_point(), 0..8)), 0..6)
    ) {
        let mut table = empty("t");
        for (key, mut points) in keys {
            points.retain(|p| key.among == Among::All || p.won().is_none_or(|(k, _)| k.family != Family::Cublas));
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
                prop_assert_eq!(found, point.won().map(|(kernel, _)| kernel));
            }
        }
    }
}

/// Candidates stand in the order of the table: the dispatcher finds an entry's kernel by its place.
#[test]
fn candidates_are_in_the_order_of_the_kernels() {
    let candidates = model().explain(&bf16(64), Policy::default()).candidates;
    assert!(candidates.iter().map(|Candidate { kernel, .. }| kernel.index()).eq(0..KERNELS.len()));
}
