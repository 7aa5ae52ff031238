//! qwen3_moe, unmodified or on our layer of experts: its arms, and its runs.

use crate::arms::{Arms, Run, FEATURE};
use crate::fused::Qwen3;
use crate::logits;
use crate::measure;
use crate::report::Report;
use crate::{shapes, weights, Args};
#[cfg(feature = "interpose")]
use anyhow::ensure;
use anyhow::Result;
use candle::{DType, Device, Tensor};
use candle_nn::VarBuilder;
#[cfg(feature = "interpose")]
use candle_tilegemm::interpose;
use candle_transformers::models::qwen3_moe::{Config, ModelForCausalLM};
use std::time::Instant;

/// The names of this build's arms. The interposer is off in the first arm, and on in the second.
fn names(is_fused: bool) -> &'static [&'static str] {
    if !cfg!(feature = "interpose") {
        return if is_fused { &["FusedMoe"] } else { &["stock"] };
    }
    match (is_fused, cfg!(feature = "interpose-kernels")) {
        (true, _) => &["FusedMoe", "all ours"],
        (false, true) => &["experts ours", "all ours"],
        (false, false) => &["stock", "dense ours"],
    }
}

pub fn run(args: &Args, dtype: DType, device: &Device) -> Result<()> {
    #[cfg(feature = "interpose")]
    ensure!(
        interpose::is_active(),
        "candle's cuBLAS calls do not arrive at the interposer; see the docs of `interpose`"
    );
    #[cfg(feature = "interpose-kernels")]
    ensure!(interpose::experts_are_active(), "candle's calls for experts do not arrive; see the docs of `interpose`");
    let is_fused = args.model == "fused";
    let arms = Arms::new(names(is_fused));
    let mut config = if args.is_tiny() { shapes::qwen3_tiny() } else { shapes::qwen3_30b_a3b() };
    config.num_hidden_layers = args.layers.map_or(config.num_hidden_layers, |layers| layers as usize);
    let by_cpu = args.is_tiny() || args.weights_by_cpu || device.is_cpu();
    let mut model = Model::load(&config, is_fused, by_cpu, dtype, device)?;
    // All runs have the same tokens, so that logits can be compared.
    let tokens: Vec<u32> =
        (0..args.prompt + args.decode).map(|i| i.wrapping_mul(2_654_435_761) % config.vocab_size as u32).collect();
    let drawn_by = if by_cpu { "the CPU" } else { "the GPU" };
    let about = format!(
        "qwen3_moe {}, {} layers, weights drawn by {drawn_by}, {} + {} tokens",
        args.config, config.num_hidden_layers, args.prompt, args.decode
    );
    let reference = args.compare.as_deref().map(|file| logits::load(file, &about)).transpose()?;

    let counts = [args.prompt, args.decode];
    let (arms, first) = arms.measure(args.runs, counts, reference.as_deref(), || model.run(&tokens, args.prompt))?;
    // Two products of experts for each layer and pass.
    #[cfg(feature = "interpose-kernels")]
    for counts in arms.iter().map(|arm| &arm.dispatched).filter(|_| !is_fused) {
        let expected = 2 * config.num_hidden_layers as u64 * (1 + u64::from(args.decode));
        ensure!(
            counts.experts == expected && counts.failed == 0,
            "{} of {expected} products of experts ran on our kernels, {} failed",
            counts.experts,
            counts.failed
        );
    }
    if let Some(file) = &args.save_logits {
        logits::save(file, &about, &first)?;
    }
    let report = Report {
        about,
        device: measure::device_name(device),
        dtype: dtype.as_str(),
        feature: FEATURE,
        arms,
        gemms: candle_tilegemm::stats::gemms(),
    };
    report.print(args.json)
}

struct Model {
    form: Form,
    device: Device,
}

enum Form {
    Unmodified(ModelForCausalLM),
    Fused(Qwen3),
}

impl Model {
    /// Weights are numbers of bf16, whatever the model's type, so that runs in f32 are references of runs in bf16.
    fn load(config: &Config, is_fused: bool, by_cpu: bool, dtype: DType, device: &Device) -> Result<Self> {
        let backend = Box::new(weights::Seeded { by_cpu, rounded_to: Some(DType::BF16) });
        let builder = VarBuilder::from_backend(backend, dtype, device.clone());
        let form = match is_fused {
            true => Form::Fused(Qwen3::new(config, builder)?),
            false => Form::Unmodified(ModelForCausalLM::new(config, builder)?),
        };
        Ok(Self { form, device: device.clone() })
    }

    fn forward(&mut self, tokens: &[u32], offset: usize) -> Result<Tensor> {
        let input = Tensor::new(tokens, &self.device)?.unsqueeze(0)?;
        Ok(match &mut self.form {
            Form::Unmodified(model) => model.forward(&input, offset)?,
            Form::Fused(model) => model.forward(&input, offset)?,
        })
    }

    fn clear_kv_cache(&mut self) {
        match &mut self.form {
            Form::Unmodified(model) => model.clear_kv_cache(),
            Form::Fused(model) => model.clear_kv_cache(),
        }
    }

    /// Prefill with the first tokens, then a decode step for each token after them.
    fn run(&mut self, tokens: &[u32], prompt: u32) -> Result<Run> {
        let (prompt, decode) = tokens.split_at(prompt as usize);
        self.clear_kv_cache();
        let mut logits = Vec::new();
        self.device.synchronize()?;
        let start = Instant::now();
        logits.push(self.forward(prompt, 0)?);
        self.device.synchronize()?;
        let prefill = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for (step, token) in decode.iter().enumerate() {
            logits.push(self.forward(&[*token], prompt.len() + step)?);
        }
        self.device.synchronize()?;
        Ok(Run { times: (prefill, start.elapsed().as_secs_f64()), logits })
    }
}
