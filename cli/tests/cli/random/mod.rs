//! Random products: the list of a seed is the same in every version and on every platform, has the stated shares, and is what models have.

use candle_tilegemm::internal::suite::{self, Shape, ShapeGroups};
use candle_tilegemm::{F32Mode, Format, Layout};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::process::Command;
use tilegemm::lists::{experts, random};

mod lists;

/// The first products of seeds 1 and 2. A change of this file is a change of what records of these seeds mean: it is never one.
const GOLDEN: &str = include_str!("golden.txt");
const LISTED: usize = 36;
/// SHA-256 of the first 300 products of each seed, one a line.
const HASHES: [(u64, &str); 2] = [
    (1, "2de7ce8da05b7ba433a1246a040922cfc0c5163d92199e7376bb187e43fb3382"),
    (2, "d4c6cb4126021b4879abd1448a8ae65bbc13a1b84a49221751bcb06b3e622b59"),
];

/// The first products with quantised weights of seed 1, and SHA-256 of its first 300.
const FIRST_WITH_BLOCKS: [&str; 6] = [
    "random-gguf-1-0000 gguf 49x5120x1280 nt f32 q4k",
    "random-gguf-1-0001 gguf 8x1024x8192 nt f32 q4_1",
    "random-gguf-1-0002 gguf 22x768x3072 nt f32 q4k",
    "random-gguf-1-0003 gguf 2x14336x4096 nt f32 q4k",
    "random-gguf-1-0004 gguf 1x16384x4096 nt f32 q5_1",
    "random-gguf-1-0005 gguf 7x17920x5120 nt f32 q8_0",
];
const HASH_WITH_BLOCKS: &str = "786cd0fbb5311d3263db8f1c3882883cb1958d0cb206175f2ac566404c67c6fe";

/// The first products of experts with quantised weights of seed 1, and SHA-256 of its first 300.
const FIRST_OF_EXPERTS: [&str; 4] = [
    "random-gguf-experts-1-0000 gguf-experts 63x1792x7680 nt f32 q3k 7 of 32 uniform 19594 scaled",
    "random-gguf-experts-1-0001 gguf-experts 1848x6912x2816 nt f32 q8_0 6 of 8 zipf 38111",
    "random-gguf-experts-1-0002 gguf-experts 48x4864x4864 nt f32 q4k 4 of 8 zipf 40774 scaled",
    "random-gguf-experts-1-0003 gguf-experts 8x512x11776 nt f32 q6k 8 of 32 uniform 63980 scaled",
];
const HASH_OF_EXPERTS: &str = "e4f5d4a9003470ae59d76ce44bab7f87785f66422948a75136a466d1562cb4e2";

/// A product in one line of its own format.
fn line(shape: &Shape) -> String {
    let Shape { id, class, layout, dtype, .. } = shape;
    let [m, n, k, batch] = [shape.m, shape.n, shape.k, shape.batch].map(|size| size.get());
    let mut line = format!("{id} {class} {m}x{n}x{k} {layout} {dtype}");
    if batch > 1 {
        let _ = write!(line, " batch {batch}");
    }
    if let Some(b) = shape.b {
        let _ = write!(line, " {b}");
    }
    if let Some(scale) = shape.scale {
        let more =
            [(shape.zeros, " zeros"), (shape.fast, " fast")].map(|(is_set, word)| if is_set { word } else { "" });
        let _ = write!(line, " {scale}{}", more.concat());
    }
    if let Some(mode) = shape.f32 {
        let _ = write!(line, " {mode}");
    }
    if let Some(groups) = &shape.groups {
        let ShapeGroups { experts, top_k, routing, seed, scaled } = groups;
        let scaled = if *scaled { " scaled" } else { "" };
        let _ = write!(line, " {} of {} {} {seed}{scaled}", top_k.get(), experts.get(), routing.name());
    }
    let places = [
        ("a_stride", shape.a_stride),
        ("b_stride", shape.b_stride),
        ("a_offset", shape.a_offset),
        ("b_offset", shape.b_offset),
        ("d_offset", shape.d_offset),
    ];
    for (name, value) in places.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        let _ = write!(line, " {name} {value}");
    }
    line
}

fn lines(seed: u64, count: usize) -> String {
    random::products(seed, count, &[]).iter().map(|shape| line(shape) + "\n").collect()
}

fn hash(text: String) -> String {
    Sha256::digest(text).iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[test]
fn the_products_of_a_seed_never_change() {
    assert_eq!(lines(1, LISTED) + &lines(2, LISTED), GOLDEN);
    for (seed, expected) in HASHES {
        assert_eq!(hash(lines(seed, 300)), expected, "the first 300 products of seed {seed}");
    }
}

/// The list with quantised weights. As for the other list, a change of the numbers below is never one.
#[test]
fn the_products_with_blocks_of_a_seed_never_change() {
    let class = ["gguf".to_string()];
    let of = |seed, count| random::products(seed, count, &class);
    let lines: Vec<String> = of(1, 300).iter().map(line).collect();
    assert_eq!(lines[..6], FIRST_WITH_BLOCKS);
    assert_eq!(hash(lines.join("\n")), HASH_WITH_BLOCKS);
    assert_eq!(of(1, 40), of(1, 300)[..40]);
    assert_ne!(of(2, 40), of(1, 40));

    let all: Vec<Shape> = (1..=5).flat_map(|seed| of(seed, 300)).collect();
    let shares: BTreeMap<_, _> = random::shares(&class).into_iter().collect();
    assert_eq!(shares.values().sum::<u32>(), 100);
    assert_eq!(shares.len(), 10);
    for format in Format::blocks().filter(|format| shares.contains_key(format.name())) {
        let share = all.iter().filter(|shape| shape.b == Some(format)).count() as f64 / all.len() as f64;
        let stated = f64::from(shares[format.name()]) / 100.0;
        // Fewer models have a K of whole blocks of 256 numbers.
        assert!((share - stated).abs() < 0.3 * stated + 0.02, "{format}: {share}, stated {stated}");
    }
    for shape in &all {
        let problem = shape.problem();
        assert!(
            problem.k % problem.b.format.block().elements == 0 && problem.a.format == Format::F32,
            "{}",
            line(shape)
        );
        assert!(problem.m < 8192 && problem.flops() <= 2.0f64.powi(43), "{}", line(shape));
    }
    let few = all.iter().filter(|shape| shape.m.get() <= 130).count() as f64 / all.len() as f64;
    assert!((0.6..0.8).contains(&few), "{few} of the products have up to 130 rows");
    let read = suite::parse("random", &suite::to_toml(&all[..300])).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read, all[..300]);
}

/// The list of experts with quantised weights: the same rule.
#[test]
fn the_experts_with_blocks_of_a_seed_never_change() {
    let class = [experts::GGUF_CLASS.to_string()];
    let all = random::products(1, 300, &class);
    let lines: Vec<String> = all.iter().map(line).collect();
    assert_eq!(lines[..4], FIRST_OF_EXPERTS);
    assert_eq!(hash(lines.join("\n")), HASH_OF_EXPERTS);
    assert_eq!(random::products(1, 40, &class), all[..40]);
    let shares: BTreeMap<_, _> = random::shares(&class).into_iter().collect();
    assert_eq!(shares.values().sum::<u32>(), 100);
    for (format, stated) in shares {
        let share = all.iter().filter(|shape| shape.b.is_some_and(|b| b.name() == format)).count() as f64 / 300.0;
        assert!((share - f64::from(stated) / 100.0).abs() < 0.08, "{format}: {share}, stated {stated} %");
    }
    for shape in &all {
        let (problem, groups) = (shape.problem(), shape.groups.expect("experts are groups"));
        assert_eq!((problem.n % 256, problem.k % 256), (0, 0), "{}", line(shape));
        let weights = groups.experts.get() * problem.n * problem.k;
        assert!(weights <= 2 << 30 && problem.outputs() <= 2.0f64.powi(28), "{}", line(shape));
    }
    let read = suite::parse("random", &suite::to_toml(&all)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read, all);
}

/// Product `i` of a seed is the same however many products are asked for, and of which classes.
#[test]
fn a_product_does_not_depend_on_the_others() {
    let all = random::products(7, 250, &[]);
    assert_eq!(random::products(7, 90, &[]), all[..90]);
    let classes = ["unaligned".to_string(), "attention".into()];
    let some = random::products(7, 30, &classes);
    let expected: Vec<&Shape> = all.iter().filter(|shape| classes.contains(&shape.class)).take(30).collect();
    assert_eq!(some.iter().collect::<Vec<_>>(), expected);
    assert!(random::products(7, 10, &["no such class".into()]).is_empty());
    assert_ne!(random::products(8, 20, &[])[5].from, None);
    assert_ne!(lines(7, 20), lines(8, 20).replace("random-8", "random-7"));
}

#[test]
fn every_hundred_products_have_the_stated_shares() {
    let shares: BTreeMap<_, _> = random::shares(&[]).into_iter().collect();
    assert_eq!(shares.values().sum::<u32>(), 100);
    for seed in 1..=3 {
        for products in random::products(seed, 300, &[]).chunks(100) {
            let of = |class: &str| products.iter().filter(|shape| shape.class == class).count() as u32;
            assert_eq!(of("layouts"), shares["other layouts"]);
            assert_eq!(of("unaligned"), shares["unaligned"]);
            assert_eq!(of("attention"), shares["attention"]);
        }
    }
}

/// Checks on several seeds: classes, formats, modes, layouts, alignment, and sizes that a card can hold.
#[test]
fn products_are_those_of_models() {
    let products: Vec<Shape> = (1..=10).flat_map(|seed| random::products(seed, 300, &[])).collect();
    let share = |of: &dyn Fn(&Shape) -> bool| products.iter().filter(|shape| of(shape)).count() as f64 / 3000.0;
    for class in random::CLASSES {
        assert!(share(&|shape| shape.class == class) > 0.02, "{class}");
    }
    for (format, expected) in [(Format::BF16, 0.45), (Format::F16, 0.25), (Format::F32, 0.3)] {
        assert!((share(&|shape| shape.dtype == format) - expected).abs() < 0.05, "{format}");
    }
    for mode in F32Mode::ALL {
        assert!(share(&|shape| shape.f32 == Some(mode)) > 0.05, "{mode}");
    }
    for layout in [Layout::NN, Layout::TN, Layout::TT] {
        assert!(share(&|shape| shape.layout == layout) > 0.02, "{layout}");
    }
    assert!(share(&|shape| shape.m.get() <= 64) > 0.25 && share(&|shape| shape.m.get() > 1024) > 0.15);
    let edge = |shape: &Shape| [63, 0, 1].contains(&(shape.m.get() % 64)) && shape.m.get() > 62;
    assert!(share(&edge) > 0.2, "rows at the edges of tiles");
    for shape in &products {
        let problem = shape.problem();
        let aligned = problem.canonical().problem.alignments().iter().all(|(_, align)| *align >= 16);
        match shape.class.as_str() {
            "attention" => assert!(problem.batch_count() > 1, "{}", line(shape)),
            "unaligned" => assert!(!aligned, "{}", line(shape)),
            _ => assert!(aligned && problem.batch_count() == 1, "{}", line(shape)),
        }
        assert_eq!(shape.f32.is_some(), shape.dtype == Format::F32, "{}", line(shape));
        assert!(problem.m <= 65_536 && problem.flops() <= 2.0f64.powi(43), "{}", line(shape));
        assert!(problem.outputs() <= 2.0f64.powi(28), "{}", line(shape));
    }
    let ids: HashSet<&str> = products.iter().map(|shape| shape.id.as_str()).collect();
    assert_eq!(ids.len(), products.len());
}

#[test]
fn random_products_are_a_suite() {
    let products = random::products(1, 300, &[]);
    let read = suite::parse("random", &suite::to_toml(&products)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read, products);
}

fn tilegemm(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tilegemm")).args(args).output().expect("tilegemm starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_command_lists_them_with_their_choices() {
    let (code, table, error) = tilegemm(&["suite", "--random", "40", "--seed", "2"]);
    assert_eq!((code, table.lines().count()), (Some(0), 42), "{error}");
    for shape in random::products(2, 40, &[]) {
        assert!(table.contains(&shape.id), "{table}");
    }
    let (code, toml, error) = tilegemm(&["suite", "--random", "5", "--seed", "2", "--class", "unaligned", "--toml"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(suite::parse("printed", &toml).unwrap(), random::products(2, 5, &["unaligned".into()]));
    for (args, expected) in [
        (&["suite", "--random", "5"][..], "--seed"),
        (&["suite", "--seed", "5"], "--random"),
        (&["bench", "--random", "5", "--seed", "1", "--class", "large"], "attention"),
        (&["suite", "--random", "5", "--seed", "1", "--class", "experts"], "without --random"),
        (&["suite", "--random", "5", "--seed", "1", "--class", "gguf,decode"], "`gguf` or `gguf-experts` alone"),
        (
            &["suite", "--random", "5", "--seed", "1", "--class", "widths,decode"],
            "`widths`, `extreme` or `narrow` alone",
        ),
        (&["suite", "--class", "extreme"], "with --random N --seed S"),
        (&["bench", "--random", "5", "--seed", "1", "--suite", "x.toml"], "--suite"),
        (&["bench", "--random", "0", "--seed", "1"], "1.."),
    ] {
        let (code, _, error) = tilegemm(args);
        assert_eq!(code, Some(2), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}
