//! How explanations and rejections read.

use candle_tilegemm::arch::DeviceInfo;
use candle_tilegemm::dispatch::{Dispatcher, Policy};
use candle_tilegemm::family::KERNELS;
use candle_tilegemm::kernel::{KernelDesc, Math, Rejection};
use candle_tilegemm::problem::{BiasAxis, Epilogue, Groups, Operand, Scale, Types};
use candle_tilegemm::{Activation, F32Mode, Format, Layout, Problem};

fn h100() -> Dispatcher {
    Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning()
}

fn bf16(m: usize, n: usize, k: usize) -> Problem {
    Problem::dense(m, n, k, 1, Layout::NT, Format::BF16)
}

/// The lines of an explanation that start with a kernel's name, after the arrow: the kernels that can run it.
fn able(text: &str) -> Vec<&str> {
    let name = |line: &str| line.get(3..).and_then(|rest| rest.split_whitespace().next()).unwrap_or("").to_string();
    text.lines()
        .filter(|line| line.contains(" us ") && KERNELS.iter().any(|kernel| kernel.name == name(line)))
        .collect()
}

#[test]
fn an_explanation_lists_every_kernel_once_and_points_to_the_chosen_one() {
    for (m, n, k) in [(1, 4096, 4096), (4096, 4096, 4096), (17, 4095, 4096), (64, 4096, 0)] {
        for policy in [Policy::default(), Policy::own()] {
            let explanation = h100().explain(&bf16(m, n, k), policy);
            let text = explanation.to_string();
            let able = able(&text);

            let arrows: Vec<&str> = text.lines().filter(|line| line.starts_with("->")).collect();
            assert_eq!(arrows.len(), 1, "{text}");
            assert!(arrows[0].contains(explanation.chosen.unwrap().name), "{text}");

            let estimate = |line: &&str| -> f64 {
                let words: Vec<&str> = line.split_whitespace().collect();
                words[words.iter().position(|word| *word == "us").unwrap() - 1].parse().unwrap()
            };
            assert!(able.iter().map(estimate).is_sorted(), "{text}");

            // Groups of rejected kernels start with their number.
            let rejected = text.lines().skip_while(|line| *line != "cannot run it");
            let count = |line: &str| line.get(..4)?.trim().parse::<usize>().ok();
            assert_eq!(able.len() + rejected.filter_map(count).sum::<usize>(), KERNELS.len(), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        }
    }
}

#[test]
fn an_explanation_says_what_was_done_to_the_problem() {
    let explain = |problem: &Problem, policy| h100().explain(problem, policy).to_string();
    let mut batch = Problem::dense(128, 4096, 1024, 16, Layout::NT, Format::BF16);
    batch.b.batch_stride = [0, 0];
    let mut transposed = bf16(512, 1024, 2048);
    transposed.d = Operand::col_major(transposed.d.format, 512, [0, 0]);
    let forced = "tile_gemm_sm90_bf16_nt_256x256x64_2x1_w8";
    let cases = [
        (explain(&batch, Policy::default()), "one B for the whole batch: run as 2048x4096x1024 nt bf16"),
        (explain(&transposed, Policy::default()), "D is column-major: A and B are swapped"),
        (explain(&bf16(4096, 1, 512), Policy::default()), "D is a column: A and B are swapped"),
        (explain(&bf16(1, 4096, 4096), Policy::own()), "the vendor library is switched off"),
        (explain(&bf16(1, 4095, 4096), Policy::force(forced).unwrap()), "which was asked for by name"),
        (explain(&bf16(0, 4095, 4096), Policy::default()), "there is nothing to compute"),
        (explain(&bf16(1, 4096, 4096), Policy::default()), "1x4096x4096 nt bf16 on NVIDIA H100 80GB HBM3 (132 SMs)"),
    ];
    for (text, expected) in cases {
        assert!(text.contains(expected), "no '{expected}' in\n{text}");
    }
}

#[test]
fn problems_read_as_they_are_asked() {
    let mut epilogue = Epilogue::new(0.5, 2.0);
    epilogue.bias = Some(BiasAxis::N);
    epilogue.activation = Activation::Silu;
    epilogue.c = Some(Operand::row_major(Format::F32, 32, [0, 512]));
    let batch = Problem::dense(16, 32, 8, 4, Layout::TN, Format::F32);
    let cases = [
        (bf16(16, 32, 8), "16x32x8 nt bf16"),
        (batch, "16x32x8 tn f32 batch 4"),
        (batch.with(|p| p.epilogue = epilogue), "16x32x8 tn f32 batch 4 alpha 0.5 + bias Silu + 2 C"),
    ];
    for (problem, expected) in cases {
        assert_eq!(problem.to_string(), expected);
    }
}

#[test]
fn every_rejection_says_what_is_needed() {
    let sm90a = KERNELS.iter().find(|kernel| kernel.arch.exact).unwrap().arch;
    let cases = [
        (Rejection::Arch { built: sm90a, device: 100 }, "built for sm90a, the device has compute capability 10.0"),
        (Rejection::NotBuilt { features: vec!["sm80".into()] }, "not in this build; build with the feature sm80"),
        (
            Rejection::NotBuilt { features: vec!["gguf".into(), "experts".into()] },
            "not in this build; build with the features gguf and experts",
        ),
        (
            Rejection::Types { have: Types::of(Format::F32).into(), need: Types::new(Format::F16, Format::F32).into() },
            "computes in f32, the problem is in f16 -> f32",
        ),
        (Rejection::Scales { operand: "B" }, "takes no scales of B"),
        (
            Rejection::Factors { operand: "B", what: "have zeros; expected none, but of u4 and u8" },
            "the scales of B have zeros; expected none, but of u4 and u8",
        ),
        (Rejection::Groups, "takes one B for all rows, the problem has groups of rows"),
        (
            Rejection::Precision { asked: F32Mode::Strict, offers: Math::Bf16x6 },
            "multiplies f32 as bf16x6, the f32 mode is strict",
        ),
        (
            Rejection::ShortSums { math: Math::Bf16x6, have: 60, least: 64 },
            "K is 60, at least 64 needed to multiply f32 as bf16x6",
        ),
        (
            Rejection::Workspace { need: 3 << 19, have: 0 },
            "needs a workspace of 1.5 MiB, there are 0 MiB (TILEGEMM_WORKSPACE)",
        ),
        (
            Rejection::Workspace { need: 300 << 20, have: 128 << 20 },
            "needs a workspace of 300 MiB, there are 128 MiB (TILEGEMM_WORKSPACE)",
        ),
        (Rejection::Layout { have: Layout::NT, need: Layout::Any }, "reads nt, the operands are any"),
        (Rejection::Alignment { operand: "B", need: 16, have: 2 }, "B is aligned to 2 bytes, 16 needed"),
        (Rejection::RowLength { dimension: "K", have: 1020, multiple: 8 }, "K is 1020, a multiple of 8 needed"),
        (Rejection::NotRowMajor { operand: "C" }, "C is not row-major"),
        (Rejection::Overlap { operand: "A" }, "rows of A overlap (a stride is smaller than the row)"),
        (Rejection::Epilogue { what: "a bias" }, "does not fuse a bias"),
        (Rejection::Batch, "takes one batch dimension, the operands need two"),
        (Rejection::EmptyK, "K is 0"),
        (Rejection::Sum { have: 64 }, "takes a K of 1, the problem has 64"),
        (Rejection::VendorOff, "the vendor library is switched off"),
    ];
    for (rejection, text) in cases {
        assert_eq!(rejection.to_string(), text);
    }
}

/// Without the feature `cuda` nothing is built, and the error says what to switch on.
#[cfg(not(feature = "cuda"))]
#[test]
fn a_build_without_kernels_says_which_features_have_them() {
    let error = Dispatcher::new(DeviceInfo::h100()).plan(&bf16(512, 4096, 4096), Policy::default()).unwrap_err();
    let text = error.to_string();
    for words in
        ["512x4096x4096 nt bf16", "build with the feature cuda", "build with the feature sm90", "tilegemm explain"]
    {
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
    let explanation = Dispatcher::new(DeviceInfo::h100()).explain(&bf16(512, 4096, 4096), Policy::default());
    assert_eq!(explanation.chosen, None);
    assert!(explanation.to_string().contains("no kernel can run it"));
}

#[test]
fn the_configuration_of_the_chosen_kernel_is_printed() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning();
    let problem = Problem::dense(2, 3, 1_000_001, 1, Layout::NN, Format::F32);
    let explanation = dispatcher.explain(&problem, Policy::own());
    let config = dispatcher.plan(&problem, Policy::own()).unwrap().config;
    assert_eq!(explanation.config, config);
    let [rows, columns] = config.tile;
    let line = format!("configuration {config}: tiles of {rows} x {columns}, K in {} parts", config.split);
    assert!(explanation.to_string().lines().any(|printed| printed == line), "{explanation}");
}

#[test]
fn an_explanation_names_the_mode() {
    let dispatcher = Dispatcher::hypothetical(DeviceInfo::h100()).without_tuning();
    let explain = |problem: &Problem| dispatcher.explain(problem, Policy::default()).to_string();
    let cases = [
        (F32Mode::Accurate, "512x512x512 nt f32 on", "f32 mode accurate: kernels with no more error than cuBLAS SGEMM"),
        (F32Mode::Strict, "512x512x512 nt f32 strict on", "f32 mode strict: fused multiply-adds only"),
        (F32Mode::Tf32, "512x512x512 nt f32 tf32 on", "f32 mode tf32: inputs may be rounded to TF32"),
    ];
    let f32 = |mode| Problem::dense(512, 512, 512, 1, Layout::NT, Format::F32).with(|p| p.f32_mode = mode);
    for (mode, asked, meaning) in cases {
        let text = explain(&f32(mode));
        assert!(text.starts_with(asked) && text.contains(meaning), "{text}");
    }
    let bf16 = explain(&Problem::dense(512, 512, 512, 1, Layout::NT, Format::BF16));
    assert!(!bf16.contains("f32 mode"), "{bf16}");
}

/// Kernels are listed by time, so that no text may lean on the line before.
#[test]
fn every_kernel_says_alone_what_it_is_made_for() {
    for kernel in KERNELS {
        let why = kernel.why;
        assert!(!why.contains("the same") && !why.contains("as above"), "{kernel}: {why}");
    }
    for (m, n, k) in [(1, 4096, 4096), (2048, 28672, 4096), (300, 515, 200)] {
        for dtype in [Format::BF16, Format::F32] {
            let text = h100().explain(&Problem::dense(m, n, k, 1, Layout::NT, dtype), Policy::default()).to_string();
            let able: Vec<&str> = able(&text);
            assert!(!able.is_empty() && able.iter().all(|line| !line.trim_end().ends_with('x')), "{text}");
        }
    }
}

/// Where the texts of two kernels differ at their ends only, neither is cut.
#[test]
fn kernels_made_for_other_things_read_differently() {
    let groups = Groups::routed(8, 64, 2);
    let experts = |a, b| {
        let scale = (b == Format::F8E4M3).then(|| Scale::of_blocks(Format::F32, [128, 128], 4096));
        Problem::grouped([128, 4096, 4096], groups, a).with_weights(b, scale)
    };
    let mut narrow = 0;
    for problem in [
        experts(Format::BF16, Format::F8E4M3),
        experts(Format::F16, Format::F8E4M3),
        experts(Format::F32, Format::Q4K),
        experts(Format::BF16, Format::BF16),
        bf16(2048, 28672, 4096),
    ] {
        let text = h100().explain(&problem, Policy::default()).to_string();
        assert!(text.lines().all(|line| line.chars().count() <= 120), "{text}");
        let list: Vec<&str> = text.lines().skip_while(|line| !line.contains("made for")).skip(1).collect();
        let list = &list[..list.iter().position(|line| line.is_empty() || line.starts_with("conf")).unwrap()];
        let start = text.lines().find_map(|line| line.find("made for")).unwrap();
        // The text of each kernel, with the lines on which it goes on.
        let mut told: Vec<(&KernelDesc, String)> = Vec::new();
        for line in list {
            let name = line[3..].split(' ').next().unwrap();
            match KERNELS.iter().find(|kernel| kernel.name == name) {
                Some(kernel) => told.push((kernel, line[start..].into())),
                None => told.last_mut().unwrap().1 += &format!(" {}", line.trim()),
            }
        }
        for (kernel, text) in &told {
            let same = told.iter().filter(|(other, of_other)| of_other == text && other.why != kernel.why);
            assert_eq!(same.count(), 0, "{problem}: another kernel than {kernel} has the text {text:?}");
        }
        narrow += told.iter().filter(|(kernel, _)| kernel.family == "narrow_grouped_gemm").count();
    }
    assert_eq!(narrow, 4);
}

#[test]
fn a_roofline_of_nanoseconds_is_no_zero_and_a_ratio_has_no_digits_of_noise() {
    let text = h100().explain(&Problem::dense(1, 1, 1, 1, Layout::NT, Format::F32), Policy::default()).to_string();
    let roofline = text.lines().find_map(|line| line.strip_prefix("roofline ")?.split(' ').next()).unwrap();
    assert!(roofline.parse::<f64>().unwrap() > 0.0, "{text}");
    assert!(text.contains("  > 100x  ") && able(&text).iter().all(|line| line.len() <= 120), "{text}");
    let large = h100().explain(&bf16(4096, 4096, 4096), Policy::default());
    assert!(large.to_string().contains(&format!("roofline {:.1} us", large.roofline_us)), "{large}");
}
