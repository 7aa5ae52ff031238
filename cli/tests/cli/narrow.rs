//! `tilegemm explain` for narrow weights.

use crate::command::{stdout, tilegemm};
use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::kernel::Role;
use candle_tilegemm::{Format, Problem};
use std::collections::HashSet;
use tilegemm::lists::narrow;

#[test]
fn explain_takes_narrow_weights_with_the_factors_that_checkpoints_have() {
    for (line, asked) in [
        ("--b u4 --group 128", "bf16 x u4 g128 -> bf16"),
        ("--b U4 --group 64 --zeros --dtype f16", "f16 x u4 g64 with zeros -> f16"),
        ("--b u8 --group 128 --dtype f32", "f32 x u8 g128 f16 -> f32"),
        ("--b i8", "bf16 x i8 row -> bf16"),
        ("--b f8e4m3", "bf16 x f8e4m3 tensor -> bf16"),
        ("--b f8e4m3 --scale 128x128", "bf16 x f8e4m3 128x128 -> bf16"),
        ("--b f8e4m3 --scale row --out f32", "bf16 x f8e4m3 row -> f32"),
        ("--b f4e2m1", "bf16 x f4e2m1 g32 f8e8m0 -> bf16"),
        ("--b f4e2m1 --group 16", "bf16 x f4e2m1 g16 f8e4m3 -> bf16"),
    ] {
        let args: Vec<&str> = "explain 16 14336 4096".split(' ').chain(line.split(' ')).collect();
        let text = stdout(&args);
        let head = format!("16x14336x4096 nt {asked} on NVIDIA H100 80GB HBM3");
        assert!(text.starts_with(&head), "{line}: no '{head}' in\n{text}");
        assert!(text.contains("\n-> "), "{line}: {text}");
        assert!(text.contains("these multiply by no quantised weights"), "{line}: {text}");
        assert!(text.contains("these take other weights or activations"), "{line}: {text}");
    }
    for (line, asked, kernel) in [
        (
            "--dtype f8e4m3 --b f8e4m3 --out bf16",
            "f8e4m3 tensor x f8e4m3 tensor -> bf16",
            "sm90_fp8_few_rows_f8e4m3_bf16_nt",
        ),
        (
            "--dtype f8e4m3 --b f8e4m3 --scale 128x128 --out f32",
            "f8e4m3 g128 x f8e4m3 128x128 -> f32",
            "sm90_fp8_few_rows_f8e4m3_f32_nt",
        ),
        (
            "--dtype f8e4m3 --b f8e4m3 --scale row --out bf16 --fast-accumulation",
            "f8e4m3 row x f8e4m3 row -> bf16 fast accumulation",
            "sm90_fp8_few_rows_f8e4m3_bf16_",
        ),
        ("--dtype i8 --b i8 --out bf16", "i8 row x i8 row -> bf16", "sm90_fp8_few_rows_i8_bf16_nt"),
    ] {
        let text = stdout(&"explain 16 14336 4096".split(' ').chain(line.split(' ')).collect::<Vec<_>>());
        assert!(text.starts_with(&format!("16x14336x4096 nt {asked} on NVIDIA H100")), "{line}: {text}");
        assert!(text.contains(&format!("\n-> {kernel}")), "{line}: {text}");
    }
    let experts = stdout(&"explain 64 2880 2880 --b f4e2m1 --experts 32 --top-k 4".split(' ').collect::<Vec<_>>());
    assert!(experts.starts_with("256x2880x2880 nt bf16 x f4e2m1 g32 f8e8m0 -> bf16 in 32 groups"), "{experts}");
}

#[test]
fn factors_that_make_no_sense_are_refused() {
    for (line, expected) in [
        ("--b f8e4m3 --scale 128", "expected tensor, row, a group such as g128, or a block such as 128x128"),
        ("--b f8e4m3 --scale 0x128", "expected tensor, row, a group such as g128, or a block such as 128x128"),
        ("--b u4 --group 0", "0 is not in 1.."),
        ("--b u4 --group 128 --scale row", "cannot be used with"),
        ("--b f8e4m3 --zeros", "--zeros: f8e4m3 has none; u4 and u8 have"),
        ("--b q4k --group 32", "only narrow weights have factors beside them, such as --b u4"),
        ("--group 32", "only narrow weights have factors beside them, such as --b u4"),
        ("--b u4 --layout nn", "--b: blocks and codes lie along K, so that the layout is nt"),
        ("--b i4", "possible values: q4_0"),
        ("--b u4 --fast-accumulation", "--fast-accumulation is about operands in f8e4m3, both of them"),
    ] {
        let args: Vec<&str> = "explain 16 256 256".split(' ').chain(line.split(' ')).collect();
        let outcome = tilegemm(&args);
        assert_eq!(outcome.code, 2, "{line}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{line}: no '{expected}' in: {}", outcome.stderr);
    }
}

/// Every product of the classes has a kernel for narrow operands, or with very many rows a dense one on copies of the weights.
#[test]
fn products_of_models_have_kernels_for_them() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for (class, rows) in [("fp8", narrow::fp8()), ("w4a16", narrow::w4a16()), ("mxfp4", narrow::mxfp4())] {
        assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<HashSet<_>>().len(), rows.len());
        for row in &rows {
            assert_eq!(row.class, class);
            let plan = dispatcher.plan(&row.problem(), Policy::own()).unwrap_or_else(|e| panic!("{}: {e}", row.id));
            let is_narrow = plan.kernel.family.contains("narrow") || plan.kernel.family.contains("fp8");
            let is_copied = plan.packing.is_some() && row.m.get() > 256 && row.b.is_some();
            assert!(is_narrow || is_copied, "{}: {}", row.id, plan.name());
        }
        let listed = stdout(&["suite", "--class", class, "--only", "llama3-8b-qkv"]);
        assert!(listed.contains("llama3-8b-qkv"), "{listed}");
    }
}

/// Every product of the classes for experts has a kernel for narrow operands, a factor of its own for each expert's weights, and a kernel of ours in bf16 to compare with.
#[test]
fn products_of_experts_have_kernels_for_them() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100());
    for (class, rows, models) in [
        ("fp8-experts", narrow::fp8_experts(), &["qwen3-30b"][..]),
        ("w4a16-experts", narrow::w4a16_experts(), &["qwen3-30b", "mixtral-8x7b"]),
        ("mxfp4-experts", narrow::mxfp4_experts(), &["gpt-oss"]),
    ] {
        assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<HashSet<_>>().len(), rows.len());
        let mut tokens = HashSet::new();
        for row in &rows {
            assert_eq!(row.class, class);
            assert!(models.iter().any(|model| row.id.starts_with(model)), "{}", row.id);
            let problem = row.problem();
            let (groups, scale) = (problem.groups.expect("groups"), problem.b.scale.expect("factors"));
            tokens.insert(row.groups.expect("groups").tokens(problem.m));
            assert!(scale.batch_stride[1] > 0 && problem.b.batch_stride[1] > 0, "{}", row.id);
            let plan = |problem: &Problem| {
                dispatcher.plan(problem, Policy::own()).unwrap_or_else(|error| panic!("{}: {error}", row.id))
            };
            let family = plan(&problem).kernel.family;
            assert!(["narrow_grouped", "fp8_grouped"].iter().any(|name| family.contains(name)), "{}: {family}", row.id);
            let in_bf16 = Problem::grouped([problem.m, problem.n, problem.k], groups, Format::BF16);
            let in_bf16 = plan(&in_bf16.with(|dense| dense.d.format = problem.d.format));
            assert!(in_bf16.kernel.role == Role::Kernel, "{}: {}", row.id, in_bf16.name());
        }
        assert_eq!(tokens, HashSet::from([1, 8, 64, 256, 1024, 4096]));
        assert!(stdout(&["suite", "--class", class]).contains(&format!("{}-gate_up-t256-uniform", models[0])));
    }
}
