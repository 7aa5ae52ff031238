use super::super::footprint::bytes_to_run;
use super::record::Error;
use super::*;

fn ok<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|failure| match failure {
        Failure::Usage(message) => panic!("usage: {message}"),
        Failure::Error(error) => panic!("{error}"),
        _ => panic!("another failure"),
    })
}

fn options<'a>(model: Model, prompts: &[u32], stop: &'a AtomicBool) -> Options<'a> {
    let (prompts, batches) = (prompts.to_vec(), vec![1, 3]);
    Options { model, prompts, batches, decode: 2, runs: 3, dtype: None, weights: None, stop }
}

fn empty_report() -> ModelReport {
    ModelReport {
        schema: SCHEMA,
        gpu: "CPU".into(),
        model: "test".into(),
        weights: "seeded random".into(),
        dtype: "f32".into(),
        rows: Vec::new(),
        left_out: BTreeMap::new(),
    }
}

#[test]
fn a_llama_on_the_cpu_gives_a_full_report() {
    let stop = AtomicBool::new(false);
    let report = ok(run(&options(Model::Tiny, &[4, 200], &stop)));
    let cases: Vec<_> = report.rows.iter().map(|row| (row.prompt, row.batch, row.decode)).collect();
    assert_eq!(cases, [(4, 1, 2), (4, 3, 2), (62, 1, 2), (62, 3, 2)]);
    assert_eq!(report.left_out.keys().collect::<Vec<_>>(), ["prompt 200"]);
    for row in &report.rows {
        assert_eq!(row.arms.keys().collect::<Vec<_>>(), ["ours", "stock"]);
        for (name, arm) in &row.arms {
            let decode = arm.decode.as_ref().expect("a llama decodes");
            for phase in [&arm.prefill, decode] {
                assert_eq!(phase.runs, 3);
                assert!(0.0 < phase.ms_min && phase.ms_min <= phase.ms && phase.ms <= phase.ms_max, "{phase:?}");
                assert_eq!((phase.dry_ms, phase.gemm_share()), (None, None));
            }
            let rate = 1e3 * row.batch as f64 / decode.ms;
            assert!((decode.tokens_per_s / rate - 1.0).abs() < 1e-9);
            // On the CPU both arms are candle.
            let same = Agreement { relative_l2: 0.0, same_token: Some(1.0), steps: 3 };
            assert_eq!(arm.agreement, (name == "ours").then_some(same));
        }
    }
    // serde_json may be off by a bit in the last place of a float.
    let text = ok(serde_json::to_string(&report).map_err(Failure::from));
    let read = ok(serde_json::from_str::<ModelReport>(&text).map_err(Failure::from));
    assert_eq!(super::table(&read), super::table(&report));
    let table = table(&report);
    assert!(table.contains("decode tokens/s") && table.contains("prompt 200: the model has 64 positions"), "{table}");
}

#[test]
fn an_encoder_has_no_decode() {
    let stop = AtomicBool::new(false);
    let report = ok(run(&options(Model::TinyBert, &[8, 16, 2048], &stop)));
    let cases: Vec<_> = report.rows.iter().map(|row| (row.prompt, row.batch)).collect();
    assert_eq!(cases, [(8, 1), (8, 3), (16, 1), (16, 3)]);
    assert_eq!(report.left_out["prompt 2048"], "the model has 16 positions; prompt 16 is measured instead");
    assert!(report.rows.iter().flat_map(|row| row.arms.values()).all(|arm| arm.decode.is_none()));
    assert_eq!(report.rows[0].arms["ours"].agreement.as_ref().and_then(|agreement| agreement.same_token), None);
    let table = table(&report);
    assert!(!table.contains("tokens/s |") && table.contains("sequences/s"), "{table}");
    assert!(table.contains("there is nothing to compare") && !table.contains("WORSE"), "{table}");
}

/// The test finds mistakes in the references too: the references and candle-transformers have different authors.
#[test]
fn on_the_cpu_both_arms_have_the_errors_of_f32() {
    let stop = AtomicBool::new(false);
    for (model, outputs) in [(Model::Tiny, &["logits"][..]), (Model::TinyBert, &["embeddings", "states"])] {
        let report = ok(run(&options(model, &[1, 12], &stop)));
        assert_eq!(report.rows.len(), 4);
        for row in &report.rows {
            let [ours, stock] = [&row.arms["ours"].errors, &row.arms[STOCK].errors];
            assert_eq!(ours, stock);
            assert_eq!(stock.keys().collect::<Vec<_>>(), outputs);
            for Error { max, rms } in stock.values() {
                assert!((1e-9..3e-6).contains(rms) && (rms..&2e-5).contains(&max), "{model}: {max:e} {rms:e}");
            }
        }
        assert_eq!(report.worse(), [""; 0]);
    }
}

#[test]
fn larger_errors_than_stock_are_named() {
    let arm = |max, rms| Arm {
        prefill: phase(&Samples::default(), None, 1, Gemms::default()),
        decode: None,
        agreement: None,
        errors: [("logits".into(), Error { max, rms })].into(),
    };
    let report = |dtype: &str, max, rms| {
        let arms = [(STOCK.into(), arm(1e-6, 1e-7)), ("ours".into(), arm(max, rms))].into();
        let rows = vec![Row { prompt: 8, batch: 2, decode: 0, arms, products: Vec::new() }];
        ModelReport { dtype: dtype.into(), rows, ..empty_report() }
    };
    assert_eq!(report("f32", 1.1e-6, 1.1e-7).worse(), [""; 0]);
    assert_eq!(report("bf16", 1.3e-6, 1.1e-7).worse(), [""; 0]);
    let worse = report("f32", 1.3e-6, 1.5e-7);
    let expected =
        ["RMS error of logits of ours is 1.50 x stock's", "largest error of logits of ours is 1.30 x stock's"];
    assert_eq!(worse.worse(), expected.map(|what| format!("prompt 8, batch 2: {what}")));
    assert!(table(&worse).contains(expected[0]));
}

#[test]
fn what_is_not_measured_is_named() {
    let stop = AtomicBool::new(true);
    let report = ok(run(&options(Model::Tiny, &[4], &stop)));
    assert!(report.rows.is_empty());
    assert_eq!(report.left_out.len(), 2);
    assert_eq!(report.left_out["prompt 4, batch 3"], STOPPED);
    let failure = Failure::Error("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")\n   0: backtrace".into());
    let reason = out_of_memory(&failure);
    assert_eq!(reason.as_deref(), Some("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")"));
    assert_eq!(out_of_memory(&Failure::Error("misaligned address".into())), None);
}

#[test]
fn sizes_of_the_llamas() {
    let bf16 = candle::DType::BF16;
    let parameters = |config: &Config| {
        let largest = config.vocab_size as f64 * config.hidden_size as f64;
        (llama::bytes_to_load(config, bf16) - 4.0 * largest) / 2.0
    };
    let (small, large) = (shapes::llama_1b(), shapes::llama_8b());
    assert_eq!(parameters(&small), 1_235_814_400.0); // as their model cards have it
    assert_eq!(parameters(&large), 8_030_261_248.0);
    // 16 x 2048 tokens of the 8B: scores of 25.8 GB and a cache of 4.4 GB in the main; of one token: nearly nothing.
    let bytes = |prompt, batch| bytes_to_run(&large, bf16, &Case { prompt, batch, decode: 32 });
    assert!((34e9..36e9).contains(&bytes(2048, 16)), "{}", bytes(2048, 16));
    assert!(bytes(1, 1) < 0.1e9, "{}", bytes(1, 1));
}
