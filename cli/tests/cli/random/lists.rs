//! The lists of widths that no known model has, of extreme shapes, and of narrow weights. As for the list of known models, a change of the numbers below is never one.

use super::{hash, line, tilegemm};
use candle_tilegemm::internal::suite::{self, Shape};
use candle_tilegemm::{F32Mode, Format, Layout, Problem};
use std::collections::{BTreeMap, BTreeSet};
use tilegemm::lists::random;

const FIRST_WIDTHS: [&str; 8] = [
    "random-widths-1-0000 prefill 3475x41672x2896 nt f16",
    "random-widths-1-0001 attention 54x64x54 nn bf16 batch 1280",
    "random-widths-1-0002 prefill 1692x480x640 nt bf16",
    "random-widths-1-0003 mid 230x176x520 nt f16",
    "random-widths-1-0004 f32 224x1712x576 nt f32 accurate",
    "random-widths-1-0005 small 5x1144x2560 nt bf16",
    "random-widths-1-0006 decode 4x808x1384 nt bf16",
    "random-widths-1-0007 f32 64x464x920 nt f32 accurate",
];
const HASH_OF_WIDTHS: &str = "1fc745f7b247802b3cc42050463c3321fa1726c4d8f0e26812540374919a3496";
const FIRST_EXTREMES: [&str; 8] = [
    "random-extreme-1-0000 short-m-long-k 9x1x633320 tt bf16",
    "random-extreme-1-0001 short-m-long-k 1x8x606272 tt f16",
    "random-extreme-1-0002 short-m-long-k 1x1x2334457 tn bf16",
    "random-extreme-1-0003 short-k-long-m 158584x8x2 tt bf16",
    "random-extreme-1-0004 short-n-long-m 5277229x1x3 nt f64",
    "random-extreme-1-0005 short-k-long-m 488128x64x1 nt f32 accurate",
    "random-extreme-1-0006 short-m-long-n 1x151650x184 nt f32 accurate",
    "random-extreme-1-0007 short-m-long-n 7x306687x23 tn f16",
];
const HASH_OF_EXTREMES: &str = "eeb9fea2cb1632cf9518eee9b67e52dd565d7dcd16a99e78672fd24c41ce0531";

const FIRST_NARROW: [&str; 8] = [
    "random-narrow-1-0000 narrow 1x7168x3584 nt bf16 f4e2m1 g32",
    "random-narrow-1-0001 narrow 52x1536x3072 nt bf16 f4e2m1 g32",
    "random-narrow-1-0002 narrow 73x1536x2048 nt f8e4m3 tensor fast",
    "random-narrow-1-0003 narrow 234x29568x8192 nt f8e4m3 row",
    "random-narrow-1-0004 narrow 7x3584x1792 nt bf16 u4 g32",
    "random-narrow-1-0005 narrow 81x256x1536 nt bf16 u4 g128",
    "random-narrow-1-0006 narrow 55x3072x384 nt f8e4m3 128x128",
    "random-narrow-1-0007 narrow 4x2048x4096 nt bf16 u4 g128",
];
const HASH_OF_NARROW: &str = "7151824c1c0255e6dd9e353e565ef1bd11559815a8f2f2837fc1c5bb3f355d00";

fn products(list: &str, seed: u64, count: usize) -> Vec<Shape> {
    random::products(seed, count, &[list.into()])
}

/// Products are the same whatever comes before and after them, differ by seed, and are a suite.
fn hold(list: &str, first: [&str; 8], expected: &str) {
    let all = products(list, 1, 300);
    let lines: Vec<String> = all.iter().map(line).collect();
    assert_eq!(lines[..8], first, "{}", lines[..8].join("\n"));
    assert_eq!(hash(lines.join("\n")), expected, "{list}");
    assert_eq!(products(list, 1, 40), all[..40]);
    assert_ne!(products(list, 2, 40), all[..40]);
    let read = suite::parse("random", &suite::to_toml(&all)).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read, all);
    let (code, toml, error) = tilegemm(&["suite", "--random", "20", "--seed", "1", "--class", list, "--toml"]);
    assert_eq!(code, Some(0), "{error}");
    assert_eq!(suite::parse("printed", &toml).unwrap(), all[..20]);
}

#[test]
fn the_lists_of_a_seed_never_change() {
    hold("widths", FIRST_WIDTHS, HASH_OF_WIDTHS);
    hold("extreme", FIRST_EXTREMES, HASH_OF_EXTREMES);
    hold("narrow", FIRST_NARROW, HASH_OF_NARROW);
}

/// The shares of all products that have a property.
fn share(all: &[Shape], of: impl Fn(&Shape) -> bool) -> f64 {
    all.iter().filter(|shape| of(shape)).count() as f64 / all.len() as f64
}

#[test]
fn widths_have_the_shares_of_known_models_and_other_sizes() {
    let all: Vec<Shape> = (1..=10).flat_map(|seed| products("widths", seed, 300)).collect();
    let known: Vec<Shape> = (1..=10).flat_map(|seed| random::products(seed, 300, &[])).collect();
    assert_eq!(random::shares(&["widths".into()]), random::shares(&[]));
    for class in random::CLASSES {
        let of = |all: &[Shape]| share(all, |shape| shape.class == class);
        // Known models have more rows: three in ten are at an edge of a tile.
        assert!((of(&all) - of(&known)).abs() < 0.08, "{class}: {}, {} of known models", of(&all), of(&known));
    }
    for (format, expected) in [(Format::BF16, 0.45), (Format::F16, 0.25), (Format::F32, 0.3)] {
        assert!((share(&all, |shape| shape.dtype == format) - expected).abs() < 0.05, "{format}");
    }
    for mode in F32Mode::ALL {
        assert!(share(&all, |shape| shape.f32 == Some(mode)) > 0.05, "{mode}");
    }
    // Pairs of N and K that no known model has, and lengths of a few elements more than whole tiles.
    let pair = |shape: &Shape| (shape.n.get(), shape.k.get());
    let pairs: BTreeSet<_> = known.iter().map(pair).collect();
    let dense: Vec<Shape> =
        all.iter().filter(|shape| shape.layout == Layout::NT && shape.batch.get() == 1).cloned().collect();
    assert!(share(&dense, |shape| pairs.contains(&pair(shape))) < 0.15);
    let lines = |shape: &Shape| shape.class != "unaligned" && !shape.k.get().is_multiple_of(64);
    assert!(share(&dense, lines) > 0.2, "{} of K are no multiples of 64", share(&dense, lines));
    // Each octave of rows is as likely as another.
    let octaves = share(&dense, |shape| shape.m.get() < 16);
    assert!((octaves - 4.0 / 14.0).abs() < 0.05 && share(&dense, |shape| shape.m.get() >= 4096) > 0.1, "{octaves}");
    for shape in &all {
        let problem = shape.problem();
        let aligned = problem.canonical().problem.alignments().iter().all(|(_, align)| *align >= 16);
        match shape.class.as_str() {
            "attention" => {
                let head = if problem.layout() == Layout::NN { problem.n } else { problem.k };
                assert!([64, 96, 128].contains(&head), "{}", line(shape));
            }
            "unaligned" => assert!(!aligned, "{}", line(shape)),
            _ => assert!(aligned && problem.batch_count() == 1, "{}", line(shape)),
        }
        assert!(problem.m <= 65_536 && problem.flops() <= 2.0f64.powi(43), "{}", line(shape));
        assert!(problem.outputs() <= 2.0f64.powi(28), "{}", line(shape));
    }
    let scores =
        |shape: &Shape| shape.class == "attention" && shape.m == shape.n && [64, 96, 128].contains(&shape.k.get());
    assert!(share(&all, scores) > 0.02);
}

#[test]
fn extremes_have_a_short_and_a_long_extent_in_every_format_and_layout() {
    let all: Vec<Shape> = (1..=10).flat_map(|seed| products("extreme", seed, 300)).collect();
    let shares: BTreeMap<_, _> = random::shares(&["extreme".into()]).into_iter().collect();
    assert_eq!(shares.values().sum::<u32>(), 100);
    for format in [Format::BF16, Format::F16, Format::F32, Format::F64] {
        let stated = f64::from(shares[format.name()]) / 100.0;
        assert!((share(&all, |shape| shape.dtype == format) - stated).abs() < 0.05, "{format}");
    }
    for layout in [Layout::NN, Layout::NT, Layout::TN, Layout::TT] {
        assert!((share(&all, |shape| shape.layout == layout) - 0.25).abs() < 0.05, "{layout}");
    }
    for (class, short, long) in
        [("m", 0, "n"), ("m", 0, "k"), ("n", 1, "m"), ("n", 1, "k"), ("k", 2, "m"), ("k", 2, "n")]
    {
        let class = format!("short-{class}-long-{long}");
        let long = ["m", "n", "k"].iter().position(|name| *name == long).unwrap();
        let of: Vec<Shape> = all.iter().filter(|shape| shape.class == class).cloned().collect();
        assert!((of.len() as f64 / all.len() as f64 - 1.0 / 6.0).abs() < 0.03, "{class}");
        let sizes = |shape: &Shape| [shape.m, shape.n, shape.k].map(|size| size.get());
        assert!(of.iter().all(|shape| sizes(shape)[short] <= 16 && sizes(shape)[long] >= 65_536), "{class}");
        assert!(share(&of, |shape| sizes(shape)[short] < 8) > 0.7, "{class}");
        assert!(share(&of, |shape| sizes(shape)[long] > 100_000) > 0.7, "{class}");
        assert!(share(&of, |shape| sizes(shape)[3 - short - long] < 64) > 0.2, "{class}");
    }
    for shape in &all {
        let Problem { m, n, k, .. } = shape.problem();
        assert!(shape.dtype.bytes(m * k + k * n + m * n) <= 256 << 20, "{}", line(shape));
        assert_eq!(shape.f32.is_some(), shape.dtype == Format::F32, "{}", line(shape));
    }
}
