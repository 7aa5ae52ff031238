//! An UNMODIFIED qwen3_moe of candle-transformers, and a block like Mixtral's that is moved to our layer, with seeded random weights.
//!
//! The line `use candle_tilegemm` of qwen3.rs brings our kernels in. The model knows nothing of this crate. The feature `interpose` gives our
//! kernels the dense products, and the interposer is off and on in one run. With the feature `interpose-kernels` the experts run on our
//! kernels in every run; stock is a build without that feature. `--save-logits` and `--compare` compare the logits of two builds.
//!
//! ```sh
//! cargo run -p candle-tilegemm-examples --bin moe                                               # tiny, on the CPU
//! cargo run -p candle-tilegemm-examples --bin moe --features cuda,sm90,cutile,interpose -- \
//!   --config full --prompt 1024 --decode 32 --save-logits stock.safetensors
//! cargo run -p candle-tilegemm-examples --bin moe --features cuda,sm90,cutile,interpose-kernels -- \
//!   --config full --prompt 1024 --decode 32 --compare stock.safetensors
//! cargo run -p candle-tilegemm-examples --bin moe --features cuda,sm90,cutile,experts,interpose -- --model fused \
//!   --config full --prompt 1024 --decode 32 --compare stock.safetensors
//! cargo run -p candle-tilegemm-examples --bin moe --features cuda,sm90,experts -- --model layer --config full
//! cargo run -p candle-tilegemm-examples --bin moe --features cuda,sm90,experts -- --model mixtral --config full
//! ```
//!
//! Qwen3-30B-A3B needs a GPU with 80 GB.

mod arms;
mod fused;
mod layer;
mod logits;
#[path = "../llama/measure.rs"]
mod measure;
mod mixtral;
#[path = "../embed/notice.rs"]
mod notice;
mod qwen3;
mod report;
mod shapes;
#[path = "../../cli/src/bench/weights.rs"]
mod weights;

use anyhow::{anyhow, ensure, Result};
use candle::{DType, Device};
use clap::Parser;
use std::path::PathBuf;

/// Prefill and decode of a qwen3_moe, stock and through candle-tilegemm; or a block of Mixtral's, by a loop over experts and by our layer.
#[derive(Parser)]
struct Args {
    /// qwen3: an unmodified model. fused: the model with `nn::moe::FusedMoe` for its layer of experts. layer: one layer of its experts, candle's and ours. mixtral: one block, moved to our layer.
    #[arg(long, default_value = "qwen3", value_parser = ["qwen3", "fused", "layer", "mixtral"])]
    model: String,
    /// full: Qwen3-30B-A3B, and a block of Mixtral 8x7B.
    #[arg(long, default_value = "tiny", value_parser = ["tiny", "full"])]
    config: String,
    /// Layers of qwen3, in place of all.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,
    /// Tokens in the prompt. On a GPU candle's sort takes up to 1024 tokens with 8 experts each.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Tokens to decode after the prompt.
    #[arg(long, default_value_t = 16)]
    decode: u32,
    /// f32, f16 or bf16; bf16 on a GPU and f32 on the CPU unless given. On a GPU candle's experts take 16-bit types alone.
    #[arg(long, value_parser = ["f32", "f16", "bf16"])]
    dtype: Option<String>,
    /// The CPU draws the weights of the full config, too, so that a GPU has the weights of a run on the CPU. Takes minutes for all layers.
    #[arg(long)]
    weights_by_cpu: bool,
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

impl Args {
    fn is_tiny(&self) -> bool {
        self.config == "tiny"
    }
}

fn main() -> Result<()> {
    if std::env::var_os("RUST_LOG").is_some() {
        tracing_subscriber::fmt().with_env_filter(tracing_subscriber::EnvFilter::from_default_env()).init();
    }
    let args = Args::parse();
    let device = open()?;
    let dtype = match args.dtype.as_deref() {
        Some("f16") => DType::F16,
        Some("f32") => DType::F32,
        None if device.is_cpu() => DType::F32,
        _ => DType::BF16,
    };
    ensure!(device.is_cpu() || dtype != DType::F32, "on a GPU candle's experts take f16 and bf16");
    if args.model == "mixtral" {
        return mixtral::run(&args, dtype, &device);
    }
    match args.model.as_str() {
        "layer" => layer::run(&args, dtype, &device),
        _ => qwen3::run(&args, dtype, &device),
    }
}

/// candle picks its layer of experts at compile time, and the layer of a build with CUDA does not run on the CPU.
fn open() -> Result<Device> {
    if !cfg!(feature = "cuda") {
        return Ok(Device::Cpu);
    }
    let hint = "without the feature `cuda` this example runs on the CPU";
    Device::new_cuda(0).map_err(|error| anyhow!("no CUDA device ({}); {hint}", notice::text(&error)))
}
