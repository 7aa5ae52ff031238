//! An UNMODIFIED quantized_llama of candle-transformers, on a GGUF file of one's own or on one with seeded random blocks.
//!
//! The line `use candle_tilegemm` below brings our kernels in. The model knows nothing of this crate. With the feature `interpose-kernels` the products with
//! quantised weights run on our kernels in every run; stock is a build without that feature. `--save-logits` and `--compare` compare the logits of two
//! builds. The feature `interpose` gives our kernels the products of the attention, too, with the interposer off and on in one run.
//!
//! ```sh
//! cargo run -p candle-tilegemm-examples --bin quantized                                               # tiny, on the CPU
//! cargo run -p candle-tilegemm-examples --bin quantized --features cuda,sm90,cutile,interpose -- \
//!   --config 8b --prompt 2048 --decode 32 --save-logits stock.safetensors
//! cargo run -p candle-tilegemm-examples --bin quantized --features cuda,sm90,cutile,interpose-kernels -- \
//!   --config 8b --prompt 2048 --decode 32 --compare stock.safetensors
//! cargo run -p candle-tilegemm-examples --bin quantized --features cuda,sm90,interpose-kernels -- --gguf model.gguf
//! ```

#[path = "../moe/arms.rs"]
mod arms;
mod file;
#[path = "../moe/logits.rs"]
mod logits;
#[path = "../llama/measure.rs"]
mod measure;
#[path = "../embed/notice.rs"]
mod notice;
#[path = "../moe/report.rs"]
mod report;

use anyhow::{ensure, Context, Result};
use arms::{Arms, Run, FEATURE};
use candle::quantized::gguf_file::Content;
use candle::{Device, Tensor};
#[cfg(not(feature = "interpose-kernels"))]
use candle_tilegemm as _;
#[cfg(feature = "interpose-kernels")]
use candle_tilegemm::interpose;
use candle_transformers::models::quantized_llama::{ModelWeights, MAX_SEQ_LEN};
use clap::Parser;
use report::Report;
use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::time::Instant;

/// Prefill and decode of a quantized_llama, stock and through candle-tilegemm.
#[derive(Parser)]
struct Args {
    /// The shapes of a file with random blocks: tiny, or 8b for Llama 3 8B. Blocks have the mix of formats of Q4_K_M.
    #[arg(long, default_value = "tiny", value_parser = ["tiny", "8b"])]
    config: String,
    /// A GGUF file of a llama. With --write the file is written, with random blocks.
    #[arg(long, value_name = "FILE")]
    gguf: Option<PathBuf>,
    /// Writes the file of --gguf first.
    #[arg(long, requires = "gguf")]
    write: bool,
    /// Tokens in the prompt of a sequence.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Tokens to decode after the prompt.
    #[arg(long, default_value_t = 16)]
    decode: u32,
    /// Sequences at the same time. Prompts of several sequences go in token by token.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    sequences: u32,
    /// Measured runs of each arm, taken in turns; the median is printed.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Writes the logits of the first arm to a safetensors file.
    #[arg(long, value_name = "FILE")]
    save_logits: Option<PathBuf>,
    /// Compares the logits of each arm with a file of another build.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The names of this build's arms. The interposer is off in the first arm, and on in the second.
const NAMES: &[&str] = if cfg!(feature = "interpose-kernels") {
    &["weights ours", "all ours"]
} else if cfg!(feature = "interpose") {
    &["stock", "attention ours"]
} else {
    &["stock"]
};

fn main() -> Result<()> {
    let args = Args::parse();
    let device = Device::new_cuda(0).unwrap_or_else(|error| {
        let error = notice::text(&error);
        eprintln!("no CUDA device ({error}): running on the CPU, where quantised weights stay candle's");
        Device::Cpu
    });
    #[cfg(feature = "interpose-kernels")]
    ensure!(interpose::gguf_is_active(), "candle's products do not arrive; see the docs of `interpose`");
    let length = args.prompt + args.decode;
    ensure!(length as usize <= MAX_SEQ_LEN, "prompt and decode are {length} tokens, the model takes {MAX_SEQ_LEN}");

    let arms = Arms::new(NAMES);
    let (mut model, about) = Model::load(&args, &device)?;
    let about = format!("{about}, {} of {} + {} tokens", args.sequences, args.prompt, args.decode);
    let tokens = model.tokens(&args);
    let reference = args.compare.as_deref().map(|file| logits::load(file, &about)).transpose()?;

    let counts = [args.prompt, args.decode].map(|tokens| tokens * args.sequences);
    let (arms, first) = arms.measure(args.runs, counts, reference.as_deref(), || model.run(&tokens, args.prompt))?;
    #[cfg(feature = "interpose-kernels")]
    for counts in arms.iter().map(|arm| &arm.dispatched).filter(|_| device.is_cuda()) {
        let of_prompt = if args.sequences == 1 { 1 } else { u64::from(args.prompt) };
        let products = model.products * (of_prompt + u64::from(args.decode));
        ensure!(
            counts.gguf == products && counts.failed == 0,
            "{} of {products} products ran on our kernels, {} failed",
            counts.gguf,
            counts.failed
        );
    }
    if let Some(file) = &args.save_logits {
        logits::save(file, &about, &first)?;
    }
    let device = measure::device_name(&device);
    Report { about, device, dtype: "f32", feature: FEATURE, arms, gemms: candle_tilegemm::stats::gemms() }
        .print(args.json)
}

struct Model {
    llama: ModelWeights,
    device: Device,
    vocabulary: u32,
    /// Products with quantised weights of one pass.
    #[cfg_attr(not(feature = "interpose-kernels"), allow(dead_code))]
    products: u64,
}

impl Model {
    /// The model, and its name.
    fn load(args: &Args, device: &Device) -> Result<(Self, String)> {
        let shapes = if args.config == "8b" { &file::LLAMA_8B } else { &file::TINY };
        let (path, name) = match &args.gguf {
            Some(path) if args.write => (path.clone(), format!("quantized_llama {}, random blocks", args.config)),
            Some(path) => (path.clone(), format!("quantized_llama {}", path.display())),
            None => {
                let file = format!("tilegemm-{}-{}.gguf", args.config, std::process::id());
                (std::env::temp_dir().join(file), format!("quantized_llama {}, random blocks", args.config))
            }
        };
        let is_ours = args.gguf.is_none();
        if is_ours || args.write {
            file::write(&path, shapes).with_context(|| format!("cannot write {}", path.display()))?;
        }
        let load = || -> Result<Self> {
            let mut reader = BufReader::new(File::open(&path)?);
            let content = Content::read(&mut reader)?;
            let vocabulary =
                content.tensor_infos.get("token_embd.weight").context("no token_embd.weight")?.shape.dims()[0];
            // Matrices but the embedding, which is a product where no output.weight is.
            let matrices = content.tensor_infos.values().filter(|tensor| tensor.shape.rank() == 2).count() as u64;
            let products = matrices - u64::from(content.tensor_infos.contains_key("output.weight"));
            let llama = ModelWeights::from_gguf(content, &mut reader, device)?;
            Ok(Self { llama, device: device.clone(), vocabulary: vocabulary as u32, products })
        };
        let model = load().with_context(|| format!("cannot read {} as a llama", path.display()));
        if is_ours {
            std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
        // The name is the same whether the file is written or read again.
        let name = if args.gguf.is_some() { format!("quantized_llama {}", path.display()) } else { name };
        Ok((model?, name))
    }

    /// The tokens of each sequence: all runs have the same ones, so that logits can be compared.
    fn tokens(&self, args: &Args) -> Vec<Vec<u32>> {
        let token = |i: u32| i.wrapping_mul(2_654_435_761) % self.vocabulary;
        let sequence = |s: u32| (0..args.prompt + args.decode).map(|i| token(s * 7919 + i)).collect();
        (0..args.sequences).map(sequence).collect()
    }

    /// The logits behind `tokens` of each sequence, which begin at `offset`.
    fn forward(&mut self, tokens: &[Vec<u32>], [offset, end]: [usize; 2]) -> Result<Tensor> {
        let part: Vec<&[u32]> = tokens.iter().map(|sequence| &sequence[offset..end]).collect();
        let input = Tensor::new(part, &self.device)?;
        Ok(self.llama.forward(&input, offset)?.flatten_all()?.unsqueeze(0)?)
    }

    /// Prefill with the first tokens, then a decode step for each token after them. A pass with offset 0 forgets the passes before.
    fn run(&mut self, tokens: &[Vec<u32>], prompt: u32) -> Result<Run> {
        let (prompt, length) = (prompt as usize, tokens[0].len());
        let mut logits = Vec::new();
        self.device.synchronize()?;
        let start = Instant::now();
        // The model takes no prompts of several sequences: their last rows are not contiguous.
        let first = if tokens.len() == 1 { 0 } else { prompt - 1 };
        for token in 0..first {
            self.forward(tokens, [token, token + 1])?;
        }
        logits.push(self.forward(tokens, [first, prompt])?);
        self.device.synchronize()?;
        let prefill = start.elapsed().as_secs_f64();
        let start = Instant::now();
        for step in prompt..length {
            logits.push(self.forward(tokens, [step, step + 1])?);
        }
        self.device.synchronize()?;
        Ok(Run { times: (prefill, start.elapsed().as_secs_f64()), logits })
    }
}
