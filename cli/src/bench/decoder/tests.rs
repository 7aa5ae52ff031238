use super::blocks;
use super::measure::{run, Options};
use super::ours::Ours;
use super::record::{Agreement, DecoderReport, Limits, CAPTURED, EAGER, OURS, STOCK};
use super::roof::{bytes, cache_bytes, of_cache, step_bytes};
use super::size::Size;
use super::subject::Subject;
use super::table::table;
use crate::bench::args::DECODERS;
use crate::{Failure, Result};
use candle::quantized::GgmlDType;
use candle::Device;
use std::io::{Read, Seek, SeekFrom};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|failure| panic!("{failure}"))
}

fn options<'a>(model: &'a str, stop: &'a AtomicBool) -> Options<'a> {
    Options {
        model,
        arms: [STOCK, EAGER, CAPTURED].map(String::from).to_vec(),
        prefill: vec![5, 12, 1000],
        contexts: vec![8, 512],
        sequences: vec![1, 3],
        cards: 1,
        fp8_cache: false,
        steps: 6,
        runs: 3,
        budget: None,
        limits: None,
        stop,
    }
}

fn measured(options: &Options) -> DecoderReport {
    ok(run(options, &Device::Cpu, "CPU"))
}

#[test]
fn tiny_decoders_give_a_full_report() {
    let stop = AtomicBool::new(false);
    // With interpose-kernels there is no stock arm for blocks.
    let count = if cfg!(feature = "interpose-kernels") { 1 } else { 2 };
    for (model, format, far) in [("tiny", "f32", 1e-5), ("tiny-q4_k_m", "Q4_K_M", 1e-4)].into_iter().take(count) {
        let report = measured(&options(model, &stop));
        assert!(report.weights.ends_with(format), "{}", report.weights);
        assert_eq!(report.starts.keys().collect::<Vec<_>>(), [OURS, STOCK], "{model}: {:?}", report.left_out);
        assert!(report
            .starts
            .values()
            .all(|start| start.load_s > 0.0 && start.first_token_ms > 0.0 && start.prompt == 5));
        assert_eq!(report.prefill.iter().map(|row| row.tokens).collect::<Vec<_>>(), [5, 12]);
        let cases: Vec<_> = report.decode.iter().map(|row| (row.context, row.sequences)).collect();
        assert_eq!(cases, [(8, 1), (8, 3)]);
        assert!(report.prefill.iter().all(|row| row.arms.keys().eq([OURS, STOCK])));
        for (row, sequences) in report.decode.iter().zip([1.0, 3.0]) {
            assert!(row.arms.keys().eq([EAGER, STOCK]));
            for timed in row.arms.values() {
                assert!(0.0 < timed.ms_min && timed.ms_min <= timed.ms && timed.ms <= timed.ms_max && timed.runs == 3);
                assert!((timed.tokens_per_s * timed.ms / 1e3 / sequences - 1.0).abs() < 1e-9);
            }
        }
        // Both have the same weights.
        let agreement = report.agreement.expect("both arms have run");
        assert!(agreement.relative_l2 < far && agreement.same_token, "{model}: {agreement:?}");
        assert!(!report.is_bad(), "{:?} {:?}", report.wrong, report.left_out);
        assert_eq!(report.left_out[CAPTURED], "graphs need a GPU");
        assert!(report.left_out.keys().any(|what| what.contains("prefill 1000")));
        assert!(report.left_out.values().any(|reason| reason.contains("positions")));
        let read = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(table(&read), table(&report));
    }
}

/// Checkpoints with narrow weights: ours alone, whose logits with activations in 8 bits are others.
#[test]
fn narrow_decoders_are_measured() {
    let stop = AtomicBool::new(false);
    for (model, format, bytes_of_a_weight) in
        [("tiny-fp8", "fp8 (W8A16)", 1.0), ("tiny-fp8-dynamic", "fp8 (W8A8)", 1.0), ("tiny-w4a16", "(W4A16)", 0.5)]
    {
        let report = measured(&options(model, &stop));
        assert!(report.weights.ends_with(format), "{}", report.weights);
        assert!(report.starts.keys().eq([OURS]) && !report.is_bad(), "{:?} {:?}", report.wrong, report.left_out);
        assert!(report.left_out[STOCK].contains("reads no such weights"));
        assert_eq!(report.decode.len(), 2);
        let (size, dense) = (Size::by_name(model).unwrap(), Size::by_name("tiny").unwrap());
        let head = (size.vocabulary * size.hidden) as f64 * 2.0;
        let share = (step_bytes(&size, 1, 2.0) - head) / (step_bytes(&dense, 1, 2.0) - head);
        assert!((share * 2.0 / bytes_of_a_weight - 1.0).abs() < 0.05, "{model}: {share}");
    }
}

/// Ranks as threads, on each of which a step has the whole decoder's logits.
#[test]
fn a_decoder_on_several_cards_is_measured() {
    let stop = AtomicBool::new(false);
    let report = measured(&Options { cards: 2, ..options("tiny", &stop) });
    assert!(report.starts.keys().eq([OURS]) && !report.is_bad(), "{:?} {:?}", report.wrong, report.left_out);
    assert!(report.left_out[STOCK].contains("one card"));
    assert_eq!([report.prefill.len(), report.decode.len(), report.cards], [2, 2, 2]);
    assert!(table(&report).contains("on 2 x CPU"));
    let read: DecoderReport = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!((read.cards, table(&read)), (2, table(&report)));
    // Experts of gpt-oss stay whole: a part would cut a block.
    for model in ["tiny-fp8", "tiny-gpt-oss"] {
        let report = measured(&Options { cards: 2, ..options(model, &stop) });
        assert!(report.decode.len() == 2 && !report.is_bad(), "{model}: {:?} {:?}", report.wrong, report.left_out);
    }
    for (model, cards, reason) in [
        ("tiny", 3, "which 3 ranks do not divide"),
        ("tiny-w4a16", 2, "a rank has 192 columns, and 128 columns are one block"),
        ("tiny-q4_k_m", 2, "cut a block"),
    ] {
        let report = measured(&Options { cards, ..options(model, &stop) });
        assert!(report.is_bad() && report.left_out[OURS].contains(reason), "{model}: {:?}", report.left_out);
    }
}

/// Experts in MXFP4, sinks, windows: prompts are longer than the window of 4.
#[test]
fn gpt_oss_is_measured() {
    let stop = AtomicBool::new(false);
    let report = measured(&options("tiny-gpt-oss", &stop));
    assert!(report.weights.contains("MXFP4"), "{}", report.weights);
    assert!(report.starts.keys().eq([OURS]) && !report.is_bad(), "{:?} {:?}", report.wrong, report.left_out);
    assert!(report.left_out[STOCK].contains("reads no such weights"));
    assert_eq!([report.prefill.len(), report.decode.len()], [2, 2]);
}

/// The weights of gpt-oss and of narrow experts give logits near 1, which differ by token.
#[test]
fn experts_have_weights_of_usual_size() {
    let fp8 = Size {
        layers: 2,
        hidden: 64,
        heads: 4,
        kv_heads: 2,
        head: 32,
        inner: 48,
        vocabulary: 128,
        ..Size::by_name("qwen3-30b-a3b-fp8").unwrap()
    };
    for size in [Size::by_name("tiny-gpt-oss").unwrap(), fp8] {
        let mut ours = Ours::load(&size, false, &Device::Cpu).unwrap();
        let mut logits = |prompt: &[u32]| ours.prefill(prompt).unwrap().to_vec1::<f32>().unwrap();
        let [one, other] = [logits(&[3, 1, 4, 1, 5, 9, 2, 6]), logits(&[3, 1, 4, 1, 5, 9, 2, 7])];
        assert_ne!(one, other);
        let deviation = (one.iter().map(|x| x * x).sum::<f32>() / one.len() as f32).sqrt();
        assert!((0.3..3.0).contains(&deviation), "{deviation}");
    }
}

#[test]
fn what_has_no_time_is_named() {
    let stop = AtomicBool::new(false);
    let report = measured(&Options { budget: Some(Duration::ZERO), ..options("tiny", &stop) });
    assert!(report.starts.is_empty() && report.prefill.is_empty() && report.decode.is_empty());
    assert_eq!(report.left_out[STOCK], "no time left in the budget");
    let stopped = AtomicBool::new(true);
    let report = measured(&options("tiny", &stopped));
    assert_eq!(report.left_out[OURS], "stopped before it was measured");
}

#[test]
fn one_arm_is_measured_alone() {
    let stop = AtomicBool::new(false);
    let report = measured(&Options { arms: vec![STOCK.into()], ..options("tiny", &stop) });
    assert!(report.starts.keys().eq([STOCK]) && report.agreement.is_none());
    assert!(report.left_out.keys().all(|what| what.starts_with(STOCK)), "{:?}", report.left_out);
}

/// Keys and values in fp8 change the logits a little.
#[test]
fn keys_and_values_in_fp8() {
    let stop = AtomicBool::new(false);
    let of = |fp8_cache| measured(&Options { fp8_cache, ..options("tiny", &stop) });
    let (plain, fp8) = (of(false), of(true));
    assert!(fp8.weights.ends_with("fp8") && !fp8.is_bad(), "{} {:?}", fp8.weights, fp8.wrong);
    let apart = [plain, fp8].map(|report| report.agreement.unwrap().relative_l2);
    assert!(apart[1] > 10.0 * apart[0] && apart[1] < 0.1, "{apart:?}");
}

#[test]
fn other_logits_are_no_agreement() {
    let logits = [1.0, -2.0, 3.0];
    let same = Agreement::between(7, &logits, &logits);
    assert!(same.is_close() && same.same_token && same.relative_l2 == 0.0);
    assert!(!Agreement::between(7, &logits, &[3.0, -2.0, 1.0]).is_close());
    assert!(!Agreement::between(7, &logits, &[1.0, f32::NAN, 3.0]).is_close());
}

#[test]
fn every_name_has_a_size() {
    for name in DECODERS {
        let size = Size::by_name(name).unwrap_or_else(|| panic!("{name} has no size"));
        let config = size.config().unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((config.hidden, config.layers, config.head_size), (size.hidden, size.layers, size.head), "{name}");
        assert_eq!(config.tied, size.tied);
        assert_eq!(
            config.windows,
            (0..size.layers)
                .map(|layer| size.seen(layer, usize::MAX))
                .map(|seen| if seen == usize::MAX { 0 } else { seen })
                .collect::<Vec<_>>(),
            "{name}"
        );
        let of_config = config.experts.map(|experts| [experts.count, experts.per_token, experts.feed_forward]);
        assert_eq!(of_config, size.experts.map(|experts| [experts.count, experts.per_token, size.inner]), "{name}");
        match size.experts {
            Some(_) if size.is_gpt_oss() => assert!(config.sinks && config.o_bias && config.rope_scaling.is_some()),
            Some(experts) => assert_eq!(ok(size.qwen3_moe_config()).num_experts, experts.count),
            None => assert_eq!(ok(size.llama_config()).intermediate_size, size.inner),
        }
    }
    assert!(Size::by_name("llama4").is_none());
    let stop = AtomicBool::new(false);
    assert!(matches!(run(&options("llama4", &stop), &Device::Cpu, "CPU"), Err(Failure::Usage(_))));
}

#[test]
fn bytes_are_those_of_the_models() {
    let size = |name| Size::by_name(name).unwrap();
    // As model cards have it: 8.03e9 and 1.24e9 parameters, but for norms; 0.53e9 of them are rows of tokens.
    let large = bytes(&size("llama3-8b"), 2.0);
    assert!((large / 2.0 / 8.030e9 - 1.0).abs() < 1e-4, "{large}");
    assert!((large - step_bytes(&size("llama3-8b"), 1, 2.0) - 2.0 * 128_256.0 * 4096.0).abs() < 1.0);
    assert!((bytes(&size("llama3-1b"), 2.0) / 2.0 / 1.2358e9 - 1.0).abs() < 1e-3);
    // Files called Q4_K_M of this model have 4.92e9 bytes.
    assert!((bytes(&size("llama3-8b-q4_k_m"), 2.0) / 4.92e9 - 1.0).abs() < 0.01);
    // 30.5e9 parameters, 3.3e9 of them for a token, rows of tokens included.
    let experts = size("qwen3-30b-a3b");
    assert!((bytes(&experts, 2.0) / 2.0 / 30.53e9 - 1.0).abs() < 1e-3, "{}", bytes(&experts, 2.0));
    assert!((6.0e9..6.2e9).contains(&step_bytes(&experts, 1, 2.0)), "{}", step_bytes(&experts, 1, 2.0));
    assert!(step_bytes(&experts, 8, 2.0) < 8.0 * step_bytes(&experts, 1, 2.0));
    // A published file of gpt-oss-20b has 13.76e9 bytes; 20.9e9 parameters, 3.6e9 of them for a token, rows of tokens included.
    let mxfp4 = size("gpt-oss-20b");
    assert!((bytes(&mxfp4, 2.0) / 13.76e9 - 1.0).abs() < 2e-3, "{}", bytes(&mxfp4, 2.0));
    let of_expert = 3.0 * 2880.0 * 2880.0 * 17.0 / 32.0;
    let [one, eight] = [1, 8].map(|rows| step_bytes(&mxfp4, rows, 2.0));
    // One token reads 4 of a layer's 32 experts, 8 tokens 32 (1 - (7 / 8)^8), which is 21.
    assert!(((eight - one) / 24.0 / of_expert - (32.0 * (1.0 - 0.875f64.powi(8)) - 4.0)).abs() < 1e-6);
    let rest = 2.0 * (24.0 * (2880.0 * (2.0 * 4096.0 + 2.0 * 512.0) + 32.0 * 2880.0) + 201_088.0 * 2880.0);
    assert!((one - 24.0 * 4.0 * of_expert - rest).abs() < 1.0, "{one}");
    // Every other layer reads 128 positions alone: 2 KiB of each in bf16.
    assert_eq!(cache_bytes(&mxfp4, 2048, 2.0), 2048.0 * (12.0 * 2048.0 + 12.0 * 128.0));
    // The experts of qwen3-30b-a3b in fp8 are half of those in bf16.
    let fp8 = step_bytes(&size("qwen3-30b-a3b-fp8"), 64, 2.0) / step_bytes(&experts, 64, 2.0);
    assert!((0.5..0.52).contains(&fp8), "{fp8}");
    // 128 KiB a position.
    assert_eq!(cache_bytes(&size("llama3-8b"), 2048, of_cache(&size("llama3-8b"), false)), 268_435_456.0);
    assert_eq!(cache_bytes(&size("llama3-8b"), 2048, of_cache(&size("llama3-8b"), true)), 138_412_032.0);
}

#[test]
fn limits_bound_steps_by_bytes_and_prompts_by_products() {
    let limits = Limits { hbm_gbps: 3120.0, tflops: 800.0 };
    let size = Size::by_name("llama3-8b").unwrap();
    let step = limits.step_ms(&size, 2048, 1, 2.0);
    assert!((4.85..4.95).contains(&step), "{step}");
    let prompt = limits.prefill_ms(&size, 2048, 2.0);
    assert!((37.0..37.5).contains(&prompt), "{prompt}");
    assert!(limits.prefill_ms(&size, 1, 2.0) > 4.8);
}

#[test]
fn a_file_of_blocks_reads_as_one() {
    let size = Size::by_name("tiny-q4_k_m").unwrap();
    let (content, mut bytes) = blocks::file(&size);
    let info = &content.tensor_infos["blk.1.ffn_down.weight"];
    let whole = info.read(&mut bytes, 0, &Device::Cpu).unwrap();
    assert_eq!((whole.dtype(), whole.shape().dims()), (GgmlDType::Q6K, &[256, 512][..]));
    let weights: Vec<f32> = whole.dequantize(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let mean = weights.iter().sum::<f32>() / weights.len() as f32;
    let deviation = (weights.iter().map(|x| (x - mean).powi(2)).sum::<f32>() / weights.len() as f32).sqrt();
    assert!(mean.abs() < 2e-3 && (0.015..0.025).contains(&deviation), "{mean} {deviation}");
    // The same bytes in small parts.
    let mut part = [0u8; 37];
    let count = whole.data().unwrap().len();
    bytes.seek(SeekFrom::Start(info.offset + count as u64 - 37)).unwrap();
    bytes.read_exact(&mut part).unwrap();
    assert_eq!(whole.data().unwrap()[count - 37..], part);
    bytes.seek(SeekFrom::End(0)).unwrap();
    assert_eq!(bytes.read(&mut part).unwrap(), 0);
}
