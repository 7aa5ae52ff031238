//! Rows of suites in groups, their routing, and the class `experts`.

use crate::support::{drawn, file, lines_of, stderr, stdout, tilegemm};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::internal::suite::{self, Distribution, Shape, ShapeGroups, Size};
use candle_tilegemm::problem::{Groups, Rows};
use candle_tilegemm::{Format, Layout, Problem};
use serde_json::{json, Value};
use std::collections::HashSet;
use tilegemm::lists::{experts, Routing};

/// One row; nine lines.
const ROW: &str = r#"[[shape]]
id = "x"
class = "c"
m = 512
n = 1536
k = 2048
layout = "nt"
dtype = "bf16"
groups = { experts = 128, top_k = 8, routing = "zipf", seed = 3, scaled = true }
"#;

fn parse(text: &str) -> Vec<Shape> {
    suite::parse("suite.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn groups(routing: Distribution, seed: u32) -> ShapeGroups {
    let size = |size: usize| Size::try_from(size).unwrap();
    ShapeGroups { experts: size(128), top_k: size(8), routing, seed, scaled: false }
}

/// The experts of each token, in the order of its pairs.
fn chosen(routing: &Routing) -> Vec<[u32; 8]> {
    let mut chosen = vec![[u32::MAX; 8]; routing.tokens];
    for (pair, expert) in routing.pairs.iter().zip(&routing.experts) {
        chosen[*pair as usize / 8][*pair as usize % 8] = *expert;
    }
    chosen
}

#[test]
fn a_row_in_groups_says_what_is_computed() {
    let row = &parse(ROW)[0];
    let routed = Groups::routed(128, 64, 8);
    let expected = |groups| Problem::grouped([512, 1536, 2048], groups, Format::BF16);
    let scaled = routed.with(|groups| (groups.rows, groups.scaled) = (Rows::Listed { pairs_per_row: 1 }, true));
    assert_eq!(row.problem(), expected(scaled));
    // Pairs of a token share a row of A, which is what a program without factors asks for.
    let text = ROW.replace(", routing = \"zipf\", seed = 3, scaled = true", "");
    let plain = &parse(&text)[0];
    assert_eq!(plain.problem(), expected(routed));
    assert_eq!(plain.groups.unwrap(), groups(Distribution::Uniform, 0));
    for row in [row, plain] {
        assert_eq!(&parse(&suite::to_toml(std::slice::from_ref(row)))[0], row);
        assert_eq!(Shape::of(&row.problem(), "x".into(), "c".into()), None, "a problem does not say its routing");
    }
}

#[test]
fn wrong_groups_are_said_with_their_line_and_field() {
    let with = |old: &str, new: &str| ROW.replace(old, new);
    let plain = "expected layout = \"nt\", no batch, no strides, no offsets and no epilogue beside groups";
    for (text, expected) in [
        (with("top_k = 8", "top_k = 129"), ["line 9", "field groups", "129 of 128 experts"]),
        (with("m = 512", "m = 511"), ["line 9", "field groups", "a multiple of top_k"]),
        (with("top_k = 8", "top_k = 0"), ["line 9", "top_k = 0", "expected 1 to 2147483647, a whole number"]),
        (with("\"zipf\"", "\"even\""), ["line 9", "`even`", "`uniform`"]),
        (with("seed = 3", "seeds = 3"), ["line 9", "`seeds`", "`seed`"]),
        (with("seed = 3", "seed = -3"), ["line 9", "seed = -3", "u32"]),
        (with("experts = 128, ", ""), ["line 9", "missing field", "`experts`"]),
        (with("\"nt\"", "\"nn\""), ["line 9", "field groups", plain]),
        (format!("{ROW}batch = 2\n"), ["line 9", "field groups", plain]),
        (format!("{ROW}a_stride = 4096\n"), ["line 9", "field groups", plain]),
        (format!("{ROW}d_offset = 1\n"), ["line 9", "field groups", plain]),
        (format!("{ROW}epilogue = {{ bias = true }}\n"), ["line 9", "field groups", plain]),
    ] {
        let error = suite::parse("suite.toml", &text).unwrap_err().to_string();
        for words in expected {
            assert!(error.contains(words), "no '{words}' in: {error}\nfor\n{text}");
        }
    }
}

#[test]
fn a_token_has_distinct_experts_and_rows_are_sorted_by_expert() {
    for distribution in [Distribution::Uniform, Distribution::Zipf] {
        let routing = Routing::draw(&groups(distribution, 5), 8 * 300);
        assert!(routing.experts.is_sorted() && routing.experts.iter().all(|expert| *expert < 128));
        let mut pairs = routing.pairs.clone();
        pairs.sort_unstable();
        assert_eq!(pairs, (0..8 * 300).collect::<Vec<u32>>(), "each pair has one row");
        for experts in chosen(&routing) {
            assert_eq!(HashSet::from(experts).len(), 8, "{experts:?}");
        }
        assert_eq!(routing.rows_of_a(), routing.pairs.iter().map(|pair| pair / 8).collect::<Vec<_>>());
        for (pair, row) in routing.rows_of_pairs().into_iter().enumerate() {
            assert_eq!(routing.pairs[row as usize] as usize, pair);
        }
        let counts: Vec<usize> = routing.of_experts().map(|(_, rows)| rows.len()).collect();
        assert_eq!(
            (counts.len(), counts.iter().max(), counts.iter().sum()),
            (routing.hit(), Some(&routing.largest()), 2400)
        );
        for (expert, rows) in routing.of_experts() {
            assert!(routing.experts[rows].iter().all(|other| *other as usize == expert));
        }
    }
    // All experts, and factors of the pairs.
    let all = ShapeGroups { top_k: Size::try_from(128).unwrap(), scaled: true, ..groups(Distribution::Zipf, 1) };
    let routing = Routing::draw(&all, 128 * 3);
    assert_eq!((routing.hit(), routing.largest(), routing.rows_of_a()), (128, 3, routing.pairs.clone()));
    let factors = routing.factors.unwrap();
    assert!(factors.len() == 384 && factors.iter().all(|factor| 0.0 < *factor && *factor <= 1.0), "{factors:?}");
}

#[test]
fn a_seed_gives_the_routing_and_more_tokens_leave_the_first_alone() {
    for distribution in [Distribution::Uniform, Distribution::Zipf] {
        let draw = |seed, tokens: usize| Routing::draw(&groups(distribution, seed), 8 * tokens);
        assert_eq!(draw(1, 64), draw(1, 64));
        assert_ne!(draw(1, 64), draw(2, 64));
        assert_eq!(chosen(&draw(1, 64)), chosen(&draw(1, 512))[..64]);
    }
    // Records of a seed stay comparable: these choices never change.
    let first = |distribution| chosen(&Routing::draw(&groups(distribution, 1), 8))[0];
    assert_eq!(first(Distribution::Uniform), [48, 37, 102, 117, 109, 17, 92, 98]);
    assert_eq!(first(Distribution::Zipf), [51, 37, 109, 115, 101, 7, 84, 93]);
}

/// Of ranks 1, 2, ... the first is chosen in a share of 1 / (1 + 1/2 + ... + 1/128) = 0.184 of the first choices.
#[test]
fn zipf_is_skewed_and_uniform_is_not() {
    let count = |routing: &Routing, of: fn(&[u32; 8]) -> &[u32]| {
        let mut counts = vec![0usize; 128];
        chosen(routing).iter().flat_map(of).for_each(|expert| counts[*expert as usize] += 1);
        counts.sort_unstable_by(|x, y| y.cmp(x));
        counts
    };
    let draw = |distribution, seed| Routing::draw(&groups(distribution, seed), 8 * 8192);
    let (uniform, zipf) = (draw(Distribution::Uniform, 1), draw(Distribution::Zipf, 1));
    let first = count(&zipf, |experts| &experts[..1]);
    assert!((first[0] as f64 / 8192.0 - 0.184).abs() < 0.015, "{first:?}");
    assert!((first[1] as f64 / first[0] as f64 - 0.5).abs() < 0.06, "{first:?}");
    let (of_uniform, of_zipf) = (count(&uniform, |experts| experts), count(&zipf, |experts| experts));
    assert!(of_uniform[0] < 620 && of_uniform[127] > 420, "512 rows each, {of_uniform:?}");
    assert!(of_zipf[0] > 5000 && of_zipf[127] < 200, "{of_zipf:?}");
    // Another seed has other ranks.
    let favourite = |routing: &Routing| routing.of_experts().max_by_key(|(_, rows)| rows.len()).unwrap().0;
    assert_ne!(favourite(&zipf), favourite(&draw(Distribution::Zipf, 2)));
    let few = |distribution| Routing::draw(&groups(distribution, 1), 8 * 64).hit();
    assert!(few(Distribution::Zipf) < few(Distribution::Uniform));
}

/// Memory and the roofline count the experts that have rows; the plan expects as many as with uniform routing.
#[test]
fn a_problem_moves_the_matrices_that_have_rows() {
    let row = parse(&ROW.replace("scaled = true", "scaled = false")).remove(0);
    let (problem, routing) = (row.problem(), Routing::of_row(&row).unwrap());
    let moved = routing.of(&problem);
    assert_eq!(moved.groups.unwrap().filled, routing.hit());
    assert_eq!(moved.with(|p| p.groups = problem.groups), problem);
    let expected = 2.0 * (64 * 2048 + routing.hit() * 1536 * 2048 + 512 * 1536) as f64;
    assert_eq!(moved.bytes(), expected);
    assert!(problem.bytes() > expected, "Zipf hits fewer experts than a plan expects");
}

#[test]
fn the_class_has_each_product_of_each_model() {
    let rows = experts::products();
    assert_eq!(rows.len(), 4 * 6 * 2 * 2);
    let ids: HashSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids.len(), rows.len());
    assert_eq!(parse(&suite::to_toml(&rows)), rows);
    let row = |id: &str| rows.iter().find(|row| row.id == id).unwrap_or_else(|| panic!("no {id} in {ids:?}"));
    let sizes = |id: &str| [row(id).m, row(id).n, row(id).k].map(Size::get);
    assert_eq!(sizes("qwen3-30b-gate_up-t8192-zipf"), [65536, 1536, 2048]);
    assert_eq!(sizes("mixtral-8x7b-down-t1-uniform"), [2, 4096, 14336]);
    assert_eq!(sizes("dsv3-gate_up-t64-uniform"), [512, 4096, 7168]);
    assert_eq!(sizes("gpt-oss-down-t8-zipf"), [32, 2880, 2880]);
    assert!(row("gpt-oss-down-t8-zipf").groups.unwrap().scaled && !row("dsv3-gate_up-t1-zipf").groups.unwrap().scaled);
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for row in &rows {
        let problem = row.problem();
        let plan = dispatcher.plan(&problem, Policy::default()).unwrap_or_else(|error| panic!("{}: {error}", row.id));
        assert!(plan.kernel.family == "sm90_grouped_gemm", "{}: {}", row.id, plan.kernel);
        assert_eq!((problem.layout(), row.class.as_str()), (Layout::NT, "experts"));
    }
}

#[test]
fn the_command_takes_the_class() {
    let output = tilegemm(&["suite", "--class", "experts", "--only", "mixtral"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let table = stdout(&output);
    assert_eq!(table.lines().count(), 24 + 2, "{table}");
    assert!(table.contains("2x28672x4096 nt bf16 in 8 groups, 2 with rows"), "{table}");
    let output = tilegemm(&["suite", "--class", "experts", "--toml"]);
    assert_eq!(parse(&stdout(&output)), experts::products());
    for args in [
        &["suite", "--class", "decode"][..],
        &["suite", "--class", "experts,decode"],
        &["bench", "--class", "experts", "--suite", "x.toml"],
        &["tune", "--class", "experts", "--random", "5", "--seed", "1"],
    ] {
        let output = tilegemm(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(
            stderr(&output).contains("--random N --seed S; or is `gguf` or `gguf-experts` alone"),
            "{}",
            stderr(&output)
        );
    }
}

/// A record with a row in groups and one without.
fn record() -> Value {
    let arm = |us: f64, kernel: &str| json!({ "us": us, "us_p10": us, "us_p90": us, "kernel": kernel, "err": 0.01 });
    json!({
        "schema": 1,
        "machine": {
            "gpu": "NVIDIA H100 80GB HBM3", "sms": 132, "driver": "580.1", "cuda": "13.0", "cublas": "13.1", "git": "abc",
            "date": "2026-11-26", "clocks_mhz": { "sm": 1980, "memory": 2619 }, "power_w": 700.0,
        },
        "settings": { "mode": "cold", "samples": 31, "pause": 2.0, "seconds": 60.0, "classes": ["experts"] },
        "ceilings": { "hbm_gbps": 3000.0, "tflops": { "bf16": 790.0 } },
        "rows": [{
            "id": "qwen3-30b-gate_up-t64-zipf", "class": "experts", "m": 512, "n": 1536, "k": 2048, "batch": 1,
            "layout": "nt", "dtype": "bf16",
            "groups": { "experts": 128, "top_k": 8, "routing": "zipf", "seed": 1, "scaled": false },
            "experts_hit": 92, "largest_group": 45, "roof_us": 190.0,
            "arms": {
                "ours": arm(200.0, "sm90_grouped_gemm"), "own-best": arm(190.0, "sm90_grouped_gemm"),
                // Too fast to be true: neither is a choice of a dispatcher.
                "candle": arm(100.0, "moe_gemm_wmma"),
                "cublas-loop": arm(150.0, "cublasGemmStridedBatchedEx for each expert"),
            },
            "absent": { "cublaslt": "no product in groups" },
            "flags": ["eager candle"],
        }, {
            "id": "plain", "class": "small", "m": 16, "n": 64, "k": 64, "batch": 1, "layout": "nt", "dtype": "bf16",
            "roof_us": 1.0, "arms": { "ours": arm(2.0, "k"), "candle": arm(3.0, "c") }, "flags": [],
        }],
        "left_out": {},
    })
}

#[test]
fn a_record_keeps_the_routing() {
    let [said, page] = drawn("routing.json", &record());
    // Stock is candle's kernel, and the regret is over our own kernels: 200 over 190.
    let [summary, regret] = lines_of(&said, "experts")[..] else { panic!("{said}") };
    assert!(summary.contains(" 0.500 |") && regret.contains(" 5.3 % |") && regret.contains("0.50 qwen3"), "{said}");
    assert!(page.contains("8 of 128 experts, zipf routing: 92 experts have rows, the largest group has 45"));
    assert!(page.contains(">eager candle</span>"));
    // A wrong number is refused with its field.
    let mut wrong = record();
    wrong["rows"][0]["groups"]["top_k"] = json!(0);
    let path = file("routing-wrong.json", &wrong.to_string());
    let output = tilegemm(&["bench", "--from", path.to_str().unwrap()]);
    assert!(stderr(&output).contains("expected 1 to 2147483647, a whole number"), "{}", stderr(&output));
}

/// A fit estimates the product of the row, in groups, with the row's kernel.
#[test]
fn a_fit_takes_rows_in_groups() {
    let shape = experts::products().into_iter().find(|shape| shape.id == "qwen3-30b-gate_up-t64-zipf").unwrap();
    let plan = Dispatcher::hypothetical(DeviceInfo::h100()).plan(&shape.problem(), Policy::own()).unwrap();
    let mut record = record();
    record["rows"].as_array_mut().unwrap().truncate(1);
    record["rows"][0]["arms"]["ours"]["kernel"] = json!(plan.kernel.name);
    let (from, csv) = (file("routing-fit.json", &record.to_string()), file("routing-fit.csv", ""));
    let [from, to] = [&from, &csv].map(|path| path.to_str().unwrap());
    let output = tilegemm(&["fit", "--judge", from, "--measurements", to]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = std::fs::read_to_string(&csv).unwrap();
    let mut lines = text.lines();
    let column = lines.next().unwrap().split(',').position(|name| name == "estimate_us").unwrap();
    let rows: Vec<&str> = lines.collect();
    assert_eq!(rows.len(), 1, "one arm is a kernel of the table: {text}");
    let estimate: f64 = rows[0].split(',').nth(column).unwrap().parse().unwrap();
    assert!((estimate - plan.estimate_us).abs() < 0.05 * estimate, "{estimate} and {} us: {text}", plan.estimate_us);
}
