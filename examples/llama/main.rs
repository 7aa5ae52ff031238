//! An UNMODIFIED candle-transformers llama, with the interposer off and on in one run.
//!
//! The line `use candle_tilegemm` below brings our kernels in. The model knows nothing of this crate.
//!
//! ```sh
//! cargo run -p candle-tilegemm-examples --bin llama --features cuda,sm90,cutile,interpose -- --config 8b --prompt 2048 --decode 32
//! ```

mod measure;
#[path = "../embed/notice.rs"]
mod notice;
mod report;
#[path = "../../cli/src/bench/shapes.rs"]
mod shapes;
#[path = "../../cli/src/bench/weights.rs"]
mod weights;

use anyhow::{ensure, Context, Result};
use candle::{DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_tilegemm::interpose::{self, Mode};
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use clap::Parser;
use measure::Measurement;
use report::Report;
use std::path::PathBuf;
use std::time::Instant;

/// Prefill and decode of a llama, stock and through candle-tilegemm.
#[derive(Parser)]
struct Args {
    /// Architecture with seeded random weights: tiny, 1b or 8b.
    #[arg(long, default_value = "tiny", value_parser = ["tiny", "1b", "8b"])]
    config: String,
    /// A folder with config.json and *.safetensors, in place of random weights.
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Tokens in the prompt.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Tokens to decode after it.
    #[arg(long, default_value_t = 16)]
    decode: u32,
    /// f32, f16 or bf16; bf16 on a GPU and f32 on the CPU unless given.
    #[arg(long, value_parser = ["f32", "f16", "bf16"])]
    dtype: Option<String>,
    /// Measured runs of each arm, taken in turns; the median is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> Result<()> {
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    }
    let args = Args::parse();
    let device = Device::new_cuda(0).unwrap_or_else(|error| {
        let error = notice::text(&error);
        eprintln!("no CUDA device ({error}): running on the CPU, where the interposer has nothing to do");
        Device::Cpu
    });
    let dtype = match args.dtype.as_deref() {
        Some("f16") => DType::F16,
        Some("f32") => DType::F32,
        None if device.is_cpu() => DType::F32,
        _ => DType::BF16,
    };
    ensure!(
        interpose::is_active(),
        "candle's cuBLAS calls do not arrive at the interposer; see the docs of `interpose`"
    );

    // TILEGEMM=trace and TILEGEMM=force hold for our arm.
    let ours = if interpose::mode() == Mode::Off { Mode::On } else { interpose::mode() };
    let model = Model::load(&args, dtype, &device)?;
    let vocabulary = model.config.vocab_size as u32;
    let prompt: Vec<u32> = (0..args.prompt).map(|i| i.wrapping_mul(2_654_435_761) % vocabulary).collect();

    // The stock run chooses the tokens. Every other run gets the same tokens, so that logits can be compared.
    let stock_logits = model.run(Mode::Off, &prompt, args.decode, None)?;
    let tokens = stock_logits.tokens.clone();
    let before = interpose::stats();
    let our_logits = model.run(ours, &prompt, args.decode, Some(&tokens))?;
    let dispatched = interpose::stats().since(&before);
    let (mut stock_times, mut our_times) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        stock_times.push(model.run(Mode::Off, &prompt, args.decode, Some(&tokens))?.times);
        our_times.push(model.run(ours, &prompt, args.decode, Some(&tokens))?.times);
    }

    let report = Report {
        config: args.weights.as_ref().map_or(args.config.clone(), |dir| dir.display().to_string()),
        device: measure::device_name(&device),
        dtype: dtype.as_str(),
        prompt: args.prompt,
        decode: args.decode,
        stock: Measurement::median(&stock_times, args.prompt, args.decode),
        ours: Measurement::median(&our_times, args.prompt, args.decode),
        logits: measure::compare(&stock_logits.logits, &our_logits.logits)?,
        dispatched,
        gemms: candle_tilegemm::stats::gemms(),
    };
    report.print(args.json)
}

struct Model {
    llama: Llama,
    config: Config,
    dtype: DType,
    device: Device,
}

/// One prefill and its decode steps.
struct Run {
    /// Seconds of the prefill and of all decode steps.
    times: (f64, f64),
    /// The last token's logits of the prefill and of each decode step.
    logits: Vec<Tensor>,
    /// The input tokens of the decode steps.
    tokens: Vec<u32>,
}

impl Model {
    fn load(args: &Args, dtype: DType, device: &Device) -> Result<Self> {
        let (config, builder) = match &args.weights {
            Some(dir) => load_weights(dir, dtype, device)?,
            None => {
                let config = match args.config.as_str() {
                    "1b" => shapes::llama_1b(),
                    "8b" => shapes::llama_8b(),
                    _ => shapes::tiny(),
                };
                let backend = Box::new(weights::Seeded::default());
                (config, VarBuilder::from_backend(backend, dtype, device.clone()))
            }
        };
        let length = (args.prompt + args.decode) as usize;
        let longest = config.max_position_embeddings;
        ensure!(length <= longest, "prompt and decode are {length} tokens, the model takes {longest}");
        Ok(Self { llama: Llama::load(builder, &config)?, config, dtype, device: device.clone() })
    }

    /// Prefill, then decode: with the given tokens, else with the tokens of the largest logit.
    fn run(&self, mode: Mode, prompt: &[u32], decode: u32, tokens: Option<&[u32]>) -> Result<Run> {
        interpose::set_mode(mode);
        let mut cache = Cache::new(true, self.dtype, &self.config, &self.device)?;
        let mut run = Run { times: (0.0, 0.0), logits: Vec::new(), tokens: Vec::new() };
        self.device.synchronize()?;
        let start = Instant::now();
        let input = Tensor::new(prompt, &self.device)?.unsqueeze(0)?;
        run.logits.push(self.llama.forward(&input, 0, &mut cache)?);
        self.device.synchronize()?;
        run.times.0 = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for step in 0..decode as usize {
            let token = match tokens {
                Some(tokens) => tokens[step],
                None => run.logits[step].i(0)?.argmax(0)?.to_scalar::<u32>()?,
            };
            run.tokens.push(token);
            let input = Tensor::new(&[token], &self.device)?.unsqueeze(0)?;
            run.logits.push(self.llama.forward(&input, prompt.len() + step, &mut cache)?);
        }
        self.device.synchronize()?;
        run.times.1 = start.elapsed().as_secs_f64();
        Ok(run)
    }
}

fn load_weights(dir: &std::path::Path, dtype: DType, device: &Device) -> Result<(Config, VarBuilder<'static>)> {
    let path = dir.join("config.json");
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let config: LlamaConfig = serde_json::from_str(&text).with_context(|| format!("in {}", path.display()))?;
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "safetensors"));
    files.sort();
    ensure!(!files.is_empty(), "no *.safetensors in {}", dir.display());
    // SAFETY: the files are not changed while they are mapped.
    let builder = unsafe { VarBuilder::from_mmaped_safetensors(&files, dtype, device)? };
    Ok((config.into_config(false), builder))
}
