//! Text from a decoder: of a folder with safetensors, config.json and tokenizer.json, or of a GGUF file.
//!
//! ```sh
//! third_party/fetch.sh smollm2
//! cargo run -p candle-tilegemm-models --example generate -- third_party/dist/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf \
//!   --chat --prompt "What is a matrix?"
//! cargo run -p candle-tilegemm-models --example generate --features cuda,sm90,gguf,layers -- MODEL --sequences 8 --temperature 0.8
//! cargo run -p candle-tilegemm-models --example generate --features cuda,sm90,layers,narrow -- FOLDER --quantize int4
//! cargo run -p candle-tilegemm-models --example generate --features cuda,sm90,gguf,layers,nccl -- MODEL --cards 2
//! ```

mod chat;
mod load;
mod progress;
mod ranks;
mod tokenizer;

use anyhow::{bail, Context, Result};
use candle::{DType, Device};
use candle_tilegemm::nn::narrow::{Granularity, Quantizer};
use candle_tilegemm::nn::Sampling;
use candle_tilegemm_models::{Cache, Sampler};
use clap::{Parser, ValueEnum};
use load::Wanted;
use progress::Progress;
use ranks::Rank;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Goes on with a text, or answers it.
#[derive(Parser)]
struct Args {
    /// A folder with config.json, tokenizer.json and *.safetensors, or a GGUF file
    model: PathBuf,
    /// A tokenizer.json instead of the model's own tokenizer
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// The text to go on with, or with --chat to answer
    #[arg(long, default_value = "What is a matrix product?")]
    prompt: String,
    /// Gives the prompt to the model as a question, in the form of its chat template
    #[arg(long)]
    chat: bool,
    /// Sequences that go on with the same text; with a temperature, each in its own way
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    sequences: u32,
    /// The most tokens to choose for each sequence
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    tokens: u32,
    /// 0: the most probable token
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Draws among the most probable tokens with this share of the probability
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    top_p: f32,
    /// Of the draws
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// auto: the GPU where there is one, else the CPU
    #[arg(long, value_enum, default_value = "auto")]
    device: DeviceChoice,
    /// GPUs that compute the model together; on the CPU, threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    cards: u8,
    /// Seconds without progress, from the start on, after which one of several cards counts as hanging
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// fp8: keys and values in 8 bits with a scale for each head and position; else in the type of what is not in blocks
    #[arg(long, value_enum)]
    cache: Option<CacheChoice>,
    /// Rounds the weights of a folder in 16 or 32 bits as they are loaded; the head and the embedding stay as they are
    #[arg(long, value_enum)]
    quantize: Option<Quantize>,
    /// Leaves activations as they come where config.json asks for 8 bits: more exact, and slower in long prompts
    #[arg(long)]
    wide_activations: bool,
    /// Type of what is not in blocks or few bits: f32, f16 or bf16; else bf16, and f32 on the CPU
    #[arg(long)]
    dtype: Option<DType>,
}

#[derive(Clone, Copy, ValueEnum)]
enum CacheChoice {
    Fp8,
}

/// The formats that weights are rounded to.
#[derive(Clone, Copy, ValueEnum)]
enum Quantize {
    /// With a factor for each row
    Fp8,
    /// With a factor for 128 numbers of a row
    Int4,
    /// With a factor for each row
    Int8,
    /// With a power of two for 32 numbers of a row
    Mxfp4,
}

impl Quantize {
    fn to(self) -> Quantizer {
        match self {
            Self::Fp8 => Quantizer::Fp8(Granularity::Channel),
            Self::Int4 => Quantizer::Int4 { group: Some(128), zeros: false },
            Self::Int8 => Quantizer::Int8 { group: None },
            Self::Mxfp4 => Quantizer::Mxfp4,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum DeviceChoice {
    Auto,
    Cpu,
    Cuda,
}

pub fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<()> {
    let (count, timeout) = (args.cards as usize, Duration::from_secs(args.timeout.into()));
    let on_cpu = match args.device {
        DeviceChoice::Auto => !has_gpu(),
        choice => matches!(choice, DeviceChoice::Cpu),
    };
    if count > 1 {
        let ranks = if on_cpu { ranks::threads(count, timeout)? } else { ranks::cards(count)? };
        return ranks::run(ranks, timeout, move |rank| generate(&args, rank));
    }
    let device = match on_cpu {
        true => Device::Cpu,
        false => Device::new_cuda(0).context("no GPU; take --device cpu, or build with the feature cuda")?,
    };
    generate(&args, &Rank::alone(device))
}

#[cfg(feature = "cuda")]
fn has_gpu() -> bool {
    let count = candle_tilegemm::launch::device_count();
    count.inspect_err(|error| eprintln!("on the CPU: {error}")).is_ok()
}

#[cfg(not(feature = "cuda"))]
fn has_gpu() -> bool {
    false
}

/// Loads the model, and writes what it says; of several ranks the first does.
fn generate(args: &Args, rank: &Rank) -> Result<()> {
    let Rank { group, device, .. } = rank;
    let speaks = group.rank() == 0;
    let dtype = args.dtype.unwrap_or(if device.is_cpu() { DType::F32 } else { DType::BF16 });
    let began = Instant::now();
    let wanted = Wanted {
        path: &args.model,
        tokenizer: args.tokenizer.as_deref(),
        quantize: args.quantize.map(Quantize::to),
        wide_activations: args.wide_activations,
        dtype,
    };
    let mut progress = speaks.then(Progress::stderr);
    let loaded = |layers: usize, of: usize| {
        rank.begin(if layers < of {
            format!("loading layer {} of {of}", layers + 1)
        } else {
            "loading the head".into()
        });
        // A closed stderr ends nothing.
        let _ = progress.as_mut().map(|progress| progress.loaded(layers, of));
    };
    rank.begin("opening the model");
    let load::Model { decoder, tokenizer, template } = load::model(&wanted, group, device, loaded)?;
    rank.begin("preparing the GPU");
    candle_tilegemm::prepare(device)?;
    drop(progress);
    let config = decoder.config();
    speaks.then(|| {
        eprintln!(
            "{} layers of {}, vocabulary {}, on {:?}, loaded in {:.1} s",
            config.layers,
            config.hidden,
            config.vocabulary,
            device.location(),
            began.elapsed().as_secs_f64()
        )
    });

    let text = match (args.chat, &template) {
        (false, _) => args.prompt.clone(),
        (true, Some(template)) => template.first_turn(&args.prompt)?,
        (true, None) => {
            bail!("the model has no chat template; take its prompt format into --prompt, without --chat")
        }
    };
    let encoding = tokenizer.encode(text, !args.chat).map_err(|error| anyhow::anyhow!("the prompt: {error}"))?;
    let (prompt, sequences) = (encoding.get_ids(), args.sequences as usize);

    let room = (prompt.len() + args.tokens as usize).min(config.max_positions);
    let of_cache = match args.cache {
        Some(CacheChoice::Fp8) => DType::F8E4M3,
        None => decoder.dtype(),
    };
    let mut cache = Cache::with_capacity_in(&decoder, sequences, room, of_cache)?;
    let began = Instant::now();
    for slot in 0..sequences {
        rank.begin(format!("the prompt of sequence {slot}"));
        decoder.prefill(slot, prompt, &mut cache)?;
    }
    rank.begin("preparing steps");
    let sampling = Sampling::new(args.temperature, args.seed).with(|sampling| sampling.top_p = args.top_p);
    let mut step = decoder.step(&mut cache, Sampler::same(sampling))?;
    let (mut stream, mut first, mut count) = (tokenizer.decode_stream(true), None, 0);
    let mut stdout = std::io::stdout();
    for i in 0..args.tokens.min((config.max_positions - prompt.len()) as u32) {
        rank.begin(format!("step {i}"));
        let tokens = step.next()?;
        rank.begin(format!("after step {i}"));
        if tokens.iter().all(Option::is_none) {
            break;
        }
        first.get_or_insert_with(Instant::now);
        count += tokens.iter().flatten().count();
        if let ([Some(token)], 1, true) = (&tokens[..], sequences, speaks) {
            let part = stream.step(*token).map_err(|error| anyhow::anyhow!("token {token}: {error}"))?;
            stdout.write_all(part.unwrap_or_default().as_bytes())?;
            stdout.flush()?;
        }
    }
    let first = first.context("the model chose no token")?;
    if !speaks {
        return Ok(());
    }
    println!();
    if sequences > 1 {
        for slot in 0..sequences {
            let tokens = &cache.tokens(slot)?[prompt.len()..];
            let text = tokenizer.decode(tokens, true).map_err(|error| anyhow::anyhow!("sequence {slot}: {error}"))?;
            println!("#{slot}: {text}\n");
        }
    }
    eprintln!(
        "{} tokens of the prompt; first token after {:.0} ms; {:.1} tokens/s after it",
        prompt.len(),
        (first - began).as_secs_f64() * 1e3,
        count.saturating_sub(sequences) as f64 / first.elapsed().as_secs_f64()
    );
    Ok(())
}
