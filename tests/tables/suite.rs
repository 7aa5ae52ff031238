//! The format of benchmark suites, and what a trace writes in it.

use candle_tilegemm::family::KERNELS;
use candle_tilegemm::internal::suite::{self, Shape, ShapeEpilogue, Size};
use candle_tilegemm::internal::trace::{class_of, Recorded, Tracer, LEFT_OUT};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Operand};
use candle_tilegemm::{Activation, F32Mode, Format, Layout, Problem};
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::HashSet;
use std::path::PathBuf;

const COMMITTED: &str = include_str!("../../benches/suite.toml");

/// One row; eight lines.
const ROW: &str = r#"[[shape]]
id = "x"
class = "c"
m = 2
n = 4
k = 8
layout = "nt"
dtype = "bf16"
"#;

fn parse(text: &str) -> Vec<Shape> {
    suite::parse("suite.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// A row that is asked for by the problem of another one, with what a problem does not know.
fn of_problem(row: &Shape) -> Option<Shape> {
    let shape = Shape::of(&row.problem(), row.id.clone(), row.class.clone())?;
    Some(Shape { from: row.from.clone(), ..shape })
}

#[test]
fn the_committed_suite_is_one() {
    let rows = parse(COMMITTED);
    assert!(rows.len() >= 124, "{} rows", rows.len());
    let ids: HashSet<&str> = rows.iter().map(|row| row.id.as_str()).collect();
    assert_eq!(ids.len(), rows.len());
    assert_eq!(parse(&suite::to_toml(&rows)), rows);
    for row in &rows {
        let again = of_problem(row).unwrap_or_else(|| panic!("{} has no row", row.problem()));
        assert_eq!(again.problem().canonical_strides(), row.problem().canonical_strides(), "{}", row.id);
        // With K = 1 both layouts of an operand are the same.
        if row.k.get() > 1 {
            assert_eq!(&again, row);
        }
    }
}

/// A trace's classes are those of the suite, so that both are summed up alike.
#[test]
fn classes_of_a_trace_are_those_of_the_suite() {
    let rows = parse(COMMITTED);
    let problem = |m, batch, dtype| Problem::dense(m, 4096, 1024, batch, Layout::NT, dtype);
    let mut broadcast = problem(64, 8, Format::F16);
    broadcast.b.batch_stride = [0, 0];
    let cases = [
        (problem(1, 1, Format::BF16), "decode"),
        (problem(4, 1, Format::F16), "decode"),
        (problem(5, 1, Format::BF16), "small"),
        (problem(64, 1, Format::BF16), "small"),
        (problem(65, 1, Format::BF16), "mid"),
        (problem(256, 1, Format::BF16), "mid"),
        (problem(257, 1, Format::BF16), "prefill"),
        (problem(1, 32, Format::F32), "attention"),
        (problem(1, 1, Format::F32), "f32"),
        (problem(1, 1, Format::F64), "f64"),
        (broadcast, "broadcast"),
    ];
    for (problem, class) in cases {
        assert_eq!(class_of(&problem), class, "{problem}");
        assert!(rows.iter().any(|row| row.class == class), "the suite has no class {class}");
    }
    for row in rows.iter().filter(|row| ["decode", "small", "mid", "f64", "broadcast"].contains(&row.class.as_str())) {
        assert_eq!(class_of(&row.problem()), row.class, "{}", row.id);
    }
}

#[test]
fn a_row_says_what_is_computed() {
    let row = &parse(&format!(
        "{ROW}batch = 3\na_batch_stride = 100\nb_batch_stride = 0\nsource = \"a model\"\n\
         epilogue = {{ alpha = 0.5, beta = 2, bias = true, activation = \"gelu_erf\" }}\n"
    ))[0];
    let mut expected = Problem::dense(2, 4, 8, 3, Layout::NT, Format::BF16);
    (expected.a.batch_stride, expected.b.batch_stride) = ([0, 100], [0, 0]);
    expected.epilogue = Epilogue::new(0.5, 2.0);
    expected.epilogue.bias = Some(BiasAxis::N);
    expected.epilogue.activation = Activation::GeluErf;
    expected.epilogue.c = Some(expected.d);
    assert_eq!(row.problem(), expected);
    assert_eq!((row.from.as_deref(), of_problem(row).as_ref()), (Some("a model"), Some(row)));
}

/// Narrow weights with the factors of checkpoints or with those that are asked for, beside activations of 16 or of 8 bits.
#[test]
fn a_row_may_have_narrow_weights() {
    let of = |fields: &str| ROW.replace("k = 8", "k = 256").replace("dtype = \"bf16\"\n", "") + fields + "\n";
    for (fields, product) in [
        ("dtype = \"bf16\"\nb = \"u4\"", "2x4x256 nt bf16 x u4 row -> bf16"),
        ("dtype = \"f16\"\nb = \"u4\"\nscale = \"g128\"\nzeros = true", "2x4x256 nt f16 x u4 g128 with zeros -> f16"),
        ("dtype = \"bf16\"\nb = \"f4e2m1\"\nout = \"f32\"", "2x4x256 nt bf16 x f4e2m1 g32 f8e8m0 -> f32"),
        ("dtype = \"bf16\"\nb = \"f8e4m3\"\nscale = \"128x128\"", "2x4x256 nt bf16 x f8e4m3 128x128 -> bf16"),
    ] {
        let rows = parse(&of(fields));
        assert_eq!(rows[0].problem().to_string(), product);
        assert_eq!(parse(&suite::to_toml(&rows)), rows);
    }
    let of_8_bits = "dtype = \"f8e4m3\"\nscale = \"128x128\"\nout = \"bf16\"";
    let problem = parse(&of(of_8_bits))[0].problem();
    assert_eq!(
        problem.a.scale.map(|scale| (scale.granularity, scale.row_stride, scale.col_stride)),
        Some(([1, 128], 1, 2))
    );
    assert!(
        !problem.fast_accumulation && parse(&of(&format!("{of_8_bits}\nfast = true")))[0].problem().fast_accumulation
    );
    for (fields, error) in [
        ("dtype = \"bf16\"\nscale = \"row\"", "field scale: only narrow weights have that"),
        ("dtype = \"bf16\"\nb = \"u4\"\nscale = \"g0\"", "'g0' names no factors"),
        ("dtype = \"bf16\"\nb = \"i8\"\nzeros = true", "field zeros: only u4 and u8 have zeros"),
        ("dtype = \"bf16\"\nb = \"i8\"\nb_stride = 300", "no strides and no offset of B beside narrow weights"),
        ("dtype = \"f8e4m3\"", "field dtype: expected out beside activations in 8 bits"),
        ("dtype = \"f8e4m3\"\nb = \"u4\"\nout = \"bf16\"", "field b: expected none beside activations in 8 bits"),
        ("dtype = \"i8\"\nfast = true\nout = \"f32\"", "field fast: expected dtype = \"f8e4m3\""),
    ] {
        let refused = suite::parse("suite.toml", &of(fields)).unwrap_err().to_string();
        assert!(refused.contains(error), "{fields}: {refused}");
    }
    let short = suite::parse("suite.toml", &of("dtype = \"bf16\"\nb = \"u4\"").replace("k = 256", "k = 40"))
        .unwrap_err()
        .to_string();
    assert!(short.contains("field k: expected a multiple of 32 beside u4"), "{short}");
}

/// Views into larger tensors: padded lines, odd addresses, and a mode of the row's own.
#[test]
fn a_row_may_be_padded_at_odd_addresses_and_have_a_mode() {
    let fields = "batch = 3\na_stride = 9\nb_stride = 11\na_offset = 1\nb_offset = 2\nd_offset = 3";
    let row = &parse(&format!("{ROW}{fields}\n"))[0];
    let mut expected = Problem::dense(2, 4, 8, 3, Layout::NT, Format::BF16);
    (expected.a.row_stride, expected.a.batch_stride, expected.a.pointer_align) = (9, [0, 18], 2);
    (expected.b.col_stride, expected.b.batch_stride, expected.b.pointer_align) = (11, [0, 44], 4);
    expected.d.pointer_align = 2;
    assert_eq!(row.problem(), expected);
    assert_eq!(&parse(&suite::to_toml(std::slice::from_ref(row)))[0], row);

    // Where columns of A and rows of B are contiguous, these are the lines.
    let text = ROW.replace("\"nt\"", "\"tn\"").replace("bf16", "f32") + "a_stride = 3\nb_stride = 5\nf32 = \"tf32\"\n";
    let row = &parse(&text)[0];
    let mut expected = Problem::dense(2, 4, 8, 1, Layout::TN, Format::F32);
    (expected.a.col_stride, expected.b.row_stride, expected.f32_mode) = (3, 5, F32Mode::Tf32);
    assert_eq!(row.problem(), expected);
    let run = |row: &Shape| row.problem_in(F32Mode::Strict).f32_mode;
    assert_eq!([run(row), run(&Shape { f32: None, ..row.clone() })], [F32Mode::Tf32, F32Mode::Strict]);
}

#[test]
fn what_is_wrong_is_said_with_its_line_its_field_and_what_was_expected() {
    let with = |old: &str, new: &str| ROW.replace(old, new);
    let and = |more: &str| format!("{ROW}{more}\n");
    let cases = [
        (and("mm = 3"), ["line 9", "`mm`", "`m`, `n`, `k`"]),
        (with("m = 2", "m = 0"), ["line 4", "m = 0", "expected 1 to 2147483647, a whole number"]),
        (with("m = 2", "m = -1"), ["line 4", "m = -1", "expected 1 to 2147483647, a whole number"]),
        (with("k = 8", "k = 2147483648"), ["line 6", "k = 2147483648", "expected 1 to 2147483647, a whole number"]),
        (with("m = 2", "m = \"x\""), ["line 4", "m = \"x\"", "expected 1 to 2147483647, a whole number"]),
        (with("m = 2", "m = 1.5"), ["line 4", "m = 1.5", "expected 1 to 2147483647, a whole number"]),
        (and("batch = 0"), ["line 9", "batch = 0", "expected 1 to 2147483647, a whole number"]),
        (with("\"nt\"", "\"xx\""), ["line 7", "unknown layout 'xx'", "expected nn, nt, tn or tt"]),
        (with("\"nt\"", "\"any\""), ["line 7", "unknown layout 'any'", "expected nn, nt, tn or tt"]),
        (with("dtype = \"bf16\"\n", ""), ["line 1", "missing field", "`dtype`"]),
        (with("bf16", "int8"), ["line 8", "dtype = \"int8\"", "f16, bf16, f32 or f64"]),
        (format!("{ROW}\n{ROW}"), ["line 11", "field id", "the id of line 2 too; expected a unique one"]),
        (and("epilogue = { activation = \"elu\" }"), ["line 9", "`elu`", "`gelu_erf`"]),
        (and("epilogue = { gamma = 1.0 }"), ["line 9", "`gamma`", "`alpha`, `beta`, `bias`, `activation`"]),
        (
            and("batch = 3\na_batch_stride = -1"),
            ["line 10", "a_batch_stride", "expected 0 to 4294967295, a whole number"],
        ),
        (and("batch = 3\na_batch_stride = 15"), ["line 10", "field a_batch_stride", "expected 0, or 16 and more"]),
        (and("batch = 3\nb_batch_stride = 1"), ["line 10", "field b_batch_stride", "expected 0, or 32 and more"]),
        (and("b_batch_stride = 0"), ["line 9", "field b_batch_stride", "expected no stride, or a batch"]),
        (and("a_stride = 7"), ["line 9", "field a_stride", "expected 8 and more"]),
        (and("b_offset = -1"), ["line 9", "b_offset", "expected 0 to 4294967295, a whole number"]),
        (and("batch = 3\nb_stride = 9\nb_batch_stride = 34"), ["line 11", "field b_batch_stride", "0, or 35 and more"]),
        (and("f32 = \"tf32\""), ["line 9", "field f32", "expected no mode"]),
        (and("f32 = \"fast\""), ["line 9", "`fast`", "`tf32`"]),
        (with("m = 2", "m = 2\nm = 3"), ["line 5", "m = 3", "duplicate key"]),
        ("[[shapes]]\n".into(), ["line 1", "`shapes`", "expected `shape`"]),
        ("a suite\n".into(), ["line 1", "a suite", "expected"]),
        ("# nothing\n".into(), ["suite.toml", "expected at least one", "[[shape]]"]),
    ];
    for (text, expected) in cases {
        let error = suite::parse("suite.toml", &text).unwrap_err().to_string();
        assert!(error.starts_with("suite.toml: "), "{error}");
        for words in expected {
            assert!(error.contains(words), "no '{words}' in: {error}\nfor\n{text}");
        }
    }
}

#[test]
fn a_problem_that_has_no_words_in_the_format_has_no_row() {
    let dense = Problem::dense(8, 16, 32, 6, Layout::NT, Format::F32);
    let single = Problem::dense(8, 16, 32, 1, Layout::NT, Format::F32);
    let mut along_m = single;
    along_m.epilogue.bias = Some(BiasAxis::M);
    let mut exchanged = dense;
    exchanged.batch = [2, 3];
    exchanged.a.batch_stride = [256, 512];
    let mut overlapping = dense;
    overlapping.a.batch_stride = [0, 32];
    let mut reversed = dense;
    reversed.b.batch_stride = [0, -512];
    let cases = [
        ("padding", single.with(|p| p.a = single.a.with(|o| o.row_stride = 40))),
        (
            "no contiguous dimension",
            single.with(|p| {
                p.b = single.b.with(|o| {
                    o.row_stride = 2;
                    o.col_stride = 64;
                })
            }),
        ),
        ("a column-major result", single.with(|p| p.d = Operand::col_major(p.d.format, 8, [0, 0]))),
        ("two batch dimensions", exchanged),
        ("overlapping matrices", overlapping),
        ("a batch that runs backwards", reversed),
        ("a bias along M", along_m),
        ("no rows", single.with(|p| p.m = 0)),
    ];
    for problem in [dense, single, single.with(|p| p.f32_mode = F32Mode::Tf32)] {
        assert!(Shape::of(&problem, "x".into(), "c".into()).is_some(), "{problem}");
    }
    for (what, problem) in cases {
        assert_eq!(Shape::of(&problem, "x".into(), "c".into()), None, "{what}");
    }
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![1..=4usize, 1..=70_000usize, Just(i32::MAX as usize)]
}

prop_compose! {
    fn row()(
        id in "[ -~]{0,12}",
        class in "\\PC{0,6}",
        [m, n, k] in [size(), size(), size()],
        batch in prop_oneof![Just(1usize), 2..=5000usize],
        layout in select(vec![Layout::NN, Layout::NT, Layout::TN, Layout::TT]),
        dtype in select(vec![Format::F16, Format::BF16, Format::F32, Format::F64]),
        wide in any::<bool>(),
        // Broadcast, dense, or further apart than dense.
        [a, b] in prop::array::uniform2(select(vec![Some(0), None, Some(1), Some(1000)])),
        (alpha, beta) in (-1e3..1e3f64, prop_oneof![Just(0.0), -2.0..2.0f64]),
        bias in any::<bool>(),
        activation in select(Activation::ALL.to_vec()),
        plain in any::<bool>(),
        from in prop::option::of("\\PC{0,9}"),
    ) -> Shape {
        let out = (wide && dtype.bytes(1) == 2).then_some(Format::F32);
        let size = |size: usize| Size::try_from(size).unwrap();
        let stride = |more: Option<usize>, matrix: usize| match more? {
            _ if batch == 1 => None,
            0 => Some(0),
            more => u32::try_from(matrix + more).ok(),
        };
        let epilogue = (!plain).then_some(ShapeEpilogue { alpha, beta, bias, activation });
        let (a_batch_stride, b_batch_stride) = (stride(a, m * k), stride(b, n * k));
        let (m, n, k, batch) = (size(m), size(n), size(k), size(batch));
        let (a_stride, b_stride, a_offset, b_offset, d_offset, f32) = (None, None, None, None, None, None);
        Shape {
            id, class, m, n, k, batch, layout, dtype, b: None, scale: None, zeros: false, fast: false, out, a_batch_stride, b_batch_stride, a_stride, b_stride, a_offset,
            b_offset, d_offset, f32, epilogue, groups: None, from,
        }
    }
}

proptest! {
    /// Text and back gives the row; a problem and back gives one that asks for the same.
    #[test]
    fn rows_survive_text_and_problems(row in row()) {
        prop_assert_eq!(&parse(&suite::to_toml(std::slice::from_ref(&row)))[0], &row);
        let again = of_problem(&row).expect("every row is a problem that has a row");
        prop_assert_eq!(again.problem().canonical_strides(), row.problem().canonical_strides());
        if row.m.get().min(row.n.get()).min(row.k.get()) > 1 {
            let epilogue = row.epilogue.filter(|epilogue| *epilogue != ShapeEpilogue::default());
            prop_assert_eq!(again, Shape { epilogue, ..row });
        }
    }
}

/// A folder of its own for each test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tilegemm-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("trace.toml")
    }

    fn text(&self) -> String {
        std::fs::read_to_string(self.file()).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn id(recorded: Option<Recorded>) -> Option<String> {
    recorded.expect("a product that was not seen before").id
}

#[test]
fn a_trace_has_a_row_for_each_distinct_product() {
    let folder = Folder::new("rows");
    std::fs::write(folder.file(), "what was there before").unwrap();
    let mut tracer = Tracer::new(folder.file());
    assert_eq!(folder.text(), "what was there before", "nothing is written before the first product");

    let linear = Problem::dense(1, 4096, 1024, 1, Layout::NT, Format::BF16);
    let mut attention = Problem::dense(64, 64, 128, 32, Layout::NN, Format::F32);
    let first = tracer.record(&linear).unwrap();
    assert_eq!(first.id.as_deref(), Some("trace-1x4096x1024-nt-bf16"));
    assert_eq!(first.notes.len(), 1);
    assert!(first.notes[0].contains(&folder.file().display().to_string()), "{:?}", first.notes);

    // The same at another address, and with a stride that means nothing.
    let elsewhere = linear.with(|p| {
        p.a = linear.a.with(|o| {
            o.pointer_align = 2;
            o.row_stride = 7777;
        })
    });
    assert_eq!(tracer.record(&elsewhere), None);
    let second = tracer.record(&attention).unwrap();
    assert_eq!((second.id.as_deref(), second.notes), (Some("trace-64x64x128-nn-f32-b32"), vec![]));

    // The same sizes with other strides, and another epilogue.
    attention.b.batch_stride = [0, 0];
    assert_eq!(id(tracer.record(&attention)).unwrap(), "trace-64x64x128-nn-f32-b32-2");
    attention.epilogue = Epilogue::new(0.125, 0.0);
    assert_eq!(id(tracer.record(&attention)).unwrap(), "trace-64x64x128-nn-f32-b32-3");
    assert_eq!(tracer.record(&attention), None);

    let text = folder.text();
    assert!(text.starts_with("# ") && text.contains("TILEGEMM=trace") && !text.contains("before"), "{text}");
    let rows = parse(&text);
    assert_eq!(
        rows.iter().map(|row| row.class.as_str()).collect::<Vec<_>>(),
        ["decode", "attention", "broadcast", "broadcast"]
    );
    assert_eq!((rows[0].problem(), rows[3].problem()), (linear, attention));
    let program = std::env::current_exe().unwrap();
    assert!(rows.iter().all(|row| row.from.as_deref() == program.file_stem().unwrap().to_str()), "{text}");
    assert_eq!(tracer.left_out(), 0);
}

#[test]
fn a_trace_says_what_it_leaves_out() {
    let folder = Folder::new("left-out");
    let mut tracer = Tracer::new(folder.file());
    let mut padded = Problem::dense(8, 16, 32, 1, Layout::NT, Format::BF16);
    padded.a.row_stride = 40;
    let first = tracer.record(&padded).unwrap();
    assert_eq!((first.id, first.notes.len()), (None, 2));
    assert!(first.notes[1].contains("cannot express"), "{:?}", first.notes);
    assert_eq!(tracer.record(&padded), None);
    padded.a.row_stride = 48;
    assert_eq!(tracer.record(&padded), Some(Recorded { id: None, notes: vec![] }), "said once");
    assert!(tracer.leave_out("8x8x8: two\nlines".into()).is_some());
    assert_eq!(tracer.leave_out("8x8x8: two\nlines".into()), None);
    assert_eq!(
        id(tracer.record(&Problem::dense(8, 16, 32, 1, Layout::NT, Format::BF16))).unwrap(),
        "trace-8x16x32-nt-bf16"
    );
    assert_eq!(tracer.left_out(), 3);

    let text = folder.text();
    assert_eq!(parse(&text).len(), 1);
    let comments: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(LEFT_OUT)).collect();
    assert_eq!(comments.len(), 3, "{text}");
    assert!(comments[0].contains("8x16x32 nt bf16") && comments[0].contains("[0, 0, 40, 1]"), "{text}");
}

#[test]
fn a_trace_that_cannot_be_written_says_so_once() {
    let folder = Folder::new("unwritable");
    let mut tracer = Tracer::new(folder.0.join("no-such-folder/trace.toml"));
    let linear = |m| Problem::dense(m, 4096, 1024, 1, Layout::NT, Format::BF16);
    let first = tracer.record(&linear(1)).unwrap();
    let notes = first.notes.join("\n");
    assert_eq!(first.id, None);
    assert!(notes.contains("cannot write") && notes.contains("TILEGEMM_TRACE"), "{notes}");
    assert_eq!(tracer.record(&linear(2)), Some(Recorded { id: None, notes: vec![] }));
    assert_eq!(tracer.record(&linear(2)), None);
}

/// Every kernel of ours in the records of benches/record is in the table: `tilegemm fit` leaves out what it does not know.
#[test]
fn records_name_kernels_of_the_table() {
    fn names(value: &serde_json::Value, found: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                found.extend(fields.get("kernel").and_then(|kernel| kernel.as_str()).map(String::from));
                fields.values().for_each(|value| names(value, found));
            }
            serde_json::Value::Array(values) => values.iter().for_each(|value| names(value, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for card in ["h100", "h200"] {
        for entry in std::fs::read_dir(format!("{}/benches/record/{card}", env!("CARGO_MANIFEST_DIR"))).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "json") {
                names(&serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap(), &mut found);
            }
        }
    }
    let table: HashSet<&str> = KERNELS.iter().map(|kernel| kernel.name).collect();
    let families: HashSet<String> = KERNELS.iter().map(|kernel| format!("{}_", kernel.family)).collect();
    let is_ours =
        |name: &&String| name.starts_with("sm90_") || families.iter().any(|family| name.starts_with(family.as_str()));
    let ours: Vec<&str> = found.iter().filter(is_ours).map(|name| name.split('+').next().unwrap()).collect();
    assert!(ours.len() > 1000, "{} kernels in all records", ours.len());
    for name in ours {
        assert!(table.contains(name), "a record names {name}");
    }
}
