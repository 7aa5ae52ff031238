//! The kernel table: every kind of bad row is refused with its line, field and what was expected; the real one is what
//! the crate plans over.

#[allow(dead_code)] // build.rs uses the rest
#[path = "../build/table.rs"]
mod table;

use candle_tilegemm::family::{self, KERNELS};
use std::collections::HashSet;

/// A good row; line 3 of the table that `parse` makes of it.
const ROW: [(&str, &str); 9] = [
    ("family", r#""sm90_gemm""#),
    ("arch", r#"["sm90a"]"#),
    ("dtype", r#"["bf16", "f16"]"#),
    ("layout", r#"["nt"]"#),
    ("tile", "[128, 256, 64]"),
    ("cluster", "[2, 1]"),
    ("schedule", r#""cooperative""#),
    ("epilogue", r#""full""#),
    ("why", r#""large prefill""#),
];

/// The good row with these fields set, added, or (when the value is empty) removed.
fn row(changes: &[(&str, &str)]) -> String {
    let changed = |field: &str| changes.iter().find(|(name, _)| *name == field).map(|(_, value)| *value);
    let kept = ROW.iter().map(|(field, value)| (*field, changed(field).unwrap_or(value)));
    let added = changes.iter().copied().filter(|(field, _)| ROW.iter().all(|(known, _)| known != field));
    let lines = kept.chain(added).filter(|(_, value)| !value.is_empty());
    lines.fold("[[kernel]]\n".into(), |text, (field, value)| format!("{text}{field} = {value}\n"))
}

/// The table of one row, from line 3.
fn parse(changes: &[(&str, &str)]) -> Result<Vec<table::Kernel>, table::TableError> {
    table::parse(&format!("# A table\n\n{}", row(changes)))
}

#[test]
fn a_good_row_is_expanded_into_arch_x_dtype_x_layout() {
    let kernels = parse(&[("layout", r#"["nt", "nn"]"#)]).unwrap();
    let names: Vec<&str> = kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "sm90_gemm_bf16_nt_128x256x64_2x1_cooperative",
            "sm90_gemm_bf16_nn_128x256x64_2x1_cooperative",
            "sm90_gemm_f16_nt_128x256x64_2x1_cooperative",
            "sm90_gemm_f16_nn_128x256x64_2x1_cooperative",
        ]
    );
    assert!(kernels.iter().all(|kernel| kernel.line == 3 && kernel.align == 2), "{kernels:?}");
}

/// What is changed in the good row, and what the message must say.
type BadRow<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn every_kind_of_bad_row_has_its_error() {
    const TILE: (&str, &str) = ("family", r#""tile_gemm""#);
    const SIMT: (&str, &str) = ("family", r#""simt_gemm""#);
    const GEMV: (&str, &str) = ("family", r#""gemv""#);
    const GEVM: (&str, &str) = ("family", r#""gevm""#);
    const OUTER: (&str, &str) = ("family", r#""outer""#);
    const NEWER: (&str, &str) = ("arch", r#"["sm90"]"#);
    const SKINNY: (&str, &str) = ("family", r#""sm90_skinny""#);
    const WAVE: (&str, &str) = ("family", r#""sm90_wave""#);
    const PARTS: (&str, &str) = ("family", r#""sm90_bf16x6""#);
    const DIRECT: (&str, &str) = ("family", r#""sm90_bf16x6_direct""#);
    const DIRECT_TILE: (&str, &str) = ("tile", "[64, 64, 32]");
    const BF16X6: (&str, &str) = ("math", r#""bf16x6""#);
    const PLAIN: (&str, &str) = ("schedule", "");
    const EXCHANGED: (&str, &str) = ("schedule", r#""exchanged""#);
    const WIDTHS: (&str, &str) = ("widths", "[96, 224]");
    const WAVE_TILE: (&str, &str) = ("tile", "[128, 224, 64]");
    const F32: (&str, &str) = ("dtype", r#"["f32"]"#);
    const TF32: (&str, &str) = ("family", r#""sm90_tf32""#);
    const ROUNDED: (&str, &str) = ("math", r#""tf32""#);
    const TF32_TILE: (&str, &str) = ("tile", "[128, 256, 32]");
    const SGEMM: (&str, &str) = ("family", r#""sm90_sgemm""#);
    const FMA_TILE: (&str, &str) = ("tile", "[256, 128, 16]");
    const DGEMM: (&str, &str) = ("family", r#""sm90_dgemm""#);
    const F64_TILE: (&str, &str) = ("tile", "[64, 128, 16]");
    const CUBLAS: (&str, &str) = ("family", r#""cublas""#);
    let cases: &[BadRow] = &[
        // Words that are not known, with those that are.
        (&[("family", r#""sm91_gemm""#)], &["`family`", "'sm91_gemm'", "sm90_gemm", "tile_gemm"]),
        (&[("arch", r#"["sm90a", "sm70"]"#)], &["`arch`", "'sm70'", "sm80", "sm120"]),
        (&[("dtype", r#"["fp16"]"#)], &["`dtype`", "'fp16'", "f16, bf16, f32, f64"]),
        (&[F32, ("math", r#""bf16x9""#)], &["`math`", "'bf16x9'", "native, tf32, bf16x6"]),
        (&[("layout", r#"["nnn"]"#)], &["`layout`", "'nnn'", "nn, nt, tn, tt, any"]),
        (&[("schedule", r#""pingping""#)], &["`schedule`", "'pingping'", "cooperative, pingpong"]),
        (&[("epilogue", r#""bias""#)], &["`epilogue`", "'bias'", "none, bias_act, full"]),
        (&[("stage", "3")], &["unknown field `stage`", "`stages`"]),
        // Fields that are not there, or that say nothing.
        (&[("family", "")], &["missing field `family`"]),
        (&[("dtype", "")], &["missing field `dtype`"]),
        (&[("layout", "")], &["missing field `layout`"]),
        (&[("epilogue", "")], &["missing field `epilogue`"]),
        (&[("why", "")], &["missing field `why`"]),
        (&[("arch", "")], &["`arch` is empty", "sm90a"]),
        (&[("tile", "")], &["`tile` is [0, 0, 0]", "[M, N, K]"]),
        (&[("dtype", "[]")], &["`dtype` is empty", "f16, bf16, f32, f64"]),
        (&[("layout", "[]")], &["`layout` is empty", "nn, nt, tn, tt, any"]),
        (&[("why", r#"" ""#)], &["`why` is empty", "which shapes"]),
        // Numbers out of range.
        (&[("tile", "[128, 0, 64]")], &["`tile` is [128, 0, 64]", "three positive numbers"]),
        (&[("tile", "[128, 64]")], &["array of length 3"]),
        (&[("tile", "[-1, 64, 64]")], &["invalid value", "u32"]),
        (&[TILE, ("tile", "[96, 64, 64]")], &["`tile` is [96, 64, 64]", "powers of two"]),
        (&[("cluster", "[0, 1]")], &["`cluster` is [0, 1]", "1 to 8 blocks"]),
        (&[("cluster", "[4, 4]")], &["`cluster` is [4, 4]", "1 to 8 blocks"]),
        (&[("align", "3")], &["`align` is 3", "0, 1, 2, 4, 8 or 16"]),
        (&[("align", "32")], &["`align` is 32", "0, 1, 2, 4, 8 or 16"]),
        // What a family cannot do.
        (&[("math", r#""tf32""#)], &["`math`", r#"["f32"]"#]),
        (&[SIMT, F32, ("math", r#""bf16x6""#)], &["`math`", "simt_gemm", "remove it"]),
        (&[CUBLAS, ("arch", ""), F32, ("math", r#""tf32""#)], &["`math`", "cublas", "remove it"]),
        (&[("arch", r#"["sm90"]"#)], &["`arch`", r#"["sm90a"]"#]),
        (&[("arch", r#"["sm90a", "sm100a"]"#)], &["`arch`", r#"["sm90a"]"#]),
        (&[("schedule", "")], &["`schedule`", "cooperative or pingpong"]),
        (&[SIMT, ("dtype", r#"["f32", "f64"]"#)], &["`dtype`", r#"["f32"]"#]),
        (&[GEMV, ("arch", r#"["sm80"]"#)], &["`arch`", "sm90 or newer"]),
        (&[GEMV, ("layout", r#"["nn"]"#)], &["`layout`", r#"["nt"]"#]),
        (&[GEMV, ("tile", "[4, 2, 512]")], &["`tile` is [4, 2, 512]", "[8, N,"]),
        (&[GEMV, ("tile", "[8, 2, 256]"), ("dtype", r#"["f32"]"#)], &["`tile` is [8, 2, 256]", "[16, ...] in f32"]),
        (&[GEVM, ("arch", r#"["sm89"]"#)], &["`arch`", "gevm needs sm90 or newer"]),
        (&[GEVM, NEWER, ("layout", r#"["nt"]"#)], &["`layout`", r#"["nn"]"#]),
        (&[GEVM, NEWER, ("layout", r#"["nn"]"#)], &["`tile` is [128, 256, 64]", "[4, 64, 32]"]),
        (&[OUTER, NEWER, ("layout", r#"["tn"]"#)], &["`layout`", r#"["any"]"#]),
        (&[OUTER, NEWER, ("layout", r#"["any"]"#)], &["`dtype`", r#"outer computes in ["f32"]"#]),
        (&[SKINNY, ("arch", r#"["sm90"]"#)], &["`arch`", r#"["sm90a"]"#]),
        (&[SKINNY, ("layout", r#"["nn"]"#)], &["`layout`", r#"["nt"]"#]),
        (&[SKINNY, ("tile", "[128, 128, 64]")], &["`tile` is [128, 128, 64]", "[128, 64,"]),
        (&[WAVE, ("layout", r#"["nn"]"#)], &["`layout`", r#"["nt"]"#]),
        (&[WAVE], &["`schedule`", "none or exchanged"]),
        (&[WAVE, PLAIN], &["`widths` is []", "some of [48, 64"]),
        (&[WAVE, PLAIN, ("widths", "[96, 48]")], &["`widths` is [96, 48]", "in their order"]),
        (&[WAVE, PLAIN, ("widths", "[100]")], &["`widths` is [100]", "some of [48, 64"]),
        (&[WAVE, PLAIN, WIDTHS, ("tile", "[128, 96, 64]")], &["`tile` is [128, 96, 64]", "[64 or 128, its widest,"]),
        (&[WAVE, EXCHANGED, WIDTHS, ("tile", "[224, 256, 64]")], &["`tile` is [224, 256, 64]", "64, 128 or 192"]),
        (&[WAVE, PLAIN, WIDTHS, WAVE_TILE, ("cluster", "[1, 2]")], &["`cluster` is [1, 2]", "[2, 1]"]),
        (&[WAVE, PLAIN, WIDTHS, WAVE_TILE, ("split", "4")], &["`split` is 4", "sm90_wave has 1 to 2"]),
        (&[WIDTHS], &["`widths`", "sm90_gemm has one", "remove it"]),
        (&[EXCHANGED], &["`schedule`", "sm90_gemm exchanges nothing"]),
        (&[("split", "2")], &["`split` is 2", "sm90_gemm has 1 to 1"]),
        (&[PARTS, F32], &["`math` is native", "bf16x6"]),
        (&[PARTS, F32, BF16X6, ("arch", r#"["sm90"]"#)], &["`arch`", r#"["sm90a"]"#]),
        (&[PARTS, F32, BF16X6], &["`tile` is [128, 256, 64]", "[128, 64 or 128, 32]"]),
        (
            &[PARTS, F32, BF16X6, ("tile", "[128, 64, 32]"), ("cluster", "[1, 2]")],
            &["`cluster` is [1, 2]", "sm90_bf16x6"],
        ),
        (&[DIRECT, F32], &["`math` is native", "sm90_bf16x6_direct multiplies as bf16x6"]),
        (&[DIRECT, F32, BF16X6, NEWER], &["`arch`", r#"["sm90a"]"#]),
        (&[DIRECT, F32, BF16X6, ("layout", r#"["nt", "tn"]"#)], &["`layout`", r#"reads ["nt", "nn"]"#]),
        (&[DIRECT, F32, BF16X6], &["`tile` is [128, 256, 64]", "sm90_bf16x6_direct has [64, 64, 32]"]),
        (&[DIRECT, F32, BF16X6, DIRECT_TILE], &["`cluster` is [2, 1]", "sm90_bf16x6_direct has [1, 1]"]),
        (&[TF32, F32], &["`math` is native", "tf32"]),
        (&[TF32, F32, ROUNDED, ("arch", r#"["sm90"]"#)], &["`arch`", r#"["sm90a"]"#]),
        (&[TF32, F32, ROUNDED], &["[128, 256, 64]", "[128, W, 32]"]),
        (
            &[TF32, F32, ROUNDED, ("tile", "[128, 192, 32]"), ("layout", r#"["nt", "tt"]"#)],
            &["[128, 192, 32]", "for nt, 192"],
        ),
        (&[TF32, F32, ROUNDED, TF32_TILE, ("layout", r#"["nn"]"#)], &["[128, 256, 32]", "which nn needs"]),
        (&[TF32, F32, ROUNDED, TF32_TILE, ("cluster", "[1, 2]")], &["[1, 2]", "[1 or 2, 1]"]),
        (&[SGEMM, F32, BF16X6], &["`math`", "sm90_sgemm", "remove it"]),
        (&[SGEMM, F32, NEWER], &["`arch`", r#"["sm90a"]"#]),
        (&[SGEMM, F32], &["`tile` is [128, 256, 64]", "[128, 256, 16], [256, 128, 16] and [128, 128, 32]"]),
        (
            &[SGEMM, F32, FMA_TILE, ("layout", r#"["nt", "tn"]"#)],
            &["`layout`", "reads tn with the tiles [128, 256, 16]"],
        ),
        (&[SGEMM, F32, FMA_TILE], &["`cluster` is [2, 1]", "sm90_sgemm has [1, 1]"]),
        (&[SGEMM, FMA_TILE, ("cluster", "")], &["`dtype`", r#"sm90_sgemm computes in ["f32"]"#]),
        (&[DGEMM, F32, BF16X6], &["`math`", "sm90_dgemm", "remove it"]),
        (&[DGEMM, NEWER], &["`arch`", r#"["sm90a"]"#]),
        (&[DGEMM], &["`tile` is [128, 256, 64]", "[64 or 128, 128, 16]"]),
        (&[DGEMM, F64_TILE], &["`cluster` is [2, 1]", "sm90_dgemm has [1, 1]"]),
        (&[DGEMM, F64_TILE, ("cluster", "")], &["`dtype`", r#"["f64"]"#]),
        (&[CUBLAS], &["`arch` means nothing for cublas", "remove it"]),
    ];
    for (changes, expected) in cases {
        let error = parse(changes).expect_err(&format!("{changes:?} was taken"));
        for words in *expected {
            assert!(error.message.contains(words), "{changes:?}: '{}' does not say '{words}'", error.message);
        }
        // The row's own line, or inside it where the TOML parser knows better.
        let last = 3 + row(changes).lines().count();
        assert!((3..last).contains(&error.line), "{changes:?}: line {} is outside of the row", error.line);
        assert!(error.to_string().starts_with(&format!("kernels.toml, line {}: ", error.line)), "{error}");
    }
}

#[test]
fn a_split_of_k_and_exchanged_operands_are_in_the_name() {
    let tile = ("tile", "[136, 128, 64]");
    let fields = [("family", r#""sm90_wave""#), tile, ("split", "2"), ("widths", "[72, 136]")];
    let wave = |schedule| parse(&[&fields[..], &[("schedule", schedule)]].concat());
    let kernel = wave(r#""exchanged""#).unwrap().remove(0);
    assert_eq!(kernel.name, "sm90_wave_bf16_nt_136x128x64_2x1_s2_exchanged");
    assert!(kernel.cpp().ends_with(", 2, 0, 0, 2, exchanged, 72, 136)\n"), "{}", kernel.cpp());
    assert!(kernel.rust(0, true).contains("widths: &[72, 136], split: 2,"), "{}", kernel.rust(0, true));
    assert!(parse(&[]).unwrap()[0].cpp().ends_with(", cooperative, )\n"));
}

#[test]
fn how_f32_is_multiplied_is_in_the_name() {
    let kernel = parse(&[("dtype", r#"["f32"]"#), ("math", r#""bf16x6""#)]).unwrap().remove(0);
    assert_eq!(kernel.name, "sm90_gemm_f32_bf16x6_nt_128x256x64_2x1_cooperative");
    assert!(kernel.cpp().contains(", 90, TG_F32, TG_BF16X6, TG_NT, "), "{}", kernel.cpp());
    assert!(kernel.rust(0, true).contains("dtype: DType::F32, math: Math::Bf16x6, layout"), "{}", kernel.rust(0, true));
    for (family, math, tile, cluster, name) in [
        ("sm90_bf16x6", "bf16x6", "[128, 64, 32]", "[2, 1]", "sm90_bf16x6_f32_nt_128x64x32_2x1"),
        ("sm90_bf16x6_direct", "bf16x6", "[64, 64, 32]", "[1, 1]", "sm90_bf16x6_direct_f32_nt_64x64x32_1x1"),
        ("sm90_tf32", "tf32", "[256, 128, 32]", "[1, 2]", "sm90_tf32_f32_nt_256x128x32_1x2"),
    ] {
        let (family, math) = (format!("{family:?}"), format!("{math:?}"));
        let row = [("family", &*family), ("math", &*math), ("tile", tile), ("cluster", cluster)];
        let kernel = parse(&[&row[..], &[("dtype", r#"["f32"]"#), ("schedule", "")]].concat()).unwrap().remove(0);
        assert_eq!(kernel.name, name);
    }
    let plain = parse(&[("dtype", r#"["f32"]"#)]).unwrap().remove(0);
    assert_eq!((plain.math.as_str(), plain.name.contains("native")), ("native", false));
}

#[test]
fn an_error_names_the_line_of_its_own_row() {
    let second_row = format!("{}\n{}", row(&[]), row(&[("dtype", r#"["int8"]"#)]));
    let error = table::parse(&second_row).unwrap_err();
    assert_eq!(second_row.lines().nth(error.line - 1), Some("[[kernel]]"));
    assert_eq!(error.line, row(&[]).lines().count() + 2);
}

#[test]
fn two_kernels_of_one_name_are_refused() {
    let twice = format!("{}\n{}", row(&[]), row(&[("why", r#""something else""#)]));
    let error = table::parse(&twice).unwrap_err();
    assert_eq!(error.line, row(&[]).lines().count() + 2);
    assert!(error.message.contains("sm90_gemm_bf16_nt_128x256x64_2x1_cooperative"), "{error}");
    assert!(error.message.ends_with("is already the name of a kernel of line 1"), "{error}");
}

#[test]
fn toml_syntax_errors_carry_their_line() {
    for (text, line) in [("[[kernel]]\nfamily = \"sm90_gemm\"\narch = [\n", 3..=4), ("\n\nkernel = 1\n", 3..=3)] {
        let error = table::parse(text).unwrap_err();
        assert!(line.contains(&error.line), "{text:?}: line {} of: {}", error.line, error.message);
        assert!(!error.message.is_empty());
    }
}

#[test]
fn the_real_table_is_what_the_crate_plans_over() {
    let rows = table::parse(include_str!("../csrc/kernels.toml")).unwrap();
    let parsed: Vec<&str> = rows.iter().map(|kernel| kernel.name.as_str()).collect();
    let planned: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
    assert_eq!(parsed, planned);
    assert_eq!(planned.iter().collect::<HashSet<_>>().len(), planned.len(), "names are unique");
    for (row, kernel) in rows.iter().zip(KERNELS) {
        assert_eq!((row.tile, row.cluster, row.align), (kernel.tile, kernel.cluster, kernel.align), "{kernel}");
        assert_eq!((row.split, row.stages, row.warps), (kernel.split, kernel.stages, kernel.warps), "{kernel}");
        assert_eq!(row.widths, kernel.widths, "{kernel}");
        assert_eq!((row.dtype.as_str(), row.layout.as_str()), (kernel.dtype.name(), kernel.layout.name()), "{kernel}");
        assert_eq!(row.math, kernel.math.to_string(), "{kernel}");
        assert_eq!((row.schedule.as_str(), row.why.as_str()), (kernel.schedule, kernel.why), "{kernel}");
    }
}

#[test]
fn the_fast_profile_has_something_for_every_problem() {
    let rows = table::parse(include_str!("../csrc/kernels.toml")).unwrap();
    let families = |arch: &str, fast: bool| -> HashSet<(String, String)> {
        let rows = rows.iter().filter(|row| row.arch.trim_end_matches('a') == arch && (row.fast || !fast));
        rows.map(|row| (row.family.clone(), row.dtype.clone())).collect()
    };
    for arch in ["sm80", "sm89", "sm90", "sm100", "sm120"] {
        assert_eq!(families(arch, true), families(arch, false), "{arch}");
    }
    let on_hopper = |fast: bool, half: bool| {
        let rows = rows.iter().filter(|row| row.capability() == 90 && (row.fast || !fast));
        rows.filter(|row| ["bf16", "f16"].contains(&row.dtype.as_str()) == half).count()
    };
    let (half, single) = (on_hopper(false, true), on_hopper(false, false));
    assert!(half <= 50 && single <= 58, "{half} kernels of bf16 and f16, {single} of f32 and f64");
    assert!(on_hopper(true, true) + on_hopper(true, false) <= 52);
}

#[test]
fn a_kernel_is_found_by_its_name_and_knows_its_place() {
    for (index, kernel) in KERNELS.iter().enumerate() {
        assert_eq!(family::by_name(kernel.name), Some(kernel));
        assert_eq!(kernel.index, index);
    }
    assert_eq!(family::by_name("sm90_gemm"), None);
}

/// nvcc before 13.0 makes weak symbols of kernels with external linkage: of two architectures in one binary, one would take the
/// other's.
#[test]
fn kernels_have_internal_linkage() {
    let mut kernels = 0;
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/csrc")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending == "toml") {
            continue;
        }
        let (mut namespaces, text) = (Vec::new(), std::fs::read_to_string(&path).unwrap());
        for (number, line) in text.lines().enumerate() {
            match line {
                _ if line.starts_with("namespace ") && line.ends_with('{') => namespaces.push(line == "namespace {"),
                _ if line.starts_with("}  // namespace") => drop(namespaces.pop()),
                _ if line.starts_with("__global__")
                    || line.starts_with("__tile_global__")
                    || line.starts_with("TG_ANCHOR") =>
                {
                    assert!(namespaces.contains(&true), "{}:{}: not in `namespace {{`", path.display(), number + 1);
                    kernels += 1;
                }
                _ => {}
            }
        }
    }
    assert!(kernels > 15, "only {kernels} kernels found in csrc");
}
