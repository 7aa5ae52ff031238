//! The kernel table: every kind of bad row is refused with its line, field and what was expected; the real one is what
//! the crate plans over.

use candle_tilegemm::family::{self, KERNELS};
use candle_tilegemm_build::table;
use std::collections::HashSet;
use std::path::Path;

/// A good row of [`FAMILY`].
const ROW: [(&str, &str); 8] = [
    ("arch", r#"["sm90a"]"#),
    ("dtype", r#"["bf16", "f16"]"#),
    ("layout", r#"["nt"]"#),
    ("tile", "[128, 256, 64]"),
    ("cluster", "[2, 1]"),
    ("schedule", r#""cooperative""#),
    ("epilogue", r#""full""#),
    ("why", r#""large prefill""#),
];

const FAMILY: &str = "sm90_gemm";
const F32_ROW: (&str, &str) = ("dtype", r#"["f32"]"#);
/// A family that may do what no real one does.
const MADE_UP: &str = r#"[family]
about = "made up"
arch = ["sm90a"]
dtype = ["f32"]
math = ["native", "bf16x6"]
layout = ["nt"]
schedule = ["cooperative"]

"#;

fn csrc() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/csrc"))
}

/// A family's file as far as its first row.
fn head(family: &str) -> String {
    let text = std::fs::read_to_string(csrc().join(family).join("family.toml")).unwrap();
    text.split("[[kernel]]").next().unwrap().into()
}

/// The good row with these fields set, added, or (when the value is empty) removed.
fn row(changes: &[(&str, &str)]) -> String {
    let changed = |field: &str| changes.iter().find(|(name, _)| *name == field).map(|(_, value)| *value);
    let kept = ROW.iter().map(|(field, value)| (*field, changed(field).unwrap_or(value)));
    let added = changes.iter().copied().filter(|(field, _)| ROW.iter().all(|(known, _)| known != field));
    let lines = kept.chain(added).filter(|(_, value)| !value.is_empty());
    lines.fold("[[kernel]]\n".into(), |text, (field, value)| format!("{text}{field} = {value}\n"))
}

/// The line of the row in the file that `parse` makes.
fn line(family: &str) -> usize {
    head(family).lines().count() + 1
}

/// The kernels of the good row, so changed, in a family's file.
fn parse(family: &str, changes: &[(&str, &str)]) -> Result<Vec<table::Kernel>, table::TableError> {
    table::parse(family, &(head(family) + &row(changes)))
}

#[test]
fn a_good_row_is_expanded_into_arch_x_dtype_x_layout() {
    let kernels = parse(FAMILY, &[("layout", r#"["nt", "nn"]"#)]).unwrap();
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
    assert!(kernels.iter().all(|kernel| kernel.line == line(FAMILY) && kernel.align == 2), "{kernels:?}");
}

#[test]
fn a_row_may_run_by_name_alone() {
    let kernels = parse(FAMILY, &[("arch", ""), ("by_name", r#"["sm90a"]"#)]).unwrap();
    let have: Vec<_> = kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.role)).collect();
    assert_eq!(
        have,
        ["bf16", "f16"]
            .map(|dtype| format!("sm90_gemm_{dtype}_nt_128x256x64_2x1_cooperative"))
            .iter()
            .map(|name| (name.as_str(), table::Role::ByName))
            .collect::<Vec<_>>()
    );
}

#[test]
fn an_arch_of_a_family_has_its_number() {
    let kernels = table::read(csrc()).unwrap();
    let kernel = kernels.iter().find(|kernel| kernel.arch == "sm100f").unwrap();
    assert_eq!(kernel.capability(), 100);
    assert!(kernel.name.starts_with("sm100_gemm_bf16_nt_"), "{}", kernel.name);
    let described = family::by_name(&kernel.name).unwrap();
    let runs = [90, 100, 103, 120].map(|device| described.arch.runs_on(device));
    assert_eq!(runs, [false, true, true, false], "{kernel:?}");
}

/// A family, what is changed in the good row, and what the message must say.
type BadRow<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn every_kind_of_bad_row_has_its_error() {
    const NEWER: (&str, &str) = ("arch", r#"["sm90"]"#);
    const BF16X6: (&str, &str) = ("math", r#""bf16x6""#);
    const ROUNDED: (&str, &str) = ("math", r#""tf32""#);
    const PLAIN: (&str, &str) = ("schedule", "");
    const ALONE: (&str, &str) = ("cluster", "");
    const F32: (&str, &str) = F32_ROW;
    const F64: (&str, &str) = ("dtype", r#"["f64"]"#);
    const WIDTHS: (&str, &str) = ("widths", "[96, 224]");
    const FEW: (&str, &str) = ("widths", "[8, 128]");
    const FEW_TILE: (&str, &str) = ("tile", "[128, 64, 128]");
    const WAVE_TILE: (&str, &str) = ("tile", "[128, 224, 64]");
    const DIRECT_TILE: (&str, &str) = ("tile", "[64, 64, 32]");
    const TF32_TILE: (&str, &str) = ("tile", "[128, 256, 32]");
    const FMA_TILE: (&str, &str) = ("tile", "[256, 128, 16]");
    const F64_TILE: (&str, &str) = ("tile", "[64, 128, 16]");
    const NN: (&str, &str) = ("layout", r#"["nn"]"#);
    const FP8: (&str, &str) = ("dtype", r#"["f8e4m3"]"#);
    const FAMILY_ARCH: (&str, &str) = ("arch", r#"["sm100f"]"#);
    let cases: &[BadRow] = &[
        // Words that are not known, with those that are.
        (FAMILY, &[("family", r#""sm90_gemm""#)], &["unknown field `family`", "`arch`"]),
        (FAMILY, &[("arch", r#"["sm90a", "sm70"]"#)], &["`arch`", "'sm70'", "sm80", "sm120"]),
        (FAMILY, &[("dtype", r#"["fp16"]"#)], &["`dtype`", "'fp16'", "f16, bf16, f32, f64"]),
        (FAMILY, &[F32, ("math", r#""bf16x9""#)], &["`math`", "'bf16x9'", "native, tf32, bf16x6"]),
        (FAMILY, &[("layout", r#"["nnn"]"#)], &["`layout`", "'nnn'", "nn, nt, tn, tt, any"]),
        (FAMILY, &[("schedule", r#""pingping""#)], &["`schedule`", "'pingping'", "cooperative, pingpong"]),
        (FAMILY, &[("epilogue", r#""bias""#)], &["`epilogue`", "'bias'", "none, bias_act, full"]),
        (FAMILY, &[("features", r#"["ggfu"]"#)], &["`features`", "'ggfu'", "cuda, cutile, experts, gguf"]),
        (FAMILY, &[("stage", "3")], &["unknown field `stage`", "`stages`"]),
        // Fields that are not there, or that say nothing.
        (FAMILY, &[("dtype", "")], &["missing field `dtype`"]),
        (FAMILY, &[("layout", "")], &["missing field `layout`"]),
        (FAMILY, &[("epilogue", "")], &["missing field `epilogue`"]),
        (FAMILY, &[("why", "")], &["missing field `why`"]),
        (FAMILY, &[("arch", "")], &["`arch` is empty", "sm90a"]),
        (FAMILY, &[("tile", "")], &["`tile` is [0, 0, 0]", "[M, N, K]"]),
        (FAMILY, &[("dtype", "[]")], &["`dtype` is empty", "f16, bf16, f32, f64"]),
        (FAMILY, &[("layout", "[]")], &["`layout` is empty", "nn, nt, tn, tt, any"]),
        (FAMILY, &[("why", r#"" ""#)], &["`why` is empty", "which shapes"]),
        // Results.
        (FAMILY, &[F32, ("out", r#""f32""#)], &["`out`", "16-bit operands", "remove it"]),
        (FAMILY, &[("out", r#""bf16""#)], &["`out`", "16-bit operands", "remove it"]),
        (FAMILY, &[FP8], &["`out`", "f8e4m3 has results in", "name one"]),
        ("sm100_gemm", &[FP8, ("out", r#""f16""#), FAMILY_ARCH], &["`out` is f16", "sm100_gemm has bf16 or f32"]),
        ("tile_gemm", &[NEWER, PLAIN, ("out", r#""f32""#)], &["`out` is f32", "tile_gemm stores D", "remove it"]),
        // Numbers out of range.
        (FAMILY, &[("tile", "[128, 0, 64]")], &["`tile` is [128, 0, 64]", "three positive numbers"]),
        (FAMILY, &[("tile", "[128, 64]")], &["array of length 3"]),
        (FAMILY, &[("tile", "[-1, 64, 64]")], &["invalid value", "u32"]),
        (FAMILY, &[("tile", "[128, 4294967295, 64]")], &["`tile` is [128, 4294967295, 64]", "up to 65536"]),
        (FAMILY, &[("cluster", "[65536, 65536]")], &["`cluster` is [65536, 65536]", "1 to 8 blocks"]),
        (FAMILY, &[("cluster", "[0, 1]")], &["`cluster` is [0, 1]", "1 to 8 blocks"]),
        (FAMILY, &[("cluster", "[4, 4]")], &["`cluster` is [4, 4]", "1 to 8 blocks"]),
        (FAMILY, &[("align", "3")], &["`align` is 3", "0, 1, 2, 4, 8 or 16"]),
        (FAMILY, &[("align", "32")], &["`align` is 32", "0, 1, 2, 4, 8 or 16"]),
        // What a family cannot do.
        (FAMILY, &[ROUNDED], &["`math`", r#"["f32"]"#]),
        ("sm90_tf32", &[ROUNDED], &["`math`", r#"["f32"]"#]),
        (FAMILY, &[F32, BF16X6], &["`math`", "sm90_gemm", "remove it"]),
        ("simt_gemm", &[F32, BF16X6], &["`math`", "simt_gemm", "remove it"]),
        ("cublas", &[("arch", ""), F32, ROUNDED], &["`math`", "cublas", "remove it"]),
        ("cublas", &[], &["`arch` means nothing for cublas", "remove it"]),
        (FAMILY, &[NEWER], &["`arch`", r#"["sm90a"]"#]),
        (FAMILY, &[("arch", r#"["sm90a", "sm100a"]"#)], &["`arch`", r#"["sm90a"]"#]),
        (FAMILY, &[PLAIN], &["`schedule` is none", "cooperative or pingpong"]),
        (FAMILY, &[WIDTHS], &["`widths`", "sm90_gemm has one", "remove it"]),
        (FAMILY, &[("split", "2")], &["`split` is 2", "sm90_gemm has 1 to 1"]),
        ("tile_gemm", &[NEWER, PLAIN, ("tile", "[96, 64, 64]")], &["`tile` is [96, 64, 64]", "[16|32|64|128|256,"]),
        ("simt_gemm", &[NEWER, ("dtype", r#"["f32", "f64"]"#)], &["`dtype`", r#"["f32"]"#]),
        (
            "gemv",
            &[("arch", r#"["sm90a"]"#)],
            &["`arch`", r#"gemv is written for ["sm80", "sm89", "sm90", "sm100", "sm120"]"#],
        ),
        ("gemv", &[NEWER, NN], &["`layout`", r#"["nt"]"#]),
        ("gemv", &[NEWER, PLAIN, ("tile", "[4, 2, 512]")], &["`tile` is [4, 2, 512]", "[8, any, 256|"]),
        (
            "gemv",
            &[NEWER, PLAIN, ("tile", "[8, 2, 384]")],
            &["`tile` is [8, 2, 384]", "256|512|768|1024] for bf16|f16"],
        ),
        ("gemv", &[NEWER, PLAIN, ("tile", "[8, 2, 256]"), F32], &["`tile` is [8, 2, 256]", "[16, any,", "for f32"]),
        ("gevm", &[("arch", r#"["sm90a"]"#)], &["`arch`", r#"gevm is written for ["sm80","#]),
        ("gevm", &[NEWER, ("layout", r#"["nt"]"#)], &["`layout`", r#"["nn"]"#]),
        ("gevm", &[NEWER, PLAIN, NN], &["`tile` is [128, 256, 64]", "[4, 64, 32]"]),
        ("outer", &[NEWER, F32, ("layout", r#"["tn"]"#)], &["`layout`", r#"["any"]"#]),
        ("outer", &[NEWER, ("layout", r#"["any"]"#)], &["`dtype`", r#"outer computes in ["f32"]"#]),
        ("sm90_wave", &[NEWER], &["`arch`", r#"["sm90a"]"#]),
        ("sm90_few_rows", &[("layout", r#"["tn"]"#)], &["`layout`", r#"["nt", "nn"]"#]),
        ("sm90_wave", &[], &["`schedule` is cooperative", "sm90_wave has none"]),
        ("sm90_wave", &[PLAIN], &["`widths` is []", "some of [8, 16"]),
        ("sm90_wave", &[PLAIN, ("widths", "[96, 48]")], &["`widths` is [96, 48]", "in their order"]),
        ("sm90_wave", &[PLAIN, ("widths", "[100]")], &["`widths` is [100]", "some of [8, 16"]),
        ("sm90_wave", &[PLAIN, WIDTHS, ("tile", "[128, 96, 64]")], &["`tile` is [128, 96", "[64|128, its widest, 64"]),
        ("sm90_wave", &[PLAIN, WIDTHS, ("tile", "[224, 256, 64]")], &["`tile` is [224, 256, 64]", "64|128|192"]),
        ("sm90_wave", &[PLAIN, WIDTHS, WAVE_TILE, ("cluster", "[1, 2]")], &["`cluster` is [1, 2]", "[2, 1]"]),
        ("sm90_few_rows", &[PLAIN, ALONE, FEW, FEW_TILE, ("split", "4")], &["`split` is 4", "with a split of 8"]),
        ("sm90_wave", &[PLAIN, WIDTHS, WAVE_TILE, ("split", "4")], &["`split` is 4", "sm90_wave has 1 to 2"]),
        (
            "sm90_few_rows",
            &[PLAIN, ALONE, FEW, ("tile", "[128, 128, 64]"), ("split", "8")],
            &["`tile` is [128, 128, 64]", "[its widest, 64, 64|128|192|256] in clusters of [1, 1] with a split of 8"],
        ),
        ("sm90_bf16x6", &[F32], &["`math` is native", "bf16x6"]),
        ("sm90_bf16x6", &[F32, BF16X6, NEWER], &["`arch`", r#"["sm90a"]"#]),
        ("sm90_bf16x6", &[F32, BF16X6, PLAIN], &["`tile` is [128, 256, 64]", "[128, 64|128, 32]"]),
        (
            "sm90_bf16x6",
            &[F32, BF16X6, PLAIN, ("tile", "[128, 64, 32]"), ("cluster", "[1, 2]")],
            &["`cluster` is [1, 2]", "sm90_bf16x6 has"],
        ),
        ("sm90_bf16x6_direct", &[F32], &["`math` is native", "sm90_bf16x6_direct multiplies as bf16x6"]),
        ("sm90_bf16x6_direct", &[F32, BF16X6, NEWER], &["`arch`", r#"["sm90a"]"#]),
        ("sm90_bf16x6_direct", &[F32, BF16X6, ("layout", r#"["nt", "tn"]"#)], &["`layout`", r#"reads ["nt", "nn"]"#]),
        ("sm90_bf16x6_direct", &[F32, BF16X6, PLAIN], &["[128, 256, 64]", "sm90_bf16x6_direct has [64, 64, 32]"]),
        ("sm90_bf16x6_direct", &[F32, BF16X6, PLAIN, DIRECT_TILE], &["`cluster` is [2, 1]", "in clusters of [1, 1]"]),
        ("sm90_tf32", &[F32], &["`math` is native", "tf32"]),
        ("sm90_tf32", &[F32, ROUNDED, NEWER], &["`arch`", r#"["sm90a"]"#]),
        ("sm90_tf32", &[F32, ROUNDED, PLAIN], &["[128, 256, 64]", "[128, 64|256, 32]"]),
        (
            "sm90_tf32",
            &[F32, ROUNDED, PLAIN, ("tile", "[128, 192, 32]"), ("layout", r#"["nt", "tt"]"#)],
            &["`tile` is [128, 192, 32]", "(f32, tt)", "[128, 192, 32] in clusters of [1, 1]|[2, 1] for nt;"],
        ),
        ("sm90_tf32", &[F32, ROUNDED, PLAIN, TF32_TILE, NN], &["[128, 256, 32]", "(f32, nn)", "for nt|tn|tt"]),
        (
            "sm90_tf32",
            &[F32, ROUNDED, PLAIN, TF32_TILE, ("cluster", "[1, 2]")],
            &["`cluster` is [1, 2]", "[128, 64|256, 32] in clusters of [1, 1]|[2, 1]"],
        ),
        ("sm90_sgemm", &[F32, BF16X6], &["`math`", "sm90_sgemm", "remove it"]),
        ("sm90_sgemm", &[F32, NEWER], &["`arch`", r#"["sm90a"]"#]),
        (
            "sm90_sgemm",
            &[F32, PLAIN, ALONE],
            &["`tile` is [128, 256, 64]", "[128, 256, 16]", "[256, 128, 16]", "[128, 128, 32]"],
        ),
        (
            "sm90_sgemm",
            &[F32, PLAIN, ALONE, FMA_TILE, ("layout", r#"["nt", "tn"]"#)],
            &["(f32, tn)", "[256, 128, 16] in clusters of [1, 1] for nn|nt|tt"],
        ),
        ("sm90_sgemm", &[F32, PLAIN, FMA_TILE], &["`cluster` is [2, 1]", "in clusters of [1, 1]"]),
        ("sm90_sgemm", &[FMA_TILE, ALONE], &["`dtype`", r#"sm90_sgemm computes in ["f32"]"#]),
        ("sm90_dgemm", &[F32, BF16X6], &["`math`", "sm90_dgemm", "remove it"]),
        ("sm90_dgemm", &[NEWER], &["`arch`", r#"["sm90a"]"#]),
        ("sm90_dgemm", &[F64, PLAIN, ALONE], &["`tile` is [128, 256, 64]", "[64|128, 128, 16]"]),
        ("sm90_dgemm", &[F64, PLAIN, F64_TILE], &["`cluster` is [2, 1]", "in clusters of [1, 1]"]),
        ("sm90_dgemm", &[F64_TILE, ALONE], &["`dtype`", r#"["f64"]"#]),
    ];
    for (family, changes, expected) in cases {
        let error = parse(family, changes).expect_err(&format!("{family}: {changes:?} was taken"));
        for words in *expected {
            assert!(error.message.contains(words), "{family} {changes:?}: '{}' does not say '{words}'", error.message);
        }
        // The row's own line, or inside it where the TOML parser knows better.
        let first = line(family);
        let last = first + row(changes).lines().count();
        assert!((first..last).contains(&error.line), "{changes:?}: line {} is outside of the row", error.line);
        let place = format!("csrc/{family}/family.toml, line {}: ", error.line);
        assert!(error.to_string().starts_with(&place), "{error}");
    }
}

#[test]
fn every_kind_of_bad_head_has_its_error() {
    for (from, to, expected) in [
        ("[family]\n", "", "expected one of `family`"),
        ("about = \"made up\"\n", "", "missing field `about`"),
        ("made up", " ", "`about` is empty"),
        ("about", "abuot", "unknown field `abuot`"),
        ("[\"sm90a\"]", "[]", "`arch` is empty"),
        ("sm90a", "sm70", "'sm70'"),
        ("[\"f32\"]", "[\"fp32\"]", "'fp32'"),
        ("bf16x6", "bf16x9", "'bf16x9'"),
        ("[\"nt\"]", "[\"ntt\"]", "'ntt'"),
        ("cooperative", "alone", "'alone'"),
        ("layout", "tiles = [{ o = [64] }]\nlayout", "unknown field `o`"),
        ("layout", "language = \"ptx\"\nlayout", "unknown variant `ptx`"),
    ] {
        let text = MADE_UP.replacen(from, to, 1);
        assert_ne!(text, MADE_UP, "nothing to replace: {from}");
        let error = table::parse("made_up", &(text.clone() + &row(&[F32_ROW]))).expect_err(&text);
        assert!(error.message.contains(expected), "{from}: '{}' does not say '{expected}'", error.message);
        assert!((1..=text.lines().count() + 1).contains(&error.line), "{from}: {error}");
    }
}

#[test]
fn limits_are_numbers_and_names_that_are_known() {
    let limited = |limits: &str| {
        table::parse("made_up", &(MADE_UP.to_string() + "[limits]\n" + limits + "\n" + &row(&[F32_ROW])))
    };
    for (limits, expected) in [
        ("extents = \"int/2\"", "columns: 1073741823, k: 1073741823,"),
        ("extents = \"int-1024\"\nk = \"int\"", "columns: 2147482623, k: 2147483647,"),
        ("matrices = 65535\nrows_of_tile = true", "rows: 128, columns: usize::MAX, k: usize::MAX, matrices: 65535,"),
        (
            "tiles = { most = 7, sides = \"cluster\", of = \"batch\" }",
            "Tiles { sides: [256, 256], most: 7, of_batch: true }",
        ),
        (
            "tiles = { most = 7, sides = [16, 64], of = \"matrix\" }",
            "Tiles { sides: [16, 64], most: 7, of_batch: false }",
        ),
        ("aligned = [\"A\", \"D\"]\nmultiples = [\"line of A\"]", "aligned: [true, false, false, true]"),
        ("multiples = [\"line of A\"]", "multiples: &[Extent::LineOfA, ]"),
        ("scales = [\"B\", \"D\"]", "scales: [false, true, true]"),
    ] {
        let kernel = limited(limits).unwrap().remove(0);
        assert!(kernel.limits[0].contains(expected), "{limits}: no '{expected}' in {}", kernel.limits[0]);
    }
    for (limits, expected) in [
        ("extents = \"int/0\"", "a limit is \"int/0\""),
        ("k = \"long\"", "a limit is \"long\""),
        ("aligned = [\"E\"]", "field `aligned`: unknown 'E'"),
        ("multiples = [\"M\"]", "field `multiples`: unknown 'M'"),
        ("scales = [\"C\"]", "field `scales`: unknown 'C'"),
        ("rows = 5", "unknown field `rows`"),
        ("tiles = { most = 7, sides = \"tile\" }", "missing field `of`"),
    ] {
        let error = limited(limits).expect_err(limits);
        assert!(error.message.contains(expected), "{limits}: '{}' does not say '{expected}'", error.message);
    }
}

#[test]
fn limits_of_a_row_take_the_place_of_the_familys() {
    let limited = |row_limits: &str| {
        let head = MADE_UP.to_string() + "[limits]\nextents = \"int\"\nmatrices = 7\n";
        table::parse("made_up", &(head + &row(&[F32_ROW, ("limits", row_limits)])))
    };
    let kernel = limited("{ rows_of_tile = true, matrices = 9 }").unwrap().remove(0);
    let [rust, _] = &kernel.limits;
    assert!(rust.contains("rows: 128, columns: 2147483647, k: 2147483647, matrices: 9,"), "{rust}");
    let error = limited("{ rows = 5 }").expect_err("rows");
    assert!(error.message.contains("unknown field `rows`"), "{error}");
}

#[test]
fn a_folder_with_a_table_is_a_family() {
    let folder = std::env::temp_dir().join(format!("tilegemm-table-{}", std::process::id()));
    for name in ["b", "a", "common"] {
        std::fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in ["a", "b"] {
        std::fs::write(folder.join(name).join("family.toml"), MADE_UP.to_string() + &row(&[F32_ROW])).unwrap();
    }
    let families = || table::read(&folder).unwrap().into_iter().map(|kernel| kernel.family).collect::<Vec<_>>();
    assert_eq!(families(), ["a", "b"], "in the order of their names");
    std::fs::remove_file(folder.join("b/family.toml")).unwrap();
    assert_eq!(families(), ["a"]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_split_of_k_is_in_the_name() {
    let fields = [("tile", "[136, 128, 64]"), ("split", "2"), ("widths", "[72, 136]"), ("schedule", "")];
    let kernel = parse("sm90_wave", &fields).unwrap().remove(0);
    assert_eq!(kernel.name, "sm90_wave_bf16_nt_136x128x64_2x1_s2");
    assert!(kernel.cpp().ends_with(", 2, 0, 0, 2, none, 72, 136)\n"), "{}", kernel.cpp());
    assert!(kernel.rust(0, true, "ROOM").contains("widths: &[72, 136], split: 2,"), "{}", kernel.rust(0, true, "ROOM"));
    assert!(parse(FAMILY, &[]).unwrap()[0].cpp().ends_with(", cooperative, )\n"));
}

#[test]
fn how_f32_is_multiplied_is_in_the_name() {
    let made_up = |family: &str, changes: &[_]| {
        table::parse(family, &(MADE_UP.to_string() + &row(&[&[F32_ROW], changes].concat()))).unwrap().remove(0)
    };
    let kernel = made_up("sm90_made_up", &[("math", r#""bf16x6""#)]);
    assert_eq!(kernel.name, "sm90_made_up_f32_bf16x6_nt_128x256x64_2x1_cooperative");
    assert!(kernel.cpp().contains(", 90, TG_F32, TG_F32, TG_F32, TG_BF16X6, TG_NT, "), "{}", kernel.cpp());
    assert!(
        kernel
            .rust(0, true, "ROOM")
            .contains("types: Types::new(Format::F32, Format::F32), math: Math::Bf16x6, layout"),
        "{}",
        kernel.rust(0, true, "ROOM")
    );
    for (family, math, tile, cluster, name) in [
        ("sm90_bf16x6", "bf16x6", "[128, 64, 32]", "[2, 1]", "sm90_bf16x6_f32_nt_128x64x32_2x1"),
        ("sm90_bf16x6_direct", "bf16x6", "[64, 64, 32]", "[1, 1]", "sm90_bf16x6_direct_f32_nt_64x64x32_1x1"),
        ("sm90_tf32", "tf32", "[256, 128, 32]", "[1, 2]", "sm90_tf32_f32_nt_256x128x32_1x2"),
    ] {
        let math = format!("{math:?}");
        let row = [("math", &*math), ("tile", tile), ("cluster", cluster), F32_ROW, ("schedule", "")];
        let kernel = parse(family, &row).unwrap().remove(0);
        assert_eq!(kernel.name, name);
    }
    let plain = made_up("made_up", &[]);
    assert_eq!(plain.name, "made_up_sm90a_f32_nt_128x256x64_2x1_cooperative");
    assert_eq!((plain.math.as_str(), plain.name.contains("native")), ("native", false));
}

#[test]
fn an_error_names_the_line_of_its_own_row() {
    let second_row = format!("{}{}\n{}", head(FAMILY), row(&[]), row(&[("dtype", r#"["int8"]"#)]));
    let error = table::parse(FAMILY, &second_row).unwrap_err();
    assert_eq!(second_row.lines().nth(error.line - 1), Some("[[kernel]]"));
    assert_eq!(error.line, line(FAMILY) + row(&[]).lines().count() + 1);
}

#[test]
fn two_kernels_of_one_name_are_refused() {
    let twice = format!("{}{}\n{}", head(FAMILY), row(&[]), row(&[("why", r#""something else""#)]));
    let error = table::parse(FAMILY, &twice).unwrap_err();
    assert_eq!(error.line, line(FAMILY) + row(&[]).lines().count() + 1);
    assert!(error.message.contains("sm90_gemm_bf16_nt_128x256x64_2x1_cooperative"), "{error}");
    let first = format!("is already the name of a kernel of line {}", line(FAMILY));
    assert!(error.message.ends_with(&first), "{error}");
}

#[test]
fn toml_syntax_errors_carry_their_line() {
    for (text, line) in [("[[kernel]]\nfast = true\narch = [\n", 3..=4), ("\n\nkernel = 1\n", 3..=3)] {
        let error = table::parse(FAMILY, text).unwrap_err();
        assert!(line.contains(&error.line), "{text:?}: line {} of: {}", error.line, error.message);
        assert!(!error.message.is_empty());
    }
}

#[test]
fn the_real_table_is_what_the_crate_plans_over() {
    let rows = table::read(csrc()).unwrap();
    let parsed: Vec<&str> = rows.iter().map(|kernel| kernel.name.as_str()).collect();
    let planned: Vec<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
    assert_eq!(parsed, planned);
    assert_eq!(planned.iter().collect::<HashSet<_>>().len(), planned.len(), "names are unique");
    for (row, kernel) in rows.iter().zip(KERNELS) {
        assert_eq!((row.tile, row.cluster, row.align), (kernel.tile, kernel.cluster, kernel.align), "{kernel}");
        assert_eq!((row.split, row.stages, row.warps), (kernel.split, kernel.stages, kernel.warps), "{kernel}");
        assert_eq!(row.widths, kernel.widths, "{kernel}");
        assert_eq!(
            (row.dtype.as_str(), row.layout.as_str()),
            (kernel.types.a.name(), kernel.layout.name()),
            "{kernel}"
        );
        assert_eq!(row.math, kernel.math.to_string(), "{kernel}");
        assert_eq!((row.schedule.as_str(), row.why.as_str()), (kernel.schedule, kernel.why), "{kernel}");
    }
}

#[test]
fn a_kernel_is_found_by_its_name_and_knows_its_place() {
    for (index, kernel) in KERNELS.iter().enumerate() {
        assert_eq!(family::by_name(kernel.name), Some(kernel));
        assert_eq!(kernel.index, index);
    }
    assert_eq!(family::by_name("sm90_gemm"), None);
}
